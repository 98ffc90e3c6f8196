"""Learning rates that fall from the top layers to the bottom ones (ULMFiT, Howard and Ruder 2018)."""

from typing import Any, cast

import torch
from torch import nn
from transformers import Seq2SeqTrainer

from .arguments import VanillaTransformerTrainingArguments
from .muon import MuonWithAdam


class LayerwiseTrainer(Seq2SeqTrainer):
    """`Seq2SeqTrainer` that with `args.layerwise_lr_decay` learns less in lower layers.

    The last layer of each side, final norms and the output have the whole learning rate; each layer below has
    `layerwise_lr_decay` times that of the one above, and the embeddings that of one more layer.
    """

    args: VanillaTransformerTrainingArguments

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """Make the optimizer, unless there is one, with a parameter group for each depth."""
        decay, is_new = getattr(self.args, "layerwise_lr_decay", 1.0), self.optimizer is None
        optimizer = super().create_optimizer(model)
        if decay == 1 or not is_new:
            return optimizer
        depths = layer_depths(cast(nn.Module, self.model if model is None else model))
        for part in optimizer.parts if isinstance(optimizer, MuonWithAdam) else [optimizer]:
            part.param_groups = [new for group in part.param_groups for new in _by_depth(group, depths, decay)]
        if isinstance(optimizer, MuonWithAdam):
            optimizer.join_groups()
        return optimizer


def layer_depths(model: nn.Module) -> dict[int, int]:
    """Count the layers above, by id of the parameter; parameters of no layer and no embedding are left out.

    Raises:
        ValueError: The encoder or the decoder has no list of layers.
    """
    depths: dict[int, int] = {}
    for side in ("encoder", "decoder"):
        module = cast(Any, model).get_encoder() if side == "encoder" else cast(Any, model).get_decoder()
        layers = next((each for each in module.modules() if isinstance(each, nn.ModuleList)), ())
        if not len(layers):
            raise ValueError(f"`layerwise_lr_decay` finds no layers in the {side} of {type(model).__name__}")
        below = [
            each
            for name, each in module.named_modules()
            # The norm after the embeddings, by our name and BART's.
            if isinstance(each, nn.Embedding) or name.endswith("layernorm_embedding")
        ]
        for above, level in enumerate([*reversed(layers), nn.ModuleList(below)]):
            for parameter in level.parameters():
                # A table that both sides share counts as that of the deeper one.
                depths[id(parameter)] = max(above, depths.get(id(parameter), 0))
    return depths


def _by_depth(group: dict[str, Any], depths: dict[int, int], decay: float) -> list[dict[str, Any]]:
    found: dict[int, list[nn.Parameter]] = {}
    for parameter in group["params"]:
        found.setdefault(depths.get(id(parameter), 0), []).append(parameter)
    return [group | {"params": found[depth], "lr": group["lr"] * decay**depth} for depth in sorted(found)]


__all__ = ["LayerwiseTrainer"]
