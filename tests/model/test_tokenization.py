"""Round trips of every algorithm, the two-vocabulary tokenizer in each of its uses, and the training script."""

import copy
import gzip
import json
import os
import pickle
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import datasets
import pytest
import torch
from tokenizers import AddedToken, Tokenizer, models
from transformers import AutoTokenizer, DataCollatorForSeq2Seq, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from hf_vanilla_transformer import VanillaTransformerConfig, VanillaTransformerTokenizer, train_tokenizer
from hf_vanilla_transformer.model.tokenization_vanilla_transformer import SPECIAL_TOKENS

ALGORITHMS = ("bpe", "unigram", "word", "whitespace", "character")
ENGLISH = ["The cat sat on the mat.", "Don't sit, cat!", "A well-known cat sat (on two mats)?", "the mat, the cat"]
SPANISH = ["El gato se sentó en la alfombra.", "¡No te sientes, gato!", "¿Un gato conocido?", "la alfombra, el gato"]
AWKWARD = [
    "",
    " ",
    "  two  blanks  at   both ends  ",
    "\ttab\nline\r\nend\x0b\x0c",
    "NUL\0inside\0",
    "next\u0085line, no\u00a0break, \u2028separator",
    "👩‍👩‍👧‍👦 🇪🇸 👍🏽 e\u0301 é İ ß ﬁ \u200b\u202e\ufeff",
    "日本語 العربية עברית हिन्दी \U0010ffff",
    "</s> a <s>strike</s> <pad><unk> </s></s>",
    "Ġ Ċ ▁ ▁▁x ##y",
]


def random_text(generator: random.Random) -> str:
    """Return up to 40 characters from all over Unicode, ASCII and blanks more often than the rest."""
    ranges = [(0, 0x7F), (9, 32), (0x80, 0x7FF), (0x800, 0xD7FF), (0xE000, 0xFFFF), (0x10000, 0x10FFFF)]
    return "".join(chr(generator.randint(*generator.choice(ranges))) for _ in range(generator.randint(0, 40)))


def round_trip(tokenizer: PreTrainedTokenizerBase, text: str) -> str:
    return tokenizer.batch_decode([tokenizer(text)["input_ids"]], skip_special_tokens=True)[0]


@pytest.fixture
def pair() -> VanillaTransformerTokenizer:
    source = train_tokenizer(ENGLISH, vocab_size=280)
    return VanillaTransformerTokenizer.from_pair(source, train_tokenizer(SPANISH, algorithm="word", vocab_size=100))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_keeps_the_conventions(algorithm: str) -> None:
    tokenizer = train_tokenizer(iter(ENGLISH), algorithm=algorithm, vocab_size=5000)
    assert list(SPECIAL_TOKENS.values()) == tokenizer.convert_ids_to_tokens([0, 1, 2, 3])
    ids = (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id)
    assert ids == (0, 1, 2, 3)
    assert 4 < len(tokenizer) < 5000
    encoded = tokenizer(ENGLISH[0], text_target=ENGLISH[1])
    assert set(encoded) == {"input_ids", "attention_mask", "labels"}
    for sequence in (encoded["input_ids"], encoded["labels"]):
        assert sequence[-1] == 2
        assert not {0, 1, 2, 3} & set(sequence[:-1])
    pair_ids = tokenizer(ENGLISH[0], ENGLISH[1])["input_ids"]
    assert pair_ids.count(2) == 2
    assert pair_ids[-1] == 2
    assert tokenizer("")["input_ids"] == [2]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_survives_saving(algorithm: str, tmp_path: Path) -> None:
    tokenizer = train_tokenizer(ENGLISH, algorithm=algorithm, vocab_size=300, max_length=6, lowercase=True)
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    text = "A CAT </s>, on the mat"
    assert loaded(text)["input_ids"] == tokenizer(text)["input_ids"]
    assert loaded(text, truncation=True)["input_ids"] == [*tokenizer(text)["input_ids"][:5], 2]
    assert round_trip(loaded, text) == round_trip(tokenizer, text)
    assert set(loaded(text)) == {"input_ids", "attention_mask"}


