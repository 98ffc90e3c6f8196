"""The folder of a run: the checkpoint to resume from, and a lock against concurrent runs."""

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from transformers.utils import CONFIG_NAME, logging

from ..files import atomic_update
from .arguments import VanillaTransformerTrainingArguments
from .checkpoints import checkpoint_fault, newest_checkpoint

logger = logging.get_logger(__name__)

# Uploads to the Hub skip names with this first character.
LOCK_FILE = "_run.lock"

# Seconds to wait for the lock: processes that read data share it, and notice within five seconds that the program was
# killed.
LOCK_TIMEOUT = 10.0

# Remedy for a full disk.
ROOM_AND_RESUME = "make room, and continue with `resume_from_checkpoint=last`"


def find_checkpoint(args: VanillaTransformerTrainingArguments) -> str | None:
    """Return the checkpoint to resume from; None for a new run.

    "last" in a folder without checkpoints is a new run, because a scheduler restarts a job with its original command.

    Raises:
        ValueError: `output_dir` holds another run or model, or the checkpoint is missing or incomplete.
    """
    folder, requested = Path(args.output_dir), args.resume_from_checkpoint
    newest = newest_checkpoint(folder)
    resumes_last = str(requested) in ("last", "true", "True")
    if resumes_last and newest:
        return newest
    if resumes_last and any(folder.glob(f"{PREFIX_CHECKPOINT_DIR}-*")):
        raise ValueError(f"`output_dir` {folder} holds no complete checkpoint; leave `resume_from_checkpoint` out")
    if resumes_last or requested is None:
        if newest:
            raise ValueError(
                f"`output_dir` {folder} already holds a run; continue it with `resume_from_checkpoint=last`, or "
                "choose another folder"
            )
        if (folder / "config.json").exists():
            raise ValueError(f"`output_dir` {folder} already holds a model; choose another folder")
        if resumes_last and args.process_index == 0:
            logger.warning(f"{folder} holds no checkpoint to resume from yet: training starts from the beginning")
        return None
    checkpoint = str(requested)
    if fault := checkpoint_fault(checkpoint):
        raise ValueError(f"`resume_from_checkpoint` {checkpoint}: {fault}; name a complete checkpoint-<step> folder")
    if newest and not Path(newest).samefile(checkpoint):
        # The newest one would be averaged with later ones, and the next session would resume from it.
        raise ValueError(
            f"`resume_from_checkpoint` {checkpoint}: `output_dir` {folder} already holds {Path(newest).name}; resume "
            "from last, or choose another `output_dir`"
        )
    return checkpoint


@contextmanager
def run_lock(args: VanillaTransformerTrainingArguments) -> Iterator[None]:
    """Create the folder of a run if needed, and lock it against other programs.

    The operating system releases the lock when the program ends, however it ends. Among the processes of a run, the
    first one holds it.
    """
    folder = Path(args.output_dir)
    make_folder(folder)
    if args.process_index > 0:
        yield
        return
    lock = FileLock(folder / LOCK_FILE)
    try:
        lock.acquire(timeout=LOCK_TIMEOUT)
    except Timeout:
        raise ValueError(
            f"another program is training in `output_dir` {folder}; wait until it ends, or choose another folder"
        ) from None
    except OSError as error:
        raise ValueError(
            f"`output_dir` {folder} cannot be written ({error.strerror or error}); choose another folder"
        ) from error
    try:
        yield
    finally:
        # Windows does not delete open files.
        with suppress(OSError):
            (folder / LOCK_FILE).unlink()
        lock.release()


def make_folder(folder: Path, argument: str = "output_dir") -> None:
    """Create the folder that an argument names, if needed."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"`{argument}` {folder} cannot be created: {error.strerror}; choose another") from error


def save_final(part: PreTrainedModel | PreTrainedTokenizerBase, folder: str | Path) -> None:
    """Save the model or the tokenizer of a run in its folder, atomically."""
    last = CONFIG_NAME if isinstance(part, PreTrainedModel) else "tokenizer_config.json"
    with atomic_update(folder, last=last, remedy=ROOM_AND_RESUME) as partial:
        part.save_pretrained(partial)


def check_same_run(folder: Path, arguments: dict[str, Any]) -> None:
    """Record the arguments of a run in its folder, or raise a ValueError if it holds a run with different arguments.

    A folder holds a run once it has a subfolder, for a model.
    """
    file = folder / "arguments.json"
    # As read back from the file, with lists for tuples.
    arguments = json.loads(json.dumps(arguments))
    make_folder(folder)
    if not file.is_file() or not any(path.is_dir() for path in folder.iterdir()):
        file.write_text(json.dumps(arguments, indent=2) + "\n", encoding="utf-8")
        return
    before = json.loads(file.read_text(encoding="utf-8"))
    names = [name for name in {**before, **arguments} if before.get(name) != arguments.get(name)]
    if names:
        changes = ", ".join(f"`{name}` was {before.get(name)}, is {arguments.get(name)}" for name in names)
        raise ValueError(
            f"{folder} holds a run with different arguments ({changes}); repeat them, or choose another folder"
        )
