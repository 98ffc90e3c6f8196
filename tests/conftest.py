"""Fixtures for all tests: no network, nothing written outside a temporary directory, a fixed random seed."""

import atexit
import gc
import os
import resource
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import ModuleType

# The Hugging Face libraries and matplotlib read these once, on import.
if "PYTEST_XDIST_WORKER" not in os.environ:
    _CACHE = tempfile.mkdtemp(prefix="hf-vanilla-transformer-tests-")
    atexit.register(shutil.rmtree, _CACHE, ignore_errors=True)
    # If set by the caller, each of these would override HF_HOME.
    for name in (
        "HF_DATASETS_CACHE",
        "HF_EVALUATE_CACHE",
        "HF_HUB_CACHE",
        "HF_METRICS_CACHE",
        "HF_MODULES_CACHE",
        "HF_XET_CACHE",
        "HUGGINGFACE_HUB_CACHE",
    ):
        os.environ.pop(name, None)
    os.environ["HF_HOME"] = _CACHE
    os.environ["MPLCONFIGDIR"] = os.path.join(_CACHE, "matplotlib")
os.environ["HF_HUB_OFFLINE"] = "1"

import pytest  # noqa: E402 - must follow the environment above
import torch  # noqa: E402 - must follow the environment above

from devices import TEST_DEVICE
from modules import import_file
from paths import SCRIPTS, SHARED

# A background job of a shell ignores SIGINT, and so would the programs started by tests.
signal.signal(signal.SIGINT, signal.default_int_handler)

torch.set_num_threads(max(1, (os.cpu_count() or 1) // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))))


def pytest_collection_finish() -> None:
    """Exclude imported objects from garbage collection, which `Trainer` triggers at every start of training.

    Scanning the objects of torch and transformers alone takes 0.2 s to 1 s.
    """
    gc.collect()
    gc.freeze()


# Folders whose tests create models and inputs on `TEST_DEVICE`, and CPU-only modules in them.
DEVICE_FOLDERS = ("model", "inference", "pretrained", "search")
ABOUT_THE_CPU = {
    "model/test_from_pretrained.py": "weights that are moved between memory and disk",
    "model/test_graphs.py": "graphs that run on a CPU; tests/gpu compiles for a GPU",
    "model/test_hub_code.py": "files, no numbers",
    "model/test_remote_code.py": "other processes, which use the CPU",
    "inference/test_ctranslate2.py": "CTranslate2 on a CPU",
    "inference/test_fingerprint.py": "files, no numbers",
    "inference/test_pipeline.py": "pipelines that are told to use the CPU",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if TEST_DEVICE == "cpu":
        return
    for item in items:
        if reason := ABOUT_THE_CPU.get(f"{item.path.parent.name}/{item.path.name}"):
            item.add_marker(pytest.mark.skip(reason=f"about the CPU: {reason}"))


@pytest.fixture(scope="module", autouse=True)
def _default_device(request: pytest.FixtureRequest) -> Iterator[None]:
    """Runs before other fixtures of a module, which may create models."""
    uses_device = TEST_DEVICE != "cpu" and request.path.parent.name in DEVICE_FOLDERS
    if uses_device:
        torch.set_default_device(TEST_DEVICE)
    yield
    if uses_device:
        torch.set_default_device(None)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Use one thread: tiny models are slower on several, and much slower on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def small_files() -> Callable[[int], AbstractContextManager[None]]:
    """Limit the size of files written in a context; exceeding it fails like a full disk."""

    @contextmanager
    def limit(size: int) -> Iterator[None]:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    return limit


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file to read, under several names."""
    monkeypatch.chdir(tmp_path)
    Path("k").write_text("a cat\n")
    Path("folder").mkdir()
    Path("symbolic").symlink_to("k")
    os.link("k", "hard")
    return tmp_path


@pytest.fixture
def public_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Create a test set that sacreBLEU downloads."""
    from public_tests import PublicSets

    return PublicSets(tmp_path, monkeypatch)


@pytest.fixture
def no_language_detector(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Hide the language detection library."""
    from hf_vanilla_transformer.text.languages import _identifier

    for name in ("py3langid", "py3langid.langid"):
        monkeypatch.setitem(sys.modules, name, None)
    _identifier.cache_clear()
    yield
    _identifier.cache_clear()


@pytest.fixture
def comet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a stand-in for the COMET program on the PATH."""
    from public_tests import install_comet

    folder = tmp_path / "bin"
    folder.mkdir()
    install_comet(folder)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)


@pytest.fixture(scope="session")
def load_script() -> Callable[[str], ModuleType]:
    """Import a program from scripts/ by name, to call its functions in this process."""

    def load(name: str) -> ModuleType:
        return import_file(SCRIPTS / f"{name}.py", f"{name}_script")

    return load


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of real corpora, if present next to the checkout."""
    folder = SHARED / "data"
    if not folder.is_dir():
        pytest.skip("needs the corpora of ../shared/data, which are not part of the repository")
    return folder
