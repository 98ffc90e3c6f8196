r"""Convert a checkpoint from another code base into a folder that Hugging Face's Auto classes load.

The layout is inferred from the names of the weights. --config sets what they do not determine, such as the number of
heads. Vocabularies (a JSON file {token: id}, a tokenizer's JSON file, a file with one token per line, or a fairseq
dictionary) become the tokenizer. For example:

    vanilla-transformer convert --source Helsinki-NLP/opus-mt-en-de --output_dir opus-mt-en-de
    vanilla-transformer convert --source seq2seq.pt --config encoder_attention_heads=8 --dry_run
    vanilla-transformer convert --source checkpoint_best.pt --source_vocabulary dict.de.txt \
        --target_vocabulary dict.en.txt --output_dir converted
"""

import json
import re
from argparse import Namespace
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from .options import SWITCH, OneLineParser, importing, quiet_unless_terminal


def add_arguments(parser: OneLineParser) -> None:
    parser.more_description = _layouts
    files = parser.add_argument_group("input and output")
    source = "Weight file (.safetensors, or saved by torch.save), a folder that holds one, or a name on the Hub."
    files.add_argument("--source", required=True, help=source)
    files.add_argument("--output_dir", metavar="FOLDER", help="Folder for the converted model; new or empty.")
    files.add_argument("--dry_run", **SWITCH, help="Print the weight mapping and write nothing.")
    files.add_argument("--source_vocabulary", metavar="FILE", help="Source vocabulary.")
    files.add_argument("--target_vocabulary", metavar="FILE", help="Target vocabulary. Default: same as source.")
    model = parser.add_argument_group("model")
    model.add_argument("--layout", help="Layout of the checkpoint (--help-all lists them). Default: inferred.")
    config = "Configuration fields, such as encoder_attention_heads=8."
    model.add_argument("--config", nargs="+", action="extend", default=[], metavar="FIELD=VALUE", help=config)
    model.add_argument("--encoder_only", **SWITCH, help="Convert only the encoder.")
    patched = "The training code was patched: accept layouts otherwise refused for its defects."
    model.add_argument("--patched", "--repaired", **SWITCH, help=parser.advanced(patched))
    other = parser.add_argument_group("other layouts")
    other.add_argument(
        "--rename",
        nargs="+",
        action="extend",
        default=[],
        metavar="OLD=NEW",
        help=parser.advanced(
            "Key prefixes to replace first, with {i} for the layer index, or a file with one pair per line. Settings "
            "that the weights do not determine are then required."
        ),
    )
    first_position = "Row of the stored position table used for the first token."
    other.add_argument("--first_position", type=int, help=parser.advanced(first_position))
    unbiased_norms = "Norms divide by torch.std (true) or are torch.nn.LayerNorm (false)."
    other.add_argument("--unbiased_norms", **{**SWITCH, "default": None}, help=parser.advanced(unbiased_norms))


def _layouts() -> str:
    with importing():
        from ..conversion import LAYOUTS
    return "\nOne example per layout:\n\n" + "\n".join(
        f"    {layout.name}: {layout.description}\n"
        f"        vanilla-transformer convert --output_dir converted --source {layout.example}\n"
        for layout in LAYOUTS.values()
    )


def run(arguments: Namespace) -> None:
    with importing():
        from ..conversion import convert_checkpoint
        from ..conversion.fields import check_field_names
    quiet_unless_terminal()
    fields = _fields(arguments.config)
    with _config_options(fields):
        # Check before the call, so that its own keyword arguments do not pass as fields.
        check_field_names(fields)
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
            **fields,
        )
    print(conversion.describe() if arguments.dry_run else _summary(conversion, arguments))


@contextmanager
def _config_options(names: Iterable[str]) -> Iterator[None]:
    """In messages, turn `name` of these fields, and `field=value` of any, into --config options."""
    from ..conversion.fields import own_fields

    try:
        yield
    except ValueError as error:
        field = rf"`(?:(?:{'|'.join(own_fields())})=[^`]+|{'|'.join(map(re.escape, names)) or '(?!)'})`"
        message = re.sub(rf"{field}(?: {field})*", lambda match: f"--config {match[0].replace('`', '')}", str(error))
        raise ValueError(message) from error


def _fields(texts: list[str]) -> dict[str, Any]:
    """Parse FIELD=VALUE texts; a value that is not JSON is a string."""
    fields: dict[str, Any] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not (name and separator):
            raise ValueError(f"--config {text} is not name=value; for example encoder_attention_heads=8")
        with suppress(ValueError):
            value = json.loads(value)
        if fields.setdefault(name, value) != value:
            raise ValueError(f"--config {name} is given as both {fields[name]!r} and {value!r}; leave one out")
    return fields


def _summary(conversion: Any, arguments: Namespace) -> str:
    parameters = sum(tensor.numel() for tensor in conversion.weights.values())
    what = "encoder" if arguments.encoder_only else "model"
    lines = [f"{arguments.output_dir}: {what} of layout {conversion.layout.name}, {parameters:,} weights"]
    if conversion.tokenizer is None:
        lines.append("no tokenizer: give --source_vocabulary and --target_vocabulary for one")
    return "\n".join(lines + [f"note: {note}" for note in conversion.notes])
