"""Transformers with the state-dict keys and the mathematics of other code bases, for tests of conversion.

Reimplemented for these tests. Each model has `forward(source, target, source_mask=None, target_mask=None)`: ids (B, S)
and (B, T), masks that are true at tokens, logits (B, T, V).
"""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

STACKS = ("encoder", "decoder")
Paths = tuple[tuple[str, ...], tuple[str, ...]]


def waves(length: int, width: int) -> Tensor:
    """Interleaved sinusoids in float32 throughout, as the tutorials compute them."""
    rates = torch.exp(torch.arange(0, width, 2).float() * (-math.log(10000.0) / width))
    angles = torch.arange(length).float()[:, None] * rates
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1)


def sines(length: int, width: int) -> Tensor:
    """Sines in both halves."""
    return waves(length, width)[:, 0::2].repeat_interleave(2, 1)


def concatenated(length: int, width: int) -> Tensor:
    """All sines, then all cosines."""
    table = waves(length, width)
    return torch.cat([table[:, 0::2], table[:, 1::2]], 1)


def doubled_exponents(length: int, width: int) -> Tensor:
    """Interleaved sinusoids with exponent 2 * dimension / width, for even and odd dimensions alike."""
    angles = torch.arange(length).double()[:, None] / 10000 ** (2 * torch.arange(width).double() / width)
    return torch.stack([angles[:, 0::2].sin(), angles[:, 1::2].cos()], -1).flatten(1).float()


class Norm(nn.Module):
    """A layer norm with any parameter names, scalar or vector weights plus `offset`, and a bias if it has a name."""

    def __init__(self, size: int, weight="weight", bias="bias", eps=1e-5, unbiased=False, offset=0.0):
        super().__init__()
        self.names, self.eps, self.unbiased, self.offset = (weight, bias), eps, unbiased, offset
        # Away from 1 and 0, so that a misplaced weight shows.
        self.register_parameter(weight, nn.Parameter(1 - offset + 0.3 * torch.randn(size)))
        if bias:
            self.register_parameter(bias, nn.Parameter(0.3 * torch.randn(size)))

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = (getattr(self, name) if name else 0.0 for name in self.names)
        variance = x.var(-1, keepdim=True, unbiased=self.unbiased)
        # Code with the unbiased standard deviation adds epsilon to it, not to the variance.
        deviation = variance.sqrt() + self.eps if self.unbiased else (variance + self.eps).sqrt()
        return (weight + self.offset) * (x - x.mean(-1, keepdim=True)) / deviation + bias


deviation_norm = partial(Norm, eps=1e-6, unbiased=True)


def attend(query: Tensor, key: Tensor, value: Tensor, heads: int, mask: Tensor | None) -> Tensor:
    """Multi-head attention over projected (B, L, d); the mask is true at visible positions."""
    query, key, value = (x.unflatten(-1, (heads, -1)).transpose(-3, -2) for x in (query, key, value))
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(~mask, -1e9)
    return (scores.softmax(-1) @ value).transpose(-3, -2).flatten(-2)


@dataclass(frozen=True)
class Code:
    """The state-dict keys and the computation of a code base.

    In keys, `{stack}` is "encoder" or "decoder", `{side}` its entry in `sides`, `{i}` the index of a layer, and `{n}`
    that of a sub-layer, counted over all layers.

    Attributes:
        attentions: Attention modules in a layer, by stack.
        projections: Query, key, value and, if present, output in an attention.
        norms: Norms in a layer, by stack, in the order of its sub-layers.
        positions: Position tables; without a key, they are not in the state dict.
        buffers: Entries that are not weights.
        norm: Creates a norm for a width; with `pre`, norms precede the sub-layers.
        scale: Whether embeddings are multiplied by the square root of the width.
        position_scale: Whether learned positions are divided by the square root of the width.
        table: Creates the positions; None for learned ones.
        axis: Dimension of size 1 in position tables, if any.
        length: Number of positions, which may differ by side.
        shared_heads: Whether all heads share small projections; "by width" if their scores are divided by the square
            root of the model's width.
    """

    embedding: str
    attentions: Paths
    projections: tuple[str, ...]
    output: str
    layer: str = "{stack}.layers.{i}"
    norms: Paths = ((), ())
    feed_forward: tuple[str, ...] = ()
    positions: str = ""
    embedding_norm: str = ""
    final_norm: str = ""
    sides: tuple[Any, Any] = STACKS
    buffers: tuple[str, ...] = ()
    norm: Callable[[int], nn.Module] = Norm
    pre: bool = False
    scale: bool = True
    table: Callable[[int, int], Tensor] | None = waves
    axis: int | None = 0
    position_scale: bool = False
    length: int | tuple[int, int] = 40
    activation: Callable[[Tensor], Tensor] = torch.relu
    attention_bias: bool = True
    ff_bias: bool = True
    output_bias: bool = True
    shared_heads: bool | str = False


