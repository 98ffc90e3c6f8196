"""Vocabularies that grow: merges learned on new text, and embeddings of the new tokens."""

import pytest
import torch

from hf_vanilla_transformer import (
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerTokenizer,
    preset_config,
    train_tokenizer,
)
from hf_vanilla_transformer.training.tokenizer import add_embeddings, extend_tokenizer, vocabulary_sizes
from trainers import trainable_marian

pytestmark = pytest.mark.usefixtures("one_thread")

OLD = ["the cat sees the house", "the house sees the cat"] * 3
NEW = ["transformer architecture", "the transformer sees a résumé", "transformers see the transformer"] * 2


def learned(texts=OLD, **options):
    return train_tokenizer(texts, **{"vocab_size": 280, **options})


def extended(tokenizer, texts=NEW, size=100):
    return extend_tokenizer(tokenizer, lambda *sides: texts, size)


def model_of(tokenizer, **fields):
    source, target = vocabulary_sizes(tokenizer)
    sizes = {"vocab_size": source, "decoder_vocab_size": target, "d_model": 16, **fields}
    return VanillaTransformerForConditionalGeneration(preset_config("tiny", **sizes)).eval()


class TestTokenizer:
    def test_new_words_take_fewer_tokens_and_old_text_the_same(self):
        old = learned()
        new = extended(old)
        assert new(OLD)["input_ids"] == old(OLD)["input_ids"]
        assert new.tokenize(" transformer") == ["Ġtransformer"] and len(old.tokenize(" transformer")) > 5
        vocabulary = new.get_vocab()
        assert {token: vocabulary[token] for token in old.get_vocab()} == old.get_vocab()
        assert sorted(vocabulary.values()) == list(range(len(new)))
        for text in (*OLD, *NEW, "résumé Ünïcode </s> <s>\t x"):
            ids = new(text)["input_ids"]
            assert ids[-1] == new.eos_token_id and new.decode(ids, skip_special_tokens=True) == text

    def test_it_is_what_bpe_learns_next(self):
        """Without ties in frequency, the vocabulary equals that of one longer training on the same text."""
        texts = ["ab"] * 8 + ["abc"] * 4 + ["abcd"] * 2 + ["abcde"]
        first, all_at_once = learned(texts, vocab_size=261), learned(texts, vocab_size=263)
        assert extended(first, texts).get_vocab() == all_at_once.get_vocab()
        assert "abcd" in all_at_once.get_vocab() and "abc" not in first.get_vocab()

    def test_size_and_order(self):
        old = learned()
        new = extended(old, size=7)
        assert len(new) == len(old) + 7
        assert extended(old, NEW[::-1], size=7).get_vocab() == new.get_vocab()
        assert len(extended(old, ["one two", "three"])) == len(old), "what occurs once is not learned"
        assert extended(old, []).get_vocab() == old.get_vocab()

    def test_overlapping_pairs(self):
        new = extended(learned(), ["aaaaa", "aaaaa", "aaaaa"])
        assert new.decode(new("aaaaa")["input_ids"], skip_special_tokens=True) == "aaaaa"
        assert new.tokenize("aaaaa") == ["aaaaa"]

    def test_normalization(self):
        new = extended(learned(lowercase=True))
        assert new.tokenize(" TRANSFORMER") == ["Ġtransformer"]

    def test_a_vocabulary_a_side(self):
        old = VanillaTransformerTokenizer.from_pair(learned(), learned(["die Katze sieht das Haus"] * 3))
        texts = {"source": ["transformer transformer"], "target": ["Umformer Umformer Umformer"]}
        new = extend_tokenizer(old, lambda side: texts[side], 30)
        assert new.source_tokenizer.tokenize("transformer") == ["transformer"]
        assert new.target_tokenizer.tokenize("Umformer") == ["Umformer"]
        assert "Umformer" not in new.get_vocab() and vocabulary_sizes(new)[1] > vocabulary_sizes(old)[1]

    def test_settings_and_added_tokens_stay(self, tmp_path):
        old = learned(max_length=40)
        old.add_tokens(["<tag>"])
        old.init_kwargs["source_lang"] = "en"
        new = extended(old)
        assert (new.model_max_length, new.split_special_tokens, new.init_kwargs["source_lang"]) == (40, True, "en")
        assert new.tokenize("<tag>the") == old.tokenize("<tag>the") and new.tokenize("<tag>the")[0] == "<tag>"
        new.save_pretrained(tmp_path)
        assert type(new).from_pretrained(tmp_path).get_vocab() == new.get_vocab()

    @pytest.mark.parametrize("algorithm", ["unigram", "word", "whitespace", "character"])
    def test_only_bpe(self, algorithm):
        with pytest.raises(ValueError, match="`extend_vocab` needs a BPE tokenizer"):
            extended(learned(algorithm=algorithm))


