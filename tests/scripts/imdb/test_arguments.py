from typing import Any

import pytest

from imdb.arguments import ComparisonArguments


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_length": 1}, "`max_length` is 1; it must be at least 2"),
        ({"scratch_batch_size": 1}, "`scratch_batch_size` is 1"),
        ({"scratch_preset": "huge"}, "unknown preset 'huge'"),
        ({"scratch_config_overrides": "d_model=15"}, "d_model"),
    ],
)
def test_bad_values_are_named(changes: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        ComparisonArguments(**changes)


def test_compare_trains_all():
    assert ComparisonArguments(compare=True).models == ["bert", "from_scratch", "tfidf"]
    assert ComparisonArguments().models == ["bert"]
