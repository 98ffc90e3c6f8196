"""Bringing the checkpoints of other code bases in: their weights under our names, with nothing lost or made up.

`convert_checkpoint` finds out whose weights they are by their keys, works out the configuration by their shapes, and
writes a folder that `AutoModelForSeq2SeqLM.from_pretrained` loads. What is known of a code base is a `Layout`, a
table in `tutorial_layouts` or `translation_layouts`.
"""

import difflib
import json
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache, reduce
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from ..files import atomic_folder, check_output_folder
from ..model.configuration_vanilla_transformer import (
    NORM_POSITIONS,
    SINUSOIDAL_LAYOUTS,
    VanillaTransformerConfig,
)
from ..model.modeling_vanilla_transformer import (
    VanillaTransformerEncoderModel,
    VanillaTransformerForConditionalGeneration,
)
from ..model.positions_vanilla_transformer import sinusoids
from .layouts.translation import COMPUTED_POSITIONS
from .reading import ForeignCheckpoint, read_checkpoint
from .recognition import LAYOUTS, RENAME_HINT, listed, pattern, recognise, renamed
from .rules import EMBEDDINGS, HEADS, POSITIONS, SIDES, UNBIASED, Layout, Rule, unchanged
from .vocabularies import Vocabulary, WordVocabulary, vocabulary_tokenizer

# Sinusoids of position p in float32 are as far off as their angles are: p times a few units in the last place.
TABLE_TOLERANCE, ANGLE_ERROR = 1e-5, 3e-7
POSITION_FIELDS = ("position_embedding_type", "sinusoidal_layout")
# What fields may be, for a message; of others it gives the value in the layout's code. Norms are among the weights,
# wherever they stand, or there are none.
VALUES = {
    "norm_position": "|".join(name for name in NORM_POSITIONS if name != "none"),
    "activation_function": "relu|gelu|silu|...",
    "scale_embedding": "true|false",
    "sinusoidal_layout": "|".join(SINUSOIDAL_LAYOUTS),
}
NORM_WEIGHT = "layer_norm.weight"

SIZES = ("vocab_size", "decoder_vocab_size", "d_model", "encoder_layers", "decoder_layers", "encoder_ffn_dim",
         "decoder_ffn_dim", "attention_bias", "lm_head_bias")  # fmt: skip  # a table, like those of the layouts
_SPECIAL = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")
# Only sizes matter to the transforms; all else is settled by what comes out of them.
_DRAFT = {"position_embedding_type": "learned", "share_encoder_decoder_embeddings": False, **dict.fromkeys(_SPECIAL)}


class Row(NamedTuple):
    """One line of the mapping: a foreign tensor, ours, and what happens between them."""

    theirs: str
    their_shape: tuple[int, ...]
    ours: str
    our_shape: tuple[int, ...]
    how: str


class _Match(NamedTuple):
    key: str
    rule: Rule
    number: str

    @property
    def ours(self) -> list[str]:
        return [name.replace("{i}", self.number) for name in self.rule.ours]


class _Said(NamedTuple):
    """What the user says that weights do not; where the keys were adapted to a layout, its code says nothing else."""

    fields: dict[str, Any]
    first_position: int | None
    unbiased_norms: bool | None
    adapted: bool


@dataclass
class Conversion:
    """A checkpoint under our names, not yet written.

    Attributes:
        layout: Whose it was.
        config: Our configuration.
        weights: Our weights by their names.
        rows: What became of each foreign tensor.
        notes: What was decided on the way, one sentence each.
        tokenizer: That of the vocabularies, if any were given, or of the folder.
        encoder_only: Whether these are the weights of an encoder alone.
        generation: Settings of generation beyond those in the configuration.
    """

    layout: Layout
    config: VanillaTransformerConfig
    weights: dict[str, Tensor]
    rows: list[Row]
    notes: list[str] = field(default_factory=list)
    tokenizer: PreTrainedTokenizerBase | None = None
    encoder_only: bool = False
    generation: dict[str, Any] = field(default_factory=dict)

    def describe(self) -> str:
        """Return the mapping, the fields of the configuration and the notes as text, for `--dry_run`."""
        lines = [
            f"{row.theirs} {_shape(row.their_shape)}".removesuffix(" ()")
            + f" -> {row.ours} {_shape(row.our_shape)}"
            + (f", {row.how}" if row.how else "")
            for row in self.rows
        ]
        standard = VanillaTransformerConfig()
        settings = {name: getattr(self.config, name) for name in _own_fields()}
        lines += [f"config: {name}={value!r}" for name, value in settings.items() if value != getattr(standard, name)]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])

    def model(self) -> VanillaTransformerForConditionalGeneration | VanillaTransformerEncoderModel:
        """Return the model with these weights, ready to use."""
        kind = VanillaTransformerEncoderModel if self.encoder_only else VanillaTransformerForConditionalGeneration
        model: Any = kind(self.config)
        model.to(dtype=next(iter(self.weights.values())).dtype).eval()
        model.load_state_dict(self.weights)
        if isinstance(model, VanillaTransformerForConditionalGeneration):
            model.generation_config = GenerationConfig.from_model_config(self.config)
            model.generation_config.update(**self.generation)
        return model

    def save(self, output_dir: str | os.PathLike[str]) -> Path:
        """Write model, generation settings and tokenizer to a new or empty folder: all of it, or nothing.

        Raises:
            ValueError: The folder is not empty, or cannot be made.
        """
        with atomic_folder(output_dir) as folder:
            self.model().save_pretrained(folder)
            if self.tokenizer is not None:
                self.tokenizer.save_pretrained(folder)
        return Path(output_dir)


