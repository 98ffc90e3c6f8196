"""Carry a trained model out to where it serves.

An example of each format:

    python scripts/export_model.py --model my-model --to ctranslate2 --quantization int8 --output_dir my-model-ct2
    python scripts/translate.py --backend ctranslate2 --model my-model-ct2 --input test.en --output test.de

    python scripts/export_model.py --model my-model --to onnx --output_dir my-model-onnx
    python scripts/onnx_translate.py --model my-model-onnx --input test.en --output test.de

    python scripts/export_model.py --model my-model --to marian --output_dir my-model-marian
    python scripts/translate.py --model my-model-marian --input test.en --output test.de

The folder then also holds the tokenizer and the generation settings. A property of the model that a format cannot
express is named, and nothing is written.
"""

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from _imports import importing

with importing():
    from transformers.utils.logging import disable_progress_bar

    import hf_vanilla_transformer  # noqa: F401  # registers the model with the Auto classes
    from hf_vanilla_transformer.cli.options import argument_parser, one_line_errors
    from hf_vanilla_transformer.export import export_model
    from hf_vanilla_transformer.export.ctranslate2 import QUANTIZATIONS


@dataclass
class Arguments:
    """What to write, and how."""

    model: str = field(metadata={"help": "Folder of the model and its tokenizer, or their name on the Hub."})
    to: Literal["ctranslate2", "onnx", "marian"] = field(metadata={"help": "Format: ctranslate2, onnx or marian."})
    output_dir: str = field(metadata={"help": "Folder of the result; new or empty."})
    quantization: str | None = field(
        default=None,
        metadata={"help": f"ctranslate2: weights as {', '.join(QUANTIZATIONS)}. Default: float32."},
    )
    max_positions: int | None = field(
        default=None,
        metadata={"help": "Most tokens of a source or an output, with sinusoids. Default: max_position_embeddings."},
    )


def main(argv: list[str] | None = None) -> None:
    """Export; a mistake in the input ends with one line on standard error and status 2."""
    parser = argument_parser(Arguments, __doc__)
    if not sys.stderr.isatty():
        disable_progress_bar()
    with one_line_errors(parser):
        (arguments,) = parser.parse_args_into_dataclasses(argv)
        options = {name: getattr(arguments, name) for name in ("quantization", "max_positions")}
        folder = export_model(arguments.model, arguments.to, arguments.output_dir, **options)
        size = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
        print(f"{folder}: {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
