"""Beam search with required terms: every hypothesis has them, and the best such hypothesis is found."""

import re
from itertools import accumulate, product

import pytest
import sacrebleu
import torch

from devices import same_numbers
from hf_vanilla_transformer import (
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerTokenizer,
    train_tokenizer,
)
from hf_vanilla_transformer.data import load_toy_corpus
from hf_vanilla_transformer.inference import constrained_search
from hf_vanilla_transformer.inference.constrained_search import ConstrainedBeams, Terms, TermVocabulary
from hf_vanilla_transformer.inference.glossary import Glossary
from hf_vanilla_transformer.inference.scoring import score
from hf_vanilla_transformer.inference.translation import translate
from hf_vanilla_transformer.search import beams as beam_search
from hf_vanilla_transformer.search.beams import Beams
from tables import looped
from translators import ENGLISH, SPANISH, assert_alike, build, trained

pytestmark = pytest.mark.usefixtures("one_thread")

ALGORITHMS = ("bpe", "unigram", "word", "whitespace", "character")
FAMILIES = ("shared", "pair", "learned", "marian", "bart", "m2m100")
GLOSSARY = Glossary.of({"cat": "gato", "street": "calle ancha", "small": "roja", "house": "casa", "dogs": "casa roja"})
SENTENCES = [*ENGLISH, "a cat , a cat and the cat", "the house of two dogs", ""]


def occurrences(term, text):
    return len(re.findall(rf"(?<!\w){re.escape(term)}(?!\w)", text))


def assert_terms(sentences, results, glossary=GLOSSARY):
    """Assert that every hypothesis has each term as often as the sentence."""
    for sentence, hypotheses in zip(sentences, results, strict=True):
        terms = glossary.translations_in(sentence)
        for hypothesis in hypotheses:
            for term in terms:
                # Terms inside longer terms do not count.
                inside = sum(occurrences(term, other) for other in terms if other != term)
                assert occurrences(term, hypothesis.text) >= terms.count(term) + inside, (sentence, hypothesis)


@same_numbers
def random_model(tokenizer, **changes):
    """Return an untrained model with peaked probabilities."""
    torch.manual_seed(1)
    fields = {
        "vocab_size": len(tokenizer), "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 16,
        "encoder_attention_heads": 2, "decoder_attention_heads": 2, "decoder_ffn_dim": 16,
        "tie_word_embeddings": False, **changes,
    }  # fmt: skip  # one field per line would fill the screen
    model = VanillaTransformerForConditionalGeneration(VanillaTransformerConfig(**fields)).eval()
    with torch.no_grad():
        model.lm_head.weight.mul_(4)
    return model