class SourceModel(nn.Module):
    """A Transformer of some `Code`, whose fields `changes` replace; by default without weight sharing."""

    def __init__(
        self, code: Code, source_vocabulary=13, target_vocabulary=17, width=8, heads=2, inner=16, layers=2,
        widths=None, shared=False, tied=False, logit_scale=1.0, **changes,
    ):  # fmt: skip  # one size a line would hide that they are sizes
        super().__init__()
        self.code, self.width, self.logit_scale = replace(code, **changes), width, logit_scale
        self.heads = heads if isinstance(heads, tuple) else (heads, heads)
        code, self.parts = self.code, []
        for side, vocabulary in enumerate((source_vocabulary, target_vocabulary)):
            head = width // self.heads[side]
            key, value = (size * self.heads[side] for size in widths or (head, head))
            shapes = [(width, key), (width, key), (width, value), (value, width)]
            if code.shared_heads:
                shapes[:3] = [(head, head)] * 3
            self.parts.append({
                "embedding": self._place(code.embedding, side, nn.Embedding(vocabulary, width)),
                "positions": self._position_table(side),
                "embedding_norm": self._norm(code.embedding_norm, side),
                "layers": [self._layer(side, layer, shapes, inner) for layer in range(layers)],
                "final_norm": self._norm(code.final_norm, side),
            })  # fmt: skip  # one table
        self.output = (self._place(code.output, 1, nn.Linear(width, target_vocabulary, code.output_bias)),)
        if shared:
            self.parts[0]["embedding"].weight = self.parts[1]["embedding"].weight
        if tied:
            self.output[0].weight = self.parts[1]["embedding"].weight

    def _place(self, key: str, side: int, module: nn.Module | Tensor, **numbers: int) -> Any:
        """Register a module or tensor under a key, unless the key is taken, and return what is there."""
        code, home = self.code, self
        *parents, last = key.format(stack=STACKS[side], side=code.sides[side], **numbers).split(".")
        for parent in parents:
            if parent not in home._modules:
                home.add_module(parent, nn.Module())
            home = home._modules[parent]
        if isinstance(module, nn.Parameter):
            home.register_parameter(last, module)
        elif isinstance(module, Tensor):
            home.register_buffer(last, module)
        elif last not in home._modules:
            home.add_module(last, module)
        return (lambda: getattr(home, last)) if isinstance(module, Tensor) else home._modules[last]

    def _norm(self, key: str, side: int, **numbers: int) -> nn.Module:
        return self._place(key, side, self.code.norm(self.width), **numbers) if key else nn.Identity()

    def _position_table(self, side: int) -> Callable[[], Tensor]:
        code, length = self.code, self.code.length
        size = (length if isinstance(length, int) else length[side], self.width)
        if code.table is None:
            return self._place(code.positions, side, nn.Parameter(torch.randn(size)))
        table = code.table(*size)
        if not code.positions:
            return lambda: table
        return self._place(code.positions, side, table if code.axis is None else table.unsqueeze(code.axis))

    def _layer(self, side: int, layer: int, shapes, inner: int) -> list[tuple[nn.Module, list[nn.Module]]]:
        """Return the norm and the linear layers of each sub-layer."""
        code, sublayers = self.code, []
        linears = [(tuple(f"{name}.{each}" for each in code.projections), True) for name in code.attentions[side]]
        linears += [(code.feed_forward, False)] if code.feed_forward else []
        norms = code.norms[side] or [""] * len(linears)
        for number, (norm, (names, attends)) in enumerate(zip(norms, linears, strict=True)):
            numbers = {"i": layer, "n": layer * len(linears) + number}
            sizes = shapes if attends else [(self.width, inner), (inner, self.width)]
            sizes = sizes if attends or len(names) == 2 else [(self.width, self.width)]
            bias = [code.attention_bias if attends else code.ff_bias] * len(names)
            if code.shared_heads and attends:
                bias = [False, False, False, True]
            modules = [
                self._place(f"{code.layer}.{name}", side, nn.Linear(*size, bias=has_bias), **numbers)
                for name, size, has_bias in zip(names, sizes, bias, strict=False)
            ]
            sublayers.append((self._norm(f"{code.layer}.{norm}" if norm else "", side, **numbers), modules))
        for buffer in code.buffers if side else ():
            self._place(buffer, side, torch.ones(1), i=layer)
        return sublayers

    def encode(self, source: Tensor, source_mask: Tensor | None = None) -> Tensor:
        return self._run(0, source, (None, None if source_mask is None else source_mask[:, None, None]))

    def forward(self, source, target, source_mask=None, target_mask=None):
        length, memory = target.shape[1], self.encode(source, source_mask)
        causal = torch.ones(length, length, dtype=torch.bool).tril()[None, None]
        if target_mask is not None:
            causal = causal & target_mask[:, None, None]
        seen = None if source_mask is None else source_mask[:, None, None]
        return self.output[0](self._run(1, target, (None, causal), (memory, seen))) * self.logit_scale

    def _run(self, side: int, ids: Tensor, *attended: tuple[Tensor | None, Tensor | None]) -> Tensor:
        code, parts = self.code, self.parts[side]
        positions = parts["positions"]().reshape(-1, self.width)[: ids.shape[-1]]
        positions = positions * self.width**-0.5 if code.position_scale else positions
        x = parts["embedding"](ids) * (math.sqrt(self.width) if code.scale else 1.0)
        x = parts["embedding_norm"](x + positions.to(x.dtype))
        for layer in parts["layers"]:
            for (norm, linears), read in zip(layer, [*attended, None], strict=False):
                state = norm(x) if code.pre else x
                change = self._feed(state, linears) if read is None else self._attend(side, state, linears, *read)
                x = x + change if code.pre else norm(x + change)
        return parts["final_norm"](x)

    def _feed(self, x: Tensor, linears: list[nn.Module]) -> Tensor:
        *first, last = linears
        for linear in first:
            x = self.code.activation(linear(x))
        return last(x)

    def _attend(self, side: int, x: Tensor, linears, memory: Tensor | None, mask: Tensor | None) -> Tensor:
        heads, read = self.heads[side], x if memory is None else memory
        inputs = [x, read, read]
        if self.code.shared_heads:
            inputs = [each.unflatten(-1, (heads, -1)) for each in inputs]
        query, key, value = (linear(each) for linear, each in zip(linears, inputs, strict=False))
        if self.code.shared_heads:
            query, key, value = (each.flatten(-2) for each in (query, key, value))
            query = query * heads**-0.5 if self.code.shared_heads == "by width" else query
        attended = attend(query, key, value, heads, mask)
        return linears[3](attended) if len(linears) == 4 else attended


