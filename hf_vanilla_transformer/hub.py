"""Publishing a saved model on the Hub, with its code, and only what others need of its folder."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

from huggingface_hub import CommitInfo, CommitOperationAdd, HfApi, get_token
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, HTTPError, LocalTokenNotFoundError

from .sharing_vanilla_transformer import MODEL_TYPE, code_files, with_auto_map

WEIGHTS = "model*.safetensors"

# What others need of a folder; checkpoints, optimizer states and logs of a training run stay at home.
SHARED_FILES = (
    WEIGHTS,
    "model.safetensors.index.json",
    "model.*.safetensors.index.json",
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
UNSAFE_WEIGHTS = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")

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
        ValueError: The folder holds no weights in safetensors, no card, no configuration of this package or no
            tokenizer; says which, and what to do.
    """
    folder = Path(folder)
    _check_folder(folder)
    files: dict[str, Path | bytes] = {
        path.name: path for pattern in SHARED_FILES for path in sorted(folder.glob(pattern)) if path.is_file()
    }
    for name in ("config.json", "tokenizer_config.json"):
        settings = with_auto_map(name, _read_json(folder / name))
        files[name] = (json.dumps(settings, indent=2, ensure_ascii=False) + "\n").encode()
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
    with `trust_remote_code=True`.

    Args:
        folder: The model's folder; see `files_to_share`.
        repo_id: `user/name` or `organization/name`.
        private: Whether a repository that is made now is private; one that there is stays as it is.
        revision: Branch to commit to, made if there is none; by default the main one.
        commit_message: First line of the commit's message.

    Raises:
        ValueError: As `files_to_share`; or the Hub refuses, and what to do about it.
    """
    operations = [
        CommitOperationAdd(path_in_repo=name, path_or_fileobj=content)
        for name, content in files_to_share(folder).items()
    ]
    api = HfApi()
    try:
        api.create_repo(repo_id, private=private or None, exist_ok=True)
        if revision:
            api.create_branch(repo_id, branch=revision, exist_ok=True)
        return api.create_commit(
            repo_id, operations, commit_message=commit_message or "Upload model with its code", revision=revision
        )
    except HFValidationError as error:
        raise ValueError(f"--repo_id {repo_id} is no name of a repository: {error}") from None
    except LocalTokenNotFoundError:
        raise ValueError(f"nobody is logged in; {REMEDIES[401]}") from None
    except HfHubHTTPError as error:
        status = getattr(error.response, "status_code", None)
        remedy = REMEDIES.get(status, "try again later") if status is not None else "try again later"
        # Not the cause itself, whose request carries the token.
        raise ValueError(f"the Hub answers {status} for {repo_id}: {_without_token(str(error))}; {remedy}") from None
    except (HTTPError, OSError) as error:
        raise ValueError(f"the Hub cannot be reached: {_without_token(str(error))}") from None


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder; name the one that the model was saved in")
    if not any(folder.glob(WEIGHTS)):
        unsafe = next(_matching(folder, UNSAFE_WEIGHTS), None)
        found = f"; {unsafe.name} can run code when it is read and is not shared" if unsafe else ""
        raise ValueError(f"{folder} holds no {WEIGHTS}{found}; save the model with save_pretrained")
    if not (folder / "README.md").is_file():
        raise ValueError(f"{folder} holds no README.md, the model's card; write one from model_cards/template.md")
    if (kind := _read_json(folder / "config.json").get("model_type")) != MODEL_TYPE:
        raise ValueError(
            f"{folder / 'config.json'}: model_type is {kind!r}, not {MODEL_TYPE!r}; push it by its own class"
        )
    _read_json(folder / "tokenizer_config.json")
    if not any(folder.glob("*tokenizer.json")):
        raise ValueError(f"{folder} holds no tokenizer.json; save the tokenizer there too")


def _matching(folder: Path, patterns: tuple[str, ...]) -> Iterator[Path]:
    return (path for pattern in patterns for path in folder.glob(pattern))


def _read_json(path: Path) -> dict:
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{path.parent} holds no {path.name}; save model and tokenizer there") from None
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read ({error}); save it again") from error
    if not isinstance(settings, dict):
        raise ValueError(f"{path} holds no JSON object; save it again")
    return settings


def _without_token(text: str) -> str:
    """Return the text with nothing in it that looks like a token."""
    token = get_token()
    return re.sub(r"hf_\w{8,}", "hf_...", text.replace(token, "...") if token else text)


__all__ = ["files_to_share", "publish"]
