"""Position encodings of a source checkpoint: sinusoids to compute, or stored tables (L, d) to keep."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..model.configuration_vanilla_transformer import CHOICES
from ..model.positions_vanilla_transformer import sinusoids
from .rules import Layout

# The error of float32 sinusoids is that of their angles: the position times a few units in the last place.
TABLE_TOLERANCE, ANGLE_ERROR = 1e-5, 3e-7


class PositionEncodings(NamedTuple):
    """Fields of the configuration, learned positions by our names (none: sinusoids), and the choice in a sentence."""

    fields: dict[str, Any] = {}
    tables: dict[str, Tensor] = {}
    notes: tuple[str, ...] = ()


def from_first_token(tables: Mapping[str, Tensor], first: int) -> dict[str, Tensor]:
    """Return the tables without the rows before that of the first token."""
    for name, table in tables.items():
        if not 0 <= first < len(table):
            raise ValueError(
                f"{name} has {len(table)} rows, none of them for a token at row {first}; pass `first_position`, from "
                f"0 to {len(table) - 1}"
            )
    return {name: table[first:] for name, table in tables.items()}


def choose_positions(
    tables: Mapping[str, Tensor],
    layout: Layout,
    fields: Mapping[str, Any],
    stated: Mapping[str, Any],
    are_stored: bool,
) -> PositionEncodings:
    """Choose sinusoids, which have no maximum length, if the tables hold them, else learned positions.

    Any other table, such as one of defective sinusoids, is kept exactly as learned positions. A ValueError where the
    caller contradicts the tables, they have different lengths, or there are none to replace nonstandard sinusoids.

    Args:
        tables: Tables (L, d) by our names, from the first token on.
        layout: How the original encodes positions that it does not store.
        fields: Fields of the configuration.
        stated: Those of them that the caller states.
        are_stored: Whether the tables are among the weights, rather than computed as by the original.
    """
    if not tables:
        return _without_tables(layout, fields, stated)
    kind = stated.get("position_embedding_type")
    positions = "stored positions" if are_stored else f"positions that {layout.name} computes"
    matching = [
        name for name in CHOICES["sinusoidal_layout"] if all(is_sinusoidal(table, name) for table in tables.values())
    ]
    if matching and kind != "learned":
        if (chosen := stated.get("sinusoidal_layout", matching[0])) not in matching:
            raise ValueError(f"`sinusoidal_layout={chosen}`, but the {positions} are {matching[0]}; leave it out")
        return PositionEncodings(
            {"position_embedding_type": "sinusoidal", "sinusoidal_layout": chosen},
            notes=(f"the {positions} are {chosen} sinusoids: they are computed, to any length",),
        )
    if kind == "sinusoidal":
        raise ValueError(f"the {positions} are not sinusoids; leave out `position_embedding_type=sinusoidal`")
    tables = _of_one_length(tables, stated.get("max_position_embeddings"))
    length = len(next(iter(tables.values())))
    reason = "are kept as learned ones" if matching else "are not the paper's sinusoids, and are kept as learned ones"
    return PositionEncodings(
        {"position_embedding_type": "learned", "max_position_embeddings": length},
        tables,
        (f"the {positions} {reason}: sequences end at {length} tokens",),
    )


def _without_tables(layout: Layout, fields: Mapping[str, Any], stated: Mapping[str, Any]) -> PositionEncodings:
    # Learned positions that are absent are reported as missing weights.
    if fields.get("position_embedding_type", "sinusoidal") != "sinusoidal":
        return PositionEncodings()
    if layout.nonstandard_sinusoids and "sinusoidal_layout" not in stated:
        raise ValueError(
            f"no position table is among the weights, and {layout.name} computes other sinusoids than the paper's; "
            "save the buffers of the model too (state_dict holds them)"
        )
    chosen = fields.get("sinusoidal_layout", CHOICES["sinusoidal_layout"][0])
    return PositionEncodings(notes=(f"no positions are stored: {chosen} sinusoids are computed",))


def _of_one_length(tables: Mapping[str, Tensor], wanted: int | None) -> dict[str, Tensor]:
    """Give the tables one length, without loss unless the caller wants fewer rows."""
    longest, shortest = max(tables.values(), key=len), min(map(len, tables.values()))
    # A prefix of the longest table is the same function.
    extended = {
        name: longest if torch.equal(table[:shortest], longest[:shortest]) else table for name, table in tables.items()
    }
    lengths = sorted({len(table) for table in extended.values()})
    if wanted is None and len(lengths) > 1:
        raise ValueError(
            f"the two position tables have {lengths[0]} and {lengths[1]} rows, but ours have one length; pass "
            f"`max_position_embeddings={lengths[0]}` to truncate the longer one"
        )
    length = wanted or lengths[0]
    if length > lengths[0]:
        raise ValueError(f"`max_position_embeddings={length}`, but there are {lengths[0]} positions; leave it out")
    return {name: table[:length].clone() for name, table in extended.items()}


def is_sinusoidal(table: Tensor, layout: str) -> bool:
    """Whether a table holds the paper's sinusoids, up to its rounding."""
    if table.shape[1] % 2:
        return False
    positions = torch.arange(len(table))
    error = (sinusoids(positions, table.shape[1], layout) - table.float()).abs().amax(-1)
    tolerance = TABLE_TOLERANCE + torch.finfo(table.dtype).eps / 2
    return bool((error <= tolerance + ANGLE_ERROR * positions).all())