def test_bpe_restores_any_text() -> None:
    tokenizer = train_tokenizer(ENGLISH, vocab_size=300)
    generator = random.Random(0)
    for text in AWKWARD + [random_text(generator) for _ in range(500)]:
        assert round_trip(tokenizer, text) == text
        assert tokenizer(text)["input_ids"].count(2) == 1


def test_character_restores_texts_of_seen_characters() -> None:
    generator = random.Random(1)
    texts = AWKWARD + [random_text(generator) for _ in range(200)]
    tokenizer = train_tokenizer(texts, algorithm="character", vocab_size=20_000)
    alphabet = sorted(set("".join(texts)))
    assert len(tokenizer) == len(alphabet) + 4
    for text in texts + ["".join(generator.choices(alphabet, k=30)) for _ in range(200)]:
        assert round_trip(tokenizer, text) == text
        assert len(tokenizer(text)["input_ids"]) == len(text) + 1


def test_character_cuts_smiles_into_characters() -> None:
    tokenizer = train_tokenizer(["CC(=O)Oc1ccccc1C(=O)O"], algorithm="character")
    assert tokenizer.tokenize("CC(=O)O") == list("CC(=O)O")
    assert tokenizer.tokenize("CN") == ["C", "<unk>"]


def test_unigram_restores_prose_but_not_the_leading_blank() -> None:
    tokenizer = train_tokenizer([*ENGLISH, "</s> < > </s>"], algorithm="unigram", vocab_size=200)
    for text in [*ENGLISH, "on  the   mat ", "the <s> mat </s>"]:
        assert round_trip(tokenizer, text) == text
        assert tokenizer(text)["input_ids"].count(2) == 1
    assert round_trip(tokenizer, "  the mat") == " the mat"


def test_word_cuts_at_punctuation_and_attaches_it_again() -> None:
    text = "A well-known cat (don't ask!) sat: «on» 2 mats..."
    tokenizer = train_tokenizer([text, ","], algorithm="word")
    assert tokenizer.tokenize("don't (ask)") == ["don't", "(", "ask", ")"]
    assert round_trip(tokenizer, text) == text
    assert round_trip(tokenizer, "A  cat\tsat , on") == "A cat sat, on"


def test_whitespace_takes_symbols_as_they_are() -> None:
    tokenizer = train_tokenizer(["HH AH0 L OW1 ," * 3, "x^2 + \\frac{1}{2}"], algorithm="whitespace")
    assert tokenizer.tokenize("x^2  +\tAH0") == ["x^2", "+", "AH0"]
    assert round_trip(tokenizer, " HH  AH0 L OW1 ") == "HH AH0 L OW1"


def test_min_frequency_and_vocab_size_limit_the_vocabulary() -> None:
    texts = ["a a a b b c"]
    assert len(train_tokenizer(texts, algorithm="whitespace")) == 7
    assert len(train_tokenizer(texts, algorithm="whitespace", min_frequency=2)) == 6
    assert train_tokenizer(texts, algorithm="whitespace", vocab_size=5).tokenize("a b") == ["a", "<unk>"]


def test_lowercase_and_normalization() -> None:
    tokenizer = train_tokenizer(["ﬁ Ｆull"], normalization="NFKC", lowercase=True)
    assert round_trip(tokenizer, "ﬁ Ｆull É") == "fi full é"
    assert round_trip(train_tokenizer(["x"], normalization="NFC"), "e\u0301 E") == "é E"


@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if name != "unigram"])
def test_training_is_deterministic(algorithm: str) -> None:
    first, second = (train_tokenizer(ENGLISH + SPANISH, algorithm=algorithm, vocab_size=320) for _ in range(2))
    assert first.backend_tokenizer.to_str() == second.backend_tokenizer.to_str()


def test_texts_are_read_once_as_a_stream() -> None:
    stream = iter(ENGLISH)
    tokenizer = train_tokenizer(stream, algorithm="word")
    assert next(stream, None) is None
    assert 3 not in tokenizer(ENGLISH[-1])["input_ids"]


