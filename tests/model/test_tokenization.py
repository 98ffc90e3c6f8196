import copy
import json
import logging
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import datasets
import pytest
import torch
from tokenizers import AddedToken, Tokenizer, models
from transformers import AutoTokenizer, DataCollatorForSeq2Seq, PreTrainedTokenizerFast
from transformers.utils.logging import warning_once

from hf_vanilla_transformer import VanillaTransformerConfig, VanillaTransformerTokenizer, train_tokenizer
from hf_vanilla_transformer.model.hub_code_vanilla_transformer import add_code
from hf_vanilla_transformer.model.multilingual_vanilla_transformer import VanillaTransformerMultilingualTokenizer
from hf_vanilla_transformer.model.tokenization_vanilla_transformer import (
    SPECIAL_TOKENS,
    VanillaTransformerSharedTokenizer,
)
from parallel_text import ENGLISH, SPANISH
from processes import run_python
from tables import looped


@pytest.fixture
def pair():
    source = train_tokenizer(ENGLISH, vocab_size=280)
    return VanillaTransformerTokenizer.from_pair(source, train_tokenizer(SPANISH, algorithm="word", vocab_size=100))


def test_pair_uses_each_side_for_its_texts(pair: VanillaTransformerTokenizer) -> None:
    source, target = pair.source_tokenizer, pair.target_tokenizer
    assert type(source) is type(target) is VanillaTransformerSharedTokenizer
    encoded = pair(ENGLISH, text_target=SPANISH)
    assert encoded["input_ids"] == source(ENGLISH)["input_ids"]
    assert encoded["labels"] == target(SPANISH)["input_ids"] != source(SPANISH)["input_ids"]
    alone = pair(text_target=SPANISH)
    assert set(alone) == {"input_ids", "attention_mask"}
    assert alone["input_ids"] == encoded["labels"]
    assert pair(text_target=SPANISH[0], text_pair_target=SPANISH[1])["input_ids"].count(2) == 2
    assert pair.encode(ENGLISH[0]) == encoded["input_ids"][0]
    assert pair.tokenize(ENGLISH[0]) == source.tokenize(ENGLISH[0])
    with pytest.raises(ValueError, match="`text` or `text_target`"):
        pair()


def test_pair_decodes_the_target(pair: VanillaTransformerTokenizer) -> None:
    assert len(pair) == pair.vocab_size == len(pair.get_vocab()) == len(pair.source_tokenizer) == 280
    assert pair.target_vocab_size == len(pair.target_tokenizer) < 100
    encoded = pair(ENGLISH, text_target=SPANISH, padding=True, return_tensors="pt")
    assert pair.batch_decode(encoded["labels"], skip_special_tokens=True) == SPANISH
    assert pair.decode(encoded["labels"][0], skip_special_tokens=True) == SPANISH[0]
    assert pair.source_tokenizer.batch_decode(encoded["input_ids"], skip_special_tokens=True) == ENGLISH
    assert pair.decode(encoded["input_ids"], skip_special_tokens=True, use_source_tokenizer=True) == ENGLISH
    tokens = pair.convert_ids_to_tokens(encoded["labels"][3], skip_special_tokens=True)
    assert tokens == ["la", "alfombra", ",", "el", "gato"]
    assert pair.convert_tokens_to_string(tokens) == SPANISH[3]
    assert pair.convert_ids_to_tokens(2) == "</s>"


def test_source_ids_have_source_tokens(pair: VanillaTransformerTokenizer, caplog, monkeypatch) -> None:
    monkeypatch.setattr(logging.getLogger("hf_vanilla_transformer"), "propagate", True)
    warning_once.cache_clear()
    inputs, targets = pair(ENGLISH, padding=True, return_tensors="pt"), pair(text_target=SPANISH)
    ids, labels = inputs["input_ids"][0], targets["input_ids"][0]
    expected = [*pair.tokenize(ENGLISH[0]), "</s>"]
    assert [token for token in inputs.tokens(0) if token != "<pad>"] == expected
    assert targets.tokens(0) == [*pair.target_tokenizer.tokenize(SPANISH[0]), "</s>"]
    assert pair.convert_ids_to_tokens(ids, True, use_source_tokenizer=True) == expected[:-1]
    assert pair.convert_ids_to_tokens(labels, use_source_tokenizer=False) == targets.tokens(0)
    # Both sides agree on special tokens.
    assert pair.convert_ids_to_tokens([1, 2]) == ["<s>", "</s>"]
    assert not caplog.records
    # Tools do not name the side.
    for _ in range(2):
        assert pair.convert_ids_to_tokens(ids) == pair.target_tokenizer.convert_ids_to_tokens(ids) != inputs.tokens(0)
    (warning,) = caplog.records
    assert "`use_source_tokenizer=True`" in warning.message