def numbered(key: str, start: int) -> Paths:
    first, second, third = (key.format(start + n) for n in range(3))
    return (first, second), (first, second, third)


def stacked(attention: str, *rest: str) -> Paths:
    """Return the encoder's key, and the decoder's, which are the same and others."""
    return (attention,), (attention, *rest)


# Tutorials

ANNOTATED = Code(
    embedding="{side}_embed.0.lut", positions="{side}_embed.1.pe", sides=("src", "tgt"),
    attentions=stacked("self_attn", "src_attn"), projections=tuple(f"linears.{n}" for n in range(4)),
    norms=numbered("sublayer.{}.norm", 0), feed_forward=("feed_forward.w_1", "feed_forward.w_2"),
    final_norm="{stack}.norm", output="generator.proj",
    pre=True, norm=partial(deviation_norm, weight="a_2", bias="b_2"),
)  # fmt: skip  # a table, as the others
annotated = partial(SourceModel, ANNOTATED)
gamma_beta = partial(
    annotated, embedding="{side}_embed.0.embedding", norm=partial(deviation_norm, weight="gamma", bias="beta")
)

# Norms with a scalar weight and bias, post-norm by default.
SCALAR_NORMS = Code(
    embedding="{side}_embed.embedding", positions="{side}_pos.pe", sides=("src", "tgt"),
    attentions=stacked("self_attention_block", "cross_attention_block"), projections=("w_q", "w_k", "w_v", "w_o"),
    norms=numbered("residual_connections.{}.norm", 0), final_norm="{stack}.norm", output="projection_layer.proj",
    feed_forward=("feed_forward_block.linear1", "feed_forward_block.linear2"), table=sines, length=(12, 15),
    norm=lambda width: deviation_norm(1, "alpha", "bias"),
)  # fmt: skip
scalar_norms = partial(SourceModel, SCALAR_NORMS)
hkproj = partial(
    scalar_norms, feed_forward=("feed_forward_block.linear_1", "feed_forward_block.linear_2"), table=waves, pre=True,
    attention_bias=False, norm=partial(deviation_norm, weight="alpha", bias="bias"),
)  # fmt: skip
hkproj_scalar = partial(hkproj, norm=SCALAR_NORMS.norm)