def convert_checkpoint(
    source: str | os.PathLike[str] | Mapping[str, Tensor],
    output_dir: str | os.PathLike[str] | None,
    layout: str | None = None,
    source_vocabulary: Vocabulary | None = None,
    target_vocabulary: Vocabulary | None = None,
    *,
    rename: Iterable[str] = (),
    first_position: int | None = None,
    unbiased_norms: bool | None = None,
    patched: bool = False,
    encoder_only: bool = False,
    dry_run: bool = False,
    **config_fields: Any,
) -> Conversion:
    """Convert a checkpoint of another code base, and write it as a folder of ours.

    Args:
        source: A file or folder of weights, or a state dict; see `foreign_files.read_checkpoint`.
        output_dir: New or empty folder for configuration, weights, generation settings and tokenizer.
        layout: A name of `LAYOUTS`; by default found by the keys.
        source_vocabulary: The words of the source side, for a tokenizer: token to id, tokens in order, or a file of
            either; see `vocabularies.WordVocabulary`.
        target_vocabulary: Those of the target side; by default the same.
        rename: `"old=new"` each: beginnings of keys to replace before all else. An `old` may have several `new`. What
            the layout's code does with its weights is then not assumed, and has to be given; unless every `new` is
            empty, which only unwraps.
        first_position: Row of a stored table of positions for the first token; by default as in the layout's code.
        unbiased_norms: Whether norms divide by the unbiased standard deviation, as `torch.std` does, or by the biased
            one, as `torch.nn.LayerNorm` does; by default as in the layout's code.
        patched: Whether the code that the weights come from is free of the layout's known defects, each of which is
            otherwise refused.
        encoder_only: Whether to convert the encoder alone, for `VanillaTransformerEncoderModel` and classifiers.
        dry_run: Whether to leave everything unwritten.
        **config_fields: Fields of `VanillaTransformerConfig` that the weights do not tell, such as the heads, or that
            differ from the original code's.

    Returns:
        The conversion: `model()` is the model, `describe()` the mapping.

    Raises:
        ValueError: The source cannot be read, is of no known layout, lacks weights, has others or of other shapes, or
            computes what our model cannot; a field is unknown or contradicts the weights; a vocabulary does not fit;
            the folder is not empty.
    """
    if not dry_run:
        if output_dir is None:
            raise ValueError("there is no --output_dir; name a new or empty folder, or use --dry_run")
        check_output_folder(output_dir)
    _check_field_names(config_fields)
    rename = list(rename)
    checkpoint = read_checkpoint(source)
    weights, chosen = recognise(checkpoint._replace(weights=renamed(checkpoint.weights, rename)), layout)
    _refuse_defects(chosen, patched, encoder_only)
    # Names that are only cut are the layout's own.
    said = _Said(config_fields, first_position, unbiased_norms, adapted=not all(text.endswith("=") for text in rename))
    if chosen.complete is not None:
        weights = chosen.complete(weights, checkpoint.config)
    if chosen.compute_positions is not None and not said.adapted:
        weights = weights | chosen.compute_positions(weights, checkpoint.config)
    vocabularies = _vocabularies(source_vocabulary, None if encoder_only else target_vocabulary)
    conversion = _convert(checkpoint._replace(weights=weights), chosen, vocabularies, encoder_only, said)
    if not dry_run and output_dir is not None:
        conversion.save(output_dir)
    return conversion


