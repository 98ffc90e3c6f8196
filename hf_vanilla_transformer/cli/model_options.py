"""Options of the commands that load a model to translate or score with."""

from argparse import Namespace
from typing import Any

from .options import SWITCH, OneLineParser, add_trust_option, importing


def add_model_options(parser: OneLineParser, several: bool = False) -> None:
    """Add the options of the model, or of `several`, and of where and in what precision they compute."""
    group = parser.add_argument_group("model")
    what = "Model and its tokenizer: a folder or a name on the Hub"
    if several:
        group.add_argument("--model", required=True, nargs="+", help=f"{what}; several translate as an ensemble.")
    else:
        group.add_argument("--model", required=True, help=f"{what}.")
    group.add_argument("--source_lang", metavar="CODE", help="Source language, for a model of several directions.")
    group.add_argument("--target_lang", metavar="CODE", help="Target language, likewise.")
    add_compute_options(parser, group)


def add_compute_options(parser: OneLineParser, group: Any, default: str = "a GPU, if any") -> None:
    """Add the options of where and in what precision models compute."""
    group.add_argument("--device", help=f"cpu, cuda, cuda:1, mps, ... Default: {default}.")
    group.add_argument("--bf16", **SWITCH, help="Compute in bfloat16: faster on hardware that supports it.")
    add_trust_option(parser, group)


def load_model_and_tokenizer(arguments: Namespace) -> tuple[Any, Any]:
    """Return the model that these options ask for, an ensemble of several, and its tokenizer."""
    names = arguments.model
    is_one = isinstance(names, list) and len(names) == 1
    return load_by_name(names[0] if is_one else names, arguments)


def load_by_name(name: str | list[str], arguments: Namespace) -> tuple[Any, Any]:
    """Return a model of this name, where and in what precision these options say, and its tokenizer."""
    with importing():
        import torch

        from ..inference.translation import load
    dtype = torch.bfloat16 if arguments.bf16 else None
    return load(name, dtype, arguments.device, arguments.trust_remote_code)


def choose_languages(arguments: Namespace, tokenizer: Any) -> dict[str, Any]:
    """Return the languages that these options choose of the model's, for `translate_lines` and `score`."""
    with importing():
        from ..inference.languages import choose_pair
    source, target = choose_pair(tokenizer, arguments.source_lang, arguments.target_lang)
    return {"src_lang": source, "tgt_lang": target}
