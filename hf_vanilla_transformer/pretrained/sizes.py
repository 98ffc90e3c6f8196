"""Check the sizes in a saved configuration against the weight files before allocating anything."""

import re
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig
from transformers.utils import CONFIG_NAME

from ..errors import as_value_errors
from ..files import read_json_object
from ..model.configuration_vanilla_transformer import MAX_LABELS
from ..model.hub_code_vanilla_transformer import MODEL_TYPE
from ..weight_files import stored_shapes

SAVE_AGAIN = "save or fetch it again"

# Fields that count layers, in the configurations of all families: encoder_layers, num_hidden_layers, n_layer, ...
LAYER_FIELD = re.compile(r"(\w+_)?layers?")
DROPOUT_FIELD = re.compile(r"\w*(dropout|layerdrop)(_rate|_prob)?")
DEVIATION_FIELDS = ("init_std", "initializer_range", "initializer_factor")
MAX_DEVIATION = 1000
# Most parameters per stored number; above 1 for tied or quantized (packed) weights.
MAX_RATIO = 16
# Most numbers in computed buffers, such as sinusoids.
MAX_COMPUTED = 2**27


def check_sizes(
    folder: Path,
    auto_class: Any,
    new_weights: tuple[str, ...],
    trust_remote_code: bool,
    options: Mapping[str, Any],
) -> None:
    """Check that a folder's configuration describes no more than its weight files hold; arguments as of `load_model`.

    Raises:
        ValueError: A file is damaged, or the configuration does not match the weights. Names the file and the field or
            weight.
    """
    settings, file = read_config(folder), folder / CONFIG_NAME
    _check_numbers(settings, file)
    shapes = stored_shapes(folder, SAVE_AGAIN)
    if shapes is None:
        # `from_pretrained` knows further names of weight files, and reports if there are none.
        return
    for name, value in _integers(settings):
        if LAYER_FIELD.fullmatch(name) and value > len(shapes):
            raise ValueError(f"{file}: `{name}` is {value}, but only {len(shapes)} tensors are stored; {SAVE_AGAIN}")
    overrides = {name: value for name, value in options.items() if name != "dtype"}
    with as_value_errors(f"{file}: "), torch.device("meta"):
        config, _ = AutoConfig.from_pretrained(
            folder, return_unused_kwargs=True, trust_remote_code=trust_remote_code, **overrides
        )
        model = auto_class.from_config(config, trust_remote_code=trust_remote_code)
    _check_shapes(model, shapes, file)
    described = sum(weight.numel() for name, weight in model.named_parameters() if not name.startswith(new_weights))
    if described > MAX_RATIO * (stored := sum(map(prod, shapes.values()))):
        raise ValueError(f"{file} describes {described:,} parameters, but {stored:,} are stored; {SAVE_AGAIN}")
    if (computed := sum(buffer.numel() for buffer in model.buffers())) > MAX_COMPUTED:
        raise ValueError(f"{file} describes buffers of {computed:,} numbers; lower `max_position_embeddings`")


def read_config(folder: Path) -> dict[str, Any]:
    """Return a folder's config.json; raise a ValueError if it cannot be read or `num_labels` is too large."""
    settings = read_json_object(folder / CONFIG_NAME, SAVE_AGAIN)
    check_num_labels(settings, folder / CONFIG_NAME)
    return settings


def check_num_labels(settings: Mapping[str, Any], file: Path) -> None:
    """Raise a ValueError if `num_labels` is too large: loading a configuration creates a name for each label."""
    for name, value in _integers(settings):
        if name == "num_labels" and value > MAX_LABELS:
            raise ValueError(f"{file}: `{name}` is {value}; it must be at most {MAX_LABELS:,}")


def _check_numbers(settings: Mapping[str, Any], file: Path) -> None:
    """Raise a ValueError for a dropout or standard deviation that torch would reject only in use."""
    for name, value in settings.items():
        if type(value) not in (int, float):
            continue
        if DROPOUT_FIELD.fullmatch(name) and not 0 <= value <= 1:
            raise ValueError(f"{file}: `{name}` is {value}; it must be between 0 and 1")
        if name in DEVIATION_FIELDS and not 0 <= value <= MAX_DEVIATION:
            raise ValueError(f"{file}: `{name}` is {value}; it must be between 0 and {MAX_DEVIATION}")


def _integers(settings: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Yield name and value of all integers in a configuration, including nested ones."""
    for name, value in settings.items():
        if type(value) is int:
            yield name, value
        elif isinstance(value, dict):
            yield from _integers(value)


def _check_shapes(model: Any, shapes: Mapping[str, tuple[int, ...]], file: Path) -> None:
    """Check the shapes of our own models, whose weights have the same names in files and model."""
    # Quantization packs weights into other shapes.
    if model.config.model_type != MODEL_TYPE or getattr(model.config, "quantization_config", None):
        return
    described = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    for name, shape in shapes.items():
        if described.get(name, shape) != shape:
            raise ValueError(
                f"weights of the wrong shape: {name} {shape}, not {described[name]} as in {file}; {SAVE_AGAIN}"
            )