def _convert(
    checkpoint: ForeignCheckpoint,
    layout: Layout,
    vocabularies: tuple[WordVocabulary, WordVocabulary] | None,
    encoder_only: bool,
    said: _Said,
) -> Conversion:
    """Return the conversion of weights whose layout is known."""
    config_fields = said.fields
    matches, unexpected = _match(checkpoint.weights, layout)
    if encoder_only:
        matches = _encoder_side(matches)
    _check_finite(checkpoint, matches)
    settings = _told_by_settings(checkpoint, layout)
    told = _told_by_shapes(checkpoint, layout, matches) | _told_by_code(checkpoint, layout, said.adapted) | settings
    if said.adapted:
        told |= _told_by_norms(matches)
    _check_said(layout, said, told, matches)
    fields = _fields(layout, told, config_fields, {*settings, *checkpoint.config})
    draft = VanillaTransformerConfig(**{**fields, **_DRAFT})
    tables = [match for match in matches if match.ours[0] in POSITIONS.values()]
    matches = _with_norms([match for match in matches if match not in tables], said.unbiased_norms)
    faults: list[str] = []
    ours, rows = _transformed(checkpoint.weights, matches, draft, faults)
    stored, position_rows = _transformed(checkpoint.weights, tables, draft, faults)
    stored = _from_first_position(stored, layout, told, said)
    notes = _settle_positions(fields, stored, layout, config_fields)
    tokenizer = None
    if vocabularies:
        tokenizer = _settle_vocabularies(vocabularies, fields, ours, layout, notes)
    else:
        _make_room(fields, ours, notes)
    _settle_sharing(fields, ours, config_fields, encoder_only)
    # The widest of their types loses nothing.
    dtype = reduce(torch.promote_types, (tensor.dtype for tensor in ours.values()))
    config = VanillaTransformerConfig(**fields, dtype=dtype)
    if config.position_embedding_type == "learned":
        ours |= stored
        rows += position_rows
    else:
        rows += [row._replace(ours="sinusoids", how="computed, not kept") for row in position_rows]
    expected = _expected_shapes(config, encoder_only)
    rows += _fill(ours, expected, layout, matches)
    _check(ours, expected, rows, layout, {key: checkpoint.weights[key] for key in unexpected}, faults)
    prefix = "model." if encoder_only else ""
    weights = {name.removeprefix(prefix): tensor.to(dtype) for name, tensor in ours.items()}
    notes += _unread(checkpoint, layout)
    notes += _assumed(layout, config, {*config_fields, *told})
    conversion = Conversion(layout, config, weights, rows, notes, tokenizer, encoder_only)
    _settle_decoding(conversion, checkpoint.folder, said)
    return conversion


def _assumed(layout: Layout, config: VanillaTransformerConfig, known: set[str]) -> list[str]:
    """Return, as a note, what nobody told, and is as in the original code."""
    assumed = [f"{name}={json.dumps(getattr(config, name))}" for name in _beyond_weights(layout) if name not in known]
    if not assumed:
        return []
    return [f"as in the code of {layout.name}, unless --config says otherwise: {' '.join(assumed)}"]


def _beyond_weights(layout: Layout) -> list[str]:
    """Return the fields that are known of a layout's code, and not by its weights."""
    return list(dict.fromkeys(("activation_function", "scale_embedding", *layout.defaults)))


def _unread(checkpoint: ForeignCheckpoint, layout: Layout) -> list[str]:
    """Return, as a note, settings that stand beside the weights of a layout whose code keeps none."""
    settings = {name: value for name, value in checkpoint.config.items() if name not in layout.settings}
    if not settings or layout.model_types or layout.options:
        return []
    found = listed(f"{name}={value!r}" for name, value in settings.items())
    return [f"settings beside the weights were not read, see that --config says the same: {found}"]


def _settle_decoding(conversion: Conversion, folder: Path | None, said: _Said) -> None:
    """Take over how the original code decodes, and the settings and the tokenizer of the folder.

    Both end where learned positions do, if not before.
    """
    layout = conversion.layout
    if layout.decoding is not None and not said.adapted:
        conversion.generation |= layout.decoding(conversion.config)
    if layout.finish is not None and folder is not None:
        layout.finish(folder, conversion)
    settings = {name: value for name, value in conversion.generation.items() if name not in said.fields}
    if conversion.config.position_embedding_type == "learned":
        length = conversion.config.max_position_embeddings
        settings["max_length"] = min(settings.get("max_length") or length, length)
        if conversion.tokenizer is not None:
            conversion.tokenizer.model_max_length = min(conversion.tokenizer.model_max_length, length)
    conversion.generation = settings


