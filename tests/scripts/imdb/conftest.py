"""A tiny BERT, reviews that it can learn, and the script that compares classifiers."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from reviewers import save_bert, save_reviews

# Takes seconds, yet long enough to learn that "good" is positive.
QUICK = (
    "--bert_num_train_epochs 8 --bert_learning_rate 0.01 --bert_batch_size 8 --scratch_num_train_epochs 3 "
    "--scratch_learning_rate 0.01 --scratch_batch_size 8 --max_length 12 "
    "--scratch_config_overrides d_model=16,encoder_layers=1,encoder_ffn_dim=16,dropout=0.0"
).split()


@pytest.fixture(scope="package")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_bert(tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="package")
def reviews(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_reviews(tmp_path_factory.mktemp("reviews"))


@pytest.fixture(scope="package")
def run(load_script: Callable[[str], ModuleType], bert: Path, reviews: Path) -> Callable[..., None]:
    """Run the script on the reviews."""
    main = load_script("imdb_bert_baseline").main

    def start(output: Path, *arguments: str, model: Path = bert) -> None:
        options = ["--model_name_or_path", str(model), "--dataset_name", str(reviews), "--output_dir", str(output)]
        main([*options, *QUICK, *arguments])

    return start