@pytest.mark.parametrize(
    ("texts", "options", "error", "message"),
    [
        ([], {}, ValueError, "corpus is empty"),
        (["", " \n"], {"algorithm": "unigram"}, ValueError, "corpus is empty"),
        ("a text", {}, TypeError, "texts is one string"),
        (["a", None], {}, TypeError, r"texts\[1\] is of type NoneType"),
        (["a", "b\udc80"], {}, ValueError, r"texts\[1\] holds U\+DC80 at position 1"),
        (["a"], {"algorithm": "bpee"}, ValueError, "algorithm is 'bpee', .* did you mean 'bpe'"),
        (["a"], {"normalization": "nfkc"}, ValueError, "normalization is 'nfkc', .* did you mean 'NFKC'"),
        (["a"], {"vocab_size": 259}, ValueError, r"vocab_size \(bpe\) is 259; it must be at least 260"),
        (["a"], {"vocab_size": 4, "algorithm": "word"}, ValueError, r"vocab_size \(word\) is 4"),
        (ENGLISH, {"vocab_size": 9, "algorithm": "unigram"}, ValueError, "vocab_size is 9, less than .* characters"),
        (["a"], {"min_frequency": 0}, ValueError, "min_frequency is 0"),
        (["a"], {"min_frequency": 2, "algorithm": "unigram"}, ValueError, "unigram has none"),
        (["a"], {"max_length": 1}, ValueError, "max_length is 1; it must be at least 2"),
    ],
)
def test_training_errors_name_what_is_wrong(texts, options, error, message) -> None:
    with pytest.raises(error, match=message) as caught:
        train_tokenizer(texts, **options)
    assert "\n" not in str(caught.value)


def test_real_prose_survives(shared_data: Path) -> None:
    def lines(name: str) -> list[str]:
        with gzip.open(shared_data / name, "rt", encoding="utf-8", newline="\n") as file:
            return [line.removesuffix("\n") for line in islice(file, 2000)]

    for name in ("multi30k/train.de.gz", "wmt_en_de_sample/train.de.gz"):
        texts = lines(name)
        for algorithm in ("bpe", "character"):
            tokenizer = train_tokenizer(texts, algorithm=algorithm, vocab_size=1000)
            assert tokenizer.batch_decode(tokenizer(texts)["input_ids"], skip_special_tokens=True) == texts


def test_pair_uses_each_side_for_its_texts(pair: VanillaTransformerTokenizer) -> None:
    source, target = pair.source_tokenizer, pair.target_tokenizer
    assert type(source) is type(target) is PreTrainedTokenizerFast
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
    encoded = pair(ENGLISH, text_target=SPANISH, padding=True, return_tensors="pt")
    assert pair.batch_decode(encoded["labels"], skip_special_tokens=True) == SPANISH
    assert pair.decode(encoded["labels"][0], skip_special_tokens=True) == SPANISH[0]
    assert pair.source_tokenizer.batch_decode(encoded["input_ids"], skip_special_tokens=True) == ENGLISH
    assert pair.decode(encoded["input_ids"], skip_special_tokens=True, use_source_tokenizer=True) == ENGLISH
    tokens = pair.convert_ids_to_tokens(encoded["labels"][3], skip_special_tokens=True)
    assert tokens == ["la", "alfombra", ",", "el", "gato"]
    assert pair.convert_tokens_to_string(tokens) == SPANISH[3]
    assert pair.convert_ids_to_tokens(2) == "</s>"


def test_pair_sizes(pair: VanillaTransformerTokenizer) -> None:
    assert len(pair) == pair.vocab_size == len(pair.get_vocab()) == len(pair.source_tokenizer) == 280
    assert pair.target_vocab_size == len(pair.target_tokenizer) < 100