def test_pair_pads_and_truncates_both_sides(pair: VanillaTransformerTokenizer) -> None:
    encoded = pair(ENGLISH, text_target=SPANISH, max_length=5, truncation=True)
    assert {len(ids) for ids in encoded["input_ids"] + encoded["labels"]} == {5}
    assert {ids[-1] for ids in encoded["input_ids"] + encoded["labels"]} == {2}
    encoded = pair(ENGLISH, text_target=SPANISH, max_length=6, max_target_length=3, truncation=True)
    assert {len(ids) for ids in encoded["input_ids"]} == {6} and {len(ids) for ids in encoded["labels"]} == {3}
    # The limits applied to one call only.
    assert pair(ENGLISH[0])["input_ids"][:-1] == pair.source_tokenizer(ENGLISH[0], add_special_tokens=False).input_ids

    pair.padding_side, pair.truncation_side, pair.model_max_length = "left", "left", 7
    encoded = pair(ENGLISH[1::2], text_target=SPANISH[1::2], padding=True, truncation=True, return_tensors="pt")
    assert encoded["input_ids"].shape == (2, 7)
    assert (encoded["labels"][:, -1] == 2).all()
    assert (encoded["labels"][1] == torch.tensor([0, *pair(text_target=SPANISH[3])["input_ids"]])).all()
    assert pair.target_tokenizer.decode(encoded["labels"][0]) == "No te sientes, gato! </s>"


@pytest.mark.parametrize("padding_side", ["right", "left"])
def test_pair_in_a_collator(pair: VanillaTransformerTokenizer, padding_side: str) -> None:
    pair.padding_side = padding_side
    features = [dict(pair(source, text_target=target)) for source, target in zip(ENGLISH, SPANISH, strict=True)]
    batch = DataCollatorForSeq2Seq(pair, pad_to_multiple_of=8)(features)
    assert batch["input_ids"].shape[1] % 8 == batch["labels"].shape[1] % 8 == 0
    kept = batch["labels"][2] != -100
    assert batch["labels"][2][kept].tolist() == features[2]["labels"]
    assert bool(kept[0]) == (padding_side == "right")
    assert ((batch["input_ids"] == 0) == (batch["attention_mask"] == 0)).all()


def test_pair_in_threads_and_after_an_error(pair: VanillaTransformerTokenizer) -> None:
    with pytest.raises(ValueError, match="text input must be of type"):
        pair(ENGLISH, text_target=3)
    expected = pair(ENGLISH, text_target=SPANISH)["labels"], pair(ENGLISH)["input_ids"]
    assert expected == (pair.target_tokenizer(SPANISH)["input_ids"], pair.source_tokenizer(ENGLISH)["input_ids"])
    with ThreadPoolExecutor(4) as pool:
        targets = [pool.submit(lambda: pair(text_target=SPANISH)["input_ids"]) for _ in range(50)]
        sources = [pool.submit(lambda: pair(ENGLISH)["input_ids"]) for _ in range(50)]
    assert all(future.result() == expected[0] for future in targets)
    assert all(future.result() == expected[1] for future in sources)


def test_pair_saves_and_loads(pair: VanillaTransformerTokenizer, tmp_path: Path) -> None:
    pair.padding_side, pair.model_max_length = "left", 9
    pair.add_tokens(["<2es>"])
    pair(ENGLISH, text_target=SPANISH, padding=True, truncation=True)
    files = pair.save_pretrained(tmp_path)
    names = {"source_tokenizer.json", "target_tokenizer.json", "tokenizer.json"}
    assert {Path(file).name for file in files} >= names
    loaded = VanillaTransformerTokenizer.from_pretrained(tmp_path)
    texts = [*SPANISH, "<2es> gato"]
    assert dict(loaded(texts, text_target=texts)) == dict(pair(texts, text_target=texts))
    assert (loaded.padding_side, loaded.model_max_length) == ("left", 9)
    assert (len(loaded), loaded.target_vocab_size) == (len(pair), pair.target_vocab_size)
    assert "<2es>" in loaded.decode(loaded(text_target="<2es>")["input_ids"], skip_special_tokens=True)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text(encoding="utf-8"))
    assert config["tokenizer_class"] == "VanillaTransformerTokenizer"
    assert str(tmp_path) not in json.dumps(config)


