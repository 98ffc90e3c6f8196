import pytest

from hf_vanilla_transformer import data


def test_public_names_are_imported_on_first_access():
    assert all(getattr(data, name).__name__ == name for name in data.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = data.nothing
