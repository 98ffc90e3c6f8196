"""Arguments of the comparison of classifiers."""

from dataclasses import dataclass
from typing import Annotated

from hf_vanilla_transformer.options import Length, PositiveFloat, Range, check_ranges, option
from hf_vanilla_transformer.presets import preset_config
from hf_vanilla_transformer.training.arguments import parse_overrides

BatchSize = Annotated[int, Range(ge=2)]

CLASSIFIERS = ["bert", "from_scratch", "tfidf"]


@dataclass
class ComparisonArguments:
    """Which classifiers to train and how; for `transformers.HfArgumentParser`.

    Raises:
        ValueError: A shape is unknown or a number too small; names the argument.
    """

    model_name_or_path: str = option(
        "google-bert/bert-base-uncased",
        "BERT to fine-tune: a folder or a name on the Hub. All classifiers use its tokenizer.",
    )
    compare: bool = option(False, "Train all classifiers.")
    models: list[str] = option(["bert"], "Classifiers to train.", choices=CLASSIFIERS)
    output_dir: str = option("runs/imdb", "Output folder for models, table, figures and JSON.")
    resume: bool = option(False, "Resume an interrupted run with the same arguments.")
    max_length: Length = option(512, "Maximum tokens per text; longer texts are truncated.")
    seed: int = option(0, "Seed of the weights, order and dropout.")
    bert_num_train_epochs: PositiveFloat = option(3.0, "BERT: training epochs.")
    bert_learning_rate: PositiveFloat = option(5e-5, "BERT: peak learning rate.")
    bert_batch_size: BatchSize = option(8, "BERT: texts per batch.")
    scratch_preset: str = option("tiny", "From scratch: shape of the encoder.")
    scratch_config_overrides: str = option(
        "encoder_layers=1,encoder_ffn_dim=256,dropout=0.5",
        "From scratch: configuration fields that replace the preset's.",
    )
    scratch_num_train_epochs: PositiveFloat = option(2.0, "From scratch: training epochs.")
    scratch_learning_rate: PositiveFloat = option(1e-3, "From scratch: peak learning rate.")
    scratch_batch_size: BatchSize = option(32, "From scratch: texts per batch.")

    def __post_init__(self) -> None:
        if self.compare:
            self.models = [*CLASSIFIERS]
        check_ranges(self)
        preset_config(self.scratch_preset, **parse_overrides(self.scratch_config_overrides))