def _refuse_defects(layout: Layout, patched: bool, encoder_only: bool) -> None:
    parts = ("encoder",) if encoder_only else SIDES
    defects = [] if patched else [defect for defect in layout.defects if set(defect.parts) & set(parts)]
    if not defects:
        return
    sound = not encoder_only and not any("encoder" in defect.parts for defect in layout.defects)
    raise ValueError(
        f"the weights are of {layout.name}, whose code cannot be expressed as a Transformer: "
        + "; ".join(f"its {defect.what} (repair: {defect.repair})" for defect in defects)
        + ". If the code that trained these weights was patched so, use --patched"
        + ("; its encoder is sound and converts with --encoder_only" if sound else "")
    )


def _match(weights: Iterable[str], layout: Layout) -> tuple[list[_Match], list[str]]:
    """Return which rule takes which key, in the order of the table, and the keys that none takes."""
    matches: list[_Match] = []
    rest = list(weights)
    for rule in layout.rules:
        taken = [(key, found) for key in rest if (found := pattern(rule.theirs).fullmatch(key))]
        matches += [_Match(key, rule, found.groupdict().get("i", "")) for key, found in taken]
        rest = [key for key in rest if key not in {key for key, _ in taken}]
    return matches, [key for key in rest if not any(pattern(text).fullmatch(key) for text in layout.ignored)]


def _encoder_side(matches: Iterable[_Match]) -> list[_Match]:
    """Return what goes to the encoder, and to it alone."""
    kept = []
    for match in matches:
        ours = tuple(name for name in match.rule.ours if name.startswith("model.encoder."))
        if ours:
            kept.append(match._replace(rule=replace(match.rule, ours=ours)))
    return kept


def _with_norms(matches: list[_Match], unbiased: bool | None) -> list[_Match]:
    """Return the matches with the transforms of norms that divide by the one or the other standard deviation."""
    if unbiased is None:
        return matches
    swapped = UNBIASED if unbiased else {folded: plain for plain, folded in UNBIASED.items()}
    return [
        match._replace(rule=replace(match.rule, transform=swapped.get(match.rule.transform, match.rule.transform)))
        if match.ours[0].endswith(NORM_WEIGHT)
        else match
        for match in matches
    ]


def _told_by_shapes(checkpoint: ForeignCheckpoint, layout: Layout, matches: list[_Match]) -> dict[str, Any]:
    """Return the fields that the weights tell."""
    by_name = {name: checkpoint.weights[match.key] for match in matches for name in match.ours}
    told: dict[str, Any] = {}
    for side, vocabulary in zip(SIDES, ("vocab_size", "decoder_vocab_size"), strict=True):
        embedding = by_name.get(EMBEDDINGS[side])
        layers = {found[1] for name in by_name if (found := re.match(rf"model\.{side}\.layers\.(\d+)\.", name))}
        if side == "encoder" and (embedding is None or not layers):
            wanted = [rule.theirs for rule in layout.rules if EMBEDDINGS[side] in rule.ours]
            raise ValueError(f"{checkpoint.path} holds no {listed(wanted)}, or no layer of the encoder; save them too")
        # What a decoder lacks is listed with all the rest.
        if embedding is not None:
            if not embedding.is_floating_point():
                raise ValueError(
                    f"the {side}'s embeddings are {embedding.dtype}; save the weights as floating-point numbers"
                )
            if embedding.dim() != 2:
                raise ValueError(f"the {side}'s embeddings have the shape {_shape(embedding.shape)}, not two axes")
            told[vocabulary], told["d_model"] = embedding.shape
        if layers:
            told[f"{side}_layers"] = max(map(int, layers)) + 1
            told |= _feed_forward_width(side, by_name, layout)
    told["attention_bias"] = any(re.search(r"attn\.\w+_proj\.bias$", name) for name in by_name)
    told["lm_head_bias"] = "lm_head.bias" in by_name
    head = by_name.get("lm_head.weight")
    if "decoder_vocab_size" not in told and head is not None and head.dim() == 2:
        told["decoder_vocab_size"] = len(head)
    return told


def _told_by_code(checkpoint: ForeignCheckpoint, layout: Layout, adapted: bool) -> dict[str, Any]:
    """Return the fields that the layout's code sees in its arguments and, unless keys were adapted, in the weights."""
    if layout.read_fields is None:
        return {}
    return layout.read_fields({} if adapted else checkpoint.weights, checkpoint.config)


def _told_by_settings(checkpoint: ForeignCheckpoint, layout: Layout) -> dict[str, Any]:
    told: dict[str, Any] = {}
    for name in layout.settings.keys() & checkpoint.config.keys():
        told |= layout.settings[name](checkpoint.config[name])
    return told


