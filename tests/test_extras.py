"""What to install is read from the package's metadata."""

from importlib.metadata import PackageNotFoundError

import pytest
from packaging.requirements import Requirement

from hf_vanilla_transformer import extras
from hf_vanilla_transformer.extras import install_command, requirements

METADATA = [
    "numpy>=1.26",
    "torch<2.16,>=2.11",
    'accelerate>=1.1; extra == "train"',
    'sacrebleu; extra == "train"',
    "hf-vanilla-transformer[train]; extra == 'serve'",
    "ray[serve] (>=2.40) ; extra == 'serve'",
]


@pytest.fixture
def metadata(monkeypatch):
    """Metadata of six requirements, and the names of what is installed."""
    installed = {"numpy", "torch", "accelerate"}

    def distribution(name):
        if name not in installed:
            raise PackageNotFoundError(name)

    monkeypatch.setattr(extras, "requires", lambda name: METADATA)
    monkeypatch.setattr(extras, "distribution", distribution)
    return installed


def test_requirements(metadata):
    assert requirements(None) == ["numpy>=1.26", "torch<2.16,>=2.11"]
    assert requirements("serve") == ["accelerate>=1.1", "sacrebleu", "ray[serve]>=2.40"]


def test_only_missing_packages_are_named(metadata):
    assert install_command("serve") == 'pip install sacrebleu "ray[serve]"'
    metadata.remove("torch")
    assert install_command("train") == "pip install torch sacrebleu"


def test_all_packages_are_named_if_one_is_broken(metadata):
    metadata |= {"sacrebleu", "ray"}
    assert install_command("serve") == 'pip install accelerate sacrebleu "ray[serve]"'


def test_without_metadata(monkeypatch):
    def requires(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(extras, "requires", requires)
    assert install_command("train") == 'pip install ".[train]"'


def test_every_extra_has_packages_with_bounds():
    for extra in ("train", "plot", "compare", "convert", "export", "files", "languages", "serve", "demo", "ray"):
        assert requirements(extra) and all(Requirement(text).specifier for text in requirements(extra))
