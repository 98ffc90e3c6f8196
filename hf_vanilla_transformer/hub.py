"""Publishing saved models on the Hub, with their code and without the private files of their folder."""

import json
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any

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

SAVE_AGAIN = "save the model and its tokenizer there again"

# Files, or their content, by their names on the Hub.
Files = dict[str, Path | bytes]

UPLOAD_MESSAGES = {"model": "Upload model with its code", "space": "Upload page"}

# Status codes of the Hub and their remedies.
REMEDIES = {
    401: "log in with `hf auth login`, or set HF_TOKEN to a token that may write",
    403: "the token may not write there; use one that may, or another `repo_id`",
    404: "there is no such repository or branch, or the token may not see it",
    409: "the repository changed meanwhile; try again",
}


def files_to_share(folder: str | Path) -> Files:
    """List what is published of a model's folder: names on the Hub, with files or their content.

    These are the folder's weights, configuration, tokenizer, card, results and pictures, and the model's code, which
    the configuration then refers to.

    Raises:
        ValueError: The folder has no complete weights in safetensors, no card, no configuration of this package or no
            tokenizer; says what to do.
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
        # Saved by an earlier release; without package or code, only the source's tokenizer would be loaded.
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
    """Upload files to a repository, in one commit.

    It also deletes other weights in the folders of theirs, such as a single file of before there were shards, which
    would be loaded instead of the new ones.

    Args:
        files: Names, with files or their content.
        repo_id: `user/name` or `organization/name`, created if needed.
        repo_type: "model", or "space" for a page of Gradio.
        private: Create a private repository; refuse an existing public one.
        revision: Branch to commit to, created if needed; by default the main one.
        commit_message: First line of the commit's message.

    Raises:
        ValueError: The repository is public and must not be, or the Hub refuses.
    """
    _check_token()
    api = HfApi()
    kind: dict[str, Any] = {"repo_type": repo_type}
    sdk: dict[str, Any] = {"space_sdk": "gradio"} if repo_type == "space" else {}
    try:
        # Completes a name without its namespace.
        repo_id = api.create_repo(repo_id, private=private or None, exist_ok=True, **kind, **sdk).repo_id
        if private and not api.repo_info(repo_id, **kind).private:
            raise ValueError(
                f"{repo_id} is public, and `private` applies to new repositories only: make it private in its "
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
        # Not `from error`: its request carries the token.
        raise ValueError(redacted(_explain(error, repo_id), get_token())) from None


def write_files(files: Files, output_dir: str | Path) -> Path:
    """Write what would be uploaded into a new or empty folder, completely or not at all, and return the folder."""
    with atomic_folder(output_dir) as folder:
        for name, file in files.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(file if isinstance(file, bytes) else file.read_bytes())
    return Path(output_dir)


def _explain(error: BaseException, repo_id: str) -> str:
    """Describe what went wrong with the Hub, and the remedy."""
    if isinstance(error, HFValidationError):
        return f"`repo_id` {repo_id} is not the name of a repository ({one_line(error)}); name it user/name"
    if isinstance(error, HfHubHTTPError):
        status = getattr(error.response, "status_code", 0)
        return f"the Hub answers {status} for {repo_id} ({one_line(error)}); {REMEDIES.get(status, 'try again later')}"
    if isinstance(error, (HTTPError, OSError)):
        return f"the Hub cannot be reached ({one_line(error)}); check the connection"
    # Failures in the thread that uploads a single large file come wrapped.
    message = one_line(error)
    return f"{message} {_explain(error.__cause__, repo_id)}" if error.__cause__ else f"{message}; try again later"


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder; name the one that the model was saved in")
    if not any(folder.glob(WEIGHT_FILES)):
        unsafe = next((path for pattern in UNSAFE_WEIGHTS for path in folder.glob(pattern)), None)
        found = f"; {unsafe.name} can run code when it is loaded and is never published" if unsafe else ""
        raise ValueError(f"{folder} holds no {WEIGHT_FILES}{found}; save the model with save_pretrained")
    _check_weights(folder)
    if not (folder / "README.md").is_file():
        raise ValueError(f"{folder} holds no README.md, the model card; write one, or let training write it")
    if (model_type := read_json_object(folder / "config.json", SAVE_AGAIN).get("model_type")) != MODEL_TYPE:
        raise ValueError(
            f"{folder / 'config.json'}: model_type is {model_type!r}, not {MODEL_TYPE!r}; push it by its own class"
        )
    _check_vocabularies(folder)


def _check_no_token(path: Path, file: Path | bytes) -> None:
    """Raise for a text that holds a token, as the cards of early releases do."""
    if path.suffix in BINARY_FILES:
        return
    text = (file if isinstance(file, bytes) else file.read_bytes()).decode("utf-8", errors="replace")
    token = get_token()
    if HUB_TOKEN.search(text) or (token and token in text):
        raise ValueError(
            f"{path} holds a token of the Hub; remove it there, and revoke it if anybody has seen the file"
        )


def _check_weights(folder: Path) -> None:
    """Raise for weights that cannot be used: a damaged file, a missing shard, a number that is NaN or infinite."""
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
    """Raise for a token that no header can carry: the client's own error would not say so."""
    token = get_token() or ""
    if not (token.isascii() and token.isprintable()):
        raise ValueError("the token contains an invalid character; set HF_TOKEN again, or use `hf auth login`")
