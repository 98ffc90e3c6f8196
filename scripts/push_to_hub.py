"""Publish a trained model on the Hub with its tokenizer, its card and the code that others need to load it.

The folder is the one that train_translation.py writes. For example:

    python scripts/push_to_hub.py --model my-model --repo_id me/my-model --dry_run
    python scripts/push_to_hub.py --model my-model --repo_id me/my-model --private

Log in first with `hf auth login`, or set HF_TOKEN. Who has this package then loads `me/my-model` like any model;
who has not gives `trust_remote_code=True`. Checkpoints, optimizer states and logs in the folder are not uploaded.
"""

from dataclasses import dataclass, field
from pathlib import Path

from _imports import importing

with importing():
    from hf_vanilla_transformer.cli.options import argument_parser, one_line_errors
    from hf_vanilla_transformer.hub import files_to_share, publish

UNITS = ("B", "kB", "MB", "GB")


@dataclass
class Arguments:
    """What to publish, and where."""

    model: str = field(metadata={"help": "Folder of the model, its tokenizer and its card (README.md)."})
    repo_id: str = field(metadata={"help": "Name on the Hub: user/name or organization/name."})
    private: bool = field(default=False, metadata={"help": "Make a new repository private."})
    dry_run: bool = field(default=False, metadata={"help": "Only list what would be uploaded; needs no login."})
    revision: str | None = field(default=None, metadata={"help": "Branch to commit to, by default the main one."})
    commit_message: str | None = field(default=None, metadata={"help": "First line of the commit's message."})


def main(argv: list[str] | None = None) -> None:
    """List or upload; a mistake in the input ends with one line on standard error and status 2."""
    parser = argument_parser(Arguments, __doc__)
    with one_line_errors(parser):
        (arguments,) = parser.parse_args_into_dataclasses(argv)
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
    """Return a number of bytes in the unit that suits it."""
    for unit in UNITS[:-1]:
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} {UNITS[-1]}"


if __name__ == "__main__":
    main()
