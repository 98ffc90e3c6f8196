"""Hugging Face Space with the page, for a model on the Hub or bundled with the Space."""

import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from huggingface_hub import SpaceCardData

from ..extras import install_command, requirements
from ..hub import Files, files_to_share

# Folder of a bundled model in the Space.
MODEL_FOLDER = "model"

HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")

# Port that Spaces are served on.
PORT = 7860

APP = """from hf_vanilla_transformer.cli.main import main

main(["serve", "--page", "--host", "0.0.0.0", "--port", "{port}", "--model", {model!r}])
"""

README = """---
{card}
---

# {title}

Translates with {model}, showing alternatives with their scores and the model's attention.
Run it on your own machine with

```sh
pip install -r requirements.txt
python app.py
```
"""


def package_files() -> Files:
    """List the files of this package, which runs in the Space without an installation."""
    root = Path(__file__).parents[1]
    paths = (path for path in root.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {f"{root.name}/{path.relative_to(root).as_posix()}": path for path in sorted(paths)}


def space_files(model: str | Path) -> Files:
    """List the files of a Space for a model on the Hub, or for a folder, which is then bundled.

    Returns:
        Name in the Space -> local file or its content.

    Raises:
        ValueError: The folder cannot be published, the name is not valid, or Gradio is not installed.
    """
    is_folder = Path(model).is_dir()
    name = MODEL_FOLDER if is_folder else str(model)
    if not is_folder and not HUB_NAME.fullmatch(name):
        raise ValueError(f"`model` {name} is neither a folder nor the name of a model on the Hub, such as user/name")
    try:
        gradio = version("gradio")
    except PackageNotFoundError:
        raise ValueError(f"a Space needs gradio; run `{install_command('demo')}`") from None
    title = Path(model).resolve().name if is_folder else name.rpartition("/")[2]
    card = SpaceCardData(
        title=title,
        emoji="🔤",
        colorFrom="blue",
        colorTo="indigo",
        sdk="gradio",
        sdk_version=gradio,
        app_file="app.py",
        models=None if is_folder else [name],
    )
    shown = "the model in this Space" if is_folder else f"[{name}](https://huggingface.co/{name})"
    texts = {
        "README.md": README.format(card=card.to_yaml(), title=title, model=shown),
        "app.py": APP.format(port=PORT, model=f"{title}={name}"),
        "requirements.txt": "".join(f"{package}\n" for package in [*requirements(None), *requirements("demo")]),
    }
    files = package_files() | {name: text.encode() for name, text in texts.items()}
    if is_folder:
        files |= {f"{MODEL_FOLDER}/{name}": file for name, file in files_to_share(model).items()}
    return files
