"""Match source keys to rules, transform the tensors, and check that our weights are complete."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from ..model.configuration_vanilla_transformer import VanillaTransformerConfig
from ..model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration
from .reading import SourceCheckpoint
from .recognition import RENAME_HINT, abbreviate
from .rules import COMPUTED_POSITION_KEYS, EMBEDDING_NAMES, POSITION_NAMES, Layout, Rule, key_pattern
from .transforms import Filler, Transform, expand_scalar, fold_unbiased_std, unchanged

NORM_WEIGHTS = ("layer_norm.weight", "layernorm_embedding.weight")


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


class Match(NamedTuple):
    """A source key, its rule, and the names of the parameters that it becomes."""

    key: str
    rule: Rule
    names: tuple[str, ...]

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
        checkpoint: The source checkpoint.
        layout: Its layout.
        matches: The matched keys, in the order of the rules.
        unexpected: Keys that match no rule.
        encoder_only: Whether matches of the decoder were left out.
    """

    checkpoint: SourceCheckpoint
    layout: Layout
    matches: list[Match]
    unexpected: list[str]
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


@dataclass
class TransformedWeights:
    """Our weights by name, the mapping to them, and a clause for each source tensor that did not fit."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    mapping: list[MappedTensor] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


def match_keys(checkpoint: SourceCheckpoint, layout: Layout, encoder_only: bool) -> MatchedCheckpoint:
    """Match every key to the first rule that fits; NaN or infinity in a matched tensor is a ValueError."""
    matches: list[Match] = []
    rest = list(checkpoint.weights)
    for rule in layout.rules:
        taken = {key: key_match for key in rest if (key_match := key_pattern(rule.key).fullmatch(key))}
        for key, key_match in taken.items():
            names = (name.replace("{i}", key_match.groupdict().get("i", "")) for name in rule.names)
            kept = tuple(name for name in names if name.startswith("model.encoder.") or not encoder_only)
            matches += [Match(key, rule, kept)] if kept else []
        rest = [key for key in rest if key not in taken]
    # For example after training diverged.
    if faults := [match.key for match in matches if not checkpoint.weights[match.key].isfinite().all()]:
        raise ValueError(f"{checkpoint.path}: NaN or infinite values in {abbreviate(faults)}; use another checkpoint")
    ignored = [key_pattern(key) for key in layout.ignored_keys]
    unexpected = [key for key in rest if not any(pattern.fullmatch(key) for pattern in ignored)]
    return MatchedCheckpoint(checkpoint, layout, matches, unexpected, encoder_only)


def transform_weights(matched: MatchedCheckpoint, d_model: int, unbiased_norms: bool | None) -> TransformedWeights:
    """Apply the rules; `unbiased_norms`, unless None, overrides whether norms divide by `torch.std`."""
    weights = TransformedWeights()
    for match in matched.matches:
        source, transform = matched.checkpoint.weights[match.key], _transform_of(match, unbiased_norms)
        try:
            results = _apply(transform, source, match, d_model)
        except ValueError as misfit:
            weights.faults.append(str(misfit))
            continue
        description = "" if transform is unchanged else transform.__name__.replace("_", " ")
        for name, tensor in zip(match.names, results, strict=True):
            if name in weights.tensors and not torch.equal(weights.tensors[name], tensor):
                weights.faults.append(f"{match.key} and another tensor both give {name}, but differ")
            weights.tensors[name] = tensor
            row = MappedTensor(match.key, tuple(source.shape), name, tuple(tensor.shape), description)
            weights.mapping.append(row)
    return weights


def _transform_of(match: Match, unbiased_norms: bool | None) -> Transform:
    transform = match.rule.transform
    if unbiased_norms is None or not match.is_norm_weight:
        return transform
    others: dict[Transform, Transform] = {fold_unbiased_std: expand_scalar}
    if unbiased_norms:
        others = dict.fromkeys((unchanged, expand_scalar), fold_unbiased_std)
    return others.get(transform, transform)


def _apply(transform: Transform, source: Tensor, match: Match, d_model: int) -> list[Tensor]:
    """Return a tensor for each name of a match, in the source's dtype; the message of a ValueError is a clause."""
    if not source.is_floating_point():
        raise ValueError(f"{match.key} is {source.dtype}, not floating point")
    try:
        results = transform(source if transform is unchanged else source.double(), d_model)
    except (ArithmeticError, IndexError, RuntimeError, ValueError):
        raise ValueError(f"{match.key} {shape_text(source.shape)} does not fit d_model={d_model}") from None
    results = (results,) if isinstance(results, Tensor) else results
    results = results * len(match.names) if len(results) == 1 else results
    if len(results) != len(match.names):
        raise ValueError(f"{match.key} {shape_text(source.shape)} does not split into {len(match.names)} weights")
    return [result.to(source.dtype) for result in results]


