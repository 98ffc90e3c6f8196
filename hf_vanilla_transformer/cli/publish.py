"""Publish a trained model on the Hub, with its tokenizer, its card and the code that loads it.

The folder is one that `vanilla-transformer train` wrote. For example:

    vanilla-transformer publish --model my-model --repo_id me/my-model --dry_run
    vanilla-transformer publish --model my-model --repo_id me/my-model --private
    vanilla-transformer publish --space --model me/my-model --repo_id me/my-page --dry_run --output_dir my-page

Log in first with `hf auth login`, or set HF_TOKEN. With this package installed, others load `me/my-model` like any
model; without it, they pass `trust_remote_code=True`. Checkpoints, optimizer states and logs are not uploaded. --space
publishes a page to translate with, for a model on the Hub or, with a copy of it, for a folder.
"""

from argparse import Namespace

from .options import SWITCH, OneLineParser, importing

UNITS = ("B", "kB", "MB", "GB")


def add_arguments(parser: OneLineParser) -> None:
    files = parser.add_argument_group("what and where")
    model = "Folder of the model, its tokenizer and its card (README.md); with --space also a name on the Hub."
    files.add_argument("--model", required=True, metavar="FOLDER", help=model)
    files.add_argument("--repo_id", required=True, help="Name on the Hub: user/name or organization/name.")
    files.add_argument("--dry_run", **SWITCH, help="Only list the files that would be uploaded; needs no login.")
    files.add_argument("--space", **SWITCH, help="Publish a Space, a page to translate with, instead of the model.")
    files.add_argument("--output_dir", help="With --dry_run: write the files there; a new or empty folder.")
    files.add_argument("--private", **SWITCH, help="Make a new repository private.")
    commit = parser.add_argument_group("commit")
    commit.add_argument("--revision", help="Branch to commit to. Default: main.")
    commit.add_argument("--commit_message", help="First line of the commit message.")


def run(arguments: Namespace) -> None:
    with importing():
        from ..hub import files_to_share, upload, write_files
        from ..serving.space import space_files
    if arguments.output_dir and not arguments.dry_run:
        raise ValueError("--output_dir needs --dry_run: without it, the files are uploaded")
    files = (space_files if arguments.space else files_to_share)(arguments.model)
    sizes = {
        name: len(content) if isinstance(content, bytes) else content.stat().st_size for name, content in files.items()
    }
    for name, size in sizes.items():
        print(f"{readable(size):>9}  {name}")
    total = f"{len(sizes)} files, {readable(sum(sizes.values()))}"
    if arguments.output_dir:
        write_files(files, arguments.output_dir)
    if arguments.dry_run:
        where = f" (they are in {arguments.output_dir})" if arguments.output_dir else ""
        print(f"{total}: nothing was uploaded to {arguments.repo_id}{where}")
        return
    commit = upload(
        files,
        arguments.repo_id,
        "space" if arguments.space else "model",
        private=arguments.private,
        revision=arguments.revision,
        commit_message=arguments.commit_message,
    )
    print(f"{total}: {commit.commit_url}")


def readable(size: float) -> str:
    """Return a number of bytes in a unit that keeps it short."""
    for unit in UNITS:
        if size < 1000 or unit == UNITS[-1]:
            break
        size /= 1000
    return f"{size:.{0 if unit == 'B' else 1}f} {unit}"