hyunwoongko = partial(SourceModel, Code(
    embedding="{stack}.emb.tok_emb", attentions=(("attention",), ("self_attention", "enc_dec_attention")), scale=False,
    projections=("w_q", "w_k", "w_v", "w_concat"), norms=numbered("norm{}", 1), output="decoder.linear",
    feed_forward=("ffn.linear1", "ffn.linear2"), norm=partial(Norm, weight="gamma", bias="beta", eps=1e-12),
))  # fmt: skip

samlynnevans = partial(SourceModel, Code(
    embedding="{stack}.embed.embed", positions="{stack}.pe.pe", attentions=(("attn",), ("attn_1", "attn_2")),
    projections=("q_linear", "k_linear", "v_linear", "out"), norms=numbered("norm_{}", 1), pre=True, axis=None,
    feed_forward=("ff.linear_1", "ff.linear_2"), final_norm="{stack}.norm", output="out", table=doubled_exponents,
    norm=partial(deviation_norm, weight="alpha", bias="bias"),
))  # fmt: skip

gordicaleksa = partial(SourceModel, Code(
    embedding="{side}_embedding.embeddings_table", positions="{side}_pos_embedding.positional_encodings_table",
    sides=("src", "trg"), layer="{stack}.{stack}_layers.{i}", norms=numbered("sublayers.{}.norm", 0), pre=True,
    attentions=(("multi_headed_attention",), ("trg_multi_headed_attention", "src_multi_headed_attention")),
    projections=("qkv_nets.0", "qkv_nets.1", "qkv_nets.2", "out_projection_net"), final_norm="{stack}.norm", axis=None,
    feed_forward=("pointwise_net.linear1", "pointwise_net.linear2"), output="decoder_generator.linear",
))  # fmt: skip

bentrevett = partial(SourceModel, Code(
    embedding="{stack}.tok_embedding", positions="{stack}.pos_embedding.weight", table=None, length=20,
    attentions=stacked("self_attention", "encoder_attention"), projections=("fc_q", "fc_k", "fc_v", "fc_o"),
    norms=(("self_attn_layer_norm", "ff_layer_norm"),
           ("self_attn_layer_norm", "enc_attn_layer_norm", "ff_layer_norm")),
    feed_forward=("positionwise_feedforward.fc_1", "positionwise_feedforward.fc_2"), output="decoder.fc_out",
))  # fmt: skip
bentrevett_shared_norms = partial(bentrevett, norms=(("layer_norm",) * 2, ("layer_norm",) * 3))