def test_pair_pads_and_truncates_both_sides(pair: VanillaTransformerTokenizer) -> None:
    encoded = pair(ENGLISH, text_target=SPANISH, max_length=5, truncation=True)
    assert {len(ids) for ids in encoded["input_ids"] + encoded["labels"]} == {5}
    assert {ids[-1] for ids in encoded["input_ids"] + encoded["labels"]} == {2}
    encoded = pair(ENGLISH, text_target=SPANISH, max_length=6, max_target_length=3, truncation=True)
    assert [len(ids) for ids in encoded["input_ids"]] == [6] * 4
    assert [len(ids) for ids in encoded["labels"]] == [3] * 4
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
    assert batch["input_ids"].shape == batch["attention_mask"].shape
    assert batch["input_ids"].shape[1] % 8 == batch["labels"].shape[1] % 8 == 0
    kept = batch["labels"][2] != -100
    assert batch["labels"][2][kept].tolist() == features[2]["labels"]
    assert bool(kept[0]) == (padding_side == "right")
    assert ((batch["input_ids"] == 0) == (batch["attention_mask"] == 0)).all()


def test_pair_stays_on_the_source_after_an_error(pair: VanillaTransformerTokenizer) -> None:
    before = pair(ENGLISH)["input_ids"]
    with pytest.raises(ValueError, match="text input must be of type"):
        pair(ENGLISH, text_target=3)
    assert pair(ENGLISH)["input_ids"] == before


def test_pair_in_threads(pair: VanillaTransformerTokenizer) -> None:
    expected = pair(ENGLISH, text_target=SPANISH)["labels"], pair(ENGLISH)["input_ids"]
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
    pair(ENGLISH, text_target=SPANISH)
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
folder = sys.argv[1]
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


@pytest.mark.parametrize("with_model_config", [True, False])
def test_without_the_package_nobody_gets_half_of_a_pair(pair, tmp_path: Path, with_model_config: bool) -> None:
    if with_model_config:
        VanillaTransformerConfig().save_pretrained(tmp_path)
    pair.save_pretrained(tmp_path)
    command = [sys.executable, "-c", WITHOUT_THE_PACKAGE, str(tmp_path)]
    *errors, source, target = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(errors) == 5
    for error in errors:
        assert "VanillaTransformerTokenizer" in error and "trust_remote_code=True" in error
    encoded = pair("el gato", text_target="el gato")
    assert [source, target] == [" ".join(map(str, encoded[name])) for name in ("input_ids", "labels")]


@pytest.mark.parametrize("with_model_config", [True, False])
def test_auto_tokenizer_finds_the_class(pair, tmp_path: Path, with_model_config: bool) -> None:
    if with_model_config:
        VanillaTransformerConfig().save_pretrained(tmp_path)
    pair.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert type(loaded) is VanillaTransformerTokenizer
    assert loaded(text_target=SPANISH)["input_ids"] == pair(text_target=SPANISH)["input_ids"]
    single = tmp_path / "single"
    if with_model_config:
        VanillaTransformerConfig().save_pretrained(single)
    pair.target_tokenizer.save_pretrained(single)
    loaded = AutoTokenizer.from_pretrained(single)
    assert type(loaded) is PreTrainedTokenizerFast
    assert dict(loaded(SPANISH)) == dict(pair(text_target=SPANISH))


@pytest.mark.slow
def test_remote_code_loads_without_the_package(pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(VanillaTransformerTokenizer, "_auto_class", "AutoTokenizer")
    folder = tmp_path / "published"
    pair.save_pretrained(folder)
    assert (folder / "tokenization_vanilla_transformer.py").is_file()
    program = (
        "import sys; sys.modules['hf_vanilla_transformer'] = None\n"
        "from transformers import AutoTokenizer\n"
        f"tokenizer = AutoTokenizer.from_pretrained({str(folder)!r}, trust_remote_code=True)\n"
        "assert type(tokenizer).__module__.startswith('transformers_modules'), type(tokenizer)\n"
        f"print(tokenizer({ENGLISH!r}, text_target={SPANISH!r})['labels'])\n"
    )
    environment = {**os.environ, "HF_MODULES_CACHE": str(tmp_path / "modules"), "HF_HUB_OFFLINE": "1"}
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout) == pair(text_target=SPANISH)["input_ids"]


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