def complete_weights(
    matched: MatchedCheckpoint, weights: TransformedWeights, config: VanillaTransformerConfig
) -> None:
    """Fill in parameters that the original lacks, and check that every parameter is there and has its shape.

    One ValueError lists all missing, unexpected and mismatched weights.
    """
    with torch.device("meta"):
        model = VanillaTransformerForConditionalGeneration(config)
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    if matched.encoder_only:
        shapes = {name: shape for name, shape in shapes.items() if name.startswith("model.encoder.")}
    like = weights.tensors[EMBEDDING_NAMES["encoder"]]
    optional = {name for rule in matched.layout.rules if rule.optional for name in rule.names}
    absent = optional - {name for match in matched.matches for name in match.rule.names}
    for number, row in enumerate(weights.mapping):
        if row.name in POSITION_NAMES.values() and row.name not in weights.tensors:
            weights.mapping[number] = row._replace(name="sinusoids", transform="computed, not kept")
    for name, shape in shapes.items():
        if name not in weights.tensors and (filler := _filler(name, matched.layout, absent)):
            weights.tensors[name] = filler(shape).to(like)
            weights.mapping.append(MappedTensor("nothing", (), name, shape, filler.__name__))
    _check_complete(matched, weights, shapes)


def _filler(name: str, layout: Layout, absent: set[str]) -> Filler | None:
    """Return the filler of a parameter that the original lacks, or None if the source should have had it."""
    if name in POSITION_NAMES.values():
        return None
    for end, filler in layout.fillers.items():
        if re.search(rf"{end}$", name):
            return filler
    return torch.zeros if re.sub(r"\.\d+\.", ".{i}.", name) in absent else None


def _check_complete(
    matched: MatchedCheckpoint, weights: TransformedWeights, shapes: Mapping[str, tuple[int, ...]]
) -> None:
    layout = matched.layout
    origin = {row.name: row for row in weights.mapping}
    misshaped = [
        f"{origin[name].key} {shape_text(origin[name].source_shape)} gives {name} {shape_text(tensor.shape)}, not "
        f"{shape_text(shapes[name])}"
        for name, tensor in weights.tensors.items()
        if name in shapes and tuple(tensor.shape) != shapes[name]
    ]
    missing = {_key_of(name, layout) for name in shapes if name not in weights.tensors}
    superfluous = {origin[name].key for name in weights.tensors if name not in shapes}
    problems = {
        "missing": sorted(missing),
        "unexpected": [*matched.unexpected, *sorted(superfluous)],
        "mismatched": [*misshaped, *weights.faults],
    }
    if clauses := [f"{len(names)} {problem}: {abbreviate(names)}" for problem, names in problems.items() if names]:
        hint = RENAME_HINT if missing and matched.unexpected else ""
        raise ValueError(f"the weights do not match the layout {layout.name}: {'; '.join(clauses)}{hint}")


def _key_of(name: str, layout: Layout) -> str:
    """Return the source key of one of our names, or the name itself if no rule produces it."""
    index = re.search(r"\.(\d+)\.", name)
    names = {name, re.sub(r"\.\d+\.", ".{i}.", name, count=1)}
    key = next((rule.key for rule in layout.rules if names & {*rule.names}), name)
    return key.replace("{i}", index[1]) if index else key


def shape_text(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "()"
