"""Keys of Transformers written by hand, layer by layer, and the rules that they give."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ..rules import (
    EMBEDDING_NAMES,
    STACKS,
    Rule,
    Transform,
    attention_rules,
    linear_rules,
    position_rules,
    sublayer_names,
    unchanged,
)

# Of both stacks, in the order of their sub-layers.
SublayerKeys = Mapping[str, tuple[str, ...]]


def numbered_sublayers(key: str, start: int) -> SublayerKeys:
    """Return keys with `{n}` counted from `start`: two sub-layers of the encoder, three of the decoder."""
    return {stack: tuple(key.format(n=n) for n, _ in enumerate(sublayer_names(stack), start)) for stack in STACKS}


class StackKeys(NamedTuple):
    """Keys of the parts of a model; in those outside of layers, `{stack}` and `{side}` stand for the stack.

    Attributes:
        embedding: The token embedding.
        positions: The stored position table; "" for none.
        norms: The norms within a layer.
        attentions: The attentions within a layer.
        projections: Query, key, value and output within an attention.
        feed_forward: The feed-forward layers within a layer; `{n}` is 1 or 2.
        output: The output projection.
        sides: What `{side}` stands for.
        layers: The layers.
        final_norm: The norm that ends a stack; "" for none.
        norm_parts: Weight and bias within a norm.
        norm_transforms: Their transforms.
        optional_biases: Whether the projections of attentions may have no biases.
    """

    embedding: str
    positions: str
    norms: SublayerKeys
    attentions: SublayerKeys
    projections: tuple[str, ...]
    feed_forward: str
    output: str
    sides: tuple[str, str] = STACKS
    layers: str = "{stack}.layers"
    final_norm: str = "{stack}.norm"
    norm_parts: tuple[str, str] = ("weight", "bias")
    norm_transforms: tuple[Transform, Transform] = (unchanged, unchanged)
    optional_biases: bool = False

    def rules(self) -> Iterator[Rule]:
        """Yield the rules of both stacks and of the output projection."""
        for stack, side in zip(STACKS, self.sides, strict=True):
            names = {"stack": stack, "side": side}
            yield Rule(f"{self.embedding.format(**names)}.weight", (EMBEDDING_NAMES[stack],))
            if self.positions:
                yield from position_rules({stack: self.positions.format(**names)})
            yield from self._layer_rules(stack, f"{self.layers.format(**names)}.{{i}}")
            if self.final_norm:
                yield from self._norm_rules(self.final_norm.format(**names), f"model.{stack}.layer_norm")
        yield from linear_rules(self.output, "lm_head")

    def _layer_rules(self, stack: str, key: str) -> Iterator[Rule]:
        name, sublayers = f"model.{stack}.layers.{{i}}", sublayer_names(stack)
        for (norm, _), theirs in zip(sublayers, self.norms[stack], strict=True):
            yield from self._norm_rules(f"{key}.{theirs}", f"{name}.{norm}")
        # The last sub-layer has none.
        for (_, attention), theirs in zip(sublayers[:-1], self.attentions[stack], strict=True):
            yield from attention_rules(
                f"{key}.{theirs}", f"{name}.{attention}", self.projections, self.optional_biases
            )
        for n in (1, 2):
            yield from linear_rules(f"{key}.{self.feed_forward.format(n=n)}", f"{name}.fc{n}")

    def _norm_rules(self, key: str, name: str) -> Iterator[Rule]:
        parts = zip(self.norm_parts, ("weight", "bias"), self.norm_transforms, strict=True)
        return (Rule(f"{key}.{theirs}", (f"{name}.{ours}",), transform) for theirs, ours, transform in parts)


__all__ = ["StackKeys", "numbered_sublayers"]
