"""Training: arguments, trainer, checkpoints, and whole experiments from text to a model with its card."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .arguments import ModelArguments, VanillaTransformerTrainingArguments, peak_learning_rate
    from .checkpoints import average_checkpoints, last_checkpoints, newest_checkpoint
    from .distillation import distill
    from .experiment import train_translation
    from .metrics import top_k_accuracy, translation_scores
    from .trainer import VanillaTransformerTrainer

# Imported on first use: scores and averages need neither accelerate nor the seconds that `Trainer` takes to import.
_MODULES = {
    "ModelArguments": "arguments",
    "VanillaTransformerTrainer": "trainer",
    "VanillaTransformerTrainingArguments": "arguments",
    "average_checkpoints": "checkpoints",
    "distill": "distillation",
    "last_checkpoints": "checkpoints",
    "newest_checkpoint": "checkpoints",
    "peak_learning_rate": "arguments",
    "top_k_accuracy": "metrics",
    "train_translation": "experiment",
    "translation_scores": "metrics",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_MODULES[name]}", __name__), name)


__all__ = [
    "ModelArguments",
    "VanillaTransformerTrainer",
    "VanillaTransformerTrainingArguments",
    "average_checkpoints",
    "distill",
    "last_checkpoints",
    "newest_checkpoint",
    "peak_learning_rate",
    "top_k_accuracy",
    "train_translation",
    "translation_scores",
]
