import copy
import pickle

import pytest
from transformers import AutoTokenizer, DataCollatorForSeq2Seq, PreTrainedTokenizerFast

from hf_vanilla_transformer import (
    VanillaTransformerConfig,
    VanillaTransformerMultilingualTokenizer,
    VanillaTransformerTokenizer,
    train_tokenizer,
)
from parallel_text import ENGLISH, SPANISH
from tables import looped
from translators import DIRECTIONS, PAIR

ALGORITHMS = ("bpe", "unigram", "word")


def shared(algorithm="bpe", texts=ENGLISH + SPANISH, **options):
    return train_tokenizer(texts, algorithm=algorithm, vocab_size=280 if algorithm == "bpe" else 100, **options)


@pytest.fixture
def tokenizer():
    return VanillaTransformerMultilingualTokenizer.from_shared(shared(), DIRECTIONS)


def test_languages(tokenizer):
    assert tokenizer.languages == ["en", "es", "de"]
    assert tokenizer.directions == DIRECTIONS
    assert tokenizer.lang_code_to_id == {"en": 280, "es": 281, "de": 282}
    assert len(tokenizer) == 283
    assert (tokenizer.get_lang_token("de"), tokenizer.get_lang_id("de")) == ("__de__", 282)
    assert (tokenizer.src_lang, tokenizer.tgt_lang) == ("en", "es")


def test_the_target_stands_before_the_source(tokenizer):
    plain, backwards = shared(), SPANISH[::-1]
    for target in ("es", "en", "de"):
        tokenizer.tgt_lang = target
        encoded = tokenizer(ENGLISH, text_target=backwards)
        tag = tokenizer.get_lang_id(target)
        assert encoded["input_ids"] == [[tag, *ids] for ids in plain(ENGLISH)["input_ids"]]
        assert encoded["labels"] == plain(backwards)["input_ids"] == tokenizer(text_target=backwards)["input_ids"]
        assert tokenizer.encode(ENGLISH[0]) == encoded["input_ids"][0]
        assert tokenizer.tag_ids("en", target) == [tag]
    tokenizer.src_lang = "es"
    assert tokenizer(ENGLISH)["input_ids"] == encoded["input_ids"]
    assert tokenizer(ENGLISH[0], ENGLISH[1])["input_ids"].count(2) == 2
    assert set(tokenizer(ENGLISH)) == {"input_ids", "attention_mask"}


def test_lengths_count_the_tag(tokenizer):
    encoded = tokenizer(ENGLISH, text_target=SPANISH, max_length=5, truncation=True)
    assert {len(ids) for ids in encoded["input_ids"] + encoded["labels"]} == {5}
    assert {(ids[0], ids[-1]) for ids in encoded["input_ids"]} == {(281, 2)}


def test_the_tag_belongs_to_no_word_and_is_dropped_in_decoding(tokenizer):
    encoded = tokenizer(ENGLISH[0], return_offsets_mapping=True, return_special_tokens_mask=True)
    assert (encoded["offset_mapping"][0], encoded["special_tokens_mask"][0]) == ((0, 0), 1)
    assert encoded.word_ids()[0] is None
    assert tokenizer.batch_decode(tokenizer(ENGLISH)["input_ids"], skip_special_tokens=True) == ENGLISH
    assert tokenizer.decode(encoded["input_ids"]).startswith("__es__")


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_text_cannot_name_a_language(algorithm, tmp_path):
    tokenizer = VanillaTransformerMultilingualTokenizer.from_shared(shared(algorithm), DIRECTIONS)
    tokenizer.save_pretrained(tmp_path)
    loaded = [AutoTokenizer.from_pretrained(tmp_path), PreTrainedTokenizerFast.from_pretrained(tmp_path)]
    for text in ("__de__", "__de__ The cat", "The __de__ cat", "cat__de__"):
        for each in (tokenizer, *loaded):
            ids = each(text)["input_ids"]
            assert ids[0] == tokenizer.get_lang_id("es")
            assert not set(ids[1:]) & set(tokenizer.lang_code_to_id.values())
            assert ids[1:] == shared(algorithm)(text)["input_ids"] or algorithm == "unigram"
    if algorithm == "bpe":
        assert tokenizer.decode(tokenizer("the __de__ cat")["input_ids"], skip_special_tokens=True) == "the __de__ cat"


def test_added_tokens_are_found_beside_those_of_languages(tokenizer, tmp_path):
    tokenizer.add_special_tokens({"extra_special_tokens": ["<2x>"]}, replace_extra_special_tokens=False)
    tokenizer.add_tokens(["<kept>"])
    tokenizer.save_pretrained(tmp_path)
    for each in (tokenizer, AutoTokenizer.from_pretrained(tmp_path)):
        ids = each("<2x> the <kept> __de__")["input_ids"]
        assert {each.convert_tokens_to_ids("<2x>"), each.convert_tokens_to_ids("<kept>")} <= set(ids)
        assert each.decode(ids, skip_special_tokens=True) == " the <kept> __de__"
        assert each.lang_code_to_id == {"en": 280, "es": 281, "de": 282}


