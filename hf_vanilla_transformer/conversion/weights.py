"""From the weights of a source checkpoint to ours: keys matched to rules, transforms, and checks for completeness."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from ..model.configuration_vanilla_transformer import VanillaTransformerConfig
from ..model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration
from .reading import SourceCheckpoint
from .recognition import RENAME_HINT, abbreviate
from .rules import (
    COMPUTED_POSITION_KEYS,
    EMBEDDING_NAMES,
    POSITION_NAMES,
    Filler,
    Layout,
    Rule,
    Transform,
    expand_scalar,
    fold_unbiased_std,
    key_pattern,
    unchanged,
)

NORM_WEIGHTS = ("layer_norm.weight", "layernorm_embedding.weight")


class _MisfitError(ValueError):
    """A source tensor does not fit its rule; the message is a clause."""


class MappedTensor(NamedTuple):
    """One line of the mapping: a source tensor, ours, and the transform between them."""

    key: str
    source_shape: tuple[int, ...]
    name: str
    shape: tuple[int, ...]
    transform: str

    def __str__(self) -> str:
        source = f"{self.key} {shape_text(self.source_shape)}" if self.source_shape else self.key
        return f"{source} -> {self.name} {shape_text(self.shape)}" + (f", {self.transform}" if self.transform else "")


@dataclass(frozen=True)
class Match:
    """A key of the checkpoint, the rule that it follows, and the index of its layer ("" outside layers)."""

    key: str
    rule: Rule
    layer: str

    @property
    def names(self) -> list[str]:
        return [name.replace("{i}", self.layer) for name in self.rule.names]

    @property
    def is_position_table(self) -> bool:
        return self.names[0] in POSITION_NAMES.values()

    @property
    def is_norm_weight(self) -> bool:
        return self.names[0].endswith(NORM_WEIGHTS)


@dataclass(frozen=True)
class MatchedCheckpoint:
    """A source checkpoint whose keys are matched to the rules of its layout.

    Attributes:
        checkpoint: Weights and settings, by the keys and names of the original.
        layout: How the original names and uses them.
        matches: The matched keys, in the order of the rules.
        unexpected: Tensors that no rule takes.
        encoder_only: Whether matches of the decoder were left out.
    """

    checkpoint: SourceCheckpoint
    layout: Layout
    matches: tuple[Match, ...]
    unexpected: Mapping[str, Tensor]
    encoder_only: bool

    @cached_property
    def by_name(self) -> dict[str, Tensor]:
        """Source tensors by our names."""
        return {name: self.checkpoint.weights[match.key] for match in self.matches for name in match.names}

    @property
    def stored_position_keys(self) -> list[str]:
        computed = COMPUTED_POSITION_KEYS.values()
        return [match.key for match in self.matches if match.is_position_table and match.key not in computed]

    @property
    def norm_names(self) -> list[str]:
        return [match.names[0] for match in self.matches if match.is_norm_weight]


@dataclass(frozen=True)
class TransformedWeights:
    """Our weights by their names, the mapping to them, and a clause for each source tensor that did not fit."""

    tensors: dict[str, Tensor]
    mapping: list[MappedTensor]
    faults: list[str]


def match_keys(checkpoint: SourceCheckpoint, layout: Layout, encoder_only: bool) -> MatchedCheckpoint:
    """Match every key to the first rule that fits.

    Raises:
        ValueError: A matched tensor holds NaN or infinity.
    """
    matches: list[Match] = []
    rest = list(checkpoint.weights)
    for rule in layout.rules:
        taken = {key: found for key in rest if (found := key_pattern(rule.key).fullmatch(key))}
        matches += [Match(key, rule, found.groupdict().get("i", "")) for key, found in taken.items()]
        rest = [key for key in rest if key not in taken]
    if encoder_only:
        matches = _encoder_matches(matches)
    # As after a diverged training.
    if faults := [match.key for match in matches if not checkpoint.weights[match.key].isfinite().all()]:
        raise ValueError(f"{checkpoint.path}: NaN or infinite values in {abbreviate(faults)}; use another checkpoint")
    unexpected = {
        key: checkpoint.weights[key]
        for key in rest
        if not any(key_pattern(ignored).fullmatch(key) for ignored in layout.ignored_keys)
    }
    return MatchedCheckpoint(checkpoint, layout, tuple(matches), unexpected, encoder_only)


def _encoder_matches(matches: Iterable[Match]) -> list[Match]:
    """Return the matches of the encoder, without their names in the decoder."""
    kept = []
    for match in matches:
        names = tuple(name for name in match.rule.names if name.startswith("model.encoder."))
        if names:
            kept.append(replace(match, rule=replace(match.rule, names=names)))
    return kept


def transform_weights(matched: MatchedCheckpoint, d_model: int, unbiased_norms: bool | None) -> TransformedWeights:
    """Apply the rules.

    Args:
        matched: The source tensors and their rules.
        d_model: Width of the model.
        unbiased_norms: Whether norms divide by the unbiased standard deviation; None for what the rules say.
    """
    tensors: dict[str, Tensor] = {}
    mapping: list[MappedTensor] = []
    faults: list[str] = []
    for match in matched.matches:
        source, transform = matched.checkpoint.weights[match.key], _transform_of(match, unbiased_norms)
        try:
            results = _apply(transform, source, match, d_model)
        except _MisfitError as misfit:
            faults.append(str(misfit))
            continue
        description = "" if transform is unchanged else transform.__name__.replace("_", " ")
        for name, tensor in zip(match.names, results, strict=True):
            if name in tensors and not torch.equal(tensors[name], tensor):
                faults.append(f"{match.key} and another weight are both {name}, and differ")
            tensors[name] = tensor
            mapping.append(MappedTensor(match.key, tuple(source.shape), name, tuple(tensor.shape), description))
    return TransformedWeights(tensors, mapping, faults)


def _transform_of(match: Match, unbiased_norms: bool | None) -> Transform:
    transform = match.rule.transform
    if unbiased_norms is None or not match.is_norm_weight:
        return transform
    if unbiased_norms:
        return fold_unbiased_std if transform in (unchanged, expand_scalar) else transform
    return expand_scalar if transform is fold_unbiased_std else transform


def _apply(transform: Transform, source: Tensor, match: Match, d_model: int) -> list[Tensor]:
    """Return a tensor for each name of a match, in the type of the source."""
    if not source.is_floating_point():
        raise _MisfitError(f"{match.key}, which is {source.dtype}, not floating point")
    try:
        results = transform(source if transform is unchanged else source.double(), d_model)
    except (ArithmeticError, IndexError, RuntimeError, ValueError):
        raise _MisfitError(f"{match.key} {shape_text(source.shape)} does not fit d_model={d_model}") from None
    results = results * len(match.names) if len(results) == 1 else results
    if len(results) != len(match.names):
        raise _MisfitError(f"{match.key} {shape_text(source.shape)} does not give {len(match.names)} weights")
    return [result.to(source.dtype) for result in results]


def complete_weights(
    matched: MatchedCheckpoint, converted: TransformedWeights, config: VanillaTransformerConfig
) -> TransformedWeights:
    """Add parameters that the original lacks, and check that all are there, in their shapes.

    Raises:
        ValueError: Lists all missing, unexpected and misshaped weights.
    """
    shapes = _parameter_shapes(config, matched.encoder_only)
    tensors, mapping = dict(converted.tensors), list(converted.mapping)
    like = tensors[EMBEDDING_NAMES["encoder"]]
    for name, filler in _fillers(matched, [name for name in shapes if name not in tensors]).items():
        tensors[name] = filler(shapes[name]).to(like)
        mapping.append(MappedTensor("nothing", (), name, shapes[name], filler.__name__))
    complete = TransformedWeights(tensors, mapping, converted.faults)
    _check_complete(matched, complete, shapes)
    return complete


def _parameter_shapes(config: VanillaTransformerConfig, encoder_only: bool) -> dict[str, tuple[int, ...]]:
    with torch.device("meta"):
        model = VanillaTransformerForConditionalGeneration(config)
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    return {name: shape for name, shape in shapes.items() if name.startswith("model.encoder.") or not encoder_only}


def _fillers(matched: MatchedCheckpoint, missing: Iterable[str]) -> dict[str, Filler]:
    """Return fillers of parameters that the original lacks: a projection, or the bias of every layer."""
    layout = matched.layout
    present = {name for match in matched.matches for name in match.rule.names}
    absent = {name for rule in layout.rules if rule.optional for name in rule.names} - present
    fillers: dict[str, Filler] = {}
    for name in missing:
        if name in POSITION_NAMES.values():
            continue
        filler = next((layout.fillers[end] for end in layout.fillers if re.search(rf"{end}$", name)), None)
        if filler is None and re.sub(r"\.\d+\.", ".{i}.", name) in absent:
            filler = torch.zeros
        if filler is not None:
            fillers[name] = filler
    return fillers


def _check_complete(
    matched: MatchedCheckpoint, converted: TransformedWeights, shapes: Mapping[str, tuple[int, ...]]
) -> None:
    layout, tensors = matched.layout, converted.tensors
    origin = {row.name: row for row in converted.mapping}
    misshaped = [
        f"{origin[name].key} {shape_text(origin[name].source_shape)} gives {name} {shape_text(tensor.shape)}, not "
        f"{shape_text(shapes[name])}"
        for name, tensor in tensors.items()
        if name in shapes and tuple(tensor.shape) != shapes[name]
    ]
    missing = {_key_of(name, layout) for name in shapes if name not in tensors}
    superfluous = sorted({origin[name].key for name in tensors if name not in shapes})
    problems = {
        "missing": sorted(missing),
        "unexpected": [*matched.unexpected, *superfluous],
        "of another shape": [*misshaped, *converted.faults],
    }
    if found := [f"{len(names)} {problem}: {abbreviate(names)}" for problem, names in problems.items() if names]:
        hint = RENAME_HINT if missing and matched.unexpected else ""
        raise ValueError(f"these are not the weights of one {layout.name}: {'; '.join(found)}{hint}")


def _key_of(name: str, layout: Layout) -> str:
    """Return the key that one of our names comes from, or the name if no rule gives it."""
    index = re.search(r"\.(\d+)\.", name)
    names = {name, re.sub(r"\.\d+\.", ".{i}.", name, count=1)}
    key = next((rule.key for rule in layout.rules if names & {*rule.names}), name)
    return key.replace("{i}", index[1]) if index else key


def shape_text(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "()"
