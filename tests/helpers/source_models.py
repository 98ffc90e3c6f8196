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

    eps = 1e-6

    def __init__(self, size: int, weight: str, bias: str):
        super().__init__()
        self.names = (weight, bias)
        # Away from 1 and 0, so that a weight that goes astray shows.
        self.register_parameter(weight, nn.Parameter(1 + 0.2 * torch.randn(size)))
        self.register_parameter(bias, nn.Parameter(0.2 * torch.randn(size)))

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = (getattr(self, name) for name in self.names)
        deviation = x.var(-1, keepdim=True, unbiased=True).sqrt()
        return weight * (x - x.mean(-1, keepdim=True)) / (deviation + self.eps) + bias


def attend(query: Tensor, key: Tensor, value: Tensor, heads: int, mask: Tensor | None) -> Tensor:
    """Multi-head attention over projected (B, L, d), or (L, d) without a batch; the mask is true at what is seen."""
    query, key, value = (x.unflatten(-1, (heads, -1)).transpose(-3, -2) for x in (query, key, value))
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(~mask, -1e9)
    return (scores.softmax(-1) @ value).transpose(-3, -2).flatten(-2)


class Attention(nn.Module):
    """Four linear layers, named one by one or numbered in a list."""

    def __init__(self, width: int, heads: int, names: tuple[str, ...], bias: bool = True):
        super().__init__()
        self.heads, self.names = heads, names
        for name in names:
            parent, _, last = name.rpartition(".")
            if parent and not hasattr(self, parent):
                setattr(self, parent, nn.ModuleDict())
            home = getattr(self, parent) if parent else self
            home.add_module(last, nn.Linear(width, width, bias=bias))

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


class TorchNN(nn.Module):
    """`torch.nn.Transformer` as PyTorch's translation tutorial wraps it."""

    output = "generator"

    def __init__(self, source_vocabulary=13, target_vocabulary=17, width=8, heads=2, inner=16, layers=2, **options):
        super().__init__()
        self._add_embeddings((source_vocabulary, target_vocabulary), width)
        self.transformer = nn.Transformer(width, heads, layers, layers, inner, 0.1, **options)
        self.add_module(self.output, nn.Linear(width, target_vocabulary))
        self.batch_first = options.get("batch_first", False)
        with torch.no_grad():
            for name, weight in self.named_parameters():
                # PyTorch starts these at 0 and 1, where a mistake would not show.
                if name.endswith("bias") or "norm" in name:
                    weight.add_(0.3 * torch.randn_like(weight))

    def forward(self, source, target, source_mask=None, target_mask=None):
        hidden = [None if mask is None else ~mask for mask in (source_mask, target_mask)]
        causal = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).triu(1)
        # Positions are added before the sides of the batch are exchanged.
        states = [self._embed(side, ids) for side, ids in (("src", source), ("tgt", target))]
        states = states if self.batch_first else [state.transpose(0, 1) for state in states]
        out = self.transformer(
            *states, tgt_mask=causal, src_key_padding_mask=hidden[0], tgt_key_padding_mask=hidden[1],
            memory_key_padding_mask=hidden[0],
        )  # fmt: skip  # as above
        return self.get_submodule(self.output)(out if self.batch_first else out.transpose(0, 1))

    def _add_embeddings(self, vocabularies: tuple[int, int], width: int) -> None:
        self.src_tok_emb, self.tgt_tok_emb = (Scaled(vocabulary, width, "embedding") for vocabulary in vocabularies)
        self.positional_encoding = Positions(wave_table(40, width)[:, None], "pos_embedding")

    def _embed(self, side: str, ids: Tensor) -> Tensor:
        return self.positional_encoding(self.get_submodule(f"{side}_tok_emb")(ids))


class TorchNNWords(TorchNN):
    """`torch.nn.Transformer` after unscaled words and learned positions; unlike in the original, padding is hidden."""

    output = "fc_out"

    def _add_embeddings(self, vocabularies: tuple[int, int], width: int) -> None:
        for side, vocabulary in zip(("src", "trg"), vocabularies, strict=True):
            self.add_module(f"{side}_word_embedding", nn.Embedding(vocabulary, width))
            self.add_module(f"{side}_position_embedding", nn.Embedding(20, width))

    def _embed(self, side: str, ids: Tensor) -> Tensor:
        side = side.replace("tgt", "trg")
        words, positions = (self.get_submodule(f"{side}_{kind}_embedding") for kind in ("word", "position"))
        return words(ids) + positions.weight[: ids.shape[1]]


