"""Publishing a saved model on the Hub, with its code, and only what others need of its folder."""

import json
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from huggingface_hub import CommitInfo, CommitOperationAdd, CommitOperationDelete, HfApi, get_token
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, HTTPError, LocalTokenNotFoundError
from safetensors import SafetensorError, safe_open

from .files import read_json_object
from .model.hub_code_vanilla_transformer import MODEL_TYPE, code_files, with_auto_map
from .model.tokenization_vanilla_transformer import (
    PLACEHOLDER_TOKENIZER_JSON,
    VanillaTransformerTokenizer,
    source_vocabulary_file,
)

WEIGHTS = "model*.safetensors"
# With a variant: model.safetensors.index.fp16.json
WEIGHT_INDEX = "model.safetensors.index*.json"

SOURCE_VOCABULARY, TARGET_VOCABULARY = VanillaTransformerTokenizer.vocab_files_names.values()

# What others need of a folder; checkpoints, optimizer states and logs of a training run stay at home.
SHARED_FILES = (
    WEIGHTS,
    WEIGHT_INDEX,
    "config.json",
    "generation_config.json",
    "*tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "README.md",
    "LICENSE*",
    "all_results.json",
    "test_translations.txt",
    "*.png",
)
UNSAFE_WEIGHTS = ("*model*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")

SAVE_AGAIN = "save the model and its tokenizer there again"

# What the Hub answers, and what to do about it.
REMEDIES = {
    401: "log in with `hf auth login`, or set HF_TOKEN to a token that may write",
    403: "the token may not write there; use one that may, or another --repo_id",
    404: "there is no such repository or branch, or the token may not see it",
    409: "somebody else changed the repository meanwhile; try again",
}


def files_to_share(folder: str | Path) -> dict[str, Path | bytes]:
    """Return what is to be uploaded of a saved model: names on the Hub, and files or contents.

    Those are weights, configuration, tokenizer, card, results and pictures of the folder, and the code, which the
    configuration then names.

    Args:
        folder: Where `save_pretrained` or `train_translation` left the model and its tokenizer.

    Raises:
        ValueError: The folder holds no weights in safetensors, damaged or only some of them, no card, no
            configuration of this package or no tokenizer; says which, and what to do.
    """
    folder = Path(folder)
    _check_folder(folder)
    files: dict[str, Path | bytes] = {
        path.name: path for pattern in SHARED_FILES for path in sorted(folder.glob(pattern)) if path.is_file()
    }
    for name in ("config.json", "tokenizer_config.json"):
        settings = with_auto_map(name, read_json_object(folder / name, SAVE_AGAIN))
        files[name] = (json.dumps(settings, indent=2, ensure_ascii=False) + "\n").encode()
    if _is_pair(folder) and SOURCE_VOCABULARY not in files:
        # As an earlier release saved it; who has neither package nor code would get the source's side alone.
        files |= {SOURCE_VOCABULARY: files["tokenizer.json"], "tokenizer.json": PLACEHOLDER_TOKENIZER_JSON.encode()}
    return dict(sorted((files | {path.name: path for path in code_files()}).items()))


def publish(
    folder: str | Path,
    repo_id: str,
    *,
    private: bool = False,
    revision: str | None = None,
    commit_message: str | None = None,
) -> CommitInfo:
    """Upload a saved model with its tokenizer, card and code to the Hub, in one commit.

    The repository is made if there is none. Others then load it by its name: with this package as it is, without it
    with `trust_remote_code=True`. Weights that an earlier commit left under other names, such as one file where there
    now are shards, are removed: they would be loaded in place of the new ones.

    Args:
        folder: The model's folder; see `files_to_share`.
        repo_id: `user/name` or `organization/name`.
        private: Whether a repository that is made now is private, and one that there is must be.
        revision: Branch to commit to, made if there is none; by default the main one.
        commit_message: First line of the commit's message.

    Raises:
        ValueError: As `files_to_share`; the repository is public and must not be; or the Hub refuses, and what to do
            about it.
    """
    files = files_to_share(folder)
    _check_token()
    api = HfApi()
    try:
        # The full name, where the user's own was left out.
        repo_id = api.create_repo(repo_id, private=private or None, exist_ok=True).repo_id
        if private and not api.model_info(repo_id).private:
            raise ValueError(
                f"{repo_id} is public, and --private leaves a repository as it is: make it private in its settings, "
                "or name another --repo_id"
            )
        if revision:
            api.create_branch(repo_id, branch=revision, exist_ok=True)
        additions = [CommitOperationAdd(path_in_repo=name, path_or_fileobj=files[name]) for name in files]
        stale = [
            CommitOperationDelete(path_in_repo=name)
            for name in api.list_repo_files(repo_id, revision=revision)
            if _holds_weights(name) and name not in files
        ]
        message = commit_message or "Upload model with its code"
        return api.create_commit(repo_id, [*additions, *stale], commit_message=message, revision=revision)
    except (HTTPError, OSError, RuntimeError, HFValidationError) as error:
        # Not the cause itself, whose request carries the token.
        raise ValueError(_without_token(_explain(error, repo_id))) from None


