"""Export to transformers.js, which runs in browsers and Node: `pipeline("translation", folder)`.

The library selects its code by `model_type`, and its inputs by name; the graphs hide the architecture. It reads one
tokenizer.json, so separate vocabularies become one: the target's tokens, marked so that no text has them, then the
source's.
"""

import json
from pathlib import Path
from typing import Any

from tokenizers import pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from ..model.multilingual_vanilla_transformer import language_token
from .onnx import write_onnx

# A noncharacter, which no text contains. Special tokens begin with it, as the library has no `split_special_tokens`;
# so do the tokens of a separate target vocabulary.
MARK = "\ufdd0"

# Settings that are of no use to the library, or with which its pipeline fails. Blocked n-grams would block the end
# tokens of finished rows, which would then go on.
_UNUSED = (
    "text_facts", "num_return_sequences", "output_attentions", "output_hidden_states", "output_logits",
    "output_scores", "return_dict_in_generate", "no_repeat_ngram_size",
)  # fmt: skip  # names

_DTYPES = {"float32": "fp32", "int8": "q8"}


def transformers_js_use(title: str, direction: tuple[str, str] | None = None) -> str:
    """Return how to use an exported model; `direction` is one of several that it translates."""
    name = json.dumps(f"./{title}", ensure_ascii=False)
    example = f"{language_token(direction[1])} ..." if direction else "..."
    languages = " A text begins with the token of its target language." if direction else ""
    return f"""The folder, or its name on the Hub, is the model's name.{languages}

```js
import {{ pipeline }} from "@huggingface/transformers";

const translator = await pipeline("translation", {name});
console.log(await translator({json.dumps(example)}));
```
"""


def write_transformers_js(
    model: Any, folder: Path, tokenizer: PreTrainedTokenizerBase | None, quantization: str = "float32", **options: Any
) -> None:
    """Write graphs, configurations and tokenizer.

    Args:
        model: A `VanillaTransformerForConditionalGeneration`; it is not modified.
        folder: An empty folder.
        tokenizer: Tokenizer of the model.
        quantization: Weight type, "float32" or "int8".
        **options: Arguments of `write_onnx`.

    Raises:
        ValueError: The tokenizer is missing or has no tokenizer.json, or as `write_onnx` does.
    """
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise ValueError(
            "the model has no tokenizer with a tokenizer.json, which transformers.js needs; use `to=onnx`"
        )
    definition, first_source_id = tokenizer_definition(tokenizer)
    config = write_onnx(model, folder, quantization, first_source_id=first_source_id, **options)
    _save(folder / "tokenizer.json", definition)
    _save(folder / "tokenizer_config.json", _settings(tokenizer))
    # The type names the fields that the library reads: ids, and how many layers have a cache.
    settings = config.to_dict() | {"model_type": "marian", "architectures": ["MarianMTModel"]}
    _save(folder / "config.json", settings | {"transformers.js_config": {"dtype": _DTYPES[quantization]}})
    _save(folder / "generation_config.json", _generation_settings(model))


def _generation_settings(model: Any) -> dict[str, Any]:
    """Return the settings of its greedy search, which ends at the end token of these settings and returns text."""
    settings = model.generation_config.to_diff_dict()
    end = model.generation_config.eos_token_id
    others = {name: value for name, value in settings.items() if name not in _UNUSED}
    return others | {"num_beams": 1, "eos_token_id": model.config.eos_token_id if end is None else end}


def tokenizer_definition(tokenizer: PreTrainedTokenizerFast) -> tuple[dict[str, Any], int | None]:
    """Return the contents of tokenizer.json, and the first id of a source vocabulary of its own."""
    target = getattr(tokenizer, "target_tokenizer", None)
    if target is None:
        return _definition(tokenizer), None
    first_id = target.backend_tokenizer.get_vocab_size()
    shared = {*_special_names(target).values()}
    return _merged(_definition(tokenizer), _definition(target), shared, first_id), first_id


