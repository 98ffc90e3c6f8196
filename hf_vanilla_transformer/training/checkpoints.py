"""Checkpoints: atomic writes, integrity checks, rotation and averaging."""

import json
import os
import shutil
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

from safetensors import SafetensorError, safe_open
from transformers import PreTrainedModel, TrainerState
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from transformers.utils import logging

from ..errors import one_line
from ..files import SCRATCH, flush_to_disk
from ..pretrained.loading import check_finite, load_model

logger = logging.get_logger(__name__)

# Written last: the size and CRC-32 of every other file of a checkpoint.
MANIFEST = "manifest.json"

# Files that resuming needs besides the weights, in any layout of `Trainer`; none with `save_only_model`.
RESUME_STATE = (("optimizer*", "global_step*"), ("scheduler.pt", "global_step*"), ("rng_state*.pth",))

CHUNK = 1 << 20
PREFIX = f"{PREFIX_CHECKPOINT_DIR}-"


def publish_checkpoint(
    partial: Path, checkpoint: Path, scheduled: bool = True, record: Mapping[str, Any] | None = None
) -> None:
    """Move a fully written checkpoint from a temporary folder into place atomically, with a manifest.

    The manifest holds the record of what it was trained with, and whether it was scheduled or saved on interruption.
    """
    files = sorted(path for path in partial.rglob("*") if path.is_file())
    entries = {file.relative_to(partial).as_posix(): _fingerprint(file) for file in files}
    content = {"scheduled": scheduled, "trained_with": record, "files": entries}
    text = json.dumps({**content, "checksum": _checksum(content)}, indent=2) + "\n"
    (partial / MANIFEST).write_text(text, encoding="utf-8")
    for path in (*sorted(partial.rglob("*")), partial):
        flush_to_disk(path)
    if os.path.lexists(checkpoint):
        delete_checkpoint(checkpoint)
    partial.rename(checkpoint)
    flush_to_disk(checkpoint.parent)


def delete_checkpoint(checkpoint: Path) -> None:
    """Delete a checkpoint atomically."""
    scratch = checkpoint.parent / SCRATCH / "deleted"
    scratch.mkdir(parents=True, exist_ok=True)
    deleted = scratch / checkpoint.name
    checkpoint.rename(deleted)
    shutil.rmtree(deleted, ignore_errors=True)


def rotate_checkpoints(saved: Path, limit: int | None, best: str | Path | None) -> None:
    """Delete the checkpoints that the one just saved supersedes: unscheduled ones and, beyond the limit, the oldest.

    Those of later steps, damaged or left over when a run resumed from an earlier step, count as the oldest. The best
    one is kept; without a limit, so are all scheduled ones.
    """
    protected = {saved, Path(best)} if best else {saved}
    others = [checkpoint for checkpoint in _checkpoints(saved.parent) if checkpoint not in protected]
    others.sort(key=lambda checkpoint: _step(checkpoint) <= _step(saved))
    superfluous = [checkpoint for checkpoint in others if not is_scheduled(checkpoint)]
    if limit and is_scheduled(saved):
        scheduled = [checkpoint for checkpoint in others if checkpoint not in superfluous]
        present = sum(checkpoint.exists() for checkpoint in protected)
        superfluous += scheduled[: max(0, len(scheduled) + present - limit)]
    for checkpoint in superfluous:
        delete_checkpoint(checkpoint)


def is_scheduled(checkpoint: Path) -> bool:
    """Whether a checkpoint was saved on schedule, rather than because the run was interrupted."""
    try:
        return bool(_read_manifest(checkpoint)["scheduled"])
    except (OSError, ValueError):
        return True


def trained_with(checkpoint: str | Path) -> dict[str, Any] | None:
    """Record of what a checkpoint was trained with; None if it has none, as in earlier releases."""
    try:
        record = _read_manifest(Path(checkpoint)).get("trained_with")
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) else None


def best_checkpoint(checkpoint: Path) -> Path | None:
    """Path of the best checkpoint that another one records: beside it, even if their folder was moved since."""
    file = checkpoint / TRAINER_STATE_NAME
    recorded = TrainerState.load_from_json(str(file)).best_model_checkpoint if file.is_file() else None
    return checkpoint.parent / Path(recorded).name if recorded else None


def checkpoint_fault(checkpoint: str | Path) -> str | None:
    """Why training cannot resume from a checkpoint; None if it is complete and matches its manifest."""
    folder = Path(checkpoint)
    if (folder / MANIFEST).exists():
        return _manifest_fault(folder)
    return _state_fault(folder / TRAINER_STATE_NAME) or weights_fault(folder) or _resume_state_fault(folder)


def weights_fault(folder: Path) -> str | None:
    """Why the weights of a checkpoint cannot be read; None if they can."""
    files = sorted(folder.glob("*.safetensors"))
    if not files and not any(folder.glob("pytorch_model*")):
        return "it holds no weights"
    if (folder / MANIFEST).exists():
        return _manifest_fault(folder, (".safetensors", ".bin"))
    for file in files:
        try:
            safe_open(file, framework="pt")
        except (OSError, SafetensorError) as error:
            return f"its {file.name} is damaged ({one_line(error)})"
    return None


