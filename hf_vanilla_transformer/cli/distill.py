r"""Distill one or several models: train a small, fast student on their translations, and export it.

The student learns from the training pairs and the teacher's translations of their sources. By default it has the
preset `student`, narrower for a small teacher, and the teacher's tokenizer. All options of `train` apply to it:

    vanilla-transformer distill --model my-model --train_source_file train.en --train_target_file train.de \
        --validation_split_size 1000 --output_dir my-student
    vanilla-transformer translate --backend ctranslate2 --model my-student/ctranslate2 --input test.en

--output_dir then holds the output of `train`, the translations, which the same command reuses, the student exported to
CTranslate2 in int8, and distillation.json: scores, speed and size of teacher and student on the test pairs, or else
the validation pairs. --train_weight 0 trains on the teacher's translations alone. A .yaml or .json file of options may
come first.
"""

from argparse import Namespace
from collections.abc import Sequence

from ..options import BatchOptions, SearchOptions
from . import train
from .options import Number, OneLineParser, add_options, importing, out_of_memory

parse = train.parse


def add_arguments(parser: OneLineParser) -> None:
    teacher = parser.add_argument_group("teacher")
    model = "Teacher and tokenizer: a folder or a name on the Hub; several teach as an ensemble."
    teacher.add_argument("--model", required=True, nargs="+", help=model)
    add_options(
        parser,
        teacher,
        SearchOptions,
        "num_beams",
        "num_hypotheses",
        num_beams={"help": "Beams of the teacher. Default: the model's setting."},
        num_hypotheses={"help": "Translations per source to learn from."},
    )
    teacher.add_argument(
        "--teacher_max_tokens",
        type=Number(int),
        default=BatchOptions.max_tokens,
        help=parser.advanced(f"Source tokens x beams per batch of the teacher (default: {BatchOptions.max_tokens})."),
    )
    train.add_arguments(parser)
    parser.usage = "%(prog)s [options.yaml] --model MODEL [options]"


def run(arguments: Namespace) -> None:
    with importing():
        from ..inference.translation import load
        from ..training.arguments import TOKENIZER_FIELDS
        from ..training.distillation import distill
    _choose_student(arguments, TOKENIZER_FIELDS)
    names = arguments.model if len(arguments.model) > 1 else arguments.model[0]
    with train.training_arguments(arguments) as (model_args, data_args, args):
        teacher, tokenizer = load(names, device=str(args.device), trust_remote_code=model_args.trust_remote_code)
        with out_of_memory(f"lower --teacher_max_tokens {arguments.teacher_max_tokens} or --max_tokens"):
            distill(
                teacher,
                tokenizer,
                model_args,
                data_args,
                args,
                num_hypotheses=arguments.num_hypotheses,
                num_beams=arguments.num_beams,
                max_tokens=arguments.teacher_max_tokens,
            )


def _choose_student(arguments: Namespace, tokenizer_fields: Sequence[str]) -> None:
    """Fill in preset and tokenizer, unless given by options or by a model to start from."""
    if arguments.model_name_or_path is not None:
        return
    arguments.preset = arguments.preset or "student"
    options = (getattr(arguments, name) for name in ("tokenizer_name_or_path", *tokenizer_fields))
    if all(value in (None, False) for value in options):
        arguments.tokenizer_name_or_path = arguments.model[0]
