"""Options of the commands that load a model to translate or score with."""

from argparse import Namespace
from typing import Any

from .options import SWITCH, OneLineParser, add_trust_option, importing


def add_model_options(parser: OneLineParser) -> None:
    """Add the options of the model, and of where and in what precision it computes."""
    group = parser.add_argument_group("model")
    group.add_argument("--model", required=True, help="Model and its tokenizer: a folder or a name on the Hub.")
    group.add_argument("--device", help="cpu, cuda, cuda:1, mps, ... Default: a GPU, if any.")
    group.add_argument("--bf16", **SWITCH, help="Compute in bfloat16: faster on hardware that supports it.")
    add_trust_option(parser, group)


def load_model_and_tokenizer(arguments: Namespace) -> tuple[Any, Any]:
    """Return the model that these options ask for, and its tokenizer."""
    with importing():
        import torch

        from ..inference.translation import load
    dtype = torch.bfloat16 if arguments.bf16 else None
    return load(arguments.model, dtype, arguments.device, arguments.trust_remote_code)


__all__ = ["add_model_options", "load_model_and_tokenizer"]
