"""Transformers under the keys of OpenNMT-py, Eole, Joey NMT, x-transformers and Sockeye, for tests of conversion.

Written for these tests after what those toolkits compute and what they call their weights. Each model has
`forward(source, target, source_mask=None, target_mask=None)` as those of `source_models`.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from source_models import Positions, attend, masks, scattered_norm, wave_table

STACKS = ("encoder", "decoder")


class GammaNorm(nn.Module):
    """A norm without bias, whose weight may be stored without the 1 at which it starts."""

    def __init__(self, width: int, offset: bool, beta: bool):
        super().__init__()
        self.offset = float(offset)
        self.gamma = nn.Parameter(1 - self.offset + 0.3 * torch.randn(width))
        if beta:
            self.register_buffer("beta", torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.layer_norm(x, x.shape[-1:], self.gamma + self.offset)


class Toolkit(nn.Module):
    """A Transformer whose modules stand under the keys that a subclass gives them.

    A subclass names the embeddings, the positions, the norm and the linear layers of each sub-layer, the norms that
    end the stacks, and the output projection.
    """

    pre = True
    activation = staticmethod(torch.relu)
    output_bias = False
    attention_bias = True
    ff_bias = True
    scale = True

    def __init__(
        self, source_vocabulary=13, target_vocabulary=17, width=8, heads=2, head_width=None, inner=16, layers=2,
        **options,
    ):  # fmt: skip  # one size a line would hide that they are sizes
        super().__init__()
        for name, value in options.items():
            setattr(self, name, value)
        self.heads, self.layers, self.width = heads, layers, width
        inside = heads * (head_width or width // heads)
        for stack, vocabulary in zip(STACKS, (source_vocabulary, target_vocabulary), strict=True):
            self.place(self.embedding(stack), nn.Embedding(vocabulary, width))
            self.place(self.positions(stack), self.position_module())
            for layer in range(layers):
                for norm, linears in self.sublayers(stack, layer):
                    self.place(norm, self.norm())
                    shapes = (
                        [(width, inside)] * 3 + [(inside, width)]
                        if len(linears) == 4
                        else [(width, inner), (inner, width)]
                    )
                    bias = self.attention_bias if len(linears) == 4 else self.ff_bias
                    for name, shape in zip(linears, shapes, strict=True):
                        self.place(name, nn.Linear(*shape, bias=bias))
            if self.pre:
                self.place(self.final_norm(stack), self.norm())
        self.place(self.output, nn.Linear(width, target_vocabulary, bias=self.output_bias))

    def place(self, name: str, module: nn.Module) -> None:
        """Put a module under a dotted name, in modules that are made on the way."""
        *parents, last = name.split(".")
        home: nn.Module = self
        for parent in parents:
            if not hasattr(home, parent):
                home.add_module(parent, nn.Module())
            home = getattr(home, parent)
        home.add_module(last, module)

    def norm(self) -> nn.Module:
        norm = scattered_norm(self.width)
        norm.eps = 1e-6
        return norm

    def position_module(self) -> nn.Module:
        return Positions(wave_table(40, self.width)[None])

    def sublayers(self, stack: str, layer: int) -> Iterator[tuple[str, list[str]]]:
        """Yield the keys of a norm, and those of four projections or two feed-forward layers."""
        raise NotImplementedError

    def embed(self, stack: str, ids: Tensor) -> Tensor:
        states = self.get_submodule(self.embedding(stack))(ids)
        return self.get_submodule(self.positions(stack))(states * math.sqrt(self.width) if self.scale else states)

    def run(self, stack: str, x: Tensor, mask: Tensor | None, memory: Tensor | None = None, seen=None) -> Tensor:
        for layer in range(self.layers):
            for number, (norm_name, names) in enumerate(self.sublayers(stack, layer)):
                norm, linears = self.get_submodule(norm_name), [self.get_submodule(name) for name in names]
                state = norm(x) if self.pre else x
                if len(linears) == 2:
                    change = linears[1](self.activation(linears[0](state)))
                else:
                    query, key, value, output = linears
                    read, visible = (state, mask) if number == 0 else (memory, seen)
                    change = output(attend(query(state), key(read), value(read), self.heads, visible))
                x = x + change if self.pre else norm(x + change)
        return self.get_submodule(self.final_norm(stack))(x) if self.pre else x

    def forward(self, source, target, source_mask=None, target_mask=None):
        seen, causal = masks(source_mask, target_mask, target.shape[1])
        memory = self.run("encoder", self.embed("encoder", source), seen)
        x = self.run("decoder", self.embed("decoder", target), causal, memory, seen)
        return self.get_submodule(self.output)(x)


class OpenNMT(Toolkit):
    """OpenNMT-py 2, or 3 without biases of attention."""

    output, output_bias = "generator", True

    def embedding(self, stack: str) -> str:
        return f"{stack}.embeddings.make_embedding.emb_luts.0"

    def positions(self, stack: str) -> str:
        return f"{stack}.embeddings.make_embedding.pe"

    def position_module(self) -> nn.Module:
        return Positions(wave_table(40, self.width)[:, None])

    def final_norm(self, stack: str) -> str:
        return f"{stack}.layer_norm"

    def sublayers(self, stack: str, layer: int) -> Iterator[tuple[str, list[str]]]:
        key = f"encoder.transformer.{layer}" if stack == "encoder" else f"decoder.transformer_layers.{layer}"
        projections = ("linear_query", "linear_keys", "linear_values", "final_linear")
        norms = ("layer_norm",) if stack == "encoder" else ("layer_norm_1", "layer_norm_2")
        for norm, attention in zip(norms, ("self_attn", "context_attn"), strict=False):
            yield f"{key}.{norm}", [f"{key}.{attention}.{name}" for name in projections]
        yield f"{key}.feed_forward.layer_norm", [f"{key}.feed_forward.w_{n}" for n in (1, 2)]


class Eole(Toolkit):
    """Eole's encoder-decoder, without biases or with them; its decoder stores a factor of other models."""

    output, output_bias = "generator", True

    def __init__(self, **options):
        super().__init__(**options)
        for layer in range(self.layers):
            self.decoder.transformer_layers.get_submodule(str(layer)).register_buffer("layer_scalar", torch.ones(1))

    def embedding(self, stack: str) -> str:
        return {"encoder": "src_emb.embeddings", "decoder": "tgt_emb.embeddings"}[stack]

    def positions(self, stack: str) -> str:
        return {"encoder": "src_emb.pe", "decoder": "tgt_emb.pe"}[stack]

    def position_module(self) -> nn.Module:
        table = wave_table(40, self.width) if self.scale else torch.randn(40, self.width)
        return Positions(table[:, None] if self.scale else table, "pe" if self.scale else "weight")

    def norm(self) -> nn.Module:
        return scattered_norm(self.width)

    def final_norm(self, stack: str) -> str:
        return f"{stack}.layer_norm"

    def sublayers(self, stack: str, layer: int) -> Iterator[tuple[str, list[str]]]:
        key = f"{stack}.transformer_layers.{layer}"
        attentions = {"input_layernorm": "self_attn", "precontext_layernorm": "context_attn"}
        for norm, attention in list(attentions.items())[: 1 if stack == "encoder" else 2]:
            projections = ("linear_query", "linear_keys", "linear_values", "final_linear")
            yield f"{key}.{norm}", [f"{key}.{attention}.{name}" for name in projections]
        yield f"{key}.post_attention_layernorm", [f"{key}.mlp.{name}" for name in ("gate_up_proj", "down_proj")]