def _told_by_norms(matches: Iterable[_Match]) -> dict[str, Any]:
    """Return the fields that the norms among the weights tell: whether there are any, and any that end stacks."""
    norms = [match.ours[0] for match in matches if match.ours[0].endswith(NORM_WEIGHT)]
    told: dict[str, Any] = {"final_layer_norm": any(re.fullmatch(r"model\.\w+\.layer_norm\.\w+", n) for n in norms)}
    return told if norms else {**told, "norm_position": "none"}


def _check_said(layout: Layout, said: _Said, told: Mapping[str, Any], matches: Iterable[_Match]) -> None:
    """Raise for what neither weights, nor settings, nor the layout's code, nor the user tell: all of it at once."""
    known = {*told, *said.fields}
    ours = {match.ours[0]: match.key for match in matches}
    tables = [ours[name] for name in POSITIONS.values() if name in ours]
    if said.first_position is not None and not tables:
        raise ValueError("--first_position is given, but no table of positions is among the weights; leave it out")
    wanted = [] if known & set(layout.asked) else [*layout.asked]
    first_position, unbiased_norms = False, False
    if said.adapted:
        # The type of positions shows by the tables: learned ones that are not there are missing.
        wanted += [name for name in _beyond_weights(layout) if name not in POSITION_FIELDS]
        wanted += () if tables else ("sinusoidal_layout",)
        first_position = bool(tables)
        unbiased_norms = any(name.endswith(NORM_WEIGHT) for name in ours)
    else:
        wanted += layout.options
        lost = any(name not in told for name in layout.options)
        first_position = lost and any(key not in COMPUTED_POSITIONS.values() for key in tables)
    missing = [name for name in dict.fromkeys(wanted) if name not in known]
    options = ["--first_position 0"] if first_position and said.first_position is None else []
    options += ["--unbiased_norms true|false"] if unbiased_norms and said.unbiased_norms is None else []
    if missing:
        values = {name: VALUES.get(name) or json.dumps(layout.defaults.get(name, 8)) for name in missing}
        options += ["--config", *(f"{name}={value}" for name, value in values.items())]
    if options:
        other = ", under other names," if said.adapted else ""
        raise ValueError(
            f"the weights of {layout.name}{other} do not tell how they are used; give, as it was in their code: "
            + " ".join(options)
        )


def _check_finite(checkpoint: ForeignCheckpoint, matches: Iterable[_Match]) -> None:
    """Raise for weights that are NaN or infinite: a training that diverged left them."""
    if faults := [match.key for match in matches if not checkpoint.weights[match.key].isfinite().all()]:
        raise ValueError(f"{checkpoint.path}: NaN or infinite numbers in {listed(faults)}; use another checkpoint")


def _feed_forward_width(side: str, by_name: Mapping[str, Tensor], layout: Layout) -> dict[str, int]:
    """Return the field that tells it: nothing where its weights are missing, 0 where the layout has none."""
    first, second = (rf"model\.{side}\.layers\.\d+\.{name}\.weight" for name in ("fc1", "fc2"))
    for name, tensor in by_name.items():
        for text, axis in ((first, 0), (second, 1)):
            if re.fullmatch(text, name) and tensor.dim() == 2:
                return {f"{side}_ffn_dim": tensor.shape[axis]}
    names = (name.replace("{i}", "0") for rule in layout.rules for name in rule.ours)
    return {} if any(re.fullmatch(first, name) for name in names) else {f"{side}_ffn_dim": 0}


def _check_field_names(config_fields: Mapping[str, Any]) -> None:
    for name in config_fields:
        if name not in _own_fields():
            close = difflib.get_close_matches(name, _own_fields(), n=1)
            hint = f"; did you mean {close[0]}?" if close else "; see VanillaTransformerConfig"
            raise ValueError(f"--config {name} is no field of the configuration{hint}")


@cache
def _own_fields() -> tuple[str, ...]:
    """Return the fields that our configuration has beyond those of every model in transformers."""
    own = VanillaTransformerConfig.__annotations__
    return tuple(field.name for field in fields(VanillaTransformerConfig) if field.name in own)


def _fields(
    layout: Layout, told: Mapping[str, Any], given: Mapping[str, Any], settings: Collection[str]
) -> dict[str, Any]:
    """Return the fields of the configuration: the user's before the weights', and these before the layout's."""
    # Numbers of heads that no setting tells are read off shapes.
    for name in (*SIZES, *(name for name in HEADS if name not in settings)):
        if name in given and name in told and given[name] != told[name]:
            raise ValueError(f"--config {name}={given[name]!r}, but the weights say {told[name]!r}; leave it out")
    found = {**layout.defaults, **told, **given}
    asked = [name for name in layout.asked if name in found]
    # One of the two numbers of heads is enough where both are the same, as they nearly always are.
    return {**found, **{name: found.get(name, found[asked[0]]) for name in layout.asked}}