def _definition(tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    """Return the contents of one vocabulary's tokenizer.json, in which no text spells a special token."""
    definition = json.loads(tokenizer.backend_tokenizer.to_str())
    names = _special_names(tokenizer)
    model, template = definition["model"], definition["post_processor"]
    languages = getattr(tokenizer, "languages", [])
    if languages:
        # A text begins with the token of its target language.
        template["single"] = template["single"][1:]
    definition["post_processor"] = _renamed(template, names)
    for token in definition["added_tokens"]:
        token["special"] = token["special"] or token["content"] in tokenizer.all_special_tokens
        # "__de__ A house." has no space before "A".
        token["rstrip"] = token["rstrip"] or token["content"] in map(language_token, languages)
        if token["single_word"]:
            raise ValueError(f"transformers.js cannot match the added token {token['content']!r} as a single word")
    definition["added_tokens"] = _renamed(definition["added_tokens"], names)
    for name in ("normalizer", "pre_tokenizer"):
        definition[name] = _as_in_rust(definition[name])
    for field in ("vocab", "unk_token"):
        if field in model:
            model[field] = _renamed(model[field], names)
    return definition


def _as_in_rust(component: Any) -> Any:
    """Replace the steps of a normalizer or pre-tokenizer that JavaScript takes another way."""
    if not isinstance(component, dict):
        return component
    for name in ("normalizers", "pretokenizers"):
        if name in component:
            return component | {name: [_as_in_rust(step) for step in component[name]]}
    if component["type"] == "WhitespaceSplit":
        # White space of Unicode, unlike that of JavaScript.
        return {"type": "Split", "pattern": {"Regex": r"\s+"}, "behavior": "Removed", "invert": False}
    if component["type"] == "Lowercase":
        # JavaScript has another small sigma for the end of a word.
        sigma = {"type": "Replace", "pattern": {"String": "Σ"}, "content": "σ"}
        return {"type": "Sequence", "normalizers": [sigma, component]}
    return component


def _special_names(tokenizer: PreTrainedTokenizerFast) -> dict[str, str]:
    """Return the exported names of the special tokens, marked if text that spells one is split."""
    mark = MARK if tokenizer.split_special_tokens else ""
    return {token: mark + token for token in tokenizer.special_tokens_map.values() if isinstance(token, str)}


def _renamed(value: Any, names: dict[str, str]) -> Any:
    """Replace strings that are one of `names`, anywhere in a JSON value."""
    if isinstance(value, dict):
        return {names.get(key, key): _renamed(item, names) for key, item in value.items()}
    if isinstance(value, list):
        return [_renamed(item, names) for item in value]
    return names.get(value, value) if isinstance(value, str) else value


def _merged(source: dict[str, Any], target: dict[str, Any], shared: set[str], first_id: int) -> dict[str, Any]:
    """Combine two tokenizer.json: encoding as the source's, whose ids begin at `first_id`, decoding as the target's.

    The special tokens `shared` have the same ids on both sides.
    """
    spelled = _added_names(target)
    tokens = {
        token if token in shared else MARK + spelled.get(token, token): index for token, index in _ids(target).items()
    }
    model, own = (
        source["model"],
        {token: first_id + index for token, index in _ids(source).items() if token not in shared},
    )
    if isinstance(model["vocab"], dict):
        model["vocab"] = tokens | own
    else:
        # Marked pieces match no text, so their scores have no effect.
        scores = dict(model["vocab"])
        pieces = {index: [token, scores.get(token, 0.0)] for token, index in (tokens | own).items()}
        model["vocab"] = [pieces.get(index, [f"{MARK}{index}", 0.0]) for index in range(max(pieces) + 1)]
    for token in source["added_tokens"]:
        token["id"] += 0 if token["content"] in shared else first_id
    # Tokens of the target that decoding leaves out.
    left_out = [token for token in target["added_tokens"] if token["special"] and token["content"] not in shared]
    added = source["added_tokens"] + _renamed(
        left_out, {token["content"]: MARK + token["content"] for token in left_out}
    )
    decoder = target["decoder"] or {"type": "WordPiece", "prefix": "\n", "cleanup": False}
    unmark = {"type": "Replace", "pattern": {"String": MARK}, "content": ""}
    return source | {"added_tokens": added, "decoder": {"type": "Sequence", "decoders": [unmark, decoder]}}


def _added_names(target: dict[str, Any]) -> dict[str, str]:
    """Return the added tokens that a byte-level decoder must read like others, in its alphabet."""
    if (target["decoder"] or {}).get("type") != "ByteLevel":
        return {}
    alphabet = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    names = [token["content"] for token in target["added_tokens"] if not token["special"]]
    return {name: alphabet.pre_tokenize_str(name)[0][0] for name in names}


def _ids(definition: dict[str, Any]) -> dict[str, int]:
    """Return the ids of the tokens of a tokenizer.json, added tokens included."""
    vocab = definition["model"]["vocab"]
    ids = dict(vocab) if isinstance(vocab, dict) else {token: index for index, (token, _) in enumerate(vocab)}
    return ids | {token["content"]: token["id"] for token in definition["added_tokens"]}


def _settings(tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    """Return the contents of tokenizer_config.json."""
    names = ("feature_columns", "feature_separator", "directions", "extra_special_tokens")
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": tokenizer.model_max_length,
        "clean_up_tokenization_spaces": tokenizer.clean_up_tokenization_spaces,
        "model_input_names": ["input_ids", "attention_mask"],
        **_renamed(tokenizer.special_tokens_map, _special_names(tokenizer)),
        **{name: tokenizer.init_kwargs[name] for name in names if tokenizer.init_kwargs.get(name) is not None},
    }


def _save(file: Path, content: dict[str, Any]) -> None:
    file.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