class TestPresence:
    @pytest.mark.parametrize("num_beams", [1, 5])
    @pytest.mark.parametrize("family", FAMILIES)
    def test_models_of_every_family(self, family, num_beams):
        model, tokenizer = build(family)
        n = min(num_beams, 3)
        results = translate(model, tokenizer, SENTENCES, num_beams=num_beams, num_hypotheses=n, glossary=GLOSSARY)
        assert_terms(SENTENCES, results)
        assert results[-1][0].text == ""

    @pytest.mark.parametrize("algorithm", ALGORITHMS)
    def test_every_tokenizer(self, algorithm):
        tokenizer = train_tokenizer([*ENGLISH, *SPANISH], algorithm=algorithm, vocab_size=300)
        options = {"num_beams": 4, "num_hypotheses": 4, "max_new_tokens": 40, "with_scores": True}
        results = translate(random_model(tokenizer), tokenizer, SENTENCES, **options, glossary=GLOSSARY)
        assert_terms(SENTENCES, results)

    def test_a_term_does_not_become_a_longer_word(self):
        """The model always prefers "s" as the next token."""
        tokenizer = train_tokenizer(["gato s", "gatos"], algorithm="character")
        model = random_model(tokenizer, lm_head_bias=True)
        with torch.no_grad():
            model.lm_head.bias[tokenizer.convert_tokens_to_ids("s")] = 15.0
        glossary = Glossary.of({"cat": "gato"})
        free = translate(model, tokenizer, ["gato"], max_new_tokens=12, num_beams=4)
        assert free[0][0].text == "s" * 12
        ((hypothesis,),) = translate(model, tokenizer, ["cat"], max_new_tokens=12, num_beams=4, glossary=glossary)
        assert occurrences("gato", hypothesis.text) == 1

    def test_terms_within_terms(self):
        """A text of nested terms has more readings than can be followed."""
        model, tokenizer = build("shared")
        words, translations = "a b c d e".split(), "una casa roja el gato".split()
        spans = [(i, j) for i in range(5) for j in range(i + 1, 6)]
        glossary = Glossary.of({" ".join(words[i:j]): " ".join(translations[i:j]) for i, j in spans})
        vocabulary = TermVocabulary.of(tokenizer)
        phrases = vocabulary.phrases(tokenizer, glossary.translations())
        terms = Terms(vocabulary, phrases)
        state, tokens = terms.start, tokenizer(" ".join(translations), add_special_tokens=False)["input_ids"]
        needed = [state.needed]
        for token in tokens * len(spans):
            state = terms.after(state, token)
            needed.append(state.needed)
            assert len(state.readings) <= constrained_search.MAX_READINGS + 1
        assert needed[0] == sum(j - i for i, j in spans) and needed[-1] == 0
        sentence = " , ".join(glossary.entries[i][0] for i in range(len(spans)))
        assert_terms([sentence], translate(model, tokenizer, [sentence], num_beams=4, glossary=glossary), glossary)

    def test_the_least_room(self):
        model, tokenizer = build("shared")
        for bound in ({"max_new_tokens": 3}, {"max_length": 4}):
            results = translate(model, tokenizer, ["the street"], num_beams=2, glossary=GLOSSARY, **bound)
            assert results[0][0].text.startswith("calle ancha")
        with pytest.raises(ValueError, match=r"have 2 tokens, but an output may have 2, end token .*raise `max_new_"):
            translate(model, tokenizer, ["the street"], num_beams=2, glossary=GLOSSARY, max_new_tokens=2)

    def test_terms_may_use_barred_tokens(self):
        model, tokenizer = build("shared")
        term = tokenizer("gato", add_special_tokens=False)["input_ids"]
        barred = {"no_repeat_ngram_size": 1, "bad_words_ids": [term]}
        results = translate(model, tokenizer, SENTENCES, num_beams=4, max_new_tokens=20, glossary=GLOSSARY, **barred)
        assert_terms(SENTENCES, results)

    def test_forced_first_and_last_tokens_stay(self):
        model, tokenizer = build("m2m100")
        first = tokenizer.convert_tokens_to_ids("no")
        options = {"forced_bos_token_id": first, "forced_eos_token_id": 2, "max_new_tokens": 12, "num_beams": 4}
        results = translate(model, tokenizer, SENTENCES, **options, glossary=GLOSSARY)
        assert_terms(SENTENCES, results)
        assert all(hypotheses[0].text.startswith("no") for hypotheses in results[:-1])

    def test_terms_of_a_truncated_part_are_left_out(self, caplog):
        model, tokenizer = build("pair")
        options = {"num_beams": 4, "max_source_length": 3, "max_new_tokens": 9, "glossary": GLOSSARY}
        (cut,), (short,) = translate(model, tokenizer, ["a red house , a cat", "a red"], **options)
        assert cut == short
        assert "1 of 2 sentences had more than 3 tokens" in caplog.text


