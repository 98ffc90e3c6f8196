"""Publish saved models on the Hub, with their code and without private files in their folder."""

import json
import re
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any

import yaml
from huggingface_hub import CommitInfo, CommitOperationAdd, CommitOperationDelete, HfApi, get_token
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, HTTPError

from .errors import HUB_TOKEN, one_line, redacted
from .files import atomic_folder, check_links, read_json_object
from .model.hub_code_vanilla_transformer import MODEL_TYPE, code_files, with_auto_map
from .model.tokenization_vanilla_transformer import (
    PLACEHOLDER_TOKENIZER_JSON,
    VanillaTransformerTokenizer,
    source_vocabulary_file,
)
from .weight_files import check_finite_file, check_safetensors, read_shard_index

WEIGHT_FILES = "model*.safetensors"
# With a variant: model.safetensors.index.fp16.json
INDEX_FILES = "model.safetensors.index*.json"
UNSAFE_WEIGHTS = ("*model*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
SOURCE_VOCABULARY, TARGET_VOCABULARY = VanillaTransformerTokenizer.vocab_files_names.values()
# Evaluation results in the Hub's format.
EVAL_RESULTS = ".eval_results/*.yaml"
# Checkpoints, optimizer states and logs of a training run stay private.
PUBLISHED_FILES = (
    WEIGHT_FILES, INDEX_FILES, "config.json", "generation_config.json", "*tokenizer.json", "tokenizer_config.json",
    "special_tokens_map.json", "added_tokens.json", "chat_template.jinja", "README.md", "LICENSE*", "all_results.json",
    EVAL_RESULTS, "test_translations.txt", "*.png",
)  # fmt: skip  # a table, not an expression
# Not searched for tokens.
BINARY_FILES = (".safetensors", ".png")

# The metadata of a card, and those of its license.
FRONT_MATTER = re.compile(r"---[ \t]*\r?\n(?P<metadata>.*?)^---[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE)
LICENSE_FIELDS = re.compile(r"^license(?:_name|_link)?[ \t]*:.*\n(?:[ \t-].*\n)*", re.MULTILINE)
LICENSE_ID = re.compile(r"[a-z0-9][a-z0-9.-]*")

SAVE_AGAIN = "save the model and its tokenizer there again"

# Names on the Hub -> local files or their content.
Files = dict[str, Path | bytes]

UPLOAD_MESSAGES = {"model": "Upload model with its code", "space": "Upload page"}

# Remedies by HTTP status code of the Hub.
REMEDIES = {
    401: "log in with `hf auth login`, or set HF_TOKEN to a token with write access",
    403: "the token has no write access there; use one that has, or another `repo_id`",
    404: "no such repository or branch, or the token has no access to it",
    409: "the repository changed in the meantime; try again",
}


def files_to_share(folder: str | Path) -> Files:
    """List the files of a model folder to publish, by their names on the Hub.

    These are the folder's weights, configuration, tokenizer, card, results and plots, and the model's code, to which
    the published configuration refers.

    Returns:
        Name on the Hub -> local file or its content.

    Raises:
        ValueError: The folder lacks complete safetensors weights, a card, a configuration of this package or a
            tokenizer, or a text file holds a token; the message includes a remedy.
    """
    folder = Path(folder)
    _check_folder(folder)
    check_links(folder)
    check_links(folder, EVAL_RESULTS)
    files: Files = {
        path.relative_to(folder).as_posix(): path
        for pattern in PUBLISHED_FILES
        for path in sorted(folder.glob(pattern))
        if path.is_file()
    }
    for name in ("config.json", "tokenizer_config.json"):
        settings = with_auto_map(name, read_json_object(folder / name, SAVE_AGAIN))
        files[name] = (json.dumps(settings, indent=2, ensure_ascii=False) + "\n").encode()
    if _is_pair(folder) and SOURCE_VOCABULARY not in files:
        # Saved by an earlier release: without package or code, only the source tokenizer would load.
        files |= {SOURCE_VOCABULARY: files["tokenizer.json"], "tokenizer.json": PLACEHOLDER_TOKENIZER_JSON.encode()}
    files |= {path.name: path for path in code_files()}
    for name, file in files.items():
        _check_no_token(folder / name, file)
    return dict(sorted(files.items()))


def upload(
    files: Files,
    repo_id: str,
    repo_type: str = "model",
    *,
    private: bool = False,
    revision: str | None = None,
    commit_message: str | None = None,
) -> CommitInfo:
    """Upload files to a repository in one commit.

    Stale weight files next to the new ones, such as a single file replaced by shards, are deleted, as they would be
    loaded instead.

    Args:
        files: Name on the Hub -> local file or its content.
        repo_id: `user/name` or `organization/name`, created if needed.
        repo_type: "model", or "space" for a Gradio Space.
        private: Create a private repository; an existing public one is an error.
        revision: Branch to commit to, created if needed. Default: the main branch.
        commit_message: First line of the commit message.

    Raises:
        ValueError: `private` is set but the repository is public, or the Hub refuses or cannot be reached.
    """
    _check_token()
    api = HfApi()
    kind: dict[str, Any] = {"repo_type": repo_type}
    sdk: dict[str, Any] = {"space_sdk": "gradio"} if repo_type == "space" else {}
    try:
        # Add the namespace if missing.
        repo_id = api.create_repo(repo_id, private=private or None, exist_ok=True, **kind, **sdk).repo_id
        if private and not api.repo_info(repo_id, **kind).private:
            raise ValueError(
                f"{repo_id} is public, and `private` applies only to new repositories; make it private in its "
                "settings, or choose another `repo_id`"
            )
        if revision:
            api.create_branch(repo_id, branch=revision, exist_ok=True, **kind)
        additions = [CommitOperationAdd(path_in_repo=name, path_or_fileobj=files[name]) for name in files]
        folders = {PurePosixPath(name).parent for name in files if _is_weight_file(name)}
        stale = [
            CommitOperationDelete(path_in_repo=name)
            for name in api.list_repo_files(repo_id, revision=revision, **kind)
            if _is_weight_file(name) and PurePosixPath(name).parent in folders and name not in files
        ]
        return api.create_commit(
            repo_id,
            [*additions, *stale],
            commit_message=commit_message or UPLOAD_MESSAGES[repo_type],
            revision=revision,
            **kind,
        )
    except (HTTPError, OSError, RuntimeError, HFValidationError) as error:
        # Not `from error`: its request holds the token.
        raise ValueError(redacted(_explain(error, repo_id), get_token())) from None


def with_license(card: Path | bytes, license_id: str | None = None) -> tuple[Path | bytes, str | None]:
    """Return a card whose metadata name a license, by its identifier on the Hub, and the license they name.

    Raises:
        ValueError: The card's metadata cannot be read, or the license is no such identifier.
    """
    if license_id == "other":
        raise ValueError("`license` other needs its name and address: write license_name and license_link in the card")
    if license_id is not None and not LICENSE_ID.fullmatch(license_id):
        raise ValueError(f"`license` {license_id!r} is not an identifier of the Hub, such as apache-2.0 or cc-by-4.0")
    text = (card if isinstance(card, bytes) else card.read_bytes()).decode("utf-8-sig", errors="replace")
    match = FRONT_MATTER.match(text)
    metadata = match["metadata"] if match else ""
    try:
        named = (yaml.safe_load(metadata) or {}).get("license")
    except (yaml.YAMLError, AttributeError) as error:
        raise ValueError(f"README.md: its metadata cannot be read ({one_line(error)}); correct them") from error
    if license_id in (None, named):
        return card, named
    # As text, since another reader and writer would change what it does not know.
    others = LICENSE_FIELDS.sub("", metadata)
    rest = text[match.end() :] if match else text
    return f"---\nlicense: {license_id}\n{others}---\n{rest}".encode(), license_id


def write_files(files: Files, output_dir: str | Path) -> Path:
    """Write the files to a new or empty folder, all or none, and return the folder."""
    with atomic_folder(output_dir) as folder:
        for name, file in files.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(file if isinstance(file, bytes) else file.read_bytes())
    return Path(output_dir)


def _explain(error: BaseException, repo_id: str) -> str:
    """Describe an error of the Hub and its remedy."""
    if isinstance(error, HFValidationError):
        return f"`repo_id` {repo_id} is not the name of a repository ({one_line(error)}); name it user/name"
    if isinstance(error, HfHubHTTPError):
        status = getattr(error.response, "status_code", 0)
        return f"the Hub answers {status} for {repo_id} ({one_line(error)}); {REMEDIES.get(status, 'try again later')}"
    if isinstance(error, (HTTPError, OSError)):
        return f"the Hub cannot be reached ({one_line(error)}); check the connection"
    # Failures in the upload thread of a large file are wrapped in a RuntimeError.
    message = one_line(error)
    return f"{message} {_explain(error.__cause__, repo_id)}" if error.__cause__ else f"{message}; try again later"


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder; name the one the model was saved in")
    if not any(folder.glob(WEIGHT_FILES)):
        unsafe = next((path for pattern in UNSAFE_WEIGHTS for path in folder.glob(pattern)), None)
        warning = f"; {unsafe.name} can run code on loading and is never published" if unsafe else ""
        raise ValueError(f"{folder} holds no {WEIGHT_FILES}{warning}; save the model with save_pretrained")
    _check_weights(folder)
    if not (folder / "README.md").is_file():
        raise ValueError(f"{folder} holds no README.md, the model card; write one, or let training write it")
    if (model_type := read_json_object(folder / "config.json", SAVE_AGAIN).get("model_type")) != MODEL_TYPE:
        raise ValueError(
            f"{folder / 'config.json'}: model_type is {model_type!r}, not {MODEL_TYPE!r}; push it with its own class"
        )
    _check_vocabularies(folder)


def _check_no_token(path: Path, file: Path | bytes) -> None:
    """Raise a ValueError for a text file that holds a token, as cards of early releases do."""
    if path.suffix in BINARY_FILES:
        return
    text = (file if isinstance(file, bytes) else file.read_bytes()).decode("utf-8", errors="replace")
    token = get_token()
    if HUB_TOKEN.search(text) or (token and token in text):
        raise ValueError(f"{path} holds a Hub token; remove it, and revoke it if anybody has seen the file")


def _check_weights(folder: Path) -> None:
    """Raise a ValueError for a damaged file, a missing shard, or weights that are NaN or infinite."""
    for index in folder.glob(INDEX_FILES):
        read_shard_index(index, SAVE_AGAIN)
    for file in sorted(folder.glob(WEIGHT_FILES)):
        check_safetensors(file, SAVE_AGAIN)
        check_finite_file(file, "publish another checkpoint")


def _check_vocabularies(folder: Path) -> None:
    files: dict[str, Any] = {path.name: path for path in folder.glob("*tokenizer.json") if path.is_file()}
    names = ["tokenizer.json"]
    if _is_pair(folder):
        names = [SOURCE_VOCABULARY, TARGET_VOCABULARY]
        files[SOURCE_VOCABULARY] = source_vocabulary_file(files.get(SOURCE_VOCABULARY), files.get("tokenizer.json"))
    for name in names:
        if files.get(name) is None:
            raise ValueError(f"{folder} holds no {name}; save the tokenizer there too")


def _is_pair(folder: Path) -> bool:
    """Whether the folder's tokenizer has separate source and target vocabularies."""
    name = read_json_object(folder / "tokenizer_config.json", SAVE_AGAIN).get("tokenizer_class")
    return bool(name == VanillaTransformerTokenizer.__name__)


def _is_weight_file(name: str) -> bool:
    base = PurePosixPath(name).name
    return fnmatchcase(base, WEIGHT_FILES) or fnmatchcase(base, INDEX_FILES)


def _check_token() -> None:
    """Raise a ValueError for a token that is not valid in a header: the client's own error would be unclear."""
    token = get_token() or ""
    if not (token.isascii() and token.isprintable()):
        raise ValueError("the token contains an invalid character; set HF_TOKEN again, or use `hf auth login`")
