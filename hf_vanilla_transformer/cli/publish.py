"""Publish a trained model on the Hub with its tokenizer, card and code.

The model is a folder written by `vanilla-transformer train`. For example:

    vanilla-transformer publish --model my-model --repo_id me/my-model --dry_run
    vanilla-transformer publish --model my-model --repo_id me/my-model --private
    vanilla-transformer publish --space --model me/my-model --repo_id me/my-page --dry_run --output_dir my-page

Log in first with `hf auth login`, or set HF_TOKEN. With this package installed, others load `me/my-model` like any
model; without it, they pass `trust_remote_code=True`. Checkpoints, optimizer states and logs are not uploaded. --space
publishes a translation page instead, for a model on the Hub or for a folder, whose model is then uploaded with it.
"""

from argparse import Namespace

from .options import SWITCH, OneLineParser, importing

UNITS = ("B", "kB", "MB", "GB")


def add_arguments(parser: OneLineParser) -> None:
    files = parser.add_argument_group("what and where")
    model = "Folder with model, tokenizer and card (README.md); with --space, alternatively a name on the Hub."
    files.add_argument("--model", required=True, metavar="FOLDER", help=model)
    files.add_argument("--repo_id", required=True, help="Name on the Hub: user/name or organization/name.")
    files.add_argument("--dry_run", **SWITCH, help="List the files that would be uploaded, and stop; needs no login.")
    files.add_argument("--space", **SWITCH, help="Publish a Space, a translation page, instead of the model.")
    files.add_argument("--output_dir", help="With --dry_run: also write the files to this folder; new or empty.")
    license_help = "License of the model, an identifier of the Hub such as apache-2.0, to name in the card."
    files.add_argument("--license", help=license_help)
    files.add_argument("--private", **SWITCH, help="Create the repository as private.")
    commit = parser.add_argument_group("commit")
    commit.add_argument("--revision", help="Branch to commit to. Default: main.")
    commit.add_argument("--commit_message", help="First line of the commit message.")


def run(arguments: Namespace) -> None:
    with importing():
        from ..hub import files_to_share, upload, with_license, write_files
        from ..pretrained.cards import CARD
        from ..serving.space import space_files
    if arguments.output_dir and not arguments.dry_run:
        raise ValueError("--output_dir needs --dry_run; add it, or leave --output_dir out to upload the files")
    if arguments.space and arguments.license:
        raise ValueError("--license is for a model's card, which --space does not publish; leave it out")
    files = (space_files if arguments.space else files_to_share)(arguments.model)
    license_id: str | None = None
    if not arguments.space:
        files[CARD], license_id = with_license(files[CARD], arguments.license)
    sizes = {
        name: len(content) if isinstance(content, bytes) else content.stat().st_size for name, content in files.items()
    }
    for name, size in sizes.items():
        print(f"{readable(size):>9}  {name}")
    if not (arguments.space or license_id):
        print("note: the card names no license, so nobody knows what the model may be used for; name one by --license")
    total = f"{len(sizes)} files, {readable(sum(sizes.values()))}"
    if arguments.output_dir:
        write_files(files, arguments.output_dir)
    if arguments.dry_run:
        where = f" (files written to {arguments.output_dir})" if arguments.output_dir else ""
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
    """Format a number of bytes with a unit."""
    for unit in UNITS:
        if size < 1000 or unit == UNITS[-1]:
            break
        size /= 1000
    return f"{size:.{0 if unit == 'B' else 1}f} {unit}"