class TestSearch:
    @pytest.mark.parametrize("num_beams", [1, 4])
    def test_without_a_term_it_is_the_plain_search(self, num_beams):
        model, tokenizer = build("pair")
        options = {"num_beams": num_beams, "num_hypotheses": num_beams, "with_scores": True}
        glossary = Glossary.of({"nothing": "no"})
        assert translate(model, tokenizer, SENTENCES, **options, glossary=glossary) == translate(
            model, tokenizer, SENTENCES, **options
        )

    @looped("seed", range(3))
    @looped(
        "glossary",
        [{"a": "x"}, {"a": "x y"}, {"a": "y y"}, {"a": "x", "b": "y"}, {"a": "x y", "b": "x"}, {"a": "x", "b": "x"}],
    )
    def test_enough_beams_find_the_best_of_all_sequences(self, seed, glossary):
        sides = (train_tokenizer([text], algorithm="whitespace") for text in ("a b", "x y"))
        tokenizer = VanillaTransformerTokenizer.from_pair(*sides)
        torch.manual_seed(seed)
        model = random_model(tokenizer, decoder_vocab_size=6, share_encoder_decoder_embeddings=False, init_std=0.5)
        model.generation_config.length_penalty = 0.0
        glossary, steps = Glossary.of(glossary), 4
        terms = glossary.translations_in("a b")
        every = every_translation(model, tokenizer, "a b", steps)
        best, text, _ = max(each for each in every if has_apart(each[2], terms))
        # One beam for every prefix.
        options = {"num_beams": 5 ** (steps - 1), "max_new_tokens": steps, "with_scores": True, "glossary": glossary}
        ((found,),) = translate(model, tokenizer, ["a b"], **options)
        assert found.text == text
        assert found.score == pytest.approx(best, rel=1e-4)

    def test_n_best_lists_are_in_order_with_the_scores_of_the_model(self):
        model, tokenizer = build("pair")
        options = {"num_beams": 6, "num_hypotheses": 4, "with_scores": True, "max_new_tokens": 30}
        # Special tokens inside a translation would be lost in its text.
        options["bad_words_ids"] = [[token] for token in (0, 1, 3)]
        sentences = SENTENCES[:4]
        results = translate(model, tokenizer, sentences, **options, glossary=GLOSSARY)
        for sentence, hypotheses in zip(sentences, results, strict=True):
            scores = [hypothesis.score for hypothesis in hypotheses]
            assert scores == sorted(scores, reverse=True)
            again = score(model, tokenizer, [sentence] * 4, [hypothesis.text for hypothesis in hypotheses])
            for hypothesis, known in zip(hypotheses, again, strict=True):
                # At the length limit there is no end token.
                log_probs = known.token_log_probs[:30]
                assert hypothesis.score == pytest.approx(sum(log_probs) / len(log_probs), rel=1e-4)

    def test_long_terms_add_beams_and_ask_for_no_more_finished_hypotheses(self, monkeypatch):
        built, start = [], ConstrainedBeams.__init__
        monkeypatch.setattr(
            ConstrainedBeams, "__init__", lambda self, *args: (built.append(self), start(self, *args))[1]
        )
        model, tokenizer = build("shared")
        for num_beams, (few, many) in {1: (4, 6), 5: (5, 7)}.items():
            built.clear()
            translate(model, tokenizer, ["the cat", "a street , a street and a street"], num_beams=num_beams,
                      glossary=GLOSSARY)  # fmt: skip  # one call
            assert [(beams.num_beams, beams.finished.shape[1]) for beams in built] == [(few, few), (many, few)]

    @pytest.mark.parametrize("max_final", [0, 1], ids=["final ones dropped", "none dropped"])
    def test_sentences_of_a_batch_equal_themselves_alone(self, monkeypatch, max_final):
        monkeypatch.setattr(beam_search, "MAX_FINAL", max_final)
        dropped, drop = [], Beams._drop_final
        monkeypatch.setattr(
            Beams,
            "_drop_final",
            lambda self, rows: (kept := drop(self, rows), dropped.append(len(rows) - len(kept)))[0],
        )
        model, tokenizer = build("shared")
        with torch.no_grad():
            model.lm_head.bias[model.config.eos_token_id] += 4
        options = {"num_beams": 4, "num_hypotheses": 2, "with_scores": True, "early_stopping": True}
        options |= {"max_new_tokens": 15, "glossary": GLOSSARY}
        together = translate(model, tokenizer, SENTENCES, **options)
        for sentence, expected in zip(SENTENCES, together, strict=True):
            assert_alike(translate(model, tokenizer, [sentence], **options), [expected], rel=1e-4)
        # On an accelerator none are dropped.
        assert any(dropped) == (max_final == 0 and model.device.type == "cpu")


