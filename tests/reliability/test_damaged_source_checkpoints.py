"""Damaged source checkpoints of every layout: one short line, or a conversion in which every weight has its source."""

import pytest

from damage import try_in_child
from damaged_checkpoints import KINDS, try_checkpoints
from reliability import cases


@pytest.mark.slow
def test_damaged_checkpoints(tried):
    count = cases(5, 300)
    outcomes = try_in_child(try_checkpoints, range(count))
    assert [outcome for outcome in outcomes if outcome.startswith("fault")] == []
    assert len(outcomes) == count * len(KINDS) and {*outcomes} == {"right", "refused"}
    tried("damaged source checkpoints, converted: every weight from its source, or one line", len(outcomes))