class JoeyNMT(Toolkit):
    """Joey NMT, pre-norm or post-norm."""

    output = "decoder.output_layer"

    def embedding(self, stack: str) -> str:
        return {"encoder": "src_embed.lut", "decoder": "trg_embed.lut"}[stack]

    def positions(self, stack: str) -> str:
        return f"{stack}.pe"

    def final_norm(self, stack: str) -> str:
        return f"{stack}.layer_norm"

    def sublayers(self, stack: str, layer: int) -> Iterator[tuple[str, list[str]]]:
        key = f"{stack}.layers.{layer}"
        attentions = (
            {"layer_norm": "src_src_att"}
            if stack == "encoder"
            else {"x_layer_norm": "trg_trg_att", "dec_layer_norm": "src_trg_att"}
        )
        for norm, attention in attentions.items():
            yield f"{key}.{norm}", [f"{key}.{attention}.{name}_layer" for name in ("q", "k", "v", "output")]
        yield f"{key}.feed_forward.layer_norm", [f"{key}.feed_forward.pwff_layer.{n}" for n in (0, 3)]


class LearnedTable(nn.Module):
    """Learned positions times d^-1/2."""

    def __init__(self, length: int, width: int):
        super().__init__()
        self.emb = nn.ParameterDict({"weight": torch.randn(length, width)})

    def forward(self, states: Tensor) -> Tensor:
        return states + self.emb["weight"][: states.shape[-2]] * states.shape[-1] ** -0.5