# Only attention and residuals.
statquest = partial(SourceModel, Code(
    embedding="{stack}.we", positions="{stack}.pe.pe", layer="{stack}", output="decoder.fc_layer", scale=False,
    attentions=stacked("self_attention", "enc_dec_attention"), projections=("W_q", "W_k", "W_v"), axis=None,
    attention_bias=False,
), source_vocabulary=4, target_vocabulary=5, width=4, heads=1, layers=1)  # fmt: skip

# One block per side, with a single linear layer as feed-forward; without the notebook's defects.
phrases = partial(SourceModel, Code(
    embedding="{stack}_block.we", positions="{stack}_block.pe.pe", layer="{stack}_block", axis=None, scale=False,
    attentions=(("attention",), ("decoder_attention", "encoder_decoder_attention")), projections=("W_q", "W_k", "W_v"),
    norms=numbered("layer_norm{}", 1), feed_forward=("linear_layer",), output="linear_layer", attention_bias=False,
    buffers=("decoder_block.decoder_attention.mask",),
), source_vocabulary=12, target_vocabulary=16, width=6, heads=1, layers=1)  # fmt: skip

# A norm after the embeddings; with a tied output projection, embeddings or logits are scaled.
NORMED_EMBEDDINGS = Code(
    embedding="{stack}.{side}_word_emb", positions="{stack}.position_enc.pos_table", sides=("src", "trg"),
    embedding_norm="{stack}.layer_norm", layer="{stack}.layer_stack.{i}", attentions=stacked("slf_attn", "enc_attn"),
    projections=("w_qs", "w_ks", "w_vs", "fc"), feed_forward=("pos_ffn.w_1", "pos_ffn.w_2"), output="trg_word_prj",
    norms=(("slf_attn.layer_norm", "pos_ffn.layer_norm"),
           ("slf_attn.layer_norm", "enc_attn.layer_norm", "pos_ffn.layer_norm")),
    norm=partial(Norm, eps=1e-6), scale=False, attention_bias=False, output_bias=False,
)  # fmt: skip


def normed_embeddings(tied=False, scale="prj", width=8, **options) -> SourceModel:
    scales = {"scale": tied and scale == "emb", "logit_scale": width**-0.5 if tied and scale == "prj" else 1.0}
    return SourceModel(NORMED_EMBEDDINGS, width=width, tied=tied, **scales, **options)


# Small projections shared by all heads; the decoder is corrected.
shared_heads = partial(SourceModel, Code(
    embedding="{stack}.{side[0]}", positions="{stack}.{side[1]}.pe", table=doubled_exponents, axis=None,
    sides=(("embedding_layer", "positional_encoder", ""),
           ("word_embedding", "position_embedding", "transformer_block.")),
    attentions=stacked("attention", "transformer_block.attention"), output="decoder.fc_out", scale=False,
    projections=("query_matrix", "key_matrix", "value_matrix", "out"), shared_heads=True,
    norms=(("norm1", "norm2"), ("norm", "transformer_block.norm1", "transformer_block.norm2")),
    feed_forward=("{side[2]}feed_forward.0", "{side[2]}feed_forward.2"),
), heads=(2, 4))  # fmt: skip
# The same with learned positions, and scores divided by the square root of the width.
from_scratch = partial(
    shared_heads, embedding="{stack}.word_embedding", positions="{stack}.position_embedding.weight", table=None,
    projections=("queries", "keys", "values", "fc_out"), shared_heads="by width",
)  # fmt: skip


# Toolkits