def _transformed(
    weights: Mapping[str, Tensor], matches: list[_Match], config: VanillaTransformerConfig, faults: list[str]
) -> tuple[dict[str, Tensor], list[Row]]:
    """Return our tensors and the rows of the mapping; a tensor that a transform cannot take becomes a fault."""
    ours: dict[str, Tensor] = {}
    rows: list[Row] = []
    for match in matches:
        tensor = weights[match.key]
        if not tensor.is_floating_point():
            faults.append(f"{match.key}, which is {tensor.dtype} and no floating-point number")
            continue
        try:
            results = match.rule.transform(
                tensor.double() if match.rule.transform is not unchanged else tensor, config
            )
        except (ArithmeticError, IndexError, RuntimeError, ValueError):
            faults.append(f"{match.key} {_shape(tensor.shape)} does not fit d_model={config.d_model}")
            continue
        results = results * len(match.ours) if len(results) == 1 else results
        if len(results) != len(match.ours):
            faults.append(f"{match.key} {_shape(tensor.shape)} does not give {len(match.ours)} weights")
            continue
        for name, result in zip(match.ours, results, strict=True):
            result = result.to(tensor.dtype)
            if name in ours and not torch.equal(ours[name], result):
                faults.append(f"{match.key} and another weight both are {name}, and differ")
            ours[name] = result
            how = "" if match.rule.transform is unchanged else match.rule.transform.__name__.replace("_", " ")
            rows.append(Row(match.key, tuple(tensor.shape), name, tuple(result.shape), how))
    return ours, rows


def _from_first_position(
    stored: Mapping[str, Tensor], layout: Layout, told: Mapping[str, Any], said: _Said
) -> dict[str, Tensor]:
    """Return the stored tables from the row of the first token: those before it no token ever has."""
    first = said.first_position
    if first is None:
        first = {**layout.defaults, **told}["pad_token_id"] + 1 if layout.after_padding else 0
    for name, table in stored.items():
        if not 0 <= first < len(table):
            raise ValueError(
                f"{name} has {len(table)} rows, and none for a token at row {first}; give --first_position, from 0 to "
                f"{len(table) - 1}"
            )
    return {name: table[first:] for name, table in stored.items()}


def _settle_positions(
    fields: dict[str, Any], stored: dict[str, Tensor], layout: Layout, given: Mapping[str, Any]
) -> list[str]:
    """Choose how positions are encoded, by the tables that were stored; return what was chosen.

    Sinusoids are computed where a table holds them, up to its rounding: they have no end. Any other table, such as one
    of defective sinusoids, becomes learned positions, which hold it exactly.
    """
    if not stored:
        kind = fields.get("position_embedding_type", "sinusoidal")
        if kind == "sinusoidal" and layout.own_sinusoids and "sinusoidal_layout" not in given:
            raise ValueError(
                f"no table of positions is among the weights, and those that {layout.name} computes are not the "
                "paper's; save the buffers of the model too (state_dict holds them)"
            )
        how = fields.get("sinusoidal_layout", SINUSOIDAL_LAYOUTS[0])
        # Learned ones that are not there count as missing.
        return [f"no positions are stored: sinusoids, {how}, are computed"] if kind == "sinusoidal" else []
    kind = given.get("position_embedding_type")
    layouts = [name for name in SINUSOIDAL_LAYOUTS if all(_is_sinusoidal(table, name) for table in stored.values())]
    if layouts and kind != "learned":
        if (how := given.get("sinusoidal_layout", layouts[0])) not in layouts:
            raise ValueError(
                f"--config sinusoidal_layout={how}, but the stored positions are {layouts[0]}; leave it out"
            )
        fields.update(position_embedding_type="sinusoidal", sinusoidal_layout=how)
        return [f"the stored positions are sinusoids, {how}: they are computed, to any length"]
    if kind == "sinusoidal":
        raise ValueError("the stored positions are no sinusoids; leave out --config position_embedding_type")
    length = _settle_length(stored, given.get("max_position_embeddings"))
    fields.update(position_embedding_type="learned", max_position_embeddings=length)
    if layouts:
        return [f"the stored positions are kept as learned ones: sequences end at {length} tokens"]
    return [f"the stored positions are no sinusoids of the paper, and kept as learned ones: {length} tokens"]