def every_translation(model, tokenizer, sentence, steps):
    """Yield log-probability and text of all translations of up to `steps` tokens.

    Third is the text in which terms count: without the last token if the length limit was reached.
    """
    inner = [token for token in range(tokenizer.target_vocab_size) if token != tokenizer.eos_token_id]
    rows = torch.tensor(list(product(inner, repeat=steps - 1)))
    target = torch.cat([torch.ones(len(rows), 1, dtype=torch.long), rows], 1)
    source = {name: value.expand(len(rows), -1) for name, value in tokenizer(sentence, return_tensors="pt").items()}
    with torch.no_grad():
        log_probs = model(**source, decoder_input_ids=target).logits.log_softmax(-1).tolist()

    def decoded(*row):
        return tokenizer.decode(row, skip_special_tokens=True)

    for row, each in zip(rows.tolist(), log_probs, strict=True):
        taken = [0.0, *accumulate(step[token] for step, token in zip(each, row, strict=False))]
        for length in range(steps):
            text = decoded(*row[:length])
            yield taken[length] + each[length][tokenizer.eos_token_id], text, text
        # At the length limit the end token may be missing.
        for last in inner:
            yield taken[-1] + each[-1][last], decoded(*row, last), decoded(*row)


def has_apart(text, terms):
    """Whether the text has the terms without overlap."""
    if not terms:
        return True
    words, term = text.split(), terms[0].split()
    places = (i for i in range(len(words)) if words[i : i + len(term)] == term)
    return any(has_apart(" ".join([*words[:i], "|", *words[i + len(term) :]]), terms[1:]) for i in places)


class TestTerms:
    def terms(self, tokenizer, *translations):
        vocabulary = TermVocabulary.of(tokenizer)
        return Terms(vocabulary, vocabulary.phrases(tokenizer, translations))

    def needed(self, tokenizer, text, *translations):
        terms = self.terms(tokenizer, *translations)
        state = terms.start
        for token in tokenizer(text, add_special_tokens=False)["input_ids"]:
            state = terms.after(state, token)
        return state.needed

    @looped("algorithm", ALGORITHMS)
    def test_terms_are_recognized_in_text(self, algorithm):
        texts = ["el gato negro y los gatos", "(gato) gato. gatos, gato!", "un gato"]
        tokenizer = train_tokenizer(texts, algorithm=algorithm, vocab_size=280)
        for text in ("el gato negro", "gato", "gato negro y", "un gato", "y (gato)", "los gatos y gato."):
            if algorithm != "whitespace" or text.isalpha():
                assert self.needed(tokenizer, text, "gato") == 0, text
        for text in ("los gatos", "gatos", "el negro", ""):
            assert self.needed(tokenizer, text, "gato") > 0, text

    @looped("algorithm", ALGORITHMS)
    def test_needed_tokens_are_known_before_a_token_is_chosen(self, algorithm):
        tokenizer = train_tokenizer([*ENGLISH, *SPANISH], algorithm=algorithm, vocab_size=290)
        terms = self.terms(tokenizer, "gato", "gato", "calle ancha", "gato duerme")
        # Two more than in the vocabulary: a model may have more tokens.
        tokens, state = range(len(tokenizer) + 2), terms.start
        for token in tokenizer("el gato duerme calle ancha gato (gato)", add_special_tokens=False)["input_ids"]:
            assert terms.needed_after(state, tokens) == [terms.after(state, each).needed for each in tokens]
            state = terms.after(state, token)

    def test_occurrences_are_counted_apart(self):
        tokenizer = train_tokenizer(["el gato negro y"], algorithm="word")
        texts = {"gato negro": 1, "gato negro y gato": 0, "gato y gato negro": 0, "gato gato": 1, "negro gato": 2}
        for text, needed in texts.items():
            assert self.needed(tokenizer, text, "gato", "gato negro") == needed, text
        assert self.needed(tokenizer, "gato y gato", "gato", "gato") == 0
        assert self.needed(tokenizer, "gato y", "gato", "gato") == 1

    def test_ever_new_terms_do_not_fill_the_memory(self, monkeypatch):
        monkeypatch.setattr(constrained_search, "MAX_PHRASES", 5)
        _, tokenizer = build("shared")
        vocabulary = TermVocabulary(tokenizer)
        known = vocabulary.phrases(tokenizer, ["gato", "casa"])
        for number in range(20):
            vocabulary.phrases(tokenizer, ["gato", "casa" + " roja" * number])
        assert len(vocabulary._phrases) <= 6
        assert vocabulary.phrases(tokenizer, ["gato", "casa"]) == known

    def test_phrases_that_begin_alike(self):
        tokenizer = train_tokenizer(["a a b"], algorithm="whitespace")
        assert self.needed(tokenizer, "a a a b", "a a b") == 0
        assert self.needed(tokenizer, "a a b", "a a b", "a b") == 2

    def test_a_blank_before_a_term_follows_its_place(self):
        """Byte-level tokens include the space before them; after a bracket there is none."""
        tokenizer = train_tokenizer(["el gato (gato gatos"] * 3, algorithm="bpe", vocab_size=290)
        (phrase,) = TermVocabulary.of(tokenizer).phrases(tokenizer, ["gato"])
        assert [tokenizer.decode(variant) for variant in phrase.variants] == [" gato", "gato"]
        assert self.needed(tokenizer, "(gato)", "gato") == 0
        assert self.needed(tokenizer, "elgato", "gato") > 0

    def test_a_vocabulary_grows(self):
        tokenizer = train_tokenizer(["a b"], algorithm="whitespace")
        with pytest.raises(ValueError, match="'c'"):
            TermVocabulary.of(tokenizer).phrases(tokenizer, ["c"])
        tokenizer.add_tokens(["c"])
        assert len(TermVocabulary.of(tokenizer).phrases(tokenizer, ["c"])) == 1


