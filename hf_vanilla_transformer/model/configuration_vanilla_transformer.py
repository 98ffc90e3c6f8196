"""Configuration of the encoder-decoder Transformer of *Attention Is All You Need* (Vaswani et al. 2017)."""

import copy
import difflib
import os
from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Optional, TypeVar, get_args, get_origin

from transformers import GenerationConfig, PreTrainedConfig
from transformers.activations import ACT2FN

from .compat_vanilla_transformer import CACHE_NAMES
from .hub_code_vanilla_transformer import MODEL_TYPE, HubCodeMixin

CHOICES: dict[str, tuple[Any, ...]] = {
    "norm_position": ("post", "pre", "none"),
    "position_embedding_type": ("sinusoidal", "learned"),
    "sinusoidal_layout": ("interleaved", "concatenated"),
    "activation_function": tuple(ACT2FN),
    "is_encoder_decoder": (True,),
}

SIZES = (
    "vocab_size", "decoder_vocab_size", "d_model", "encoder_layers", "decoder_layers", "encoder_attention_heads",
    "decoder_attention_heads", "head_dim", "value_head_dim", "max_position_embeddings",
)  # fmt: skip  # one name a line would hide what they share
# Fields, the predicate their values must satisfy, and its description.
RANGES: tuple[tuple[tuple[str, ...], Callable[[Any], bool], str], ...] = (
    (SIZES, lambda x: x >= 1, "at least 1"),
    (("encoder_ffn_dim", "decoder_ffn_dim"), lambda x: x >= 0, "0 for no feed-forward sub-layer, or more"),
    (("layer_norm_eps",), lambda x: x > 0, "above 0"),
    (("init_std",), lambda x: x > 0, "above 0, or None for d_model ** -0.5"),
    (("dropout", "attention_dropout", "activation_dropout"), lambda x: 0 <= x < 1, "at least 0 and below 1"),
)

# Building a configuration creates a name for every label; more would exhaust the memory.
MAX_LABELS = 1_000_000

# Similarity (0 to 1) above which an unknown keyword counts as a misspelt field.
MISSPELLING_SIMILARITY = 0.85

# Per-side fields, without the prefix "encoder_" or "decoder_".
SIDE_FIELDS = ("layers", "attention_heads", "ffn_dim")

# `AutoTokenizer.from_pretrained` also passes its arguments to the configuration; these resemble `..._token_id` fields.
TOKENIZER_KEYWORDS = {"pad_token", "bos_token", "eos_token"}

ATTENTION = {"q_proj": "colwise", "k_proj": "colwise", "v_proj": "colwise", "out_proj": "rowwise"}
FEED_FORWARD = {"fc1": "colwise", "fc2": "rowwise"}
# How tensor parallelism shards each block.
TP_STYLES = {
    "encoder.layers.*": FEED_FORWARD,
    "encoder.layers.*.self_attn": ATTENTION,
    "decoder.layers.*": FEED_FORWARD,
    "decoder.layers.*.self_attn": ATTENTION,
    "decoder.layers.*.encoder_attn": ATTENTION,
}

T = TypeVar("T")


class DerivedField(Generic[T]):
    """Descriptor of a field whose None is stored and saved as such, but reads as a value derived from other fields."""

    def __init__(self, derive: Callable[[Any], Any]):
        self.derive = derive

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, config: Any, owner: type | None = None) -> T:
        value: Any = None
        # Read from the class, a field returns its default.
        if config is not None and (value := vars(config).get(self.name)) is None:
            try:
                value = self.derive(config)
            except (TypeError, ZeroDivisionError):
                # `validate` names the invalid field; until then the configuration must stay printable.
                value = None
        return value

    def __set__(self, config: Any, value: T | None) -> None:
        vars(config)[self.name] = value


# Type checkers see the descriptor, whose value is never None once valid; runtime checks see the stored type.
if TYPE_CHECKING:
    Derived = DerivedField
else:
    Derived = Optional


