"""Check that our configuration can express the settings stored beside source weights."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Settings = Mapping[str, Any]


def cannot_express(what: str) -> ValueError:
    return ValueError(f"{what}, which our configuration cannot express")


def check_expressible(original: str, settings: Settings, expressible: Mapping[str, Sequence[Any]]) -> None:
    """Raise a ValueError for a setting whose value is not expressible; the first expressible value is its default."""
    for name, values in expressible.items():
        if (value := settings.get(name, values[0])) not in values:
            raise cannot_express(f"the model was trained with {original}'s {name}: {value}")


def boolean_setting(name: str, value: Any) -> bool:
    """Return a boolean setting; anything else is a ValueError, including the text "False", which is truthy."""
    if value not in (True, False):
        raise ValueError(f"the setting {name} beside the weights is {value!r}; it must be true or false")
    return bool(value)


def same_in_both(name: str, values: Iterable[Any]) -> Any:
    """Return a setting that encoder and decoder must share; different values are a ValueError."""
    encoder, decoder = values
    if encoder != decoder:
        raise cannot_express(f"encoder and decoder differ in {name} ({encoder!r} and {decoder!r})")
    return encoder