LINEARS = ("linear_query", "linear_keys", "linear_values", "final_linear")
# Release 2, or release 3 without attention biases.
opennmt = partial(SourceModel, Code(
    embedding="{stack}.embeddings.make_embedding.emb_luts.0", positions="{stack}.embeddings.make_embedding.pe.pe",
    axis=1, layer="{stack}.{side}.{i}", sides=("transformer", "transformer_layers"), projections=LINEARS,
    norms=(("layer_norm", "feed_forward.layer_norm"), ("layer_norm_1", "layer_norm_2", "feed_forward.layer_norm")),
    attentions=stacked("self_attn", "context_attn"), feed_forward=("feed_forward.w_1", "feed_forward.w_2"), pre=True,
    final_norm="{stack}.layer_norm", output="generator", norm=partial(Norm, eps=1e-6),
))  # fmt: skip
# Its decoder stores a scalar that only other models use.
eole = partial(SourceModel, Code(
    embedding="{side}_emb.embeddings", positions="{side}_emb.pe.pe", axis=1, sides=("src", "tgt"), pre=True,
    layer="{stack}.transformer_layers.{i}", attentions=stacked("self_attn", "context_attn"), projections=LINEARS,
    norms=(("input_layernorm", "post_attention_layernorm"),
           ("input_layernorm", "precontext_layernorm", "post_attention_layernorm")),
    feed_forward=("mlp.gate_up_proj", "mlp.down_proj"), final_norm="{stack}.layer_norm", output="generator",
    buffers=("decoder.transformer_layers.{i}.layer_scalar",),
))  # fmt: skip
eole_learned = partial(eole, scale=False, positions="{side}_emb.pe.weight", table=None)

JOEYNMT = Code(
    embedding="{side}_embed.lut", positions="{stack}.pe.pe", sides=("src", "trg"), output="decoder.output_layer",
    norms=(("layer_norm", "feed_forward.layer_norm"), ("x_layer_norm", "dec_layer_norm", "feed_forward.layer_norm")),
    attentions=(("src_src_att",), ("trg_trg_att", "src_trg_att")), output_bias=False, norm=partial(Norm, eps=1e-6),
    projections=("q_layer", "k_layer", "v_layer", "output_layer"),
    feed_forward=("feed_forward.pwff_layer.0", "feed_forward.pwff_layer.3"),
)  # fmt: skip


def joeynmt(pre=True, **options) -> SourceModel:
    return SourceModel(JOEYNMT, pre=pre, final_norm="{stack}.layer_norm" if pre else "", **options)


X_TRANSFORMERS = Code(
    embedding="{side}.token_emb.emb", positions="{side}.pos_emb.emb.weight", table=None, position_scale=True,
    length=20, sides=("encoder", "decoder.net"), layer="{side}.attn_layers.layers.{n}",
    attentions=(("1",), ("1", "1")), projections=("to_q", "to_k", "to_v", "to_out"), output="decoder.net.to_logits",
    feed_forward=("1.ff.0.0", "1.ff.2"), activation=nn.functional.gelu, scale=False, attention_bias=False,
    output_bias=False,
)  # fmt: skip


def x_transformer(pre=True, offset=True, beta="", **options) -> SourceModel:
    """x-transformers numbers sub-layers across layers; with `offset`, norm weights are stored minus 1."""
    place = "0.0" if pre else "0.2"
    options |= {"norm": partial(Norm, weight="gamma", bias=beta, offset=float(offset))}
    options |= {"norms": ((place,) * 2, (place,) * 3), "pre": pre}
    return SourceModel(X_TRANSFORMERS, final_norm="{side}.attn_layers.final_norm" if pre else "", **options)


SOCKEYE = Code(
    embedding="embedding_{side}.embedding", positions="{stack}.pos_embedding.weight", sides=("source", "target"),
    table=concatenated, axis=None, attentions=(("self_attention",), ("autoregr_layer", "enc_attention")),
    projections=("ff_q", "k", "v", "ff_out"), feed_forward=("ff.ff1", "ff.ff2"), output="output_layer",
    norm=partial(Norm, eps=1e-6), attention_bias=False,
)  # fmt: skip


def sockeye(pre=True, **options) -> SourceModel:
    names = tuple((*attentions, "ff") for attentions in SOCKEYE.attentions)
    norms = tuple(tuple(f"{'pre' if pre else 'post'}_{name}.layer_norm" for name in each) for each in names)
    final_norm = "{stack}.final_process.layer_norm" if pre else ""
    return SourceModel(SOCKEYE, pre=pre, norms=norms, final_norm=final_norm, **options)