def _settle_length(stored: dict[str, Tensor], wanted: int | None) -> int:
    """Give the stored tables one length, without loss unless the user wants fewer rows; return it.

    Raises:
        ValueError: Two tables differ in more than how far one function was computed, or fewer rows are stored.
    """
    shortest = min(map(len, stored.values()))
    for name, table in stored.items():
        stored[name] = _extended(table, stored.values(), shortest)
    lengths = sorted({len(table) for table in stored.values()})
    if wanted is None and len(lengths) > 1:
        raise ValueError(
            f"the two tables of positions have {lengths[0]} and {lengths[1]} rows, where ours have as many; use "
            f"--config max_position_embeddings={lengths[0]} to truncate the longer one"
        )
    length = wanted or lengths[0]
    if length > lengths[0]:
        raise ValueError(
            f"--config max_position_embeddings={length}, but {lengths[0]} positions are stored; leave it out"
        )
    for name, table in stored.items():
        stored[name] = table[:length].clone()
    return length


def _extended(table: Tensor, tables: Iterable[Tensor], common: int) -> Tensor:
    """Return the longest table if the shorter one is its beginning, as two lengths of one function are."""
    longest = max(tables, key=len)
    return longest if torch.equal(table[:common], longest[:common]) else table


def _is_sinusoidal(table: Tensor, layout: str) -> bool:
    if table.shape[1] % 2:
        return False
    steps = torch.arange(len(table))
    difference = (sinusoids(steps, table.shape[1], layout) - table.float()).abs().amax(-1)
    tolerance = TABLE_TOLERANCE + torch.finfo(table.dtype).eps / 2
    return bool((difference <= tolerance + ANGLE_ERROR * steps).all())


def _make_room(fields: dict[str, Any], ours: dict[str, Tensor], notes: list[str]) -> None:
    """Make room in the source embeddings for special tokens that only the target vocabulary reaches to."""
    last = max((fields[name] for name in _SPECIAL if isinstance(fields.get(name), int)), default=0)
    size = fields["vocab_size"]
    if size <= last < fields.get("decoder_vocab_size", last + 1):
        _take_rows(fields, ours, [*range(size), *[None] * (last + 1 - size)])
        notes.append(f"{last + 1 - size} rows of zeros were added to the source embeddings for the special tokens")


def _take_rows(fields: dict[str, Any], ours: dict[str, Tensor], rows: Sequence[int | None]) -> None:
    """Give the source embeddings these of their rows; None stands for one of zeros."""
    table = ours[EMBEDDINGS["encoder"]]
    with_zeros = torch.cat([table, table.new_zeros(1, table.shape[1])])
    ours[EMBEDDINGS["encoder"]] = with_zeros[[len(table) if row is None else row for row in rows]]
    fields["vocab_size"] = len(rows)


def _vocabularies(
    source: Vocabulary | None, target: Vocabulary | None
) -> tuple[WordVocabulary, WordVocabulary] | None:
    if source is None:
        if target is not None:
            raise ValueError("--target_vocabulary needs --source_vocabulary beside it; give both")
        return None
    name = "--source_vocabulary"
    first = WordVocabulary(source, name)
    return first, WordVocabulary(source, name) if target is None else WordVocabulary(target, "--target_vocabulary")


def _settle_vocabularies(
    vocabularies: tuple[WordVocabulary, WordVocabulary],
    fields: dict[str, Any],
    ours: dict[str, Tensor],
    layout: Layout,
    notes: list[str],
) -> PreTrainedTokenizerFast:
    """Return the tokenizer; the source embeddings are renumbered so that both sides have the same special tokens."""
    source, target = vocabularies
    for vocabulary, name in zip(vocabularies, ("vocab_size", "decoder_vocab_size"), strict=True):
        if len(vocabulary.tokens) != (size := fields.get(name, fields["vocab_size"])):
            raise ValueError(
                f"{vocabulary.name} has {len(vocabulary.tokens)} tokens, but the embeddings ({name}) have {size} "
                "rows; give the one that the model was trained with"
            )
    special: dict[str, str] = {}
    for role in ("pad", "bos", "eos"):
        number = fields.get(f"{role}_token_id")
        number = number[0] if isinstance(number, list) else number
        if number is None:
            continue
        if not 0 <= number < len(target.tokens):
            raise ValueError(
                f"{target.name} ends at id {len(target.tokens) - 1}, and has no {role} token {number}; "
                f"give its id, as in --config {role}_token_id=0"
            )
        special[f"{role}_token"] = target.tokens[number]
    aligned = [*special.values(), *([source.unknown] if source.unknown and source.unknown == target.unknown else [])]
    rows = source.aligned({token: target.tokens.index(token) for token in aligned})
    if rows != list(range(fields["vocab_size"])):
        notes.append("source ids were renumbered, so that both sides have the same ids of special tokens")
        _take_rows(fields, ours, rows)
    notes.append("special tokens: " + ", ".join(f"{role} {token!r}" for role, token in special.items()))
    prefix, suffix = _affixes(layout)
    framed = [special.get(role, role) for role in (*prefix, "...", *suffix) if role == "..." or role in special]
    notes.append(f"a source becomes {' '.join(framed)}, as in the code of {layout.name}")
    return vocabulary_tokenizer(source, target, special, prefix, suffix)