class ResidualLayer(nn.Module):
    def __init__(self, width: int, heads: int, inner: int, cross: bool, pre: bool, bias: bool, linears, norm):
        super().__init__()
        names = ("w_q", "w_k", "w_v", "w_o")
        self.self_attention_block = Attention(width, heads, names, bias)
        if cross:
            self.cross_attention_block = Attention(width, heads, names, bias)
        self.feed_forward_block = FeedForward(width, inner, linears)
        self.residual_connections = nn.ModuleList(Sublayer(norm(), pre) for _ in range(3 if cross else 2))

    def forward(self, x: Tensor, mask: Tensor | None, memory: Tensor | None = None, memory_mask=None) -> Tensor:
        x = self.residual_connections[0](x, lambda y: self.self_attention_block(y, y, mask))
        if memory is not None:
            x = self.residual_connections[1](x, lambda y: self.cross_attention_block(y, memory, memory_mask))
        return self.residual_connections[-1](x, self.feed_forward_block)


class ScalarNorms(nn.Module):
    """One weight and one bias a norm, sines in both halves of the positions, two lengths of them; post-norm or pre."""

    linears, bias, cosines = ("linear1", "linear2"), True, False

    def __init__(
        self, source_vocabulary=13, target_vocabulary=17, width=8, heads=2, inner=16, layers=2, pre=False, norm_size=1
    ):  # fmt: skip  # as above
        super().__init__()

        def norm() -> nn.Module:
            return DeviationNorm(norm_size, "alpha", "bias")

        for side, cross in (("encoder", False), ("decoder", True)):
            options = (cross, pre, self.bias, self.linears, norm)
            stack = nn.ModuleList(ResidualLayer(width, heads, inner, *options) for _ in range(layers))
            self.add_module(side, Holder(layers=stack, norm=norm()))
        for side, vocabulary, length in (("src", source_vocabulary, 12), ("tgt", target_vocabulary, 15)):
            table = wave_table(length, width)
            if not self.cosines:
                table[:, 1::2] = table[:, 0::2]
            self.add_module(f"{side}_embed", Scaled(vocabulary, width, "embedding"))
            self.add_module(f"{side}_pos", Positions(table[None]))
        self.projection_layer = Holder(proj=nn.Linear(width, target_vocabulary))

    def forward(self, source, target, source_mask=None, target_mask=None):
        seen, causal = masks(source_mask, target_mask, target.shape[1])
        memory, x = self.src_pos(self.src_embed(source)), self.tgt_pos(self.tgt_embed(target))
        for layer in self.encoder.layers:
            memory = layer(memory, seen)
        memory = self.encoder.norm(memory)
        for layer in self.decoder.layers:
            x = layer(x, causal, memory, seen)
        return self.projection_layer.proj(self.decoder.norm(x)).log_softmax(-1)


class Residuals(ScalarNorms):
    """Pre-norm, no biases in attentions, norms of one scalar or of vectors, the paper's positions."""

    linears, bias, cosines = ("linear_1", "linear_2"), False, True

    def __init__(self, width=8, norm_size=8, **options):
        super().__init__(width=width, pre=True, norm_size=norm_size, **options)


class BiasedResiduals(Residuals):
    bias = True


class SingleHead(nn.Module):
    """One head without an output projection."""

    def __init__(self, width: int):
        super().__init__()
        for name in ("W_q", "W_k", "W_v"):
            self.add_module(name, nn.Linear(width, width, bias=False))

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor | None) -> Tensor:
        return attend(self.W_q(x), self.W_k(memory), self.W_v(memory), 1, mask)


def word_table(vocabulary: int, width: int, length: int) -> dict[str, nn.Module]:
    return {"we": nn.Embedding(vocabulary, width), "pe": Positions(wave_table(length, width))}


class StatQuest(nn.Module):
    """Attention and residuals, and nothing else."""

    def __init__(self, source_vocabulary=4, target_vocabulary=5, width=4):
        super().__init__()
        self.encoder = Holder(**word_table(source_vocabulary, width, 30), self_attention=SingleHead(width))
        self.decoder = Holder(
            **word_table(target_vocabulary, width, 30), self_attention=SingleHead(width),
            enc_dec_attention=SingleHead(width), fc_layer=nn.Linear(width, target_vocabulary),
        )  # fmt: skip  # as above

    def forward(self, source, target, source_mask=None, target_mask=None):
        seen, causal = masks(source_mask, target_mask, target.shape[1])
        memory, x = (side.pe(side.we(ids)) for side, ids in ((self.encoder, source), (self.decoder, target)))
        memory = memory + self.encoder.self_attention(memory, memory, seen)
        x = x + self.decoder.self_attention(x, x, causal)
        return self.decoder.fc_layer(x + self.decoder.enc_dec_attention(x, memory, seen))


def scattered_norm(width: int, eps: float = 1e-5) -> nn.LayerNorm:
    norm = nn.LayerNorm(width, eps)
    with torch.no_grad():
        norm.weight.add_(0.3 * torch.randn(width))
        norm.bias.add_(0.3 * torch.randn(width))
    return norm