def _manifest_fault(folder: Path, endings: tuple[str, ...] = ("",)) -> str | None:
    """Describe the first file with one of these endings that does not match the manifest."""
    try:
        entries = _read_manifest(folder)["files"]
    except (OSError, ValueError):
        return f"its {MANIFEST} is damaged"
    for name, expected in entries.items():
        file = folder / name
        if not name.endswith(endings):
            continue
        if not file.is_file():
            return f"it holds no {name}"
        if (size := file.stat().st_size) != expected["bytes"]:
            return f"its {name} has {size} bytes instead of {expected['bytes']}"
        if _fingerprint(file) != expected:
            return f"its {name} is damaged (its CRC-32 differs)"
    return None


def _read_manifest(folder: Path) -> dict[str, Any]:
    """Read the manifest of a checkpoint; raises OSError if there is none, and ValueError if it is damaged."""
    content = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    entries = content.get("files") if isinstance(content, dict) else None
    is_valid = isinstance(entries, dict) and all(
        isinstance(entry, dict) and entry.keys() == {"bytes", "crc32"} for entry in entries.values()
    )
    # Manifests of earlier versions have no checksum.
    if not is_valid or "scheduled" not in content or content.pop("checksum", None) not in (None, _checksum(content)):
        raise ValueError(f"{folder / MANIFEST} is damaged")
    return content


def _checksum(content: dict[str, Any]) -> str:
    return f"{zlib.crc32(json.dumps(content).encode()):08x}"


def _fingerprint(file: Path) -> dict[str, Any]:
    checksum = 0
    with file.open("rb") as content:
        while chunk := content.read(CHUNK):
            checksum = zlib.crc32(chunk, checksum)
        return {"bytes": content.tell(), "crc32": f"{checksum:08x}"}


def _state_fault(file: Path) -> str | None:
    """Why the trainer state, written last by `Trainer` and earlier releases, does not prove a checkpoint complete."""
    try:
        state = json.loads(file.read_text(encoding="utf-8"))
    except OSError:
        return f"it holds no {file.name}"
    except ValueError:
        return f"its {file.name} is truncated"
    return None if isinstance(state, dict) and "global_step" in state else f"its {file.name} holds no global_step"


def _resume_state_fault(folder: Path) -> str | None:
    present = [any(any(folder.glob(pattern)) for pattern in patterns) for patterns in RESUME_STATE]
    if any(present) and not all(present):
        return f"it holds no {RESUME_STATE[present.index(False)][0]}"
    for file in sorted(folder.glob("*.pt*")):
        try:
            if ZipFile(file).testzip():
                return f"its {file.name} is damaged"
        except (OSError, BadZipFile, EOFError, NotImplementedError, zlib.error):
            return f"its {file.name} is truncated"
    return None


def newest_checkpoint(run_dir: str | Path) -> str | None:
    """Path of the newest complete checkpoint of a run, if any.

    Newer incomplete ones, left by a program killed while saving, are skipped with a warning.
    """
    return next((str(checkpoint) for checkpoint in reversed(_checkpoints(run_dir)) if _is_usable(checkpoint)), None)


def complete_checkpoints(run_dir: str | Path) -> list[Path]:
    """Complete scheduled checkpoints of a run, oldest first; incomplete ones are skipped with a warning."""
    return [checkpoint for checkpoint in _checkpoints(run_dir) if is_scheduled(checkpoint) and _is_usable(checkpoint)]


def last_checkpoints(run_dir: str | Path, number: int) -> list[Path]:
    """Up to `number` of the last checkpoints with readable weights, oldest first; others are skipped with a warning.

    Raises:
        ValueError: There are none.
    """
    checkpoints = [checkpoint for checkpoint in _checkpoints(run_dir) if _is_usable(checkpoint, weights_fault)]
    if not checkpoints:
        raise ValueError(f"{run_dir} holds no checkpoint-<step> folder with readable weights.")
    return checkpoints[-number:]


def _is_usable(checkpoint: Path, fault_of: Callable[[Path], str | None] = checkpoint_fault) -> bool:
    fault = fault_of(checkpoint)
    if fault:
        logger.warning(f"skipping {checkpoint}: {fault}")
    return not fault


def _checkpoints(run_dir: str | Path) -> list[Path]:
    """Checkpoint folders of a run, oldest first, complete or not."""
    folders = Path(run_dir).glob(f"{PREFIX}*")
    return sorted((path for path in folders if path.name.removeprefix(PREFIX).isdecimal()), key=_step)


def _step(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix(PREFIX))


def average_checkpoints(checkpoints: Sequence[str | Path], trust_remote_code: bool = False) -> PreTrainedModel:
    """Average the weights of checkpoints (section 6.1), in float64.

    Args:
        checkpoints: Folders of models of the same shape.
        trust_remote_code: Whether to run Python code shipped with them.

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
                    f"{folder} has no weight {name} of shape {tuple(value.shape)}: it belongs to a different model "
                    f"than {checkpoints[-1]}."
                )
            value += weights[name]
    model.load_state_dict({name: value / len(checkpoints) for name, value in total.items()}, strict=False)
    # Weights of wider dtypes may overflow the last checkpoint's dtype.
    check_finite(model, f"the average in the dtype of {checkpoints[-1]}")
    return model