def test_a_pair_saved_by_an_earlier_release_loads(pair: VanillaTransformerTokenizer, tmp_path: Path) -> None:
    pair.add_tokens(["<2es>"])
    pair.add_special_tokens({"extra_special_tokens": ["<x>"]})
    pair.save_pretrained(tmp_path / "new")
    pair.save_pretrained(tmp_path / "old")
    (tmp_path / "old" / "source_tokenizer.json").rename(tmp_path / "old" / "tokenizer.json")
    texts = [*ENGLISH, *SPANISH, "<2es> gato <x>"]
    expected = dict(pair(texts, text_target=texts))
    for folder in ("old", "new"):
        loaded = AutoTokenizer.from_pretrained(tmp_path / folder)
        assert type(loaded) is VanillaTransformerTokenizer
        assert dict(loaded(texts, text_target=texts)) == expected
        assert loaded.special_tokens_map == pair.special_tokens_map


WITHOUT_THE_PACKAGE = """
import sys
sys.modules["hf_vanilla_transformer"] = None
import tokenizers, transformers
for folder in sys.argv[1:]:
    for load in (
        transformers.AutoTokenizer.from_pretrained,
        transformers.PreTrainedTokenizerFast.from_pretrained,
        transformers.TokenizersBackend.from_pretrained,
        lambda folder: transformers.PreTrainedTokenizerFast(tokenizer_file=f"{folder}/tokenizer.json"),
        lambda folder: tokenizers.Tokenizer.from_file(f"{folder}/tokenizer.json"),
    ):
        try:
            print("loaded", load(folder))
        except Exception as error:
            print(error)
    for side in ("source", "target"):
        side = transformers.PreTrainedTokenizerFast(tokenizer_file=f"{folder}/{side}_tokenizer.json")
        print(*side("el gato")["input_ids"])
"""


@pytest.mark.slow
def test_without_the_package_nobody_gets_half_of_a_pair(pair, tmp_path: Path) -> None:
    folders = [tmp_path / "with_model_config", tmp_path / "alone"]
    VanillaTransformerConfig().save_pretrained(folders[0])
    for folder in folders:
        pair.save_pretrained(folder)
    printed = run_python(WITHOUT_THE_PACKAGE, *folders).stdout.splitlines()
    assert len(printed) == 2 * 7
    encoded = pair("el gato", text_target="el gato")
    for *errors, source, target in (printed[:7], printed[7:]):
        for error in errors:
            assert "VanillaTransformerTokenizer" in error and "trust_remote_code=True" in error
        assert [source, target] == [" ".join(map(str, encoded[name])) for name in ("input_ids", "labels")]


@pytest.mark.parametrize("with_model_config", [True, False])
def test_auto_tokenizer_finds_the_class(pair, tmp_path: Path, with_model_config: bool) -> None:
    for name, tokenizer in (("pair", pair), ("single", pair.target_tokenizer)):
        if with_model_config:
            VanillaTransformerConfig().save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
        loaded = AutoTokenizer.from_pretrained(tmp_path / name)
        assert type(loaded) is type(tokenizer)
        assert dict(loaded(text_target=SPANISH)) == dict(pair(text_target=SPANISH))


@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, copy.copy, lambda tokenizer: pickle.loads(pickle.dumps(tokenizer))]
)
def test_pair_copies(pair: VanillaTransformerTokenizer, duplicate) -> None:
    twin = duplicate(pair)
    assert type(twin) is VanillaTransformerTokenizer
    assert dict(twin(ENGLISH, text_target=SPANISH)) == dict(pair(ENGLISH, text_target=SPANISH))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")  # fork, from Python 3.12 on
