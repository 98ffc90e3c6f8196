"""Convert source checkpoints: every weight gets our name, none is lost or invented.

The steps: read the source, recognize its layout, match keys to the layout's rules, infer the configuration, check that
the caller passed the rest, transform the weights, choose positions, fit the vocabularies, complete the weights.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from ..errors import short_errors
from ..files import atomic_folder, check_output_folder
from ..model.configuration_vanilla_transformer import VanillaTransformerConfig
from ..model.modeling_vanilla_transformer import (
    VanillaTransformerEncoderModel,
    VanillaTransformerForConditionalGeneration,
)
from ..pretrained.cards import encoder_use, pipeline_use, write_derived_card
from ..pretrained.loading import check_finite
from .fields import (
    Overrides,
    assumed_fields,
    check_field_names,
    check_required,
    infer_fields,
    merge_fields,
    own_fields,
    unread_settings,
)
from .positions import choose_positions, from_first_token
from .reading import SourceCheckpoint, read_checkpoint, read_settings
from .recognition import read_renames, recognize_layout, rename_keys
from .rules import EMBEDDING_NAMES, POSITION_NAMES, SPECIAL_ID_FIELDS, Layout
from .transformers_folder import load_tokenizer, read_generation_settings
from .vocabularies import Vocabulary, WordVocabulary, fit_vocabularies, load_vocabularies
from .weights import (
    MappedTensor,
    MatchedCheckpoint,
    complete_weights,
    match_keys,
    transform_weights,
)


@dataclass(frozen=True)
class Conversion:
    """A converted checkpoint, not yet saved.

    Attributes:
        layout: Layout of the source checkpoint.
        config: Our configuration.
        weights: Weights by our names.
        mapping: What each source tensor became.
        notes: Decisions and assumptions, one sentence each.
        tokenizer: Built from the vocabularies, or else loaded from the source folder; None without either.
        encoder_only: Whether only the encoder was converted.
        generation: Generation settings that the configuration does not hold.
        source: What was converted: a file, a folder, or a name on the Hub; None for a state dict.
    """

    layout: Layout
    config: VanillaTransformerConfig
    weights: dict[str, Tensor]
    mapping: list[MappedTensor]
    notes: list[str] = field(default_factory=list)
    tokenizer: PreTrainedTokenizerBase | None = None
    encoder_only: bool = False
    generation: dict[str, Any] = field(default_factory=dict)
    source: str | None = None

    def describe(self) -> str:
        """Return the mapping, the configuration fields that differ from our defaults, and the notes, one per line."""
        standard = VanillaTransformerConfig()
        settings = {name: getattr(self.config, name) for name in own_fields()}
        changed = {name: value for name, value in settings.items() if value != getattr(standard, name)}
        lines = [*map(str, self.mapping), *(f"config: {name}={value!r}" for name, value in changed.items())]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])

    def model(self) -> VanillaTransformerForConditionalGeneration | VanillaTransformerEncoderModel:
        """Return the model with these weights, in evaluation mode.

        Raises:
            ValueError: A weight is not finite, for example because a scale factor of the layout overflows its dtype.
        """
        kind = VanillaTransformerEncoderModel if self.encoder_only else VanillaTransformerForConditionalGeneration
        model: Any = kind(self.config)
        model.to(dtype=next(iter(self.weights.values())).dtype).eval()
        model.load_state_dict(self.weights)
        check_finite(model, "the converted model")
        if isinstance(model, VanillaTransformerForConditionalGeneration):
            model.generation_config = GenerationConfig.from_model_config(self.config)
            model.generation_config.update(**self.generation)
        return model

    def save(self, output_dir: str | os.PathLike[str]) -> Path:
        """Write model, generation settings, tokenizer and card to a new or empty folder, completely or not at all.

        Raises:
            ValueError: The folder is not empty or cannot be written, or a weight is not finite.
        """
        with atomic_folder(output_dir) as folder:
            self.model().save_pretrained(folder)
            if self.tokenizer is not None:
                self.tokenizer.save_pretrained(folder)
            self._write_card(folder, Path(output_dir).resolve().name)
        return Path(output_dir)

    def _write_card(self, folder: Path, title: str) -> None:
        sources = [self.source] if self.source else []
        made = f"Converted from {'$sources' if sources else 'weights'}, of layout {self.layout.name}"
        use = encoder_use(title) if self.encoder_only else pipeline_use(title) if self.tokenizer else None
        write_derived_card(folder, title, made, sources, use)


@short_errors()
def convert_checkpoint(
    source: str | os.PathLike[str] | Mapping[str, Tensor],
    output_dir: str | os.PathLike[str] | None,
    layout: str | None = None,
    source_vocabulary: Vocabulary | None = None,
    target_vocabulary: Vocabulary | None = None,
    *,
    rename: Iterable[str | os.PathLike[str]] = (),
    first_position: int | None = None,
    unbiased_norms: bool | None = None,
    patched: bool = False,
    encoder_only: bool = False,
    dry_run: bool = False,
    **config_fields: Any,
) -> Conversion:
    """Convert a source checkpoint and write it as a folder that `from_pretrained` loads.

    Args:
        source: A weight file, a folder, a name on the Hub, or a state dict; see `reading.read_checkpoint`.
        output_dir: New or empty folder for configuration, weights, generation settings, tokenizer and card; may be
            None with `dry_run`.
        layout: A name in `LAYOUTS`; by default recognized from the keys.
        source_vocabulary: Source tokens, from which a tokenizer is built: token to id, tokens in id order, or a file
            with either; see `vocabularies.WordVocabulary.load`.
        target_vocabulary: Target tokens; by default the source tokens.
        rename: Key prefixes to replace first: `"old=new"` pairs, or files with one pair per line, where `{i}` stands
            for a layer index. An `old` may have several `new`. The fields that the layout's code would determine must
            then be passed, unless every `new` is empty, which only strips prefixes.
        first_position: Row of the first token in a stored position table; by default as in the layout's code.
        unbiased_norms: Whether norms divide by the unbiased standard deviation (`torch.std`) or the biased one
            (`torch.nn.LayerNorm`); by default as in the layout's code.
        patched: Whether the code that trained the weights is free of the layout's known defects; without it, layouts
            with defects are refused.
        encoder_only: Whether to convert only the encoder, for `VanillaTransformerEncoderModel` and classifiers.
        dry_run: Whether to convert without writing anything.
        **config_fields: Fields of `VanillaTransformerConfig` that the weights do not determine, such as the number of
            heads, or that differ from the layout's code.

    Returns:
        The conversion: `model()` returns the model, `describe()` the mapping.

    Raises:
        ValueError: The source cannot be read, has no known layout, has missing, unexpected or mismatched weights, or
            computes something that our model cannot; a field is missing, unknown or contradicts the weights; a
            vocabulary does not fit; the folder is not empty.
    """
    if not dry_run:
        if output_dir is None:
            raise ValueError("`output_dir` is missing; name a new or empty folder, or pass `dry_run=True`")
        check_output_folder(output_dir)
    check_field_names(config_fields)
    renames = list(read_renames(rename))
    # Stripping a prefix leaves the layout's own keys.
    renamed = any(pair.new for pair in renames)
    checkpoint = read_checkpoint(source)
    checkpoint = checkpoint._replace(weights=rename_keys(checkpoint.weights, renames))
    checkpoint, recognized = recognize_layout(checkpoint, layout)
    renamed = renamed or recognized.needs_name
    overrides = Overrides(config_fields, first_position, unbiased_norms, renamed)
    if not patched:
        _refuse_defects(recognized, encoder_only)
    checkpoint = _preprocess(checkpoint, recognized, renamed)
    vocabularies = load_vocabularies(source_vocabulary, target_vocabulary, recognized, checkpoint.settings)
    if vocabularies and encoder_only:
        vocabularies = vocabularies[0], vocabularies[0]
    conversion = _convert(match_keys(checkpoint, recognized, encoder_only), vocabularies, overrides)
    if not isinstance(source, Mapping):
        conversion = replace(conversion, source=str(source))
    if output_dir is not None and not dry_run:
        conversion.save(output_dir)
    return conversion


def load_converted(
    source: str | os.PathLike[str] | Mapping[str, Tensor], **options: Any
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase | None]:
    """Convert a source checkpoint in memory.

    Args:
        source: A weight file, a folder, a name on the Hub, or a state dict.
        **options: Arguments of `convert_checkpoint`, such as `layout`, vocabularies and configuration fields.

    Returns:
        The model, in evaluation mode, and its tokenizer, which is None if neither the source nor the options have a
        vocabulary.

    Raises:
        ValueError: As for `convert_checkpoint`.
    """
    conversion = convert_checkpoint(source, None, dry_run=True, **options)
    return conversion.model(), conversion.tokenizer


def _refuse_defects(layout: Layout, encoder_only: bool) -> None:
    of_encoder = [defect for defect in layout.defects if "encoder" in defect.stacks]
    if defects := of_encoder if encoder_only else layout.defects:
        raise ValueError(
            f"the weights have the layout {layout.name}, whose code has defects that our model cannot reproduce: "
            + "; ".join(f"its {defect.description} (patch: {defect.patch})" for defect in defects)
            + ". If these weights were trained with patched code, pass `patched=True`"
            + ("" if of_encoder else "; the encoder has no defects and converts with `encoder_only=True`")
        )


def _preprocess(checkpoint: SourceCheckpoint, layout: Layout, renamed: bool) -> SourceCheckpoint:
    """Add settings from the folder, and weights and position tables that the original computes or omits."""
    weights, settings, folder = checkpoint.weights, checkpoint.settings, checkpoint.folder
    if folder is not None:
        vocabularies = {name: str(folder / name) for name in layout.vocabulary_settings if (folder / name).is_file()}
        settings = read_settings(folder, layout.settings_files) | vocabularies | settings
    if layout.preprocess is not None:
        weights = layout.preprocess(weights, settings)
    if layout.compute_positions is not None and not renamed:
        weights = weights | layout.compute_positions(weights, settings)
    return checkpoint._replace(weights=weights, settings=settings)


def _convert(
    matched: MatchedCheckpoint, vocabularies: tuple[WordVocabulary, WordVocabulary] | None, overrides: Overrides
) -> Conversion:
    layout, encoder_only = matched.layout, matched.encoder_only
    inferred = infer_fields(matched, overrides.renamed)
    check_required(matched, inferred, overrides)
    fields = merge_fields(matched, inferred, overrides.fields)
    # Validate the fields that later steps do not set.
    unsettled = {"position_embedding_type": "learned", "share_encoder_decoder_embeddings": False}
    VanillaTransformerConfig(**{**fields, **unsettled, **dict.fromkeys(SPECIAL_ID_FIELDS)})
    weights = transform_weights(matched, fields["d_model"], overrides.unbiased_norms)
    tables = {name: weights.tensors.pop(name) for name in POSITION_NAMES.values() if name in weights.tensors}
    first = layout.first_position if overrides.first_position is None else overrides.first_position
    if first is None and tables:
        first = {**layout.defaults, **inferred}["pad_token_id"] + 1
    are_stored = bool(matched.stored_position_keys)
    positions = choose_positions(from_first_token(tables, first or 0), layout, fields, overrides.fields, are_stored)
    fields |= positions.fields
    fitted = fit_vocabularies(vocabularies, fields, layout)
    embeddings = EMBEDDING_NAMES["encoder"]
    weights.tensors[embeddings] = fitted.resize(weights.tensors[embeddings])
    fields["vocab_size"] = len(fitted.rows)
    config = _configuration(fields, weights.tensors, overrides.fields, encoder_only)
    weights.tensors |= positions.tables
    complete_weights(matched, weights, config)
    tokenizer: PreTrainedTokenizerBase | None = fitted.tokenizer
    folder = matched.checkpoint.folder if layout.config_class else None
    generation, generation_notes = read_generation_settings(folder) if folder else ({}, [])
    if folder and tokenizer is None and not encoder_only:
        tokenizer = load_tokenizer(folder)
    if tokenizer is not None and config.position_embedding_type == "learned":
        tokenizer.model_max_length = min(tokenizer.model_max_length, config.max_position_embeddings)
    notes = [
        *positions.notes,
        *fitted.notes,
        *unread_settings(matched),
        *assumed_fields(layout, config, {*overrides.fields, *inferred}),
        *generation_notes,
        *(() if overrides.renamed else layout.notes),
    ]
    prefix = "model." if encoder_only else ""
    converted = {name.removeprefix(prefix): tensor.to(config.dtype) for name, tensor in weights.tensors.items()}
    generation = _generation_settings(layout, config, generation, overrides)
    return Conversion(layout, config, converted, weights.mapping, notes, tokenizer, encoder_only, generation)


def _configuration(
    fields: Mapping[str, Any], tensors: Mapping[str, Tensor], overrides: Mapping[str, Any], encoder_only: bool
) -> VanillaTransformerConfig:
    """Return the configuration, with embeddings shared and tied where the weights are equal."""
    encoder, decoder = EMBEDDING_NAMES.values()
    shared = {}
    for field_name, (one, other) in {
        "share_encoder_decoder_embeddings": (encoder, decoder),
        "tie_word_embeddings": (decoder, "lm_head.weight"),
    }.items():
        same = one in tensors and other in tensors and torch.equal(tensors[one], tensors[other])
        if overrides.get(field_name) and not same and not encoder_only:
            raise ValueError(f"`{field_name}=True`, but {one} and {other} differ; leave it out")
        shared[field_name] = same and overrides.get(field_name, True)
    # The widest dtype is lossless.
    dtype = reduce(torch.promote_types, (tensor.dtype for tensor in tensors.values()))
    return VanillaTransformerConfig(**{**fields, **shared}, dtype=dtype)


def _generation_settings(
    layout: Layout, config: VanillaTransformerConfig, stored: Mapping[str, Any], overrides: Overrides
) -> dict[str, Any]:
    """Return the original's generation settings, without those that the caller overrides."""
    settings: dict[str, Any] = {}
    if layout.generation_settings is not None and not overrides.renamed:
        settings = layout.generation_settings(config)
    settings = {name: value for name, value in {**settings, **stored}.items() if name not in overrides.fields}
    if config.position_embedding_type == "learned":
        length = config.max_position_embeddings
        settings["max_length"] = min(settings.get("max_length") or length, length)
    return settings