def test_languages_are_kept_when_saved(tokenizer, tmp_path):
    tokenizer.src_lang, tokenizer.tgt_lang = "es", "en"
    expected = dict(tokenizer(ENGLISH, text_target=SPANISH))
    VanillaTransformerConfig().save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert type(loaded) is VanillaTransformerMultilingualTokenizer
    assert (loaded.src_lang, loaded.tgt_lang, loaded.directions) == ("es", "en", DIRECTIONS)
    assert loaded.lang_code_to_id == tokenizer.lang_code_to_id
    assert dict(loaded(ENGLISH, text_target=SPANISH)) == expected
    assert PreTrainedTokenizerFast.from_pretrained(tmp_path)(ENGLISH)["input_ids"] == expected["input_ids"]
    given = AutoTokenizer.from_pretrained(tmp_path, tgt_lang="de")
    assert given.encode("a")[0] == tokenizer.get_lang_id("de")


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda tokenizer: pickle.loads(pickle.dumps(tokenizer))])
def test_copies(tokenizer, duplicate):
    twin = duplicate(tokenizer)
    twin.tgt_lang = "de"
    assert tokenizer.encode("cat") == [281, *twin.encode("cat")[1:]]
    assert twin.encode("cat")[0] == 282


def test_in_a_collator(tokenizer):
    rows = [tokenizer(source, text_target=target) for source, target in zip(ENGLISH, SPANISH, strict=True)]
    assert DataCollatorForSeq2Seq(tokenizer)(rows)["input_ids"][:, 0].tolist() == [281] * 4


def test_an_error_leaves_no_other_side_selected(tokenizer):
    before = tokenizer.encode("cat")
    with pytest.raises(ValueError, match="text input must be of type"):
        tokenizer(text_target=3)
    assert tokenizer.encode("cat") == before


def test_inputs_of_a_translation(tokenizer):
    inputs = tokenizer._build_translation_inputs(
        ENGLISH, return_tensors="pt", padding=True, src_lang="es", tgt_lang="de"
    )
    assert set(inputs) == {"input_ids", "attention_mask"}
    assert inputs["input_ids"][:, 0].tolist() == [282] * 4
    tokenizer._build_translation_inputs("a")
    assert (tokenizer.src_lang, tokenizer.tgt_lang) == ("es", "de")


@looped(
    "use",
    [
        lambda tokenizer: setattr(tokenizer, "src_lang", "fr"),
        lambda tokenizer: setattr(tokenizer, "tgt_lang", "fr"),
        lambda tokenizer: tokenizer.get_lang_id("fr"),
        lambda tokenizer: tokenizer.get_lang_token("fr"),
        lambda tokenizer: tokenizer.tag_ids("en", "fr"),
        lambda tokenizer: tokenizer._build_translation_inputs("a", src_lang="en", tgt_lang="fr"),
        lambda tokenizer: VanillaTransformerMultilingualTokenizer.from_shared(shared(), DIRECTIONS).__init__(
            DIRECTIONS, tokenizer_object=tokenizer.backend_tokenizer, tgt_lang="fr"
        ),
    ],
)
def test_an_unknown_language_is_named_beside_the_known(tokenizer, use):
    with pytest.raises(ValueError, match="'fr'.* en, es, de"):
        use(tokenizer)
    assert (tokenizer.src_lang, tokenizer.tgt_lang) == ("en", "es")


def test_further_languages(tokenizer):
    tokenizer.tgt_lang, tokenizer.padding_side, tokenizer.model_max_length = "de", "left", 50
    tokenizer.add_special_tokens({"extra_special_tokens": ["<2x>"]}, replace_extra_special_tokens=False)
    more = VanillaTransformerMultilingualTokenizer.from_shared(tokenizer, [("es", "fr"), ("en", "es")])
    assert more.directions == [*DIRECTIONS, ("es", "fr")]
    assert more.lang_code_to_id == {"en": 280, "es": 281, "de": 282, "fr": 284}
    assert (more.tgt_lang, more.padding_side, more.model_max_length) == ("de", "left", 50)
    assert more("<2x> cat")["input_ids"] == tokenizer("<2x> cat")["input_ids"]
    assert tokenizer.languages == ["en", "es", "de"] and len(tokenizer) == 284


def test_tokenizers_that_cannot_have_languages():
    with pytest.raises(ValueError, match="vocabulary for each side"):
        VanillaTransformerMultilingualTokenizer.from_shared(PAIR, DIRECTIONS)
    with pytest.raises(ValueError, match="already contains __de__"):
        VanillaTransformerMultilingualTokenizer.from_shared(shared("word", ["a __de__ b"]), DIRECTIONS)


@looped("directions", [[], ["en-de"], [("en",)], [("en", "")], [("en", "d e")], [("en", 3)]])
def test_bad_directions(directions):
    with pytest.raises(ValueError, match="directions"):
        VanillaTransformerMultilingualTokenizer.from_shared(shared(), directions)


def test_other_tokenizers_have_no_languages():
    assert not hasattr(PAIR, "directions") and not hasattr(shared(), "directions")
    assert not issubclass(VanillaTransformerTokenizer, VanillaTransformerMultilingualTokenizer)
