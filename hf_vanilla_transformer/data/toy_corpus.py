"""The built-in English-Spanish corpus: 32,000 pairs of short sentences.

Each test sentence combines words (an adjective or a verb with a noun) that never occur together in training or
validation, so the test split measures compositional generalization. All its words occur in training.
"""

import bz2
from importlib.resources import files

from datasets import Dataset, DatasetDict

# Pairs of each split, in the order of the file.
SIZES = {"train": 30_000, "validation": 1_000, "test": 1_000}


def load_toy_corpus(
    num_pairs: int = SIZES["train"], *, num_validation: int = SIZES["validation"], num_test: int = SIZES["test"]
) -> DatasetDict:
    """Load the built-in English-Spanish corpus, or the first pairs of its splits.

    Args:
        num_pairs: Training pairs.
        num_validation: Validation pairs.
        num_test: Test pairs.

    Returns:
        Splits "train", "validation" and "test" with the string columns `source` (English) and `target` (Spanish), all
        with distinct sources.

    Raises:
        ValueError: A size is below 1 or above that of the corpus.
    """
    wanted = {"num_pairs": num_pairs, "num_validation": num_validation, "num_test": num_test}
    text = bz2.decompress((files(__package__) / "toy_corpus.tsv.bz2").read_bytes()).decode()
    sources, targets = zip(*(line.split("\t") for line in text.splitlines()), strict=True)
    corpus, start = DatasetDict(), 0
    for (split, most), (name, size) in zip(SIZES.items(), wanted.items(), strict=True):
        if not 1 <= size <= most:
            raise ValueError(f"`{name}` {size} is out of range; choose from 1 to {most}")
        pairs = slice(start, start + size)
        corpus[split] = Dataset.from_dict({"source": sources[pairs], "target": targets[pairs]})
        start += most
    return corpus