class XTransformer(Toolkit):
    """XTransformer of x-transformers: sub-layers are numbered through, pre-norm or post-norm."""

    output = "decoder.net.to_logits"
    activation = staticmethod(nn.functional.gelu)
    attention_bias = scale = False
    offset, beta, length = True, False, 20

    def embedding(self, stack: str) -> str:
        return f"{self.wrapper(stack)}.token_emb.emb"

    def positions(self, stack: str) -> str:
        return f"{self.wrapper(stack)}.pos_emb"

    def position_module(self) -> nn.Module:
        return LearnedTable(self.length, self.width)

    def norm(self) -> nn.Module:
        return GammaNorm(self.width, self.offset, self.beta)

    def final_norm(self, stack: str) -> str:
        return f"{self.wrapper(stack)}.attn_layers.final_norm"

    def wrapper(self, stack: str) -> str:
        return {"encoder": "encoder", "decoder": "decoder.net"}[stack]

    def sublayers(self, stack: str, layer: int) -> Iterator[tuple[str, list[str]]]:
        count = 2 if stack == "encoder" else 3
        for number in range(count):
            key = f"{self.wrapper(stack)}.attn_layers.layers.{count * layer + number}"
            last = number == count - 1
            names = ("ff.0.0", "ff.2") if last else ("to_q", "to_k", "to_v", "to_out")
            yield f"{key}.0.{0 if self.pre else 2}", [f"{key}.1.{name}" for name in names]


class Sockeye(Toolkit):
    """Sockeye 3; its files hold queries, keys and values as one weight, keys and values head by head."""

    output, output_bias = "output_layer", True
    attention_bias = False

    def embedding(self, stack: str) -> str:
        return {"encoder": "embedding_source.embedding", "decoder": "embedding_target.embedding"}[stack]

    def positions(self, stack: str) -> str:
        return f"{stack}.pos_embedding"

    def position_module(self) -> nn.Module:
        table = wave_table(40, self.width)
        return Positions(torch.cat([table[:, 0::2], table[:, 1::2]], 1), "weight")

    def final_norm(self, stack: str) -> str:
        return f"{stack}.final_process.layer_norm"

    def sublayers(self, stack: str, layer: int) -> Iterator[tuple[str, list[str]]]:
        key, place = f"{stack}.layers.{layer}", "pre" if self.pre else "post"
        attentions = ["self_attention"] if stack == "encoder" else ["autoregr_layer", "enc_attention"]
        for attention in attentions:
            names = [f"{key}.{attention}.{name}" for name in ("ff_q", "k", "v", "ff_out")]
            yield f"{key}.{place}_{attention}.layer_norm", names
        yield f"{key}.{place}_ff.layer_norm", [f"{key}.ff.ff{n}" for n in (1, 2)]

    def file_content(self) -> dict[str, Tensor]:
        weights = self.state_dict()
        for key in [key.removesuffix(".k.weight") for key in weights if key.endswith(".k.weight")]:
            keys, values = (weights.pop(f"{key}.{name}.weight").unflatten(0, (self.heads, -1)) for name in "kv")
            weights[f"{key}.ff_kv.weight"] = torch.cat([keys, values], 1).flatten(0, 1)
            if not key.endswith("enc_attention"):
                parts = [weights.pop(f"{key}.{name}.weight") for name in ("ff_q", "ff_kv")]
                weights[f"{key}.ff_in.weight"] = torch.cat(parts)
        return weights


__all__ = ["Eole", "JoeyNMT", "OpenNMT", "Sockeye", "XTransformer"]
