"""Position encodings of a source checkpoint: computed sinusoids, or learned positions from tables (L, d)."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..model.configuration_vanilla_transformer import CHOICES
from ..model.positions_vanilla_transformer import sinusoids
from .rules import Layout

# The error of float32 sinusoids comes from their angles: the position times a few units in the last place.
TABLE_TOLERANCE, ANGLE_ERROR = 1e-5, 3e-7


class PositionEncodings(NamedTuple):
    """Configuration fields, learned positions by our names (empty for sinusoids), and notes on the choice."""

    fields: dict[str, Any] = {}
    tables: dict[str, Tensor] = {}
    notes: tuple[str, ...] = ()


def from_first_token(tables: Mapping[str, Tensor], first: int) -> dict[str, Tensor]:
    """Drop the rows before that of the first token."""
    for name, table in tables.items():
        if not 0 <= first < len(table):
            raise ValueError(
                f"{name} has {len(table)} rows, so the first token cannot have row {first}; pass `first_position` "
                f"from 0 to {len(table) - 1}"
            )
    return {name: table[first:] for name, table in tables.items()}


def choose_positions(
    tables: Mapping[str, Tensor],
    layout: Layout,
    fields: Mapping[str, Any],
    overrides: Mapping[str, Any],
    are_stored: bool,
) -> PositionEncodings:
    """Choose sinusoids, which have no maximum length, if the tables match them, else learned positions.

    Any other table, such as one of defective sinusoids, becomes learned positions unchanged.

    Args:
        tables: Tables (L, d) by our names, starting with the first token.
        layout: Describes how the original computes positions that it does not store.
        fields: Configuration fields.
        overrides: Fields that the caller passed.
        are_stored: Whether the tables come from the weights; otherwise they were computed as in the original.

    Raises:
        ValueError: The caller contradicts the tables, their lengths differ, or nonstandard sinusoids were not stored.
    """
    if not tables:
        return _without_tables(layout, fields, overrides)
    kind = overrides.get("position_embedding_type")
    positions = "stored positions" if are_stored else f"positions that {layout.name} computes"
    matching = [
        name for name in CHOICES["sinusoidal_layout"] if all(is_sinusoidal(table, name) for table in tables.values())
    ]
    if matching and kind != "learned":
        if (chosen := overrides.get("sinusoidal_layout", matching[0])) not in matching:
            raise ValueError(f"`sinusoidal_layout={chosen}`, but the {positions} are {matching[0]}; leave it out")
        return PositionEncodings(
            {"position_embedding_type": "sinusoidal", "sinusoidal_layout": chosen},
            notes=(f"the {positions} are {chosen} sinusoids, so they are computed for any length",),
        )
    if kind == "sinusoidal":
        raise ValueError(f"the {positions} are not sinusoids; leave out `position_embedding_type=sinusoidal`")
    tables = _of_one_length(tables, overrides.get("max_position_embeddings"))
    length = len(next(iter(tables.values())))
    reason = "become learned ones" if matching else "are not the paper's sinusoids and become learned ones"
    return PositionEncodings(
        {"position_embedding_type": "learned", "max_position_embeddings": length},
        tables,
        (f"the {positions} {reason}: sequences have at most {length} tokens",),
    )


def _without_tables(layout: Layout, fields: Mapping[str, Any], overrides: Mapping[str, Any]) -> PositionEncodings:
    # Absent learned positions are reported as missing weights.
    if fields.get("position_embedding_type", "sinusoidal") != "sinusoidal":
        return PositionEncodings()
    if layout.nonstandard_sinusoids and "sinusoidal_layout" not in overrides:
        raise ValueError(
            f"the weights have no position table, and the sinusoids of {layout.name} differ from the paper's; save "
            "the model's buffers too (state_dict() contains them)"
        )
    chosen = fields.get("sinusoidal_layout", CHOICES["sinusoidal_layout"][0])
    return PositionEncodings(notes=(f"no positions are stored: {chosen} sinusoids are computed",))


def _of_one_length(tables: Mapping[str, Tensor], wanted: int | None) -> dict[str, Tensor]:
    """Bring the tables to one length; rows are dropped only if the caller asks for fewer."""
    longest, shortest = max(tables.values(), key=len), min(map(len, tables.values()))
    # A table that is a prefix of the longest one encodes the same function.
    extended = {
        name: longest if torch.equal(table[:shortest], longest[:shortest]) else table for name, table in tables.items()
    }
    lengths = sorted({len(table) for table in extended.values()})
    if wanted is None and len(lengths) > 1:
        raise ValueError(
            f"the two position tables have {lengths[0]} and {lengths[1]} rows, but both must have one length; pass "
            f"`max_position_embeddings={lengths[0]}` to truncate the longer one"
        )
    length = wanted or lengths[0]
    if length > lengths[0]:
        raise ValueError(f"`max_position_embeddings={length}`, but there are {lengths[0]} positions; leave it out")
    return {name: table[:length].clone() for name, table in extended.items()}


def is_sinusoidal(table: Tensor, layout: str) -> bool:
    """Whether a table holds the paper's sinusoids, up to rounding in its dtype."""
    if table.shape[1] % 2:
        return False
    positions = torch.arange(len(table))
    error = (sinusoids(positions, table.shape[1], layout) - table.float()).abs().amax(-1)
    tolerance = TABLE_TOLERANCE + torch.finfo(table.dtype).eps / 2
    return bool((error <= tolerance + ANGLE_ERROR * positions).all())