class Phrases(nn.Module):
    """One block a side, post-norm, one linear layer as feed-forward; `patched` residuals carry the positions."""

    def __init__(self, source_vocabulary=12, target_vocabulary=16, width=6, patched=True):
        super().__init__()
        self.patched = patched
        self.encoder_block = Holder(
            **word_table(source_vocabulary, width, 30), attention=SingleHead(width),
            layer_norm1=scattered_norm(width), layer_norm2=scattered_norm(width),
            linear_layer=nn.Linear(width, width),
        )  # fmt: skip  # as above
        self.decoder_block = Holder(
            **word_table(target_vocabulary, width, 30), decoder_attention=SingleHead(width),
            encoder_decoder_attention=SingleHead(width), linear_layer=nn.Linear(width, width),
            **{f"layer_norm{n}": scattered_norm(width) for n in (1, 2, 3)},
        )  # fmt: skip  # as above
        self.decoder_block.decoder_attention.register_buffer("mask", torch.ones(30, 30).tril() == 0)
        self.linear_layer = nn.Linear(width, target_vocabulary)

    def forward(self, source, target, source_mask=None, target_mask=None):
        seen, causal = masks(source_mask, target_mask, target.shape[1])
        encoder, decoder = self.encoder_block, self.decoder_block
        words = encoder.we(source)
        read = encoder.pe(words)
        memory = encoder.attention(read, read, seen)
        memory = encoder.layer_norm1(memory + (read if self.patched else words))
        memory = encoder.layer_norm2(memory + encoder.linear_layer(memory))
        words = decoder.we(target)
        read = decoder.pe(words)
        x = decoder.decoder_attention(read, read, causal)
        x = decoder.layer_norm1(x + (read if self.patched else words))
        x = decoder.layer_norm2(x + decoder.encoder_decoder_attention(x, memory, seen))
        return self.linear_layer(decoder.layer_norm3(x + decoder.linear_layer(x)))


class NormedAttention(nn.Module):
    """Post-norm attention without biases, whose keys and values have widths of their own."""

    def __init__(self, width: int, heads: int, key_width: int, value_width: int):
        super().__init__()
        self.heads, self.layer_norm = heads, scattered_norm(width, 1e-6)
        for name, size in (("w_qs", key_width), ("w_ks", key_width), ("w_vs", value_width)):
            self.add_module(name, nn.Linear(width, heads * size, bias=False))
        self.fc = nn.Linear(heads * value_width, width, bias=False)

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor | None) -> Tensor:
        attended = attend(self.w_qs(x), self.w_ks(memory), self.w_vs(memory), self.heads, mask)
        return self.layer_norm(x + self.fc(attended))


class NormedFeedForward(FeedForward):
    def __init__(self, width: int, inner: int):
        super().__init__(width, inner, ("w_1", "w_2"))
        self.layer_norm = scattered_norm(width, 1e-6)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer_norm(x + super().forward(x))


class NormedEmbeddings(nn.Module):
    """Post-norm with a norm after the embeddings; a tied output projection has the embeddings or logits scaled."""

    def __init__(
        self, vocabularies=(13, 17), width=8, heads=2, inner=16, layers=2, widths=(4, 4), shared=False, tied=False,
        scale="prj",
    ):  # fmt: skip  # as above
        super().__init__()
        embedding_scale = math.sqrt(width) if tied and scale == "emb" else 1.0
        self.scales = (embedding_scale, width**-0.5 if tied and scale == "prj" else 1.0)
        names = {"encoder": ("src_word_emb", ["slf_attn"]), "decoder": ("trg_word_emb", ["slf_attn", "enc_attn"])}
        for (side, (embedding, attentions)), vocabulary in zip(names.items(), vocabularies, strict=True):
            stack = Holder(
                **{embedding: nn.Embedding(vocabulary, width)},
                position_enc=Positions(wave_table(30, width)[None], "pos_table"),
                layer_norm=scattered_norm(width, 1e-6),
                layer_stack=nn.ModuleList(
                    Holder(
                        **{name: NormedAttention(width, heads, *widths) for name in attentions},
                        pos_ffn=NormedFeedForward(width, inner),
                    )
                    for _ in range(layers)
                ),
            )
            self.add_module(side, stack)
        self.trg_word_prj = nn.Linear(width, vocabularies[1], bias=False)
        if tied:
            self.trg_word_prj.weight = self.decoder.trg_word_emb.weight
        if shared:
            self.encoder.src_word_emb.weight = self.decoder.trg_word_emb.weight

    def forward(self, source, target, source_mask=None, target_mask=None):
        seen, causal = masks(source_mask, target_mask, target.shape[1])
        embedded = (self.encoder.src_word_emb(source), self.decoder.trg_word_emb(target))
        memory, x = (
            side.layer_norm(side.position_enc(self.scales[0] * states))
            for side, states in zip((self.encoder, self.decoder), embedded, strict=True)
        )
        for layer in self.encoder.layer_stack:
            memory = layer.pos_ffn(layer.slf_attn(memory, memory, seen))
        for layer in self.decoder.layer_stack:
            x = layer.enc_attn(layer.slf_attn(x, x, causal), memory, seen)
            x = layer.pos_ffn(x)
        return self.trg_word_prj(x) * self.scales[1]
