"""Average the weights of a run's checkpoints, as in section 6.1 of Attention Is All You Need.

The averaged model usually translates better than the last checkpoint, at no cost. For example:

    vanilla-transformer average --run_dir my-model --last 5 --output_dir my-model-averaged
    vanilla-transformer average --checkpoints run/checkpoint-800 run/checkpoint-900 --output_dir averaged

--output_dir then holds model, tokenizer and card; configuration and generation settings are the last checkpoint's.
"""

from argparse import Namespace
from pathlib import Path

from ..files import atomic_folder, check_output_folder
from .options import Number, OneLineParser, add_trust_option, importing, quiet_unless_terminal

TOKENIZER_FILE = "tokenizer_config.json"


def add_arguments(parser: OneLineParser) -> None:
    inputs = parser.add_argument_group("checkpoints, one of")
    inputs.add_argument("--run_dir", metavar="FOLDER", help="Average the last checkpoints of this run.")
    inputs.add_argument(
        "--checkpoints", nargs="+", default=[], metavar="FOLDER", help="Average these folders, oldest first."
    )
    parser.add_argument_group("with --run_dir").add_argument(
        "--last", type=Number(int), default=5, help="Number of checkpoints (default: 5, as in the paper)."
    )
    add_trust_option(parser, inputs)
    output = parser.add_argument_group("output")
    output.add_argument("--output_dir", required=True, metavar="FOLDER", help="Output folder; new or empty.")


def run(arguments: Namespace) -> None:
    with importing():
        from ..pretrained.cards import pipeline_use, write_derived_card
        from ..pretrained.languages import example_direction
        from ..pretrained.loading import load_tokenizer
        from ..training.checkpoints import average_checkpoints, last_checkpoints
    quiet_unless_terminal()
    if bool(arguments.checkpoints) == bool(arguments.run_dir):
        raise ValueError("give either --checkpoints or --run_dir")
    checkpoints = [Path(name) for name in arguments.checkpoints]
    if arguments.run_dir:
        checkpoints = last_checkpoints(arguments.run_dir, arguments.last)
    for folder in checkpoints:
        _check_weights(folder)
    output = check_output_folder(arguments.output_dir)
    tokenizer = load_tokenizer(_tokenizer_folder(checkpoints[-1]), arguments.trust_remote_code)
    model = average_checkpoints(checkpoints, arguments.trust_remote_code)
    with atomic_folder(output) as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        made, sources = "The average of $sources", checkpoints
        if arguments.run_dir:
            made, sources = f"The average of {len(checkpoints)} checkpoints of $sources", [Path(arguments.run_dir)]
        title = output.resolve().name
        write_derived_card(folder, title, made, sources, pipeline_use(title, example_direction(tokenizer)))
    print(f"{output}: the average of {', '.join(map(str, checkpoints))}")


def _check_weights(checkpoint: Path) -> None:
    """Raise a ValueError unless the folder holds intact safetensors weights."""
    from ..weight_files import check_safetensors

    files = list(checkpoint.glob("model*.safetensors"))
    if not files:
        raise ValueError(f"{checkpoint} holds no model.safetensors; only safetensors checkpoints can be averaged")
    for file in files:
        check_safetensors(file, remedy="leave this checkpoint out")


def _tokenizer_folder(checkpoint: Path) -> Path:
    """Return the folder that holds the tokenizer: the checkpoint or its run."""
    for folder in (checkpoint, checkpoint.resolve().parent):
        if (folder / TOKENIZER_FILE).is_file():
            return folder
    raise ValueError(f"neither {checkpoint} nor its run holds {TOKENIZER_FILE}; copy the tokenizer's files there")
