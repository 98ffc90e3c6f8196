"""Words of summaries and cards, by how the targets are written."""

from collections.abc import Mapping
from typing import Any, NamedTuple


class Wording(NamedTuple):
    """What a model does, in words.

    Attributes:
        verb: What it does with the source.
        participle: The same of an output.
        output: An output.
        pipeline: The Hub's pipeline tag.
        task: The Hub's task in a list of results.
    """

    verb: str
    participle: str
    output: str
    pipeline: str
    task: str


TRANSLATION = Wording("translate", "Translated", "translation", "translation", "translation")

# The Hub lists its former pipeline tag text2text-generation as a part of text generation.
SEQUENCE_TO_SEQUENCE = Wording("map", "Predicted", "output", "text-generation", "text2text-generation")


def wording_of(entries: Mapping[str, Any]) -> Wording:
    """Return the words for the results of a run, by their `target_notation`, which prose does not have."""
    return SEQUENCE_TO_SEQUENCE if "target_notation" in entries else TRANSLATION