class TestRefusals:
    def test_sampling_and_a_translation_that_the_vocabulary_cannot_write(self):
        model, tokenizer = build("shared")
        with pytest.raises(ValueError, match="a glossary needs beam search, not sampling; leave out `do_sample`"):
            translate(model, tokenizer, ["no"], glossary=GLOSSARY, do_sample=True)
        with pytest.raises(ValueError, match="translation 'Zürich' cannot be written .*change it"):
            translate(model, tokenizer, ["no"], glossary=Glossary.of({"Zurich": "Zürich"}))

    def test_a_model_that_is_none_of_transformers(self):
        model, tokenizer = build("shared")
        other = torch.nn.Module()
        other.generation_config, other.config, other.generate = model.generation_config, model.config, model.generate
        with pytest.raises(ValueError, match="needs a model of transformers"):
            translate(other, tokenizer, ["no"], glossary=GLOSSARY)


@pytest.mark.slow  # trains a model
def test_every_term_of_five_hundred_sentences_of_the_toy_corpus():
    corpus = load_toy_corpus()
    sources, targets = (corpus["train"][side][:12000] for side in ("source", "target"))
    tokenizer = train_tokenizer([*sources, *targets], vocab_size=1200)
    model = trained(tokenizer, sources, targets, steps=400)
    sources, targets = (corpus["test"][side][:500] for side in ("source", "target"))
    translations = reference_terms(sources, targets)
    assert len(translations) > 400

    class BySentence(Glossary):
        """A glossary with different terms for each sentence."""

        def translations_in(self, sentence):
            return translations.get(sentence, [])

    glossary = BySentence(tuple((term, term) for term in {term for terms in translations.values() for term in terms}))
    plain = translate(model, tokenizer, sources, num_beams=4)
    found = translate(model, tokenizer, sources, num_beams=4, glossary=glossary)

    def share_present(results):
        pairs = [(term, hypotheses[0].text) for source, hypotheses in zip(sources, results, strict=True)
                 for term in translations.get(source, [])]  # fmt: skip  # reads like a loop
        return sum(occurrences(term, text) >= 1 for term, text in pairs) / len(pairs)

    assert share_present(plain) < share_present(found) == 1

    def bleu(results):
        return sacrebleu.corpus_bleu([hypotheses[0].text for hypotheses in results], [targets]).score

    assert bleu(found) > bleu(plain)


def reference_terms(sources, targets):
    """Return two words of each reference, by sentence."""
    terms = {}
    for source, target in zip(sources, targets, strict=True):
        words = [word for word in re.findall(r"\w+", target) if len(word) > 4]
        terms[source] = list(dict.fromkeys(words))[:2]
    return {source: each for source, each in terms.items() if each}
