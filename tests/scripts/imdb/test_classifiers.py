from pathlib import Path
from typing import Any

import pytest
from transformers import BertConfig

from imdb.arguments import ComparisonArguments
from imdb.classifiers import ClassificationTask, confidence_interval, load_bert_tokenizer, tokenize, train_bert
from imdb.labelled_text import LabelledTextArguments, load_labelled_text
from tiny import tiny_model


def test_every_classifier_sees_the_same_tokens(bert: Path, reviews: Path):
    splits = load_labelled_text(LabelledTextArguments(dataset_name=str(reviews)))
    args = ComparisonArguments(model_name_or_path=str(bert), max_length=12)
    tokenizer = load_bert_tokenizer(args)
    ids, truncated = tokenize(splits, tokenizer, 12)
    whole = tokenizer(splits["train"]["text"][:])["input_ids"]
    assert [row[:11] + [3] if len(row) > 12 else row for row in whole] == ids["train"]["input_ids"][:]
    assert truncated["train"] == sum(len(row) > 12 for row in whole) / len(whole)
    assert ids["train"]["labels"][:] == splits["train"]["label"][:]
    lengths = [len(row) for row in ids["test"]["input_ids"][:]]
    assert lengths == sorted(lengths, reverse=True)
    assert sum(ids["test"]["labels"][:]) == sum(splits["test"]["label"][:])


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("folders")
    (folder / "empty").mkdir()
    tiny_model().save_pretrained(folder / "translator")
    return folder


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("empty", "cannot be loaded"),
        ("missing", "cannot be loaded"),
        ("translator", "is not a BERT: its model type is 'vanilla_transformer'"),
    ],
)
def test_a_folder_without_a_bert_is_named(folders: Path, name: str, reason: str):
    with pytest.raises(ValueError, match=f"{folders / name} {reason}"):
        load_bert_tokenizer(ComparisonArguments(model_name_or_path=str(folders / name)))


def test_a_bert_without_weights_is_named(bert: Path, tmp_path: Path):
    for file in bert.iterdir():
        if file.suffix != ".safetensors":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    args = ComparisonArguments(model_name_or_path=str(tmp_path), max_length=12)
    tokenizer = load_bert_tokenizer(args)
    none: Any = None
    with pytest.raises(ValueError, match=f"{tmp_path} cannot be loaded"):
        train_bert(ClassificationTask(tokenizer, none, none, args, False))


def test_length_is_limited_by_the_positions(bert: Path):
    limit = BertConfig.from_pretrained(bert).max_position_embeddings
    with pytest.raises(ValueError, match="`max_length` 33 exceeds the 32 positions"):
        load_bert_tokenizer(ComparisonArguments(model_name_or_path=str(bert), max_length=limit + 1))


def test_interval_is_wilsons():
    # The worked example of 81 of 263 (Newcombe 1998, table I): 0.2553 to 0.3662.
    assert confidence_interval(81 / 263, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
