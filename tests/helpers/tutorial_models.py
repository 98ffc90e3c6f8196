"""Transformers of repositories that differ in names and in a few choices: one class, and a table of them.

Written for these tests after what those programs compute; `forward` is that of `source_models`. Pairs are of encoder
and decoder.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from source_models import Attention, DeviationNorm, FeedForward, Holder, masks, scattered_norm, wave_table

Pair = tuple[str, str]
Paths = tuple[tuple[str, ...], tuple[str, ...]]


class GammaBetaNorm(DeviationNorm):
    """Divides by the biased standard deviation, with epsilon under the root."""

    eps = 1e-12

    def forward(self, x: Tensor) -> Tensor:
        gamma, beta = (getattr(self, name) for name in self.names)
        centered = x - x.mean(-1, keepdim=True)
        return gamma * centered * (centered.square().mean(-1, keepdim=True) + self.eps).rsqrt() + beta


def doubled_exponents(length: int, width: int) -> Tensor:
    """Interleaved sinusoids with 2i where the paper has i, for odd dimensions i too."""
    angles = torch.arange(length).double()[:, None] / 10000 ** (2 * torch.arange(width).double() / width)
    return torch.stack([angles[:, 0::2].sin(), angles[:, 1::2].cos()], -1).flatten(1).float()


@dataclass(frozen=True)
class Names:
    """Paths of a program's modules, and what it computes.

    Attributes:
        embedding: Token embeddings.
        positions: Buffers of position tables; none if they are attributes that no state dict holds.
        layers: Lists of layers.
        final_norm: Norms that end the stacks, if any.
        norms: Norms within a layer, in the order of its sub-layers.
        attentions: Attentions within a layer.
        linears: Query, key, value and output within an attention.
        feed_forward: The module within a layer.
        feed_forward_linears: Its two layers.
        output: The output projection.
        norm: Creates a norm of a width.
        pre: Whether norms stand before the sub-layers.
        scale: Whether embeddings are multiplied by the root of the width.
        table: Creates the positions.
    """

    embedding: Pair
    positions: Pair | None
    layers: Pair
    final_norm: Pair | None
    norms: Paths
    attentions: Paths
    linears: tuple[str, ...]
    feed_forward: str
    feed_forward_linears: Pair
    output: str
    norm: Callable[[int], nn.Module]
    pre: bool
    scale: bool = True
    table: Callable[[int, int], Tensor] = wave_table


def put(root: nn.Module, path: str, module: nn.Module) -> None:
    """Register a module under a dotted path."""
    *parents, last = path.split(".")
    for name in parents:
        if name not in dict(root.named_children()):
            root.add_module(name, Holder())
        root = root.get_submodule(name)
    root.add_module(last, module)


class Layer(nn.Module):
    def __init__(self, names: Names, side: int, width: int, heads: int, inner: int):
        super().__init__()
        self.names, self.side = names, side
        for path in names.attentions[side]:
            put(self, path, Attention(width, heads, names.linears))
        for path in names.norms[side]:
            put(self, path, names.norm(width))
        put(self, names.feed_forward, FeedForward(width, inner, names.feed_forward_linears))

    def forward(self, x: Tensor, *attended: tuple[Tensor | None, Tensor | None]) -> Tensor:
        """Attend to each (states, mask), where states of None are the layer's own."""
        *norms, last = map(self.get_submodule, self.names.norms[self.side])
        attentions = map(self.get_submodule, self.names.attentions[self.side])
        for norm, attention, (states, mask) in zip(norms, attentions, attended, strict=True):
            x = self._sublayer(x, norm, lambda y, f=attention, s=states, m=mask: f(y, y if s is None else s, m))
        return self._sublayer(x, last, self.get_submodule(self.names.feed_forward))

    def _sublayer(self, x: Tensor, norm: nn.Module, function: Callable[[Tensor], Tensor]) -> Tensor:
        return x + function(norm(x)) if self.names.pre else norm(x + function(x))


