import json

import numpy as np
import pytest

from hf_vanilla_transformer.data.arguments import DataArguments
from tutorials import opus_books
from tutorials.opus_books import books_arguments


def test_books_are_the_default_and_the_splits_are_filled_in():
    default = books_arguments(DataArguments())
    assert default.dataset_name == "Helsinki-NLP/opus_books"
    assert (default.dataset_config_name, default.source_lang, default.target_lang) == ("en-es", "en", "es")
    assert (default.test_split_size, default.validation_split_size) == (0.1, 1000)
    own = books_arguments(DataArguments(train_file="a.tsv", test_file="b.tsv", validation_split_size=5))
    assert own.dataset_name is None and own.test_split_size is None and own.validation_split_size == 5


@pytest.fixture(scope="module")
def books(tmp_path_factory):
    """Pairs in the format of opus_books, as JSON lines for `datasets`."""
    folder = tmp_path_factory.mktemp("books")
    numbers = ["one", "two", "three", "four", "five", "six", "seven"]
    words = ["uno", "dos", "tres", "cuatro", "cinco", "seis", "siete"]
    generator = np.random.default_rng(0)
    with (folder / "train.jsonl").open("w", encoding="utf-8") as file:
        for number in range(120):
            chosen = generator.integers(7, size=5)
            pair = {"en": " ".join(numbers[i] for i in chosen), "es": " ".join(words[i] for i in chosen)}
            if number % 10 == 0:
                pair = {"en": f"{pair['en']} once{number}", "es": f"{pair['es']} vez{number}"}
            file.write(json.dumps({"id": str(number), "translation": pair}) + "\n")
    return folder


@pytest.fixture(scope="module")
def reproduced(run, books, tmp_path_factory):
    """Return a function that reproduces the tutorial, always in the same folder, and its first result."""
    folder = tmp_path_factory.mktemp("run")
    arguments = (
        "--preset", "tiny", "--max_steps", "1", "--dataset_name", str(books),
        "--source_lang", "en", "--target_lang", "es", "--validation_split_size", "10",
    )  # fmt: skip  # names with their values

    def again(*more):
        return run("opus_books", folder, *arguments, *more)

    with pytest.MonkeyPatch.context() as patch:
        # Untrained models decode up to the maximum length, which depends on the source.
        patch.setattr(opus_books, "LONG_SENTENCE", " ".join(["one two three"] * 12))
        patch.setitem(opus_books.OPUS_BOOKS_TRAINING["base"], "final_num_beams", 1)
        return again, again()["figures"]


@pytest.mark.slow
def test_books_with_words_and_with_bpe(reproduced):
    _, figures = reproduced
    assert figures["test_pairs"] == 12 and len(figures["examples"]) == 10
    assert set(figures["examples"][0]) == {"source", "reference", "word", "bpe"}
    # Words that occur once are not in the word-level vocabulary; bytes can spell any word.
    assert figures["word"]["unknown_source"] > 0
    assert figures["bpe"]["unknown_source"] == figures["bpe"]["unknown_target"] == 0
    for name in ("word", "bpe"):
        assert {"test_bleu", "test_chrf", "train_runtime", "long_sentence_words"} <= figures[name].keys()


@pytest.mark.slow
def test_finished_runs_are_not_trained_again(reproduced, monkeypatch):
    again, figures = reproduced

    def train(*args):
        pytest.fail("a finished run was trained again")

    monkeypatch.setattr(opus_books, "train_translation", train)
    monkeypatch.setattr(opus_books, "model_figures", lambda folder, test: dict.fromkeys(figures["word"], 0))
    again()


def test_a_run_of_other_arguments_is_refused(reproduced, refused):
    again, _ = reproduced
    assert "split_seed was 0, is 1" in refused(again, "--split_seed", "1").replace("`", "")
