"""Configuration, generation settings and tokenizer of folders that transformers wrote."""

from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, GenerationConfig, PreTrainedConfig, PreTrainedTokenizerBase

from ..errors import as_value_errors, one_line
from ..extras import install_command
from ..files import read_json_object
from ..marian_fields import BEHAVIOR_FIELDS
from ..pretrained.generation_settings import check_generation_settings
from ..pretrained.loading import needs_trust
from .reading import FETCH_AGAIN
from .settings import Settings

# Entries of a generation configuration that record its origin.
_ORIGIN = {"transformers_version", "_from_model_config"}
# Settings that transformers loads but refuses to save, because they have no effect without sampling or beams.
_SAMPLING_ONLY = ("temperature", "top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff")
_BEAMS_ONLY = ("early_stopping", "length_penalty")


def transformers_fields(config_class: type[PreTrainedConfig], settings: Settings) -> dict[str, Any]:
    """Infer fields from the settings of a config.json of this class, including its defaults."""
    kind = config_class.model_type
    if settings.get("model_type") != kind:
        raise ValueError(
            f"weights of {kind} do not determine how they are used; pass the folder with their config.json"
        )
    arguments = {name: value for name, value in settings.items() if name not in ("model_type", "dtype")}
    with as_value_errors("config.json beside the weights: "):
        config = config_class(**arguments)
    return {name: getattr(config, name) for name in BEHAVIOR_FIELDS}


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase | None:
    """Load the tokenizer of a folder, if it has one."""
    if not (folder / "tokenizer_config.json").is_file():
        return None
    try:
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except ImportError as error:
        raise ValueError(
            f"the tokenizer in {folder} needs a library that is not installed ({one_line(error)}); install it: "
            f"{install_command('convert')}"
        ) from None
    except (KeyboardInterrupt, SystemExit):
        raise
    # Tokenizer files raise errors of many kinds, and a panic of the tokenizers library is not an Exception.
    except BaseException as error:
        if needs_trust(error):
            raise ValueError(
                f"the tokenizer in {folder} is Python code, which is never run; pass its vocabulary as "
                "`source_vocabulary` and `target_vocabulary`"
            ) from None
        raise ValueError(
            f"the tokenizer in {folder} cannot be loaded ({type(error).__name__}: {one_line(error)}); {FETCH_AGAIN}"
        ) from error


def read_generation_settings(folder: Path) -> tuple[dict[str, Any], list[str]]:
    """Return the stored settings of `generate()`, and a note on those that were left out."""
    # Older folders store them in config.json.
    names = [name for name in ("generation_config.json", "config.json") if (folder / name).is_file()]
    if not names:
        return {}, []
    file = folder / names[0]
    stored = read_json_object(file, FETCH_AGAIN)
    with as_value_errors(f"{file} has an unusable setting; {FETCH_AGAIN}: "):
        config = GenerationConfig.from_model_config(stored)
    check_generation_settings(config, file)
    settings = {name: value for name, value in config.to_diff_dict().items() if name not in _ORIGIN}
    without_effect = [
        *(() if settings.get("do_sample") else _SAMPLING_ONLY),
        *(() if (settings.get("num_beams") or 1) > 1 else _BEAMS_ONLY),
    ]
    dropped = [name for name in without_effect if name in settings]
    notes = [f"generation settings without effect were left out: {', '.join(dropped)}"] if dropped else []
    return {name: value for name, value in settings.items() if name not in dropped}, notes
