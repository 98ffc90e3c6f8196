"""transformers.js: one tokenizer.json for two vocabularies, and translations under Node."""

import json
import shutil
import subprocess

import pytest
from tokenizers import AddedToken, Tokenizer

from hf_vanilla_transformer import (
    VanillaTransformerMultilingualTokenizer,
    VanillaTransformerTokenizer,
    train_tokenizer,
)
from hf_vanilla_transformer.export import export_model
from hf_vanilla_transformer.export.transformers_js import (
    _generation_settings,
    _settings,
    tokenizer_definition,
    transformers_js_use,
)
from hf_vanilla_transformer.inference.translation import translate
from hf_vanilla_transformer.model.tokenization_vanilla_transformer import VanillaTransformerSharedTokenizer
from paths import ROOT
from tables import looped
from translators import ENGLISH, SPANISH, build, save_translator

NODE = ROOT / "tests" / "node"
NO_NODE_MODULES = "transformers.js is not installed; run `npm install --ignore-scripts` in tests/node"
ALGORITHMS = ("bpe", "unigram", "word", "whitespace", "character")
# Some spell a special token or a token of the other vocabulary.
TEXTS = [*ENGLISH, "a </s> cat", "<unk>", "una casa", "ñ ~ ☃", "two  spaces "]


def side(texts, algorithm):
    return train_tokenizer(texts, algorithm=algorithm, vocab_size=300 if algorithm == "bpe" else 60)


def exported(tokenizer):
    """Return the exported tokenizer, and how many ids come before those of its source."""
    definition, first_id = tokenizer_definition(tokenizer)
    return Tokenizer.from_str(json.dumps(definition)), first_id


def test_settings_that_its_pipeline_does_not_take():
    model, _ = build("shared")
    model.generation_config.update(
        num_beams=4, num_return_sequences=2, output_scores=True, eos_token_id=None, no_repeat_ngram_size=4
    )
    settings = _generation_settings(model)
    assert settings["num_beams"] == 1 and settings["eos_token_id"] == model.config.eos_token_id
    assert not {"num_return_sequences", "output_scores", "no_repeat_ngram_size"} & settings.keys()


@looped(
    "direction, printed",
    [(None, ['"./my \\"model\\""', '"..."']), (("en", "es"), ["__es__ ...", "token of its target language"])],
)
def test_the_printed_example(direction, printed):
    text = transformers_js_use('my "model"', direction)
    assert all(each in text for each in printed)


@looped("target_algorithm", ALGORITHMS)
@looped("source_algorithm", ALGORITHMS)
def test_two_vocabularies_in_one_file(source_algorithm, target_algorithm):
    pair = VanillaTransformerTokenizer.from_pair(side(ENGLISH, source_algorithm), side(SPANISH, target_algorithm))
    own, first_id = exported(pair)
    assert first_id == pair.target_vocab_size
    for text in TEXTS:
        ids = [index if index < first_id else index - first_id for index in own.encode(text).ids]
        assert ids == pair(text)["input_ids"]
        assert all(index >= first_id or index in (2, 3) for index in own.encode(text).ids)
    for text in SPANISH:
        ids = pair(text_target=text)["input_ids"]
        assert own.decode([1, *ids]) == pair.decode([1, *ids], skip_special_tokens=True)


@looped("algorithm", ALGORITHMS)
def test_one_vocabulary(algorithm):
    tokenizer = side(ENGLISH + SPANISH, algorithm)
    own, first_id = exported(tokenizer)
    assert first_id is None
    for text in TEXTS:
        assert own.encode(text).ids == tokenizer(text)["input_ids"]
    ids = tokenizer(SPANISH[2])["input_ids"]
    assert own.decode([1, *ids]) == tokenizer.decode([1, *ids], skip_special_tokens=True)


def lowercased(texts):
    return train_tokenizer(texts, algorithm="bpe", vocab_size=300, lowercase=True, normalization="NFD")


def fused(ids):
    """Join adjacent unknown tokens (3), as transformers.js does across the pieces of a text."""
    return [index for i, index in enumerate(ids) if index != 3 or ids[i - 1 : i] != [3]]


