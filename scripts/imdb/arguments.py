"""Arguments of the comparison of classifiers."""

from dataclasses import dataclass, field
from typing import Annotated

from hf_vanilla_transformer.options import Length, Range, check_ranges
from hf_vanilla_transformer.presets import preset_config
from hf_vanilla_transformer.training.arguments import parse_overrides

BatchSize = Annotated[int, Range(ge=2)]

CLASSIFIERS = ("bert", "from_scratch", "tfidf")


@dataclass
class ComparisonArguments:
    """Which classifiers to train and how; for `transformers.HfArgumentParser`.

    Raises:
        ValueError: A classifier or shape is unknown, or a number is too small; names the argument.
    """

    model_name_or_path: str = field(
        default="google-bert/bert-base-uncased",
        metadata={"help": "BERT to fine-tune, whose tokenizer all classifiers use: a folder or a name on the Hub."},
    )
    compare: bool = field(default=False, metadata={"help": f"Train all classifiers: {', '.join(CLASSIFIERS)}."})
    models: list[str] = field(
        default_factory=lambda: ["bert"], metadata={"help": f"Classifiers to train: {', '.join(CLASSIFIERS)}."}
    )
    output_dir: str = field(
        default="runs/imdb", metadata={"help": "Output folder for models, table, figures and JSON."}
    )
    resume: bool = field(default=False, metadata={"help": "Resume an interrupted run of the same arguments."})
    max_length: Length = field(default=512, metadata={"help": "Maximum tokens per text; longer texts are truncated."})
    seed: int = field(default=0, metadata={"help": "Seed of the weights, order and dropout."})
    bert_num_train_epochs: float = field(default=3.0, metadata={"help": "BERT: training epochs."})
    bert_learning_rate: float = field(default=5e-5, metadata={"help": "BERT: peak learning rate."})
    bert_batch_size: BatchSize = field(default=8, metadata={"help": "BERT: texts per batch."})
    scratch_preset: str = field(default="tiny", metadata={"help": "From scratch: shape of the encoder."})
    scratch_config_overrides: str = field(
        default="encoder_layers=1,encoder_ffn_dim=256,dropout=0.5",
        metadata={"help": "From scratch: configuration fields that replace the preset's."},
    )
    scratch_num_train_epochs: float = field(default=2.0, metadata={"help": "From scratch: training epochs."})
    scratch_learning_rate: float = field(default=1e-3, metadata={"help": "From scratch: peak learning rate."})
    scratch_batch_size: BatchSize = field(default=32, metadata={"help": "From scratch: texts per batch."})

    def __post_init__(self) -> None:
        if self.compare:
            self.models = list(CLASSIFIERS)
        for name in self.models:
            if name not in CLASSIFIERS:
                raise ValueError(f"`models` {name} is unknown; choose from {', '.join(CLASSIFIERS)}")
        check_ranges(self)
        preset_config(self.scratch_preset, **parse_overrides(self.scratch_config_overrides))


__all__ = ["CLASSIFIERS", "ComparisonArguments"]