def _explain(error: BaseException, repo_id: str) -> str:
    """Return what went wrong between here and the Hub, and what to do about it."""
    if isinstance(error, HFValidationError):
        return f"--repo_id {repo_id} is no name of a repository: {error}"
    if isinstance(error, LocalTokenNotFoundError):
        return f"nobody is logged in; {REMEDIES[401]}"
    if isinstance(error, HfHubHTTPError):
        status = getattr(error.response, "status_code", None)
        remedy = REMEDIES.get(status, "try again later") if status is not None else "try again later"
        return f"the Hub answers {status} for {repo_id}: {error}; {remedy}"
    if isinstance(error, (HTTPError, OSError)):
        return f"the Hub cannot be reached: {error}"
    # What fails in a thread that uploads one large file comes wrapped.
    return f"{error} {_explain(error.__cause__, repo_id)}" if error.__cause__ else f"{error}; try again later"


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder; name the one that the model was saved in")
    if not any(folder.glob(WEIGHTS)):
        unsafe = next(_matching(folder, UNSAFE_WEIGHTS), None)
        found = f"; {unsafe.name} can run code when it is read and is not shared" if unsafe else ""
        raise ValueError(f"{folder} holds no {WEIGHTS}{found}; save the model with save_pretrained")
    _check_weights(folder)
    if not (folder / "README.md").is_file():
        raise ValueError(f"{folder} holds no README.md, the model's card; write one, e.g. like those in model_cards/")
    if (kind := read_json_object(folder / "config.json", SAVE_AGAIN).get("model_type")) != MODEL_TYPE:
        raise ValueError(
            f"{folder / 'config.json'}: model_type is {kind!r}, not {MODEL_TYPE!r}; push it by its own class"
        )
    files: dict[str, Any] = {path.name: path for path in folder.glob("*tokenizer.json") if path.is_file()}
    names = ["tokenizer.json"]
    if _is_pair(folder):
        names = [SOURCE_VOCABULARY, TARGET_VOCABULARY]
        files[SOURCE_VOCABULARY] = source_vocabulary_file(files.get(SOURCE_VOCABULARY), files.get("tokenizer.json"))
    for name in names:
        if files.get(name) is None:
            raise ValueError(f"{folder} holds no {name}; save the tokenizer there too")


def _is_pair(folder: Path) -> bool:
    kind = read_json_object(folder / "tokenizer_config.json", SAVE_AGAIN).get("tokenizer_class")
    return bool(kind == VanillaTransformerTokenizer.__name__)


def _check_weights(folder: Path) -> None:
    """Raise for weights that nobody could load: a damaged file, or a shard that is not there."""
    for index in folder.glob(WEIGHT_INDEX):
        for name in sorted(set(read_json_object(index, SAVE_AGAIN).get("weight_map", {}).values())):
            if not (folder / name).is_file():
                raise ValueError(f"{folder} holds no {name}, which {index.name} names; save the model again")
    for file in sorted(folder.glob(WEIGHTS)):
        check_safetensors(file, remedy="save the model again")


def check_safetensors(file: Path, remedy: str) -> None:
    """Raise a ValueError that ends in `remedy` for a file that is no whole safetensors file."""
    try:
        safe_open(file, framework="pt")
    except SafetensorError as error:
        raise ValueError(f"{file} is damaged ({error}); {remedy}") from error


def _holds_weights(name: str) -> bool:
    return "/" not in name and (fnmatchcase(name, WEIGHTS) or fnmatchcase(name, WEIGHT_INDEX))


def _check_token() -> None:
    """Raise for a token that no header can carry: the client would fail at it with a riddle."""
    token = get_token() or ""
    if not (token.isascii() and token.isprintable()):
        raise ValueError("the token has a character that no token has; set HF_TOKEN again, or use `hf auth login`")


def _matching(folder: Path, patterns: tuple[str, ...]) -> Iterator[Path]:
    return (path for pattern in patterns for path in folder.glob(pattern))


def _without_token(text: str) -> str:
    """Return the text with nothing in it that looks like a token."""
    token = get_token()
    return re.sub(r"hf_\w{8,}", "hf_...", text.replace(token, "...") if token else text)


__all__ = ["check_safetensors", "files_to_share", "publish"]
