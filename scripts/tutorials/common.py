"""Shared by the tutorials: arguments, results, training and greedy decoding."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import datasets
import torch
import transformers
from torch import Tensor
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from hf_vanilla_transformer.options import Positive, check_ranges, option
from hf_vanilla_transformer.training.arguments import VanillaTransformerTrainingArguments
from hf_vanilla_transformer.training.checkpoints import newest_checkpoint
from hf_vanilla_transformer.training.trainer import VanillaTransformerTrainer

# Separate embeddings and output layer, as in the tutorials; with tied ones, an untrained model repeats its input
# token forever.
UNTIED: dict[str, Any] = {"share_encoder_decoder_embeddings": False, "tie_word_embeddings": False}


@dataclass
class TutorialArguments:
    """How much to train; for `transformers.HfArgumentParser`.

    Raises:
        ValueError: A number is too small; names the argument.
    """

    output_dir: str = option("runs/tutorials", "Output folder for results (JSON), figures and models.")
    seeds: Positive | None = option(None, "Number of seeds (default: 10 for phrases and statquest, else 1).")
    light: bool = option(False, "copy: 2 layers of width 128 instead of 6 of width 512.")
    preset: str = option("base", "opus_books: preset of the model; small suits a laptop.")
    num_train_epochs: float | None = option(None, "opus_books: training epochs.")
    max_steps: int = option(-1, "copy, opus_books: maximum number of training steps.")

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True)
class TutorialResult:
    """A tutorial's claim and our model's result, in words and figures; a row of docs/tutorials.md."""

    tutorial: str
    claim: str
    result: str
    figures: dict[str, Any]
    reproduced: bool


def seed_range(args: TutorialArguments, default: int) -> Iterable[int]:
    """Return the seeds to train with; several show a progress bar on a terminal."""
    number = args.seeds or default
    return tqdm(range(number), desc="seeds", disable=None if number > 1 else True)


def train(model: Any, ids: datasets.Dataset, collator: Any, folder: Path, **training: Any) -> None:
    """Train without evaluation or logs, resuming from the folder's last checkpoint if there is one."""
    settings = {"eval_strategy": "no", "save_strategy": "no", "logging_strategy": "no", "report_to": "none"}
    arguments = VanillaTransformerTrainingArguments(
        output_dir=str(folder), logging_first_step=False, **{**settings, **training}
    )
    trainer = VanillaTransformerTrainer(model=model, args=arguments, train_dataset=ids, data_collator=collator)
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train(resume_from_checkpoint=newest_checkpoint(folder))
    model.eval()


def greedy(model: PreTrainedModel, source: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """Decode `source` (B, S) greedily for `steps` tokens; return ids (B, 1 + steps) and logits (B, steps, V)."""
    output = cast(Any, model).generate(
        input_ids=source,
        attention_mask=torch.ones_like(source),
        max_new_tokens=steps,
        min_new_tokens=steps,
        num_beams=1,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
    )
    return output.sequences, torch.stack(output.logits, dim=1)