def _affixes(layout: Layout) -> Iterator[list[str]]:
    return ([f"{role}_token" for role in roles] for roles in (layout.source_prefix, layout.source_suffix))


def _settle_sharing(
    fields: dict[str, Any], ours: Mapping[str, Tensor], given: Mapping[str, Any], encoder_only: bool
) -> None:
    """Share the embeddings and tie the projection where the weights are the same."""
    decoder = EMBEDDINGS["decoder"]
    for name, (one, other) in {
        "share_encoder_decoder_embeddings": (EMBEDDINGS["encoder"], decoder),
        "tie_word_embeddings": (decoder, "lm_head.weight"),
    }.items():
        same = one in ours and other in ours and torch.equal(ours[one], ours[other])
        if given.get(name) and not same and not encoder_only:
            raise ValueError(f"--config {name}=true, but {one} and {other} differ; leave it out")
        fields[name] = same and given.get(name, True)


def _expected_shapes(config: VanillaTransformerConfig, encoder_only: bool) -> dict[str, tuple[int, ...]]:
    with torch.device("meta"):
        model = VanillaTransformerForConditionalGeneration(config)
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    return {name: shape for name, shape in shapes.items() if name.startswith("model.encoder.") or not encoder_only}


def _fill(
    ours: dict[str, Tensor], expected: Mapping[str, tuple[int, ...]], layout: Layout, matches: Iterable[_Match]
) -> list[Row]:
    """Put in what the original does without: a projection that is not there, a bias that no layer has."""
    present = {match.rule.theirs for match in matches}
    absent = {name for rule in layout.rules if rule.optional and rule.theirs not in present for name in rule.ours}
    like = ours[EMBEDDINGS["encoder"]]
    rows = []
    for name, shape in expected.items():
        if name in ours or name in POSITIONS.values():
            continue
        filler = next((layout.fills[end] for end in layout.fills if re.search(rf"{end}$", name)), None)
        if filler is None and re.sub(r"\.\d+\.", ".{i}.", name) in absent:
            filler = torch.zeros
        if filler is not None:
            ours[name] = filler(shape).to(like)
            rows.append(Row("nothing", (), name, shape, filler.__name__))
    return rows


def _check(
    ours: Mapping[str, Tensor],
    expected: Mapping[str, tuple[int, ...]],
    rows: Sequence[Row],
    layout: Layout,
    unexpected: Mapping[str, Tensor],
    faults: Sequence[str],
) -> None:
    """Raise for weights that are missing, that nobody knows, or that have another shape than the others imply."""
    origin = {row.ours: row for row in rows}
    misshaped = [
        f"{origin[name].theirs} {_shape(origin[name].their_shape)} gives {name} {_shape(tensor.shape)}, not "
        f"{_shape(expected[name])}"
        for name, tensor in ours.items()
        if name in expected and tuple(tensor.shape) != expected[name]
    ]
    missing = {_their_name(name, layout): name for name in expected if name not in ours}
    superfluous = sorted({origin[name].theirs for name in ours if name not in expected})
    problems = {
        "missing": sorted(missing),
        "unexpected": [*unexpected, *superfluous],
        "of another shape": [*misshaped, *faults],
    }
    found = [f"{len(names)} {problem}: {listed(names)}" for problem, names in problems.items() if names]
    if found:
        shapes = [tuple(tensor.shape) for tensor in unexpected.values()]
        only_names = missing and sorted(shapes) == sorted(expected[name] for name in missing.values())
        hint = RENAME_HINT if only_names and not (superfluous or misshaped or faults) else ""
        raise ValueError(f"these are not the weights of one {layout.name}: {'; '.join(found)}{hint}")


def _their_name(ours: str, layout: Layout) -> str:
    """Return the foreign key that one of our names comes from, or ours if the table has none."""
    number = re.search(r"\.(\d+)\.", ours)
    pattern = ours.replace(f".{number[1]}.", ".{i}.", 1) if number else ours
    for rule in layout.rules:
        if ours in rule.ours:
            return rule.theirs
        if number and pattern in rule.ours:
            return rule.theirs.replace("{i}", number[1])
    return ours


def _shape(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "()"


__all__ = ["LAYOUTS", "Conversion", "Row", "convert_checkpoint"]
