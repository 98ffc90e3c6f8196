import pytest
from transformers import NllbTokenizer

from hf_vanilla_transformer.pretrained.languages import check_direction, is_multilingual, language_pairs, set_languages
from translators import SHARED, build, several_languages


def test_languages_of_a_multilingual_tokenizer():
    _, tokenizer = several_languages()
    assert is_multilingual(tokenizer)
    pairs = language_pairs(tokenizer)
    assert ("en_XX", "es_XX") in pairs and ("es_XX", "en_XX") in pairs and ("en_XX", "en_XX") not in pairs
    options = set_languages(tokenizer, "fr_XX", "es_XX")
    assert options == {"forced_bos_token_id": tokenizer.convert_tokens_to_ids("es_XX")}
    assert (tokenizer.src_lang, tokenizer.tgt_lang) == ("fr_XX", "es_XX")
    assert set_languages(tokenizer, None, None) == options
    for pair in (("en_XX", "es_XX"), ("es_XX", "en_XX")):
        check_direction(tokenizer, *pair, "model m")


def test_nllb_names_its_languages_as_special_tokens():
    pairs = language_pairs(NllbTokenizer(src_lang="eng_Latn", tgt_lang="fra_Latn"))
    assert ("eng_Latn", "deu_Latn") in pairs and len(pairs) > 40_000


def test_a_pair_is_saved_as_by_marian():
    _, tokenizer = build("pair")
    assert not is_multilingual(tokenizer) and language_pairs(tokenizer) == []
    tokenizer.init_kwargs |= {"source_lang": "en", "target_lang": "es"}
    try:
        assert language_pairs(tokenizer) == [("en", "es")]
        with pytest.raises(ValueError, match="model m translates en to es; name a model of the opposite direction"):
            check_direction(tokenizer, "es", "en", "model m")
        for source, target in (("en", "es"), ("en", "fr"), ("es", None), (None, None)):
            check_direction(tokenizer, source, target, "model m")
        for source, target in (("en", "es"), ("en", None), (None, None)):
            assert set_languages(tokenizer, source, target) == {}
        with pytest.raises(ValueError, match="has no languages to choose from"):
            set_languages(tokenizer, "es", "en")
        tokenizer.init_kwargs["target_lang"] = None
        assert language_pairs(tokenizer) == []
    finally:
        del tokenizer.init_kwargs["source_lang"], tokenizer.init_kwargs["target_lang"]
    with pytest.raises(ValueError, match="has no languages to choose from; leave `src_lang` and `tgt_lang` out"):
        set_languages(SHARED, "en", None)
    assert set_languages(SHARED, None, None) == {}
