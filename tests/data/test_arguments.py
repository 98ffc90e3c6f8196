import pytest
from transformers import HfArgumentParser, Seq2SeqTrainingArguments

from hf_vanilla_transformer.data.arguments import DataArguments
from hf_vanilla_transformer.data.splits import load_parallel_text
from hf_vanilla_transformer.errors import DataError
from tables import looped


@looped(
    ("options", "message"),
    [
        ({"train_file": ""}, "`train_file` is empty; give a value or leave it out"),
        ({"train_source_file": "a"}, "`train_source_file` is given without `train_target_file`"),
        ({"test_target_file": "a"}, "`test_target_file` is given without `test_source_file`"),
        ({"source_lang": "en"}, "`source_lang` is given without `target_lang`"),
        ({"train_file": "a", "train_source_file": "a", "train_target_file": "b"}, "are both given"),
        ({"train_file": "a.tsv", "dataset_name": "b"}, "`dataset_name` and a training file are both given"),
        ({"train_file": "a.tsv", "toy_corpus": True}, "`toy_corpus` and a training file are both given"),
        ({"dataset_name": "a", "toy_corpus": True}, "`dataset_name` and `toy_corpus` are both given"),
        ({"streaming": True, "toy_corpus": True}, "cannot be streamed"),
        (
            {"validation_file": "a.tsv", "validation_split_size": 0.1},
            "`validation_split_size` and a validation file are both given",
        ),
        ({"train_file": "a.tsv", "test_split_size": 1.5}, "1.5 is neither a fraction below 1 nor a number"),
        ({"train_file": "a.tsv", "max_train_samples": 0}, "`max_train_samples` is 0; it must be positive"),
    ],
)
def test_contradictions(options, message):
    with pytest.raises(DataError, match=message):
        DataArguments(**options)


def test_toy_corpus():
    loaded = load_parallel_text(DataArguments(toy_corpus=True, max_train_samples=50))
    assert {split: len(pairs) for split, pairs in loaded.items()} == {"train": 50, "validation": 1000, "test": 1000}
    assert loaded["train"].column_names == ["source", "target"]


@pytest.mark.parametrize(
    ("options", "description"),
    [
        ({"toy_corpus": True}, "the built-in English-Spanish corpus"),
        ({"dataset_name": "Helsinki-NLP/opus_books"}, "Helsinki-NLP/opus_books"),
        ({"train_source_file": "some/a.en", "train_target_file": "some/a.de"}, "a.en, a.de"),
    ],
)
def test_description(options, description):
    assert DataArguments(**options).description == description


def test_no_data():
    with pytest.raises(DataError, match="no data is named"):
        load_parallel_text(DataArguments())


def test_parse_beside_training_arguments(tmp_path):
    parser = HfArgumentParser((DataArguments, Seq2SeqTrainingArguments))
    command = ["--train_file", "x.tsv", "--on_long", "truncate", "--test_split_size", "0.1", "--streaming"]
    arguments, _ = parser.parse_args_into_dataclasses([*command, "--output_dir", str(tmp_path)])
    assert arguments == DataArguments(train_file="x.tsv", on_long="truncate", test_split_size=0.1, streaming=True)
    # argparse formats the help texts, so a stray "%" in one would raise.
    assert "--max_length_ratio" in parser.format_help()
    assert all(name.metadata["help"] for name in DataArguments.__dataclass_fields__.values())
