"""Train `MarianMTModel` with `Seq2SeqTrainer` on the text of a recipe for a given time, and score it.

    python scripts/marian_baseline.py scripts/recipes/multi30k_narrow.yaml --minutes 60 --output_dir runs/marian -- \
        --train_source_file train.en --train_target_file train.de --test_source_file test.en --test_target_file test.de

Text, vocabulary, shape and dropout come from the recipe; options after -- are those of `train`. Everything else is the
default of `Seq2SeqTrainingArguments` or, with --settings best, the best that its options allow: batches grouped by
length, label smoothing, and warm-up to a higher learning rate with cosine decay to zero. A few steps are timed first,
since the schedule needs the total number of steps.

The output folder gets the trained model and results.json.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

from _imports import importing

with importing():
    from transformers import (
        DataCollatorForSeq2Seq,
        MarianConfig,
        MarianMTModel,
        Seq2SeqTrainer,
        Seq2SeqTrainingArguments,
        set_seed,
    )

    from benchmarks.baselines import baseline_fields
    from hf_vanilla_transformer.cli import train
    from hf_vanilla_transformer.cli.options import Number, OneLineParser, one_line_errors
    from hf_vanilla_transformer.data.arguments import NONE
    from hf_vanilla_transformer.files import atomic_write
    from hf_vanilla_transformer.inference.translation import translate
    from hf_vanilla_transformer.presets import preset_config
    from hf_vanilla_transformer.registration import register
    from hf_vanilla_transformer.training.arguments import parse_overrides
    from hf_vanilla_transformer.training.auto_preset import resolve_auto_preset
    from hf_vanilla_transformer.training.metrics import METRIC_NAMES, translation_scores
    from hf_vanilla_transformer.training.setup import set_generation_defaults, tokenize_splits
    from hf_vanilla_transformer.training.text_splits import TextSplits, load_text
    from hf_vanilla_transformer.training.tokenizer import load_or_train_tokenizer

    register()

SETTINGS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "best": {
        "per_device_train_batch_size": 128,
        "train_sampling_strategy": "group_by_length",
        "learning_rate": 1e-3,
        "warmup_steps": 0.1,
        "lr_scheduler_type": "cosine",
        "label_smoothing_factor": 0.1,
        "adam_beta2": 0.98,
    },
}

# Timed steps, and the slower steps before them.
TIMED_STEPS, FIRST_STEPS = 20, 5


def main(argv: list[str] | None = None) -> None:
    """Train and score; invalid input exits with status 2 and one line on standard error."""
    parser = OneLineParser(description=__doc__)
    parser.usage = "%(prog)s RECIPE --minutes N --output_dir FOLDER [options] [-- options of train]"
    parser.add_argument("recipe", help="Argument file of `train`.")
    parser.add_argument("--minutes", type=Number(float), required=True, help="Training time.")
    parser.add_argument(
        "--settings", choices=SETTINGS, default="defaults", help="Trainer settings (default: defaults)."
    )
    parser.add_argument("--batch_size", type=Number(int), help="Sentences per batch (default: from --settings).")
    parser.add_argument("--output_dir", required=True, help="Folder of the model and the results.")
    parser.add_help_options()
    with one_line_errors(parser, advice="repeat the command to start over"):
        words = sys.argv[1:] if argv is None else argv
        end = words.index("--") if "--" in words else len(words)
        arguments = parser.parse_args(words[:end])
        settings = dict(SETTINGS[arguments.settings])
        if arguments.batch_size:
            settings["per_device_train_batch_size"] = arguments.batch_size
        options = OneLineParser(parser.prog)
        train.add_arguments(options)
        own = ["--output_dir", arguments.output_dir]
        with train.training_arguments(train.parse(options, [arguments.recipe, *words[end + 1 :], *own])) as recipe:
            results = train_marian(*recipe, arguments.minutes, settings)
        with atomic_write(Path(arguments.output_dir, "results.json")) as file:
            file.write(f"{json.dumps(results, indent=2)}\n".encode())
        print("\n".join(f"{name:<24} {value:g}" for name, value in results.items()))


def train_marian(
    model_args: Any, data_args: Any, args: Any, minutes: float, settings: dict[str, Any]
) -> dict[str, float]:
    """Train, save the model, and return steps, minutes and scores.

    Of the recipe's training arguments, only output folder, seed, bfloat16 and decoding are used.
    """
    text = load_text(data_args)
    model_args, data_args, args, _ = resolve_auto_preset(model_args, data_args, args, text)
    args.augment = NONE
    tokenizer = load_or_train_tokenizer(model_args, args, text)
    overrides = {"vocab_size": len(tokenizer), **parse_overrides(model_args.config_overrides)}
    config = preset_config(model_args.preset, **overrides)
    pairs = tokenize_splits(text, tokenizer, config, data_args, args).train

    def train_steps(steps: int) -> tuple[Any, float]:
        set_seed(args.seed)
        model = MarianMTModel(MarianConfig(**baseline_fields(config)))
        trainer = Seq2SeqTrainer(
            model=model,
            args=Seq2SeqTrainingArguments(
                args.output_dir,
                max_steps=steps,
                seed=args.seed,
                bf16=args.bf16,
                use_cpu=args.use_cpu,
                disable_tqdm=args.disable_tqdm,
                save_strategy="no",
                report_to="none",
                **settings,
            ),
            train_dataset=pairs,
            data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
        )
        start = time.perf_counter()
        trainer.train()
        return model, time.perf_counter() - start

    _, first = train_steps(FIRST_STEPS)
    _, timed = train_steps(FIRST_STEPS + TIMED_STEPS)
    steps = max(1, int(60 * minutes * TIMED_STEPS / max(timed - first, 1e-3)))
    model, seconds = train_steps(steps)
    set_generation_defaults(model, args)
    model.save_pretrained(args.output_dir)
    return {"steps": steps, "minutes": seconds / 60, **scores(model, tokenizer, text, args.bleu_tokenize)}


def scores(model: Any, tokenizer: Any, text: TextSplits, tokenize: str | None) -> dict[str, float]:
    """Translate and score the validation and test pairs, where present."""
    results: dict[str, float] = {}
    for split in ("validation", "test"):
        if (pairs := getattr(text, split)) is not None:
            translations = [best.text for best, *_ in translate(model.eval(), tokenizer, pairs["source"][:])]
            values = translation_scores(translations, pairs["target"][:], tokenize=tokenize, metrics=METRIC_NAMES)
            results |= {f"{split}_{key}": float(values[key]) for key in METRIC_NAMES}
    return results


if __name__ == "__main__":
    main()
