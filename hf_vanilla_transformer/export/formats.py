"""Export a saved model: one function for all formats."""

import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedTokenizerBase

from ..files import atomic_folder, check_output_folder
from ..inference.ctranslate2 import check_settings
from ..model.hub_code_vanilla_transformer import MODEL_TYPE
from ..options import POSITIVE, check_range
from ..pretrained.cards import LIBRARY, write_derived_card
from ..pretrained.languages import Direction, example_direction
from ..pretrained.loading import has_tokenizer, load_model, load_tokenizer
from .ctranslate2 import write_ctranslate2
from .marian import write_marian
from .onnx import write_onnx
from .page import write_page
from .transformers_js import transformers_js_use, write_transformers_js


def _write_ctranslate2(model: Any, folder: Path, tokenizer: PreTrainedTokenizerBase | None, **options: Any) -> None:
    check_settings(model.generation_config.to_dict())
    write_ctranslate2(model, folder, tokenizer, **options)
    _save_settings(model, folder, tokenizer)


def _write_onnx(model: Any, folder: Path, tokenizer: PreTrainedTokenizerBase | None, **options: Any) -> None:
    check_settings(model.generation_config.to_dict(), "onnx_translate.py")
    write_onnx(model, folder, **options).save_pretrained(folder)
    _save_settings(model, folder, tokenizer)


def _write_transformers_js(
    model: Any, folder: Path, tokenizer: PreTrainedTokenizerBase | None, **options: Any
) -> None:
    check_settings(model.generation_config.to_dict(), "transformers.js")
    write_transformers_js(model, folder, tokenizer, **options)


def _write_page(model: Any, folder: Path, tokenizer: PreTrainedTokenizerBase | None, **options: Any) -> None:
    check_settings(model.generation_config.to_dict(), "transformers.js")
    write_page(model, folder, tokenizer, **options)


def _write_marian(model: Any, folder: Path, tokenizer: PreTrainedTokenizerBase | None) -> None:
    write_marian(model, folder)
    _save_settings(model, folder, tokenizer)


def _save_settings(model: Any, folder: Path, tokenizer: PreTrainedTokenizerBase | None) -> None:
    model.generation_config.save_pretrained(folder)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)


class ExportFormat(NamedTuple):
    """A format to export to.

    Attributes:
        write: Writes a model and its tokenizer into a folder.
        quantizations: Weight types to choose from.
        options: Names of its other options.
        library: Library that reads it, as the Hub names it.
        use: Takes a model's name and, if it translates several directions, one of them; returns how to use it, as
            Markdown for its card. None if `write` writes a card of its own.
    """

    write: Callable[..., None]
    quantizations: tuple[str, ...] = ("float32", "int8")
    options: tuple[str, ...] = ("max_positions",)
    library: str = LIBRARY
    use: Callable[[str, Direction | None], str] | None = None


def _command(command: str, title: str, direction: Direction | None) -> str:
    """Return how to use a model by a command."""
    words = [*command.split(), "--model", title, "--input", "text.txt", "--output", "outputs.txt"]
    words += ["--source_lang", direction[0], "--target_lang", direction[1]] if direction else []
    return f"```sh\n{shlex.join(words)}\n```\n"


def _command_of_checkout(command: str, title: str, direction: Direction | None) -> str:
    return f"In a checkout of hf_vanilla_transformer:\n\n{_command(command, title, direction)}"


EXPORT_FORMATS = {
    "ctranslate2": ExportFormat(
        _write_ctranslate2,
        ("float32", "float16", "int8", "int8_float16"),
        library="ctranslate2",
        use=partial(_command, "vanilla-transformer translate --backend ctranslate2"),
    ),
    "onnx": ExportFormat(_write_onnx, use=partial(_command_of_checkout, "python scripts/onnx_translate.py")),
    "transformers.js": ExportFormat(_write_transformers_js, library="transformers.js", use=transformers_js_use),
    "page": ExportFormat(_write_page, options=("max_positions", "node_modules")),
    "marian": ExportFormat(_write_marian, (), (), "transformers", partial(_command, "vanilla-transformer translate")),
}


def export_model(
    name: str | Path, to: str, output_dir: str | Path, trust_remote_code: bool = False, **options: Any
) -> Path:
    """Export a saved model to another format, with its tokenizer and generation settings.

    Args:
        name: Folder of the model, or its name on the Hub. Without a tokenizer, the export translates only token ids.
        to: Target format, a key of `EXPORT_FORMATS`.
        output_dir: A new or empty folder; written completely or not at all.
        trust_remote_code: Whether to run Python code that comes with the tokenizer.
        **options: `quantization` ("float32" or "int8"; CTranslate2 also "float16" and "int8_float16"),
            `max_positions` and `node_modules`, for formats that take them; None means the format's default.

    Returns:
        The output folder.

    Raises:
        ValueError: The model cannot be loaded, is not of this package, or has a property that the format cannot
            express; the format or an option is unknown; or the folder is not empty.
    """
    if to not in EXPORT_FORMATS:
        raise ValueError(f"`to` {to} is unknown; use one of {', '.join(EXPORT_FORMATS)}")
    options = {option: value for option, value in options.items() if value is not None}
    target = EXPORT_FORMATS[to]
    for option, value in options.items():
        if option not in (("quantization", *target.options) if target.quantizations else target.options):
            raise ValueError(f"format {to} has no `{option}`; leave it out")
        if option == "quantization" and value not in target.quantizations:
            raise ValueError(f"`quantization` {value} is unknown; use one of {', '.join(target.quantizations)}")
    check_range(POSITIVE, max_positions=options.get("max_positions"))
    check_output_folder(output_dir)
    model, tokenizer = load_for_export(name, trust_remote_code)
    with atomic_folder(output_dir) as folder:
        target.write(model, folder, tokenizer, **options)
        if target.use:
            made = f"$sources, exported to {to}"
            relation = "quantized" if options.get("quantization", "float32") != "float32" else None
            title = Path(output_dir).resolve().name
            use = target.use(title, example_direction(tokenizer)) if tokenizer is not None else None
            write_derived_card(folder, title, made, [name], use, target.library, relation)
    return Path(output_dir)


def load_for_export(name: str | Path, trust_remote_code: bool = False) -> tuple[Any, PreTrainedTokenizerBase | None]:
    """Load a model of this package in float32, and its tokenizer if any; another model family is a ValueError."""
    model = load_model(name, dtype=torch.float32, trust_remote_code=trust_remote_code)
    if (model_type := model.config.model_type) != MODEL_TYPE:
        raise ValueError(
            f"model {name} cannot be exported: model_type is {model_type!r}, not {MODEL_TYPE!r}; use the "
            "exporter of its own family"
        )
    return model.eval(), load_tokenizer(name, trust_remote_code) if has_tokenizer(name) else None
