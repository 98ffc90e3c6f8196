"""The checkpoints of a run: which are complete, which is the newest, and the average of the last ones."""

import json
import os
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

from safetensors import SafetensorError, safe_open
from transformers import PreTrainedModel
from transformers.trainer import TRAINER_STATE_NAME
from transformers.utils import logging

from ..inference.loading import load_model

logger = logging.get_logger(__name__)

# What training resumes from besides the weights, in any layout of `Trainer`; with `save_only_model` there is none.
TRAINING_STATE = (("optimizer*", "global_step*"), ("scheduler.pt", "global_step*"), ("rng_state*.pth",))


def checkpoint_fault(checkpoint: str | Path) -> str | None:
    """Return why training cannot resume from a checkpoint, or None if it is complete.

    `Trainer` writes `trainer_state.json` last: a checkpoint that holds it was written to the end.
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
    found = [any(any(folder.glob(pattern)) for pattern in patterns) for patterns in TRAINING_STATE]
    if any(found) and not all(found):
        return f"it holds no {TRAINING_STATE[found.index(False)][0]}"
    truncated = [file.name for file in sorted(folder.glob("*.pt*")) if not zipfile.is_zipfile(file)]
    return f"its {truncated[0]} is truncated" if truncated else None


def weights_fault(folder: Path) -> str | None:
    """Return why the weights of a checkpoint cannot be read, or None."""
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
    """Return the newest complete checkpoint of a run, if there is one; warn of newer ones that are not complete.

    A program that is killed while it saves leaves one of those.
    """
    for checkpoint in reversed(_checkpoints(run_dir)):
        fault = checkpoint_fault(checkpoint)
        if fault is None:
            return str(checkpoint)
        logger.warning(f"skipping {checkpoint}: {fault}")
    return None


def expire_incomplete_checkpoints(run_dir: str | Path) -> None:
    """Date incomplete checkpoints back, so that `Trainer`, which deletes by date, deletes them before complete ones.

    Their date is that of the kill that left them, be it while one was written or while it was deleted.
    """
    for checkpoint in _checkpoints(run_dir):
        if checkpoint_fault(checkpoint):
            os.utime(checkpoint, (0, 0))


def complete_checkpoints(run_dir: str | Path) -> list[Path]:
    """Return the complete checkpoints of a run, oldest first; warn of the others."""
    return _without(checkpoint_fault, run_dir)


def last_checkpoints(run_dir: str | Path, number: int) -> list[Path]:
    """Return the last `number` checkpoints of a run with readable weights, or as many as there are, oldest first.

    Raises:
        ValueError: The folder holds none.
    """
    checkpoints = _without(weights_fault, run_dir)
    if not checkpoints:
        raise ValueError(f"{run_dir} holds no checkpoint-<step> folders.")
    return checkpoints[-number:]


def _without(fault_of: Callable[[Path], str | None], run_dir: str | Path) -> list[Path]:
    faults = {checkpoint: fault_of(checkpoint) for checkpoint in _checkpoints(run_dir)}
    for checkpoint, fault in faults.items():
        if fault:
            logger.warning(f"skipping {checkpoint}: {fault}")
    return [checkpoint for checkpoint, fault in faults.items() if not fault]


def _checkpoints(run_dir: str | Path) -> list[Path]:
    """Return the checkpoint folders of a run, oldest first, complete or not."""
    steps = {int(name): path for path in Path(run_dir).glob("checkpoint-*") if (name := path.name[11:]).isdigit()}
    return [steps[step] for step in sorted(steps)]


def average_checkpoints(checkpoints: Sequence[str | Path]) -> PreTrainedModel:
    """Return the model whose weights are the mean of those of `checkpoints` (section 6.1).

    The sum is kept in float64; the result has the dtype, configuration and generation settings of the last one.

    Raises:
        ValueError: No checkpoints are given, or one is damaged or has other weights than the last; names folder and
            weight.
    """
    if not checkpoints:
        raise ValueError("there are no checkpoints to average.")
    model = load_model(checkpoints[-1])
    total = {name: value.double() for name, value in model.state_dict().items() if value.is_floating_point()}
    for folder in checkpoints[:-1]:
        weights = load_model(folder).state_dict()
        for name, value in total.items():
            if name not in weights or weights[name].shape != value.shape:
                raise ValueError(
                    f"{folder} has no weight {name} of shape {tuple(value.shape)}: it is not of the same model as "
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
