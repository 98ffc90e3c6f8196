"""The folder of a run: which checkpoint to go on from, and that two runs never share one."""

import json
from pathlib import Path
from typing import Any

from .arguments import VanillaTransformerTrainingArguments
from .checkpoints import checkpoint_fault, newest_checkpoint


def find_checkpoint(args: VanillaTransformerTrainingArguments) -> str | None:
    """Return the checkpoint to resume from, if any.

    Raises:
        ValueError: The folder holds a run that is not to be resumed, or there is no checkpoint to resume from.
    """
    folder, wanted = Path(args.output_dir), args.resume_from_checkpoint
    newest = newest_checkpoint(folder)
    if wanted is None:
        if newest:
            raise ValueError(
                f"--output_dir {folder} already holds a run: go on with it by --resume_from_checkpoint last, "
                "or name another folder"
            )
        if (folder / "config.json").exists():
            raise ValueError(f"--output_dir {folder} already holds a model; name another folder")
        return None
    checkpoint = newest if str(wanted) in ("last", "true", "True") else str(wanted)
    if checkpoint is None:
        raise ValueError(f"--resume_from_checkpoint: {folder} holds no complete checkpoint; leave the option out")
    if fault := checkpoint_fault(checkpoint):
        raise ValueError(f"--resume_from_checkpoint {checkpoint}: {fault}; name a complete checkpoint-<step> folder")
    if newest and not Path(newest).samefile(checkpoint):
        # It would be averaged with those to come, and be resumed from instead of them.
        raise ValueError(
            f"--resume_from_checkpoint {checkpoint}: --output_dir {folder} already holds {Path(newest).name}; resume "
            "from last, or name another --output_dir"
        )
    return checkpoint


def make_folder(folder: Path) -> None:
    """Make an output folder where there is none, or raise a ValueError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"--output_dir {folder} cannot be made: {error.strerror}; name another") from error


def check_same_run(folder: Path, arguments: dict[str, Any]) -> None:
    """Note the arguments of a run in its folder, and refuse to go on there with others once it holds a model's folder.

    Raises:
        ValueError: The folder holds a run of other arguments, which it names, or it cannot be made.
    """
    file = folder / "arguments.json"
    # As the file would give them back: lists instead of tuples.
    arguments = json.loads(json.dumps(arguments))
    make_folder(folder)
    if not file.is_file() or not any(path.is_dir() for path in folder.iterdir()):
        file.write_text(json.dumps(arguments, indent=2) + "\n", encoding="utf-8")
        return
    before = json.loads(file.read_text(encoding="utf-8"))
    names = [name for name in {**before, **arguments} if before.get(name) != arguments.get(name)]
    if names:
        changes = ", ".join(f"--{name} was {before.get(name)}, is {arguments.get(name)}" for name in names)
        raise ValueError(f"{folder} holds a run of other arguments ({changes}); give those, or name another folder")


__all__ = ["check_same_run", "find_checkpoint", "make_folder"]
