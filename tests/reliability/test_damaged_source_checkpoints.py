"""Damaged source checkpoints of every layout give one short line, or a conversion with weights from the source."""

import pytest

from damage import outcomes
from damaged_checkpoints import KINDS, try_checkpoints
from reliability import cases


@pytest.mark.slow
def test_damaged_checkpoints(tried):
    count = outcomes(try_checkpoints, cases(5, 300), len(KINDS))
    tried("damaged source checkpoints, converted: every weight from its source, or one line", count)
