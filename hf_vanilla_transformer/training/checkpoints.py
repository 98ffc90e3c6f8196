"""Checkpoints of a run: which are complete, and the average of the last ones."""

import json
import os
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

from safetensors import SafetensorError, safe_open
from transformers import PreTrainedModel
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from transformers.utils import logging

from ..inference.loading import load_model

logger = logging.get_logger(__name__)

# Files besides the weights that training resumes from, in any layout of `Trainer`; with `save_only_model`, none.
RESUME_STATE = (("optimizer*", "global_step*"), ("scheduler.pt", "global_step*"), ("rng_state*.pth",))


def checkpoint_fault(checkpoint: str | Path) -> str | None:
    """Why training cannot resume from a checkpoint; None if it is complete.

    `Trainer` writes `trainer_state.json` last, so its presence shows that the checkpoint was written to the end.
    """
    folder = Path(checkpoint)
    try:
        json.loads((folder / TRAINER_STATE_NAME).read_text(encoding="utf-8"))
    except OSError:
        return f"it holds no {TRAINER_STATE_NAME}"
    except ValueError:
        return f"its {TRAINER_STATE_NAME} is truncated"
    if fault := weights_fault(folder):
        return fault
    found = [any(any(folder.glob(pattern)) for pattern in patterns) for patterns in RESUME_STATE]
    if any(found) and not all(found):
        return f"it holds no {RESUME_STATE[found.index(False)][0]}"
    truncated = [file.name for file in sorted(folder.glob("*.pt*")) if not zipfile.is_zipfile(file)]
    return f"its {truncated[0]} is truncated" if truncated else None


def weights_fault(folder: Path) -> str | None:
    """Why the weights of a checkpoint cannot be read; None if they can."""
    files = sorted(folder.glob("*.safetensors"))
    if not files and not any(folder.glob("pytorch_model*")):
        return "it holds no weights"
    for file in files:
        try:
            safe_open(file, framework="pt")
        except (OSError, SafetensorError) as error:
            return f"its {file.name} is damaged ({error})"
    return None


def newest_checkpoint(run_dir: str | Path) -> str | None:
    """Path of the newest complete checkpoint of a run, if any.

    Newer incomplete ones, left by a program that was killed while it saved, are skipped with a warning.
    """
    return next((str(checkpoint) for checkpoint in reversed(_checkpoints(run_dir)) if _is_usable(checkpoint)), None)


def complete_checkpoints(run_dir: str | Path) -> list[Path]:
    """Complete checkpoints of a run, oldest first; others are skipped with a warning."""
    return [checkpoint for checkpoint in _checkpoints(run_dir) if _is_usable(checkpoint)]


def last_checkpoints(run_dir: str | Path, number: int) -> list[Path]:
    """Up to `number` of the last checkpoints with readable weights, oldest first; others are skipped with a warning.

    Raises:
        ValueError: There is none.
    """
    checkpoints = [checkpoint for checkpoint in _checkpoints(run_dir) if _is_usable(checkpoint, weights_fault)]
    if not checkpoints:
        raise ValueError(f"{run_dir} holds no checkpoint-<step> folders.")
    return checkpoints[-number:]


def expire_incomplete_checkpoints(run_dir: str | Path) -> None:
    """Backdate incomplete checkpoints, so that `Trainer`, which rotates by date, deletes them first.

    Their own date is that of the kill that interrupted their saving or deletion.
    """
    for checkpoint in _checkpoints(run_dir):
        if checkpoint_fault(checkpoint):
            os.utime(checkpoint, (0, 0))


def _is_usable(checkpoint: Path, fault_of: Callable[[Path], str | None] = checkpoint_fault) -> bool:
    fault = fault_of(checkpoint)
    if fault:
        logger.warning(f"skipping {checkpoint}: {fault}")
    return not fault


def _checkpoints(run_dir: str | Path) -> list[Path]:
    """Checkpoint folders of a run, oldest first, complete or not."""
    prefix = f"{PREFIX_CHECKPOINT_DIR}-"
    folders = [path for path in Path(run_dir).glob(f"{prefix}*") if path.name.removeprefix(prefix).isdigit()]
    return sorted(folders, key=lambda path: int(path.name.removeprefix(prefix)))


def average_checkpoints(checkpoints: Sequence[str | Path], trust_remote_code: bool = False) -> PreTrainedModel:
    """Average the weights of checkpoints (section 6.1), in float64.

    Args:
        checkpoints: Folders of models of the same shape.
        trust_remote_code: Whether to run Python code that comes with them.

    Returns:
        A model with the dtype, configuration and generation settings of the last checkpoint.

    Raises:
        ValueError: No checkpoints are given, one is damaged, or its weights differ from the last one's in name or
            shape.
    """
    if not checkpoints:
        raise ValueError("there are no checkpoints to average.")
    model = load_model(checkpoints[-1], trust_remote_code=trust_remote_code)
    total = {name: value.double() for name, value in model.state_dict().items() if value.is_floating_point()}
    for folder in checkpoints[:-1]:
        weights = load_model(folder, trust_remote_code=trust_remote_code).state_dict()
        for name, value in total.items():
            if name not in weights or weights[name].shape != value.shape:
                raise ValueError(
                    f"{folder} has no weight {name} of shape {tuple(value.shape)}: it belongs to another model than "
                    f"{checkpoints[-1]}."
                )
            value += weights[name]
    model.load_state_dict({name: value / len(checkpoints) for name, value in total.items()}, strict=False)
    return model


__all__ = [
    "average_checkpoints",
    "checkpoint_fault",
    "complete_checkpoints",
    "expire_incomplete_checkpoints",
    "last_checkpoints",
    "newest_checkpoint",
    "weights_fault",
]