class Tutorial(nn.Module):
    """An encoder and a decoder of these names."""

    def __init__(self, names: Names, vocabularies=(13, 17), width=8, heads=2, inner=16, layers=2, length=40):
        super().__init__()
        self.names, self.table = names, names.table(length, width)
        for side, vocabulary in enumerate(vocabularies):
            put(self, names.embedding[side], nn.Embedding(vocabulary, width))
            stack = nn.ModuleList(Layer(names, side, width, heads, inner) for _ in range(layers))
            put(self, names.layers[side], stack)
            if names.final_norm:
                put(self, names.final_norm[side], names.norm(width))
            if names.positions:
                path, _, buffer = names.positions[side].rpartition(".")
                put(self, path, Holder())
                self.get_submodule(path).register_buffer(buffer, self.table.clone())
        put(self, names.output, nn.Linear(width, vocabularies[1]))

    def forward(self, source, target, source_mask=None, target_mask=None):
        seen, causal = masks(source_mask, target_mask, target.shape[1])
        memory = self._stack(0, source, (None, seen))
        return self.get_submodule(self.names.output)(self._stack(1, target, (None, causal), (memory, seen)))

    def _stack(self, side: int, ids: Tensor, *attended: tuple[Tensor | None, Tensor | None]) -> Tensor:
        x = self.get_submodule(self.names.embedding[side])(ids)
        x = x * (math.sqrt(x.shape[-1]) if self.names.scale else 1) + self.table[: ids.shape[1]]
        for layer in self.get_submodule(self.names.layers[side]):
            x = layer(x, *attended)
        return self.get_submodule(self.names.final_norm[side])(x) if self.names.final_norm else x

    def double(self):
        self.table = self.table.double()
        return super().double()


def _pair(path: str, sides: Pair = ("encoder", "decoder")) -> Pair:
    return path.format(sides[0]), path.format(sides[1])


def _numbered(path: str, start: int) -> Paths:
    first, second, third = (path.format(start + n) for n in range(3))
    return (first, second), (first, second, third)


HYUNWOONGKO = Names(
    embedding=_pair("{}.emb.tok_emb"),
    positions=None,
    layers=_pair("{}.layers"),
    final_norm=None,
    norms=_numbered("norm{}", 1),
    attentions=(("attention",), ("self_attention", "enc_dec_attention")),
    linears=("w_q", "w_k", "w_v", "w_concat"),
    feed_forward="ffn",
    feed_forward_linears=("linear1", "linear2"),
    output="decoder.linear",
    norm=partial(GammaBetaNorm, weight="gamma", bias="beta"),
    pre=False,
    scale=False,
)
SAMLYNNEVANS = Names(
    embedding=_pair("{}.embed.embed"),
    positions=_pair("{}.pe.pe"),
    layers=_pair("{}.layers"),
    final_norm=_pair("{}.norm"),
    norms=_numbered("norm_{}", 1),
    attentions=(("attn",), ("attn_1", "attn_2")),
    linears=("q_linear", "k_linear", "v_linear", "out"),
    feed_forward="ff",
    feed_forward_linears=("linear_1", "linear_2"),
    output="out",
    norm=partial(DeviationNorm, weight="alpha", bias="bias"),
    pre=True,
    table=doubled_exponents,
)
GORDICALEKSA = Names(
    embedding=_pair("{}_embedding.embeddings_table", ("src", "trg")),
    positions=_pair("{}_pos_embedding.positional_encodings_table", ("src", "trg")),
    layers=_pair("{0}.{0}_layers"),
    final_norm=_pair("{}.norm"),
    norms=_numbered("sublayers.{}.norm", 0),
    attentions=(("multi_headed_attention",), ("trg_multi_headed_attention", "src_multi_headed_attention")),
    linears=("qkv_nets.0", "qkv_nets.1", "qkv_nets.2", "out_projection_net"),
    feed_forward="pointwise_net",
    feed_forward_linears=("linear1", "linear2"),
    output="decoder_generator.linear",
    norm=scattered_norm,
    pre=True,
)