def sockeye_file(model: SourceModel) -> dict[str, Tensor]:
    """Return the weights in Sockeye's file layout: keys and values interleaved by head, fused self-attention."""
    weights, heads = model.state_dict(), model.heads[0]
    for key in [key.removesuffix(".k.weight") for key in weights if key.endswith(".k.weight")]:
        keys, values = (weights.pop(f"{key}.{name}.weight").unflatten(0, (heads, -1)) for name in "kv")
        weights[f"{key}.ff_kv.weight"] = torch.cat([keys, values], 1).flatten(0, 1)
        if not key.endswith("enc_attention"):
            parts = [weights.pop(f"{key}.{name}.weight") for name in ("ff_q", "ff_kv")]
            weights[f"{key}.ff_in.weight"] = torch.cat(parts)
    return weights


# torch.nn.Transformer


class Positions(nn.Module):
    def __init__(self, table: Tensor):
        super().__init__()
        self.register_buffer("pos_embedding", table[:, None])

    def forward(self, states: Tensor) -> Tensor:
        return states + self.pos_embedding[: states.shape[1], 0]


class TorchNN(nn.Module):
    """`torch.nn.Transformer` as PyTorch's translation tutorial wraps it."""

    output = "generator"

    def __init__(self, source_vocabulary=13, target_vocabulary=17, width=8, heads=2, inner=16, layers=2, **options):
        super().__init__()
        self._add_embeddings((source_vocabulary, target_vocabulary), width)
        with warnings.catch_warnings():
            # It warns that its fast path with nested tensors is unavailable.
            warnings.simplefilter("ignore")
            self.transformer = nn.Transformer(width, heads, layers, layers, inner, 0.1, **options)
        self.transformer.encoder.enable_nested_tensor = False
        self.add_module(self.output, nn.Linear(width, target_vocabulary))
        self.batch_first = options.get("batch_first", False)
        with torch.no_grad():
            for name, weight in self.named_parameters():
                # Initialized to 0 and 1, where a mistake would not show.
                if name.endswith("bias") or "norm" in name:
                    weight.add_(0.3 * torch.randn_like(weight))

    def forward(self, source, target, source_mask=None, target_mask=None):
        hidden = [None if mask is None else ~mask for mask in (source_mask, target_mask)]
        causal = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).triu(1)
        # Positions are added before batch and length are transposed.
        states = [self._embed(side, ids) for side, ids in (("src", source), ("tgt", target))]
        states = states if self.batch_first else [state.transpose(0, 1) for state in states]
        out = self.transformer(
            *states, tgt_mask=causal, src_key_padding_mask=hidden[0], tgt_key_padding_mask=hidden[1],
            memory_key_padding_mask=hidden[0],
        )  # fmt: skip  # one call
        return self.get_submodule(self.output)(out if self.batch_first else out.transpose(0, 1))

    def _add_embeddings(self, vocabularies: tuple[int, int], width: int) -> None:
        for side, vocabulary in zip(("src", "tgt"), vocabularies, strict=True):
            self.add_module(f"{side}_tok_emb", nn.ModuleDict({"embedding": nn.Embedding(vocabulary, width)}))
        self.positional_encoding = Positions(waves(40, width))

    def _embed(self, side: str, ids: Tensor) -> Tensor:
        embedding = self.get_submodule(f"{side}_tok_emb")["embedding"]
        return self.positional_encoding(embedding(ids) * math.sqrt(embedding.embedding_dim))


class TorchNNWords(TorchNN):
    """`torch.nn.Transformer` with unscaled embeddings and learned positions; unlike the original, it masks padding."""

    output = "fc_out"

    def _add_embeddings(self, vocabularies: tuple[int, int], width: int) -> None:
        for side, vocabulary in zip(("src", "trg"), vocabularies, strict=True):
            self.add_module(f"{side}_word_embedding", nn.Embedding(vocabulary, width))
            self.add_module(f"{side}_position_embedding", nn.Embedding(20, width))

    def _embed(self, side: str, ids: Tensor) -> Tensor:
        side = side.replace("tgt", "trg")
        words, positions = (self.get_submodule(f"{side}_{kind}_embedding") for kind in ("word", "position"))
        return words(ids) + positions.weight[: ids.shape[1]]