def test_node_tokenizes_as_we_do():
    """White space, marks, unknown characters, added tokens, case at the end of a Greek word."""
    if not (NODE / "node_modules").is_dir():
        pytest.skip(NO_NODE_MODULES)
    tokenizers = [side(ENGLISH + SPANISH, algorithm) for algorithm in ALGORITHMS] + [lowercased(["ΟΔΟΣ Σ"])]
    tokenizers += [
        VanillaTransformerTokenizer.from_pair(side(ENGLISH, source), side(SPANISH, target))
        for source, target in zip(ALGORITHMS, ALGORITHMS[1:] + ALGORITHMS[:1], strict=True)
    ]
    tokenizers.append(VanillaTransformerTokenizer.from_pair(side(ENGLISH, "bpe"), side(SPANISH, "bpe")))
    tokenizers[-1].add_tokens(["☃ man"])
    tokenizers[-1].add_special_tokens({"extra_special_tokens": ["[SEP]"]})
    texts = [*TEXTS, "a\ufeffb\x85c\u3000d", "ΟΔΟΣ ΣΑΣ", "É e\u0301 ▁ ▁", "a ☃ man [SEP] b", "漢字😀", "  a\tb\n"]
    cases, expected = [], []
    for tokenizer in tokenizers:
        definition, first_id = tokenizer_definition(tokenizer)
        targets = [[1, *row] for row in tokenizer(text_target=texts)["input_ids"]]
        cases.append({"definition": definition, "settings": _settings(tokenizer), "texts": texts, "ids": targets})
        own = [fused(row) for row in tokenizer(texts)["input_ids"]]
        ids = [[index + (first_id or 0) * (index > 3) for index in row] for row in own]
        expected.append({"ids": ids, "texts": tokenizer.batch_decode(targets, skip_special_tokens=True)})
    command = ["node", "tokenize.mjs"]
    result = subprocess.run(command, cwd=NODE, input=json.dumps(cases), capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    outputs = json.loads(result.stdout)
    for output, answer in zip(outputs, expected, strict=True):
        assert output["texts"] == answer["texts"]
        assert [fused(row) for row in output["ids"]] == answer["ids"]


def test_an_added_token_that_is_a_single_word():
    tokenizer = side(ENGLISH, "bpe")
    tokenizer.add_tokens([AddedToken("cat", single_word=True)])
    with pytest.raises(ValueError, match="'cat' as a single word"):
        tokenizer_definition(tokenizer)


def test_a_text_begins_with_its_target_language():
    tokenizer = VanillaTransformerMultilingualTokenizer.from_shared(
        side(ENGLISH + SPANISH, "unigram"), [("en", "es"), ("es", "en")]
    )
    own, _ = exported(tokenizer)
    for target in ("es", "en"):
        tokenizer.tgt_lang = target
        assert own.encode(f"__{target}__ a red house").ids == tokenizer("a red house")["input_ids"]


def test_tags_are_spelled_as_they_are_stored():
    source = side(ENGLISH, "character")
    source.add_special_tokens({"extra_special_tokens": ["\tV", "\tPST", "\t<unk>"]})
    tokenizer = VanillaTransformerSharedTokenizer(
        tokenizer_object=source.backend_tokenizer,
        feature_columns=1,
        feature_separator=";",
        split_special_tokens=True,
        extra_special_tokens=["\tV", "\tPST", "\t<unk>"],
        **source.special_tokens_map,
    )
    own, _ = exported(tokenizer)
    assert own.encode("cat\tV\tPST").ids == tokenizer("cat\tV;PST")["input_ids"]


def test_a_model_without_tokenizer(tmp_path):
    model, _ = save_translator("shared", tmp_path / "model")
    shutil.rmtree(tmp_path / "model")
    model.save_pretrained(tmp_path / "model")
    with pytest.raises(ValueError, match="no tokenizer"):
        export_model(tmp_path / "model", "transformers.js", tmp_path / "exported")
    assert not (tmp_path / "exported").exists()


@pytest.mark.parametrize(
    "kind", ["pair", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("shared", "learned", "multilingual"))]
)
def test_node_translates_as_we_do(kind, tmp_path, one_thread):
    if not (NODE / "node_modules").is_dir():
        pytest.skip(NO_NODE_MODULES)
    pytest.importorskip("transformers.exporters", reason="this release of transformers has no exporters")
    pytest.importorskip("onnxruntime", reason="ONNX graphs are quantized by onnxruntime, of the extra `export`")
    # Random models hardly ever end, so that outputs reach the 64 positions of the graphs.
    model, tokenizer = save_translator(kind, tmp_path / "model", num_beams=3)
    is_multilingual = kind == "multilingual"
    target = "en" if is_multilingual else None
    expected = [
        row[0].text
        for row in translate(
            model, tokenizer, TEXTS, num_beams=1, tgt_lang=target, max_tokens=9999, max_length=64, raw=True
        )
    ]
    folder = export_model(tmp_path / "model", "transformers.js", tmp_path / "exported")
    texts = [f"__{target}__ {text}" if is_multilingual else text for text in TEXTS]
    for batch_size in (1, len(TEXTS)):
        command = ["node", "translate.mjs", str(folder), str(batch_size)]
        result = subprocess.run(command, cwd=NODE, input=json.dumps(texts), capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
        assert json.loads(result.stdout) == expected
