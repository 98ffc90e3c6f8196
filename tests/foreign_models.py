"""Transformers as other code bases write them: their keys and their mathematics, for tests of conversion.

Written for these tests after what those programs compute. Each model has `forward(source, target, source_mask=None,
target_mask=None)`: ids (B, S) and (B, T), masks that are true at tokens, logits (B, T, V).
"""

import math

import torch
from torch import Tensor, nn


def wave_table(length: int, width: int) -> Tensor:
    """Interleaved sinusoids in float32 throughout, as the tutorials compute them."""
    rates = torch.exp(torch.arange(0, width, 2).float() * (-math.log(10000.0) / width))
    angles = torch.arange(length).float()[:, None] * rates
    table = torch.zeros(length, width)
    table[:, 0::2], table[:, 1::2] = angles.sin(), angles.cos()
    return table


class Positions(nn.Module):
    """Adds a stored table whose name and shape the caller chooses."""

    def __init__(self, table: Tensor, name: str = "pe"):
        super().__init__()
        self.name = name
        self.register_buffer(name, table)

    def forward(self, states: Tensor) -> Tensor:
        table = getattr(self, self.name)
        return states + table.reshape(-1, states.shape[-1])[: states.shape[-2]]


class DeviationNorm(nn.Module):
    """Divides by the unbiased standard deviation plus epsilon."""

    def __init__(self, size: int, weight: str, bias: str):
        super().__init__()
        self.names = (weight, bias)
        # Away from 1 and 0, so that a weight that goes astray shows.
        self.register_parameter(weight, nn.Parameter(1 + 0.3 * torch.randn(size)))
        self.register_parameter(bias, nn.Parameter(0.3 * torch.randn(size)))

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = (getattr(self, name) for name in self.names)
        deviation = x.var(-1, keepdim=True, unbiased=True).sqrt()
        return weight * (x - x.mean(-1, keepdim=True)) / (deviation + 1e-6) + bias


def attend(query: Tensor, key: Tensor, value: Tensor, heads: int, mask: Tensor | None) -> Tensor:
    """Multi-head attention over projected (B, L, d), or (L, d) without a batch; the mask is true at what is seen."""
    query, key, value = (x.unflatten(-1, (heads, -1)).transpose(-3, -2) for x in (query, key, value))
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(~mask, -1e9)
    return (scores.softmax(-1) @ value).transpose(-3, -2).flatten(-2)


class Attention(nn.Module):
    """Four linear layers, named one by one or numbered in a list."""

    def __init__(self, width: int, heads: int, names: tuple[str, ...]):
        super().__init__()
        self.heads, self.names = heads, names
        for name in names:
            parent, _, last = name.rpartition(".")
            if parent and not hasattr(self, parent):
                setattr(self, parent, nn.ModuleDict())
            home = getattr(self, parent) if parent else self
            home.add_module(last, nn.Linear(width, width))

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor | None) -> Tensor:
        query, key, value, output = (self.get_submodule(name) for name in self.names)
        return output(attend(query(x), key(memory), value(memory), self.heads, mask))


class FeedForward(nn.Module):
    def __init__(self, width: int, inner: int, names: tuple[str, str]):
        super().__init__()
        self.names = names
        self.add_module(names[0], nn.Linear(width, inner))
        self.add_module(names[1], nn.Linear(inner, width))

    def forward(self, x: Tensor) -> Tensor:
        first, second = (self.get_submodule(name) for name in self.names)
        return second(first(x).relu())


def masks(source: Tensor | None, target: Tensor | None, length: int) -> tuple[Tensor | None, Tensor]:
    """Return what every attention sees: (B, 1, 1, S), and (1 or B, 1, T, T)."""
    causal = torch.ones(length, length, dtype=torch.bool).tril()[None, None]
    if target is not None:
        causal = causal & target[:, None, None].bool()
    return (None if source is None else source[:, None, None].bool()), causal


class Sublayer(nn.Module):
    def __init__(self, norm: nn.Module, pre: bool):
        super().__init__()
        self.norm, self.pre = norm, pre

    def forward(self, x: Tensor, function) -> Tensor:
        return x + function(self.norm(x)) if self.pre else self.norm(x + function(x))


class AnnotatedLayer(nn.Module):
    def __init__(self, width: int, heads: int, inner: int, cross: bool, norm):
        super().__init__()
        names = tuple(f"linears.{n}" for n in range(4))
        self.self_attn = Attention(width, heads, names)
        if cross:
            self.src_attn = Attention(width, heads, names)
        self.feed_forward = FeedForward(width, inner, ("w_1", "w_2"))
        self.sublayer = nn.ModuleList(Sublayer(norm(), pre=True) for _ in range(3 if cross else 2))

    def forward(self, x: Tensor, mask: Tensor | None, memory: Tensor | None = None, memory_mask=None) -> Tensor:
        x = self.sublayer[0](x, lambda y: self.self_attn(y, y, mask))
        if memory is not None:
            x = self.sublayer[1](x, lambda y: self.src_attn(y, memory, memory_mask))
        return self.sublayer[-1](x, self.feed_forward)


class Scaled(nn.Module):
    """An embedding times sqrt(d), in a module that names it."""

    def __init__(self, vocabulary: int, width: int, name: str):
        super().__init__()
        self.name, self.scale = name, math.sqrt(width)
        self.add_module(name, nn.Embedding(vocabulary, width))

    def forward(self, ids: Tensor) -> Tensor:
        return self.get_submodule(self.name)(ids) * self.scale


class Holder(nn.Module):
    """A module that is only a name before others."""

    def __init__(self, **modules: nn.Module):
        super().__init__()
        for name, module in modules.items():
            self.add_module(name, module)


class Annotated(nn.Module):
    """The Annotated Transformer: pre-norm, norms by the unbiased deviation, a norm after each stack."""

    def __init__(
        self, source_vocabulary=13, target_vocabulary=17, width=8, heads=2, inner=16, layers=2,
        embedding="lut", norm_names=("a_2", "b_2"), length=40,
    ):  # fmt: skip  # one size a line would hide that they are sizes
        super().__init__()

        def norm() -> nn.Module:
            return DeviationNorm(width, *norm_names)

        for side, cross in (("encoder", False), ("decoder", True)):
            stack = nn.ModuleList(AnnotatedLayer(width, heads, inner, cross, norm) for _ in range(layers))
            self.add_module(side, Holder(layers=stack, norm=norm()))
        for side, vocabulary in (("src", source_vocabulary), ("tgt", target_vocabulary)):
            parts = (Scaled(vocabulary, width, embedding), Positions(wave_table(length, width)[None]))
            self.add_module(f"{side}_embed", nn.Sequential(*parts))
        self.generator = Holder(proj=nn.Linear(width, target_vocabulary))

    def forward(self, source, target, source_mask=None, target_mask=None):
        seen, causal = masks(source_mask, target_mask, target.shape[1])
        x = self.src_embed(source)
        for layer in self.encoder.layers:
            x = layer(x, seen)
        memory, x = self.encoder.norm(x), self.tgt_embed(target)
        for layer in self.decoder.layers:
            x = layer(x, causal, memory, seen)
        return self.generator.proj(self.decoder.norm(x))