class TestEmbeddings:
    @pytest.mark.parametrize("shared", [True, False])
    @pytest.mark.parametrize("tied", [True, False])
    def test_new_rows_are_means_and_old_rows_stay(self, shared, tied):
        old = learned()
        model = model_of(old, share_encoder_decoder_embeddings=shared, tie_word_embeddings=tied)
        inputs = {"input_ids": torch.tensor([[5, 6, 2]]), "decoder_input_ids": torch.tensor([[1, 7, 8]])}
        before = {name: weight.clone() for name, weight in model.state_dict().items()}
        logits = model(**inputs).logits
        new = extended(old)
        add_embeddings(model, old, new)
        assert model.config.vocab_size == model.config.decoder_vocab_size == len(new)
        after = model.state_dict()
        rows = [name for name in before if before[name].shape != after[name].shape]
        assert rows and all("embed_tokens" in name or "lm_head" in name for name in rows)
        token = new.convert_tokens_to_ids("Ġtransformer")
        pieces = old(" transformer", add_special_tokens=False)["input_ids"]
        for name in rows:
            torch.testing.assert_close(after[name][token], before[name][pieces].mean(0))
        # The model computes the same, plus scores of the new tokens.
        torch.testing.assert_close(model(**inputs).logits[..., : len(old)], logits)

    def test_a_vocabulary_a_side(self, tmp_path):
        old = VanillaTransformerTokenizer.from_pair(learned(), learned(["die Katze sieht das Haus"] * 3))
        model = model_of(old, share_encoder_decoder_embeddings=False)
        before = model.get_decoder().get_input_embeddings().weight.clone()
        new = extended(old)
        add_embeddings(model, old, new)
        sizes = (model.config.vocab_size, model.config.decoder_vocab_size)
        assert sizes == vocabulary_sizes(new) and sizes[0] != sizes[1]
        token = new.target_tokenizer.convert_tokens_to_ids("Ġtransformer")
        pieces = old.target_tokenizer(" transformer", add_special_tokens=False)["input_ids"]
        torch.testing.assert_close(model.get_output_embeddings().weight[token], before[pieces].mean(0))
        model.save_pretrained(tmp_path)

    def test_room_that_the_model_has_is_used(self):
        old = learned()
        model = model_of(old, vocab_size=len(old) + 50, decoder_vocab_size=None)
        new = extended(old, size=20)
        add_embeddings(model, old, new)
        assert model.config.vocab_size == len(old) + 50
        pieces = old(" transformer", add_special_tokens=False)["input_ids"]
        token = new.convert_tokens_to_ids("Ġtransformer")
        weight = model.get_input_embeddings().weight
        torch.testing.assert_close(weight[token], weight[pieces].mean(0))

    def test_nothing_new(self):
        old = learned()
        model = model_of(old)
        before = {name: weight.clone() for name, weight in model.state_dict().items()}
        add_embeddings(model, old, learned())
        assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())

    @pytest.mark.parametrize("algorithm", ["bpe", "word", "unigram"])
    def test_a_tag_in_a_model_of_another_family(self, algorithm):
        old, new = learned(algorithm=algorithm, vocab_size=300), learned(algorithm=algorithm, vocab_size=300)
        new.add_tokens(["<tag>"])
        model = trainable_marian(vocab_size=len(old))
        add_embeddings(model, old, new)
        assert model.config.vocab_size == len(new) == len(old) + 1
        assert torch.isfinite(model.get_input_embeddings().weight).all()