def test_special_tokens_added_are_found_in_texts(pair: VanillaTransformerTokenizer, tmp_path: Path) -> None:
    assert pair.tokenize("<s>") != ["<s>"]
    pair.add_special_tokens({"extra_special_tokens": ["<2es>"]})
    pair.save_pretrained(tmp_path)
    for each in (pair, AutoTokenizer.from_pretrained(tmp_path)):
        assert each("<2es> cat")["input_ids"][0] == each.convert_tokens_to_ids("<2es>")
        ids = each(text_target="<2es>gato")["input_ids"]
        assert each.decode(ids, skip_special_tokens=True) == "gato"


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
    with pytest.raises(TypeError, match="target_tokenizer is of type str"):
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


@pytest.fixture(scope="module")
def script(load_script):
    return load_script("train_tokenizer")


@pytest.fixture
def corpus(tmp_path: Path) -> tuple[str, str]:
    (tmp_path / "train.en").write_text("\n".join(ENGLISH) + "\n", encoding="utf-8")
    with gzip.open(tmp_path / "train.es.gz", "wt", encoding="utf-8") as file:
        file.write("\n".join(SPANISH) + "\n")
    return str(tmp_path / "train.en"), str(tmp_path / "train.es.gz")


def test_script_trains_one_vocabulary(script, corpus, tmp_path: Path, capsys) -> None:
    output = tmp_path / "new" / "tokenizer"
    script.main(
        ["--source_files", corpus[0], "--target_files", corpus[1], "--output_dir", str(output), "--vocab_size", "300"]
    )
    loaded = AutoTokenizer.from_pretrained(output)
    assert (
        loaded.backend_tokenizer.to_str()
        == train_tokenizer(ENGLISH + SPANISH, vocab_size=300).backend_tokenizer.to_str()
    )
    assert "300 tokens" in capsys.readouterr().out


def test_script_trains_two_vocabularies_and_replaces_them_only_if_told(script, corpus, tmp_path: Path, capsys) -> None:
    output = tmp_path / "tokenizer"
    one = ["--source_files", corpus[0], "--output_dir", str(output), "--lowercase", "--max_length", "7"]
    two = [*one, "--target_files", corpus[1], "--separate_vocabularies", "--algorithm", "character"]
    script.main([*two, "--target_algorithm", "word", "--normalization", "NFKC"])
    loaded = VanillaTransformerTokenizer.from_pretrained(output)
    assert loaded.tokenize("Cat") == list("cat")
    assert loaded.model_max_length == 7
    assert loaded.decode(loaded(text_target="La Alfombra")["input_ids"], skip_special_tokens=True) == "la alfombra"
    with pytest.raises(SystemExit, match="2"):
        script.main(one)
    assert "tokenizer.json already" in capsys.readouterr().err
    script.main([*one, "--overwrite"])
    assert type(AutoTokenizer.from_pretrained(output)) is PreTrainedTokenizerFast
    assert not list(output.glob("*_tokenizer.json"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--source_files", "absent.txt"], "absent.txt"),
        (["--source_files", "bad.txt"], "bad.txt, line 2"),
        (["--source_files", "empty.txt"], "corpus is empty"),
        (["--source_files", "train.en", "--separate_vocabularies"], "needs --target_files"),
        (["--source_files", "train.en", "--target_algorithm", "word"], "needs --separate_vocabularies"),
        (["--source_files", "train.en", "--vocab_size", "9"], r"vocab_size (bpe) is 9"),
        (["--source_files", "train.en", "--algorithm", "bpee"], "invalid choice: 'bpee'"),
        (["--source_files", "train.en", "--output_dir", "bad.txt"], "bad.txt is a file"),
    ],
)
def test_script_errors_are_one_line(script, corpus, tmp_path: Path, monkeypatch, capsys, arguments, message) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.txt").write_bytes(b"good\n\xff\n")
    (tmp_path / "empty.txt").write_bytes(b"\n")
    with pytest.raises(SystemExit, match="2"):
        script.main(["--output_dir", "out", *arguments])
    assert message in capsys.readouterr().err.rstrip("\n").rpartition("\n")[2]
    assert not (tmp_path / "out").exists()


def test_script_help_answers_first_questions(script, capsys) -> None:
    with pytest.raises(SystemExit, match="0"):
        script.main(["--help"])
    text = capsys.readouterr().out
    assert all(name in text for name in ALGORITHMS)
    assert "train.en --target_files train.de" in text