def test_pair_in_parallel_map(pair: VanillaTransformerTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    # Workers are forked after the library has used its threads here, about which it would print a notice.
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    rows = datasets.Dataset.from_dict({"source": ENGLISH, "target": SPANISH})
    mapped = rows.map(lambda row: pair(row["source"], text_target=row["target"]), batched=True, num_proc=2)
    assert mapped["labels"][:] == pair(text_target=SPANISH)["input_ids"]
    assert mapped["input_ids"][:] == pair(ENGLISH)["input_ids"]


def test_added_tokens_reach_both_sides(pair: VanillaTransformerTokenizer) -> None:
    sizes = len(pair), pair.target_vocab_size
    assert pair.add_tokens(["<2es>", AddedToken("<2en>")]) == 2
    assert pair.add_special_tokens({"mask_token": "<mask>", "extra_special_tokens": ["<sep>"]}) == 2
    assert (len(pair), pair.target_vocab_size) == (sizes[0] + 4, sizes[1] + 4)
    assert pair("<2es> cat")["input_ids"][0] == sizes[0]
    assert pair(text_target="<2es> gato")["input_ids"][0] == sizes[1]
    assert pair.convert_ids_to_tokens(sizes[1]) == "<2es>"
    target = pair.target_tokenizer
    assert target.mask_token_id == sizes[1] + 2
    assert target.decode([target.mask_token_id, 2, sizes[1] + 3], skip_special_tokens=True) == ""
    assert [pair.pad_token_id, pair.bos_token_id, pair.eos_token_id, pair.unk_token_id] == [0, 1, 2, 3]


def shared(algorithm="bpe", **options):
    return train_tokenizer(ENGLISH + SPANISH, algorithm=algorithm, vocab_size=400, **options)


def paired(algorithm, **options):
    source, target = (train_tokenizer(side, algorithm=algorithm, **options) for side in (ENGLISH, SPANISH))
    return VanillaTransformerTokenizer.from_pair(source, target)


ALGORITHMS = ("bpe", "unigram", "word", "whitespace", "character")
EVERY_VOCABULARY = [
    pytest.param(lambda make=make, each=each, **options: make(each, **options), id=f"{make.__name__} {each}")
    for make in (shared, paired)
    for each in ALGORITHMS
]
# Ways to add a token, and whether decoding drops it.
WAYS = {
    "extra": (lambda tokenizer, token: tokenizer.add_special_tokens({"extra_special_tokens": [token]}), True),
    "role": (lambda tokenizer, token: tokenizer.add_special_tokens({"mask_token": token}), True),
    "flag": (lambda tokenizer, token: tokenizer.add_tokens([AddedToken(token, special=True)]), True),
    "special": (lambda tokenizer, token: tokenizer.add_tokens([token], special_tokens=True), True),
    "word": (lambda tokenizer, token: tokenizer.add_tokens([token]), False),
    "added word": (lambda tokenizer, token: tokenizer.add_tokens([AddedToken(token)]), False),
}
# Texts, and how often the added token occurs in each.
COUNTS = {"<2de> cat": 1, "cat <2de>": 1, "a<2de>cat": 1, "<2de><2de>": 2, "2de": 0, "<2 de>": 0}
# Special tokens whose ids no text may contain.
OWN = {"<pad>": 0, "<s>": 1, "</s>": 2}


def sides_of(tokenizer, text):
    """Yield the ids of a text as a source and as a target, each with the tokenizer of its side."""
    for name, own in (("text", "source"), ("text_target", "target")):
        side = getattr(tokenizer, f"{own}_tokenizer", tokenizer)
        yield tokenizer(**{name: text}, add_special_tokens=False)["input_ids"], side


@pytest.mark.parametrize("make", EVERY_VOCABULARY)
@pytest.mark.parametrize("way", WAYS)
def test_added_tokens_are_found_in_texts(make, way: str, tmp_path: Path) -> None:
    tokenizer, (add, is_dropped) = make(), WAYS[way]
    assert add(tokenizer, "<2de>") == 1
    tokenizer.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    again.save_pretrained(tmp_path)
    for each in (tokenizer, again, AutoTokenizer.from_pretrained(tmp_path), copy.deepcopy(tokenizer)):
        for text, count in COUNTS.items():
            for ids, side in sides_of(each, text):
                marker = side.convert_tokens_to_ids("<2de>")
                assert ids.count(marker) == count, (text, side.convert_ids_to_tokens(ids))
                assert ("<2de>" in side.decode(ids, skip_special_tokens=True)) == (count > 0 and not is_dropped)
                assert count == 0 or "<2de>" in side.decode(ids)
                assert side.batch_decode([[marker]], skip_special_tokens=True) == ["" if is_dropped else "<2de>"]
        for text in (*OWN, "a </s> <pad> b", "<s>cat</s>", "<2de></s>", "<unk>"):
            for ids, side in sides_of(each, text):
                assert not {*OWN.values()} & {*ids}, (text, side.convert_ids_to_tokens(ids))


@pytest.mark.parametrize("make", EVERY_VOCABULARY)
def test_what_follows_an_added_token_is_a_text(make) -> None:
    """Also if it begins with a space: unigram prepends one to every text."""
    tokenizer = make()
    tokenizer.add_special_tokens({"extra_special_tokens": ["<2de>"]})
    for text in ("cat", " cat"):
        for ids, side in sides_of(tokenizer, f"<2de>{text}"):
            found = side.decode(ids, skip_special_tokens=True)
            assert found.lstrip() == side.decode(side(text)["input_ids"], skip_special_tokens=True).lstrip()
    ids, side = next(sides_of(tokenizer, "<2de> cat"))
    if type(side.backend_tokenizer.model) is models.Unigram:
        assert ids[1:] == side("cat", add_special_tokens=False)["input_ids"]


@looped("algorithm", ALGORITHMS)
def test_added_words_are_normalized_like_texts(algorithm: str) -> None:
    tokenizer = shared(algorithm, lowercase=True)
    tokenizer.add_tokens(["covid"])
    found = tokenizer("a Covid")["input_ids"]
    assert (tokenizer.convert_tokens_to_ids("covid") in found) == (algorithm != "unigram")


def test_a_token_that_pads_stays_text() -> None:
    tokenizer = shared()
    assert tokenizer.add_special_tokens({"pad_token": "<blank>", "extra_special_tokens": ["<2de>"]}) == 2
    assert tokenizer.pad_token_id not in tokenizer("<blank> <2de>")["input_ids"]
    assert tokenizer.decode([tokenizer.pad_token_id, 2], skip_special_tokens=True) == ""
    tokenizer.pad_token = "</s>"
    ids = tokenizer("<2de> cat")["input_ids"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == " cat" and tokenizer.decode(ids[0]) == "<2de>"


def test_details_of_an_added_token_are_kept(tmp_path: Path) -> None:
    tokenizer = shared()
    tokenizer.add_special_tokens({"extra_special_tokens": [AddedToken("<2de>", lstrip=True)]})
    expected = tokenizer("cat <2de> cat")["input_ids"]
    assert expected != shared()("cat <2de> cat")["input_ids"]
    tokenizer.save_pretrained(tmp_path)
    assert AutoTokenizer.from_pretrained(tmp_path)("cat <2de> cat")["input_ids"] == expected


def test_a_tokenizer_of_an_earlier_release_loads(tmp_path: Path) -> None:
    """Earlier releases saved a `PreTrainedTokenizerFast`; this class reads it, too."""
    tokenizer = shared()
    earlier = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer.backend_tokenizer, split_special_tokens=True, **SPECIAL_TOKENS
    )
    earlier.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert type(loaded) is PreTrainedTokenizerFast and loaded(ENGLISH)["input_ids"] == tokenizer(ENGLISH)["input_ids"]
    loaded = VanillaTransformerSharedTokenizer.from_pretrained(tmp_path)
    assert loaded(ENGLISH)["input_ids"] == tokenizer(ENGLISH)["input_ids"]
    loaded.add_special_tokens({"extra_special_tokens": ["<2de>"]})
    assert loaded("<2de>")["input_ids"] == [len(tokenizer), 2]


def test_a_pair_whose_special_tokens_are_all_found_stays_so(pair: VanillaTransformerTokenizer, tmp_path: Path) -> None:
    """Earlier releases found all special tokens in texts once one was added."""
    pair.split_special_tokens = False
    pair.save_pretrained(tmp_path)
    assert AutoTokenizer.from_pretrained(tmp_path)("cat</s>")["input_ids"].count(2) == 2


PLAIN = """
import json, sys
sys.modules["hf_vanilla_transformer"] = None
from transformers import AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1], trust_remote_code=len(sys.argv) > 3)
ids = tokenizer(json.loads(sys.argv[2]))["input_ids"]
print(json.dumps([type(tokenizer).__name__, ids, tokenizer.batch_decode(ids, skip_special_tokens=True)]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("with_code", [False, True])
def test_a_shared_vocabulary_without_the_package(tmp_path: Path, with_code: bool) -> None:
    """Only dropping added special tokens needs the code."""
    tokenizer, texts = shared(), [*ENGLISH, "<s></s>", "<2de> cat"]
    tokenizer.add_special_tokens({"extra_special_tokens": ["<2de>"]})
    folder = tmp_path / "saved"
    tokenizer.save_pretrained(folder)
    if with_code:
        add_code(folder)
    environment = {"HF_MODULES_CACHE": str(tmp_path / "modules")}
    done = run_python(PLAIN, folder, json.dumps(texts), *["code"] * with_code, environment=environment)
    name, ids, decoded = json.loads(done.stdout)
    expected = tokenizer(texts)["input_ids"]
    assert (name == type(tokenizer).__name__) == with_code and ids == expected
    assert decoded == [*texts[:-1], " cat" if with_code else "<2de> cat"]


def test_special_tokens_never_part(pair: VanillaTransformerTokenizer) -> None:
    sizes = len(pair), pair.target_vocab_size
    with pytest.raises(ValueError, match="pad_token '<blank>' has id 280 in the source .* and .* in the target"):
        pair.add_special_tokens({"pad_token": "<blank>"})
    assert (len(pair), pair.target_vocab_size, pair.pad_token) == (*sizes, "<pad>")
    assert pair.add_special_tokens({"pad_token": "</s>"}) == 0
    assert pair.pad_token_id == pair.target_tokenizer.pad_token_id == 2


def test_a_pair_with_other_special_ids_is_refused() -> None:
    words = {token: index for index, token in enumerate(["<unk>", "<s>", "</s>", "<pad>"])}
    other = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="<unk>")), **SPECIAL_TOKENS
    )
    with pytest.raises(ValueError, match="pad_token '<pad>' has id 0 in the source .* and 3 in the target"):
        VanillaTransformerTokenizer.from_pair(train_tokenizer(ENGLISH), other)
    with pytest.raises(TypeError, match="`target_tokenizer` is of type str"):
        VanillaTransformerTokenizer.from_pair(other, "tokenizer.json")  # type: ignore[arg-type]  # the point
    with pytest.raises(ValueError, match="no target vocabulary"):
        VanillaTransformerTokenizer(tokenizer_object=other.backend_tokenizer)


@pytest.mark.parametrize("name", ["source_tokenizer.json", "target_tokenizer.json"])
def test_a_missing_or_broken_vocabulary_is_named(pair, tmp_path: Path, name: str) -> None:
    pair.save_pretrained(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(FileNotFoundError, match=f"{tmp_path.name} holds no {name}"):
        AutoTokenizer.from_pretrained(tmp_path)
    pair.save_pretrained(tmp_path)
    (tmp_path / "target_tokenizer.json").write_text("{", encoding="utf-8")
    with pytest.raises(ValueError, match="target_tokenizer.json is not a readable tokenizer file"):
        AutoTokenizer.from_pretrained(tmp_path)


def test_the_pair_takes_its_settings_from_both() -> None:
    source = train_tokenizer(ENGLISH, vocab_size=280, max_length=9)
    target = train_tokenizer(SPANISH, vocab_size=290, max_length=5)
    source.padding_side = "left"
    pair = VanillaTransformerTokenizer.from_pair(source, target)
    assert (pair.padding_side, pair.model_max_length) == ("left", 5)
    pair.add_tokens(["x"])
    assert (len(source), len(target)) == (280, 290)


# Also with white space inside, and empty.
WORDS = ["A", "cat", "isn't", "", "naïve", "🙂", "x y", "."]


@pytest.fixture(scope="module", params=["bpe", "unigram", "word", "whitespace", "character", "multilingual", "pair"])
def tokenizer(request: pytest.FixtureRequest):
    corpus = [*ENGLISH, *SPANISH, " ".join(WORDS)]
    if request.param == "multilingual":
        return VanillaTransformerMultilingualTokenizer.from_shared(
            train_tokenizer(corpus, vocab_size=300), [("en", "de"), ("de", "en")]
        )
    if request.param == "pair":
        return VanillaTransformerTokenizer.from_pair(
            train_tokenizer(corpus, vocab_size=300), train_tokenizer(corpus, algorithm="character")
        )
    return train_tokenizer(corpus, algorithm=request.param, vocab_size=400)


@looped(
    "options",
    [
        {},
        {"padding": True, "return_tensors": "pt"},
        {"truncation": True, "max_length": 6},
        {"truncation": True, "max_length": 8, "stride": 1, "return_overflowing_tokens": True},
        {"add_special_tokens": False, "return_special_tokens_mask": True},
    ],
)
def test_words_are_encoded_like_their_text(tokenizer, options) -> None:
    split, text = {"is_split_into_words": True, **options}, " ".join(WORDS)
    for words, texts in ((WORDS, text), ([WORDS, ["two", "words"], []], [text, "two words", ""])):
        for given, expected in (
            (tokenizer(words, **split), tokenizer(texts, **options)),
            (tokenizer(words, words, **split), tokenizer(texts, texts, **options)),
            (tokenizer(words, text_target=words, **split), tokenizer(texts, text_target=texts, **options)),
        ):
            assert repr(dict(given)) == repr(dict(expected))
            assert given.sequence_ids() == expected.sequence_ids()
    assert repr(dict(tokenizer([(WORDS, ["a"])], **split))) == repr(dict(tokenizer([(text, "a")], **options)))
    assert tokenizer.tokenize(WORDS, is_split_into_words=True) == tokenizer.tokenize(text)


def test_tokens_know_their_words(tokenizer) -> None:
    pair = ["so", *WORDS]
    encoded = pickle.loads(pickle.dumps(tokenizer(WORDS, pair, is_split_into_words=True, return_offsets_mapping=True)))
    positions = tokenizer(" ".join(WORDS), " ".join(pair), return_offsets_mapping=True)["offset_mapping"]
    # Word of each character of the text and the position in it, -1 for the space before.
    characters = [
        [(i, k) for i, word in enumerate(words) for k in range(-1, len(word))][1:] for words in (WORDS, pair)
    ]
    for token, sequence in enumerate(encoded.sequence_ids()):
        word, offsets = encoded.word_ids()[token], encoded["offset_mapping"][token]
        assert encoded.token_to_word(token) == word and encoded.token_to_chars(token) == (
            offsets if sequence is not None else None
        )
        if sequence is None:
            assert word is None and offsets == (0, 0)
            continue
        first, last = (characters[sequence][i] for i in (positions[token][0], positions[token][1] - 1))
        assert word == first[0] == last[0] and offsets == (max(0, first[1]), last[1] + 1)
        span = encoded.word_to_tokens(0, word, sequence)
        assert all(encoded.word_ids()[i] == word for i in range(*span)) and token in range(*span)
        assert encoded.word_to_chars(0, word, sequence).end <= len((WORDS, pair)[sequence][word])
    batch = tokenizer([["a"] * 9, WORDS], [["b"], pair], is_split_into_words=True)
    assert batch.word_ids(1) == encoded.word_ids()
    assert encoded.word_to_tokens(len(WORDS)) is None
    assert encoded.char_to_word(0) == 0 and encoded.char_to_token(99) is encoded.char_to_word(99) is None


def test_words_around_an_added_token() -> None:
    tokenizer = train_tokenizer(ENGLISH, algorithm="unigram", vocab_size=60)
    tokenizer.add_tokens(["<x>"])
    encoded = tokenizer(["cat", "<x>", "cat"], is_split_into_words=True)
    assert encoded.input_ids == tokenizer("cat <x> cat").input_ids
    added = encoded.input_ids.index(tokenizer.convert_tokens_to_ids("<x>"))
    assert encoded.word_to_tokens(1).end == added + 1 == encoded.word_to_tokens(2).start


@pytest.mark.parametrize(("given", "named"), [("a cat", "a cat"), ([["a"], "cat"], "cat"), (["a", 3], "a")])
def test_texts_are_no_words(given, named: str) -> None:
    with pytest.raises(ValueError, match=f"needs lists of words, but one is '{named}'; pass `text.split"):
        train_tokenizer(ENGLISH, algorithm="word")(given, is_split_into_words=True)
