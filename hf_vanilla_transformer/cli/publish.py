"""Publish a trained model on the Hub, with its tokenizer, its card and the code that loads it.

The folder is one that `vanilla-transformer train` wrote. For example:

    vanilla-transformer publish --model my-model --repo_id me/my-model --dry_run
    vanilla-transformer publish --model my-model --repo_id me/my-model --private

Log in first with `hf auth login`, or set HF_TOKEN. With this package installed, others load `me/my-model` like any
model; without it, they pass `trust_remote_code=True`. Checkpoints, optimizer states and logs are not uploaded.
"""

from argparse import Namespace
from pathlib import Path

from .options import SWITCH, OneLineParser, importing

UNITS = ("B", "kB", "MB", "GB")


def add_arguments(parser: OneLineParser) -> None:
    files = parser.add_argument_group("what and where")
    files.add_argument(
        "--model", required=True, metavar="FOLDER", help="Folder of the model, its tokenizer and its card (README.md)."
    )
    files.add_argument("--repo_id", required=True, help="Name on the Hub: user/name or organization/name.")
    files.add_argument("--dry_run", **SWITCH, help="Only list the files that would be uploaded; needs no login.")
    files.add_argument("--private", **SWITCH, help="Make a new repository private.")
    commit = parser.add_argument_group("commit")
    commit.add_argument("--revision", help="Branch to commit to. Default: main.")
    commit.add_argument("--commit_message", help="First line of the commit message.")


def run(arguments: Namespace) -> None:
    with importing():
        from ..hub import files_to_share, publish
    sizes = {
        name: len(content) if isinstance(content, bytes) else content.stat().st_size
        for name, content in files_to_share(arguments.model).items()
    }
    for name, size in sizes.items():
        print(f"{readable(size):>9}  {name}")
    total = f"{len(sizes)} files, {readable(sum(sizes.values()))}"
    if arguments.dry_run:
        print(f"{total}: nothing was uploaded to {arguments.repo_id}")
        return
    commit = publish(
        Path(arguments.model),
        arguments.repo_id,
        private=arguments.private,
        revision=arguments.revision,
        commit_message=arguments.commit_message,
    )
    print(f"{total}: {commit.commit_url}")


def readable(size: float) -> str:
    """Return a number of bytes in a unit that keeps it short."""
    for unit in UNITS[:-1]:
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} {UNITS[-1]}"
