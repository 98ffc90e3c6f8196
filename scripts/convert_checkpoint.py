"""Convert a checkpoint of another code base into a folder that Hugging Face's Auto classes load.

The layout is found by the names of the weights. What weights cannot tell, such as the number of heads, is given by
--config. Vocabularies (a JSON file {token: id}, a tokenizer's JSON file, one token a line, or a dictionary of fairseq)
become the tokenizer.
"""

import json
import sys
from dataclasses import dataclass, field
from typing import Any

from _imports import importing

with importing():
    from transformers.utils.logging import disable_progress_bar

    from hf_vanilla_transformer.cli.options import argument_parser, one_line_errors
    from hf_vanilla_transformer.conversion import LAYOUTS, Conversion, convert_checkpoint

EXAMPLES = "One example a layout:\n\n" + "\n".join(
    f"    {layout.name}: {layout.description}\n"
    f"        python scripts/convert_checkpoint.py --output_dir converted --source {layout.example}\n"
    for layout in LAYOUTS.values()
)


@dataclass
class Arguments:
    """What to convert, and where to put it."""

    source: str = field(
        metadata={
            "help": "File of weights (.safetensors, or one of torch.save), a folder with it, or its name on the Hub."
        }
    )
    output_dir: str | None = field(default=None, metadata={"help": "Folder of the converted model; new or empty."})
    layout: str | None = field(
        default=None, metadata={"help": f"Whose weights they are, if not to be found out: {', '.join(LAYOUTS)}."}
    )
    config: list[str] = field(
        default_factory=list,
        metadata={"help": "Fields of the configuration: encoder_attention_heads=8 ...", "action": "extend"},
    )
    source_vocabulary: str | None = field(default=None, metadata={"help": "File of the source side's tokens."})
    target_vocabulary: str | None = field(
        default=None, metadata={"help": "File of the target side's tokens; by default the same."}
    )
    rename: list[str] = field(
        default_factory=list,
        metadata={
            "help": "Beginnings of keys to replace first: old=new ... What weights do not tell is then asked for.",
            "action": "extend",
        },
    )
    first_position: int | None = field(
        default=None,
        metadata={"help": "Row of the stored tables of positions that the first token has; asked for where unknown."},
    )
    unbiased_norms: bool | None = field(
        default=None,
        metadata={
            "help": "Whether norms divide by torch.std (true) or are torch.nn.LayerNorm (false); asked for likewise."
        },
    )
    patched: bool = field(
        default=False,
        metadata={
            "help": "The code that trained the weights has none of the layout's known defects.",
            "aliases": ["--repaired"],
        },
    )
    encoder_only: bool = field(default=False, metadata={"help": "Convert the encoder alone."})
    dry_run: bool = field(default=False, metadata={"help": "Print the mapping and write nothing."})


def main(argv: list[str] | None = None) -> None:
    """Convert and save; a mistake in the input ends with one line on standard error and status 2."""
    parser = argument_parser(Arguments, f"{__doc__}\n{EXAMPLES}")
    if not sys.stderr.isatty():
        disable_progress_bar()
    with one_line_errors(parser):
        (arguments,) = parser.parse_args_into_dataclasses(argv)
        conversion = convert_checkpoint(
            arguments.source,
            arguments.output_dir,
            arguments.layout,
            arguments.source_vocabulary,
            arguments.target_vocabulary,
            rename=arguments.rename,
            first_position=arguments.first_position,
            unbiased_norms=arguments.unbiased_norms,
            patched=arguments.patched,
            encoder_only=arguments.encoder_only,
            dry_run=arguments.dry_run,
            **_fields(arguments.config),
        )
        print(conversion.describe() if arguments.dry_run else _summary(conversion, arguments))


def _fields(texts: list[str]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in map(_field, texts):
        if fields.setdefault(name, value) != value:
            raise ValueError(f"--config {name} is given as {fields[name]!r} and as {value!r}; leave one out")
    return fields


def _field(text: str) -> tuple[str, Any]:
    """Return name and value of a field, the value as JSON has it or else as text."""
    name, separator, value = text.partition("=")
    if not separator:
        raise ValueError(f"--config {text} is not name=value; for example encoder_attention_heads=8")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _summary(conversion: Conversion, arguments: Arguments) -> str:
    parameters = sum(tensor.numel() for tensor in conversion.weights.values())
    what = "encoder" if arguments.encoder_only else "model"
    lines = [f"{arguments.output_dir}: {what} of layout {conversion.layout.name}, {parameters:,} weights"]
    if conversion.tokenizer is None:
        lines.append("no tokenizer: give --source_vocabulary and --target_vocabulary for one")
    return "\n".join(lines + [f"note: {note}" for note in conversion.notes])


if __name__ == "__main__":
    main()