class VanillaTransformerConfig(HubCodeMixin, PreTrainedConfig):
    """Configuration of a Transformer; the defaults are the paper's base model (Table 3, first row).

    Names follow `MarianConfig` where the meaning is the same; the paper's symbols are in brackets.

    A field left at `None` is derived from others: it is stored and saved as `None`, reads as the value in use, and
    follows the fields it depends on. All fields are checked when a configuration is built or loaded, when a model is
    built from it, and when either is saved.

    Args:
        vocab_size: Size of the source vocabulary.
        decoder_vocab_size: Size of the target vocabulary; `None` means `vocab_size`. With shared embeddings, the same
            number is stored as `None`.
        d_model: Width of embeddings and layers [d_model].
        encoder_layers: Number of encoder layers [N].
        decoder_layers: Number of decoder layers [N].
        encoder_attention_heads: Heads of each encoder attention [h].
        decoder_attention_heads: Heads of each decoder attention [h].
        encoder_ffn_dim: Inner width of the encoder's feed-forward sub-layers [d_ff]; 0 leaves them out.
        decoder_ffn_dim: Inner width of the decoder's feed-forward sub-layers [d_ff]; 0 leaves them out.
        head_dim: Width of a head's queries and keys [d_k]; `None` means `d_model / heads`. If the sides have different
            numbers of heads, it reads as the encoder's, like `num_attention_heads`; `get_text_config` and
            `attention_dims` return the decoder's.
        value_head_dim: Width of a head's values [d_v]; `None` as for `head_dim`.
        activation_function: Any key of `transformers.activations.ACT2FN`, "linear" included.
        dropout: Probability of dropping an embedding or a sub-layer output [P_drop].
        attention_dropout: Probability of dropping an attention weight.
        activation_dropout: Probability of dropping an inner feed-forward activation.
        norm_position: Layer normalization after each residual sum ("post", the paper), before each sub-layer ("pre",
            the Annotated Transformer), or nowhere ("none").
        final_layer_norm: Whether each stack ends with a layer normalization; `None` means only with
            `norm_position="pre"`.
        embedding_layer_norm: Whether each stack begins with a layer normalization of embeddings plus positions, before
            their dropout (BART, fairseq's `--layernorm-embedding`).
        layer_norm_eps: Epsilon of every layer normalization.
        attention_bias: Whether the attention projections have biases (not in the paper).
        lm_head_bias: Whether the output projection has a bias.
        position_embedding_type: "sinusoidal" (section 3.5) or "learned" (Table 3, row E).
        sinusoidal_layout: "interleaved" sines and cosines (the paper), or "concatenated", all sines before all cosines
            (Marian, tensor2tensor).
        max_position_embeddings: Maximum sequence length with learned positions; with sinusoids, a cache size and not a
            limit.
        scale_embedding: Whether embeddings are multiplied by `sqrt(d_model)` (section 3.4).
        share_encoder_decoder_embeddings: Whether both sides share one embedding matrix (section 3.4).
        tie_word_embeddings: Whether the output projection shares the decoder's embedding matrix (section 3.4).
        use_cache: Whether decoding caches keys and values by default.
        pad_token_id: Id of the padding token on both sides.
        bos_token_id: Id of the beginning-of-sequence token.
        eos_token_id: Id or ids of the end-of-sequence token.
        decoder_start_token_id: Id of the token that decoding starts with.
        init_std: Standard deviation of the initial embeddings; `None` means `d_model ** -0.5`. Other matrices are
            initialized Xavier-uniform, biases to zero.

    Raises:
        ValueError: A value or combination is invalid, or an unknown keyword resembles a field; the message names the
            field, its value, and valid values.

    Example:
        ```python
        config = VanillaTransformerConfig(vocab_size=8000, d_model=256, encoder_layers=3, decoder_layers=3)
        model = VanillaTransformerForConditionalGeneration(config)
        ```
    """

    model_type = MODEL_TYPE
    keys_to_ignore_at_inference: ClassVar[list[str]] = [*CACHE_NAMES]
    # Tensor parallelism shards heads and inner feed-forward units; see `from_pretrained(..., tp_plan="auto")`.
    base_model_tp_plan: ClassVar[dict[str, str]] = {
        f"{block}.{name}": style for block, styles in TP_STYLES.items() for name, style in styles.items()
    }
    # FSDP gathers each layer when it runs; embeddings, which may be shared, stay with the root module.
    base_model_fsdp_plan: ClassVar[dict[Any, str]] = {
        "encoder.layers.*": "free_full_weight",
        "decoder.layers.*": "free_full_weight",
    }
    attribute_map: ClassVar[dict[str, str]] = {
        "hidden_size": "d_model",
        "layer_norm_epsilon": "layer_norm_eps",
        "num_attention_heads": "encoder_attention_heads",
        "num_hidden_layers": "encoder_layers",
    }

    vocab_size: int = 37000
    decoder_vocab_size: Derived[int] = DerivedField(lambda config: config.vocab_size)
    d_model: int = 512
    encoder_layers: int = 6
    decoder_layers: int = 6
    encoder_attention_heads: int = 8
    decoder_attention_heads: int = 8
    encoder_ffn_dim: int = 2048
    decoder_ffn_dim: int = 2048
    head_dim: Derived[int] = DerivedField(lambda config: config.d_model // config.encoder_attention_heads)
    value_head_dim: Derived[int] = DerivedField(lambda config: config.d_model // config.encoder_attention_heads)
    activation_function: str = "relu"
    dropout: float | int = 0.1
    attention_dropout: float | int = 0.0
    activation_dropout: float | int = 0.0
    norm_position: str = "post"
    final_layer_norm: Derived[bool] = DerivedField(lambda config: config.norm_position == "pre")
    embedding_layer_norm: bool = False
    layer_norm_eps: float | int = 1e-5
    attention_bias: bool = False
    lm_head_bias: bool = False
    position_embedding_type: str = "sinusoidal"
    sinusoidal_layout: str = "interleaved"
    max_position_embeddings: int = 1024
    scale_embedding: bool = True
    share_encoder_decoder_embeddings: bool = True
    tie_word_embeddings: bool = True
    use_cache: bool = True
    is_encoder_decoder: bool = True
    pad_token_id: int | None = 0
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    decoder_start_token_id: int | None = 1
    init_std: Derived[float | int] = DerivedField(lambda config: config.d_model**-0.5)

    def __post_init__(self, **kwargs: Any) -> None:
        if self._auto_class is None:
            # The installed class is saved without the code that `auto_map` refers to.
            kwargs.pop("auto_map", None)
        num_labels = kwargs.get("num_labels")
        if num_labels is not None and not (type(num_labels) is int and 0 <= num_labels <= MAX_LABELS):
            raise ValueError(f"`num_labels` is {num_labels!r}; it must be an integer from 0 to {MAX_LABELS}.")
        super().__post_init__(**kwargs)
        # `AutoModel`, which has two classes for this configuration, looks for them here, and takes no None.
        self.architectures = self.architectures or []
        # Earlier releases stored the size of a shared vocabulary twice.
        if self.share_encoder_decoder_embeddings and self.decoder_vocab_size == self.vocab_size:
            self.decoder_vocab_size = None
        self.validate()

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Build a configuration from a dictionary and overriding keyword arguments; `from_pretrained` calls this.

        Raises:
            ValueError: As for the constructor; keyword arguments are checked as well.
        """
        return_unused = kwargs.pop("return_unused_kwargs", False)
        config, unused = super().from_dict(config_dict, return_unused_kwargs=True, **kwargs)
        config._reject_misspelt(unused.keys() - TOKENIZER_KEYWORDS)
        config.validate()
        return (config, unused) if return_unused else config

    def validate(self) -> None:
        """Check every field.

        Raises:
            ValueError: As for the constructor.
        """
        self._reject_misspelt(vars(self))
        self._check_choices()
        self._check_types()
        self._check_ranges()
        self._check_combinations()
        self._check_special_tokens()
        super().validate()  # type: ignore[misc]  # added by huggingface_hub's decorator `strict`

    def to_json_file(self, json_file_path: str | os.PathLike[str], use_diff: bool = True) -> None:
        """Check the configuration and save it to a file; takes the arguments of the base class."""
        self.validate()
        super().to_json_file(json_file_path, use_diff)

    def attention_dims(self, heads: int) -> tuple[int, int]:
        """Return the widths of a head's keys [d_k] and values [d_v] in attention with `heads` heads."""
        key, value = (vars(self)[name] for name in ("head_dim", "value_head_dim"))
        return key or self.d_model // heads, value or self.d_model // heads

    def get_text_config(self, decoder: bool | None = None, encoder: bool | None = None) -> "VanillaTransformerConfig":
        """Return this configuration, or that of one side, for `generate()` and its caches.

        In the configuration of one side, the fields of both sides have that side's sizes, and so have
        `num_hidden_layers`, `num_attention_heads`, `head_dim` and `vocab_size`. Unless only the encoder is requested,
        `vocab_size` is the size of the target vocabulary, with which transition scores, prompt lookup, watermarks and,
        before transformers 5.23, beam search index the scores.
        """
        if decoder == encoder and self.decoder_vocab_size == self.vocab_size:
            return self
        config = copy.copy(self)
        if decoder == encoder or decoder:
            config.vocab_size = self.decoder_vocab_size
        if decoder != encoder:
            config.decoder_vocab_size = None
            for name in SIDE_FIELDS:
                value = getattr(self, f"{'decoder' if decoder else 'encoder'}_{name}")
                config.update({f"encoder_{name}": value, f"decoder_{name}": value})
        return config

    def _reject_misspelt(self, names: Iterable[str]) -> None:
        """Reject unknown names that resemble a field; others pass, as elsewhere in transformers."""
        own = [field.name for field in fields(VanillaTransformerConfig)]
        # Older releases of transformers saved `tie_encoder_decoder`.
        known = {*own, *self.attribute_map, *GenerationConfig().to_dict(), "num_labels", "tie_encoder_decoder"}
        for name in names:
            if name in known or name.startswith("_"):
                continue
            if close := difflib.get_close_matches(name, own, n=1, cutoff=MISSPELLING_SIMILARITY):
                raise ValueError(f"unknown field `{name}`; did you mean `{close[0]}`?")

    def _check_types(self) -> None:
        """Check the types of all fields: a configuration file may hold the string "8" instead of a number."""
        for name, annotation in VanillaTransformerConfig.__annotations__.items():
            if get_origin(annotation) is ClassVar:
                continue
            types = tuple(get_origin(kind) or kind for kind in get_args(annotation) or (annotation,))
            value = vars(self)[name]
            # `bool` is a subclass of `int`, but True is not a size.
            if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
                expected = " or ".join(kind.__name__ for kind in types).replace("NoneType", "None")
                raise ValueError(f"`{name}` is {value!r}; it must be {expected}.")

    def _check_ranges(self) -> None:
        for names, in_range, expected in RANGES:
            for name in names:
                value = vars(self)[name]
                if value is not None and not in_range(value):
                    raise ValueError(f"`{name}` is {value}; it must be {expected}.")

    def _check_combinations(self) -> None:
        derives_head_dims = None in (vars(self)["head_dim"], vars(self)["value_head_dim"])
        for name in ("encoder_attention_heads", "decoder_attention_heads"):
            if derives_head_dims and self.d_model % getattr(self, name):
                raise ValueError(
                    f"`d_model` is {self.d_model}, not a multiple of `{name}`={getattr(self, name)}; "
                    "use a multiple, or set both `head_dim` and `value_head_dim`."
                )
        if self.position_embedding_type == "sinusoidal" and self.d_model % 2:
            raise ValueError(
                f"`d_model` is {self.d_model}, but sinusoidal positions need an even width; "
                'use an even `d_model`, or `position_embedding_type="learned"`.'
            )
        if self.share_encoder_decoder_embeddings and self.decoder_vocab_size != self.vocab_size:
            raise ValueError(
                f"`share_encoder_decoder_embeddings` is True, but `decoder_vocab_size` is {self.decoder_vocab_size} "
                f"and `vocab_size` is {self.vocab_size}; make them equal, or set "
                "`share_encoder_decoder_embeddings=False`."
            )

    def _check_choices(self) -> None:
        for name, allowed in CHOICES.items():
            value = getattr(self, name)
            if value not in allowed:
                near = difflib.get_close_matches(str(value).lower(), map(str, allowed), n=1)
                hint = f"did you mean {near[0]!r}? Use" if near else "use"
                raise ValueError(f"`{name}` is {value!r}; {hint} one of {', '.join(map(repr, allowed))}.")

    def _check_special_tokens(self) -> None:
        # Both sides share the special ids, so the smaller vocabulary must contain them.
        vocabulary = min(self.vocab_size, self.decoder_vocab_size)
        for name in ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"):
            value = getattr(self, name)
            for token_id in value if isinstance(value, list) else [value]:
                if token_id is not None and not (isinstance(token_id, int) and 0 <= token_id < vocabulary):
                    raise ValueError(
                        f"`{name}` is {token_id!r}; use an id in both vocabularies, 0 to {vocabulary - 1}."
                    )


__all__ = ["VanillaTransformerConfig"]
