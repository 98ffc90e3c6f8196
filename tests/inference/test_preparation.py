"""Normalization of user text, and restoring it in translations."""

import logging
import pickle
from dataclasses import replace
from functools import partial

import pytest
import torch
from tokenizers import AddedToken
from transformers import GenerationConfig, pipeline

from devices import TEST_DEVICE
from hf_vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration
from hf_vanilla_transformer.data.tokenizer_training import train_tokenizer
from hf_vanilla_transformer.documents import open_document
from hf_vanilla_transformer.inference.decoding import Hypothesis
from hf_vanilla_transformer.inference.glossary import Glossary
from hf_vanilla_transformer.inference.preparation import Preparation, is_suspicious
from hf_vanilla_transformer.inference.translation import translate, translate_document, translate_lines
from hf_vanilla_transformer.inference.translator import Translator, join
from hf_vanilla_transformer.pretrained.output_limits import OutputLimits
from hf_vanilla_transformer.pretrained.text_facts import facts_of, set_facts, vocabulary_digest, vocabulary_sizes
from hf_vanilla_transformer.text.facts import ENTRY, RULES, Decision, TextFacts
from hf_vanilla_transformer.text.protection import PLACEHOLDERS, edited
from hf_vanilla_transformer.text.sentences import TextLayout, split_sentences
from hf_vanilla_transformer.training.proof import rules_used
from tables import looped

SENTENCES = [
    "the dog sees a cat in Paris", "a cat sees the dog", "dogs sleep in Paris", "a DJ sees us", "(im Café) “ja”",
]  # fmt: skip  # one list
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def copying():
    """A model trained to copy its source, placeholders included, and its tokenizer."""
    torch.manual_seed(0)
    tokenizer = train_tokenizer(SENTENCES * 3, vocab_size=400)
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in PLACEHOLDERS[:3]])
    config = VanillaTransformerConfig(
        vocab_size=len(tokenizer), decoder_vocab_size=len(tokenizer), d_model=48, encoder_layers=1, decoder_layers=1,
        encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=96, decoder_ffn_dim=96, dropout=0.0,
    )  # fmt: skip  # short lines
    model = VanillaTransformerForConditionalGeneration(config)
    texts = [
        "The dog sees a cat.", "A cat sleeps in Paris.", "The dog sees ⟦1⟧ in Paris.", "⟦1⟧ sees ⟦2⟧.", "A cat ⟦1⟧.",
        "The dog ⟦1⟧ sees ⟦2⟧ a cat.", "Dogs sleep.", "The dog and ⟦1⟧ sleep.", "(⟦1⟧) sees us.",
    ]  # fmt: skip  # one list
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    for _ in range(200):
        model(batch["input_ids"], batch["attention_mask"], labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval(), tokenizer


FACTS = TextFacts(rules={name: Decision(True, "") for name in RULES}, usual_case="sentence", has_capitals=True)


@pytest.fixture(autouse=True)
def trained_on(copying, monkeypatch):
    """Return a function that sets facts about the training; all rules act unless `off` names them."""
    model, tokenizer = copying
    monkeypatch.setattr(model.generation_config, ENTRY, None, raising=False)

    def say(off=(), tokenizer=tokenizer, **facts):
        sizes = vocabulary_sizes(tokenizer)
        own = {"vocabulary_sizes": sizes, "vocabulary_digest": vocabulary_digest(tokenizer, sizes)}
        set_facts(model.generation_config, replace(FACTS, **own, **facts).without(dict.fromkeys(off, "")))

    say()
    return say


def best(translator, *texts, **options):
    return [row[0].text for row in translate(*translator, list(texts), **options)]


@pytest.mark.parametrize("num_beams", [1, 4])
def test_items_are_copied(copying, num_beams):
    texts = ["The dog sees https://x.org in Paris.", "12:30 sees 🙂.", "A cat {name}.", "The dog and Иван sleep."]
    assert best(copying, *texts, num_beams=num_beams) == texts
    assert best(copying, "The dog and Ann Lee sleep.", protect=["Ann Lee"]) == ["The dog and Ann Lee sleep."]
    assert best(copying, "The dog and NASA sleep.") == ["The dog and NASA sleep."]


def test_every_item_is_required(copying):
    """Even of a model that would omit it."""
    model, tokenizer = copying
    barred = [[tokenizer.convert_tokens_to_ids(token)] for token in PLACEHOLDERS[:3]]
    text = "The dog sees https://x.org in Paris."
    (row,) = translate(model, tokenizer, [text], bad_words_ids=barred, num_beams=4, num_hypotheses=3, with_scores=True)
    assert all(each.text.count("https://x.org") == 1 for each in row)
    drawn = best(copying, text, bad_words_ids=barred, do_sample=True)
    assert drawn[0].count("https://x.org") == 1, "where nothing is searched, it is put at its place"


def test_without_placeholders_items_are_put_at_their_places(copying, trained_on):
    model, _ = copying
    plain = train_tokenizer(SENTENCES * 3, vocab_size=400)
    trained_on(["numbers"], tokenizer=plain)
    assert not Preparation(model, plain).placeholders
    texts = ["The dog 🙂 sees a cat.", "See https://x.org", "🙂", "12 a cat"]
    for text, found in zip(texts, best((model, plain), *texts), strict=True):
        assert all(item in found for item in ("🙂", "https://x.org") if item in text)
    assert Preparation(model, plain).sentence("12 dogs (“🙂”)").text == "12 dogs"
    as_it_is = Preparation(model, plain, raw=True).sentence("a ⟦1⟧ DOG")
    assert as_it_is.input_text == "a DOG" and as_it_is.restore("A DOG", [(0, 0)])[0] == "A ⟦1⟧ DOG"


def test_code_of_a_document_is_a_part_of_its_sentence(copying):
    text = "The dog sees `a * b` in Paris.\n\n`x` *sees* <kbd>y</kbd>.\n"
    assert translate_document(partial(translate_lines, *copying), open_document(text, "markdown")) == text


def test_case_by_rule(copying):
    upper, title = best(copying, "THE DOG SEES A CAT.", "The Dog Sees A Cat.")
    assert upper == "THE DOG SEES A CAT." and title == "The Dog Sees A Cat."
    preparation = Preparation(*copying)
    assert preparation.sentence("A CAT SLEEPS IN PARIS, X@Y.DE").text == "A cat sleeps in Paris, ⟦1⟧"
    assert preparation.sentence("THE DOG SEES A CAT https://x.org").text == "The dog sees a cat ⟦1⟧"
    assert preparation.sentence("See https://x.org/CAT/XQZ or {NAME}").text == "See ⟦1⟧ or ⟦2⟧"
    assert preparation.sentence("The dog and the CAT, a DJ, a XQZ").text == "The dog and the cat, a DJ, a ⟦1⟧"
    assert preparation.sentence("A Cat Sees Us", Glossary.of({"Cat 5": "x"})).text == "A cat sees us"


def test_case_is_that_of_training(copying, trained_on):
    def read(*texts):
        return [Preparation(*copying).sentence(text).text for text in texts]

    assert read("the dog in paris", "THE DOG IN PARIS", "The dog") == [
        "The dog in Paris",
        "The dog in Paris",
        "The dog",
    ]
    trained_on(["lower_case"], has_capitals=False)
    assert read("the dog in paris", "THE DOG IN PARIS") == ["the dog in paris", "the dog in Paris"]
    trained_on(usual_case="lower")
    assert read("The DOG in Paris", "THE DOG", "The Dog Sees") == ["the dog in paris", "the dog", "the dog sees"]
    # The case of an answer is the model's, unless capitals go with capitals.
    assert best(copying, "THE DOG SEES A CAT.")[0].isupper()
    trained_on(["restore_case"])
    assert best(copying, "THE DOG SEES A CAT.") == ["The dog sees a cat."]


def test_case_follows_the_languages(copying, trained_on):
    preparation = Preparation(*copying)
    sentence = preparation.sentence("THE NEW LIGHT IS MINE.", direction=("en", "tr"))
    assert sentence.restore("Yeni ışık benim.")[0] == "YENİ IŞIK BENİM."
    assert "ı" in preparation.sentence("IŞIK AI", direction=("tr", "en")).text.lower()
    # An acronym among letters without case leaves both as they are.
    trained_on(["letters"])
    japanese = Preparation(*copying).sentence("彼はTVを見る。", direction=("ja", "en"))
    assert "TV" in japanese.text and japanese.restore("He watches TV.")[0] == "He watches TV."


def test_rules_that_are_off_change_nothing(copying, trained_on):
    trained_on(RULES)
    texts = [
        "THE DOG",
        "the dog",
        "The dog  sees 🙂 {x} 12",
        "248",
        "- Dogs. A cat.",
        "The Odg Sees NASA “us” ",
        "a\nb",
    ]
    preparation = Preparation(*copying)
    prepared = preparation.prepare(texts)
    assert [text.layout.sentences for text in prepared] == [(text,) for text in texts]
    assert [preparation.sentence(text).input_text for text in texts] == texts
    assert not any(rules_used(preparation, text) for text in prepared)
    assert best(copying, *texts) == best(copying, *texts, raw=True)
    # By name.
    assert best(copying, "The dog sees 🙂 in Paris.", rules=["emoji"]) == ["The dog sees 🙂 in Paris."]
    assert preparation.rules == set() and Preparation(*copying, rules=["all"]).rules == RULES.keys()


def test_rules_used(copying):
    preparation = Preparation(*copying)

    def used(text):
        return rules_used(preparation, *preparation.prepare([text]))

    assert used("The dog sees a cat.") == set()
    assert used("THE DOG x@y.de {x}") == {"upper_case", "restore_case", "links", "placeholders"}
    assert used("- the dog.  A cat\t 12") == {"bullets", "lower_case", "sentences", "spaces", "numbers"}


def test_numbers_that_training_never_showed_are_left_out(copying, trained_on):
    plain = train_tokenizer(SENTENCES * 3, vocab_size=400)
    trained_on(tokenizer=plain)
    assert Preparation(copying[0], plain).sentence("The dog 1234 sees a cat.").text == "The dog sees a cat."


def test_models_without_facts_read_text_as_it_is(copying, monkeypatch):
    """But for links and placeholders, and for sentences if the language is known."""
    model, tokenizer = copying
    monkeypatch.setattr(model.generation_config, ENTRY, None)
    preparation = Preparation(model, tokenizer)
    text = "THE DOG  sees 12 🙂 “us”. A Cat."
    assert preparation.prepare([text])[0].layout.sentences == (text,) and preparation.sentence(text).input_text == text
    assert preparation.sentence("See https://x.org, {x}").text == "See ⟦1⟧, ⟦2⟧"
    assert preparation.sentence("12").input_text == "12"
    monkeypatch.setitem(tokenizer.init_kwargs, "source_lang", "en")
    monkeypatch.setitem(tokenizer.init_kwargs, "target_lang", "de")
    assert len(Preparation(model, tokenizer).prepare([text])[0].sentences) == 2
    # As earlier releases saved them.
    settings = {"source_length": 9, "words": "sees", "capitals": True, "numbers": True, "upper_case": True}
    for name, value in settings.items():
        monkeypatch.setattr(model.generation_config, f"training_{name}", value, raising=False)
    preparation = Preparation(model, tokenizer)
    assert preparation.sentence("the dog sese 12 🙂").text == "The dog sees ⟦1⟧ ⟦2⟧"
    assert preparation.sentence("THE DOG").text == "THE DOG" and preparation.max_length == 9


@looped(
    ("change", "message"),
    [
        ({"version": 2}, "version is 2; this release reads up to 1"),
        ({"version": "1"}, "version is '1'"),
        ({"words": {"": 3}}, "words is {'': 3}; it was edited"),
        ({"rules": {"numbres": {"is_on": True, "why": ""}}}, "rules is"),
        ({"rules": {"numbers": True}}, "rules is"),
        ({"rules": {"numbers": {"is_on": True, "why": ["x"]}}}, "rules is"),
        ({"items": "12"}, "items is '12'"),
        ({"version": True}, "version is True"),
        ({"target_lengths": [[5, 3], [4, 3]]}, "target_lengths is"),
        ({"vocabulary_digest": "0" * 16}, "the tokenizer has another vocabulary"),
        ({"more": 1}, "more is 1; there is no such field"),
        ([], "the entry is"),
    ],
)
def test_facts_that_do_not_fit_the_model(copying, monkeypatch, change, message):
    model, tokenizer = copying
    entry = getattr(model.generation_config, ENTRY)
    with monkeypatch.context() as patch:
        patch.setattr(model.generation_config, ENTRY, change if change == [] else {**entry, **change})
        with pytest.raises(ValueError, match="`text_facts` in the generation settings cannot be used: ") as caught:
            translate(model, tokenizer, ["The dog"])
        assert message in str(caught.value)
        assert best(copying, "The dog sees ⟦1⟧ in Paris.", raw=True) == ["The dog sees ⟦1⟧ in Paris."]


def test_facts_survive_saving_and_new_tokens(copying, trained_on, tmp_path):
    model, tokenizer = copying
    trained_on(["typos"], words={"": "sees"}, target_lengths=[[3, 9], [5, 70]])
    model.save_pretrained(tmp_path)
    settings = GenerationConfig.from_pretrained(tmp_path)
    assert facts_of(settings, tokenizer) == facts_of(model.generation_config, tokenizer)
    more = pickle.loads(pickle.dumps(tokenizer))
    more.add_tokens(["<more>"])
    assert facts_of(settings, more).words == {"": "sees"}


def test_a_translation_that_loops_is_remarked(copying, trained_on):
    model, tokenizer = copying
    trained_on(repeats=2)
    translator = Translator(model, tokenizer)
    (text,) = translator.prepare(["The dog sees"])
    written = [Hypothesis("The dog " * number + "sees") for number in (2, 3)]
    (row,) = translator.restore(text.sentences, [written])
    assert [hypothesis.remarks for hypothesis in row] == [None, ["loop"]]
    # Models of earlier releases do not know what is usual.
    entry = dict(getattr(model.generation_config, ENTRY))
    del entry["repeats"]
    assert TextFacts.from_entry(entry).repeats == 0


def test_outputs_may_be_as_long_as_in_training(copying, trained_on):
    assert OutputLimits(copying[0])(4) == 54
    trained_on(target_lengths=[[3, 9], [5, 100], [9, 20], [30, 300]])
    limit = OutputLimits(copying[0])
    assert limit(4) == limit(2) == 111 and limit(8) == 331 and limit(60) == 661
    eos = copying[1].eos_token_id
    (row,) = translate(*copying, ["The dog sees a cat."], suppress_tokens=[eos])
    assert row[0].remarks == ["limit"] and len(row[0].text) > 300
    (row,) = translate(*copying, ["The dog sees a cat."], suppress_tokens=[eos], max_new_tokens=3)
    assert row[0].remarks == ["limit"]
    assert translate(*copying, ["The dog sees a cat."])[0][0].remarks is None


@looped("text", ["12345", "...", "🙂🙂", "2 + 2 = 4", "https://x.org?", "-", "50 %"])
def test_what_has_no_letters_is_its_own_translation(copying, text):
    ((hypothesis,),) = translate(*copying, [text], with_scores=True, with_alignments=True)
    assert hypothesis.text == text and hypothesis.score == 0
    assert hypothesis.alignment == [(i, i) for i in range(len(text.split()))]
    assert translate(*copying, [text], raw=True)[0][0].text != text or text == "-"


def test_paragraphs(copying, trained_on):
    model, tokenizer = copying
    sentences = ["The dog sees a cat.", "Dogs sleep.", "A cat sleeps in Paris."]
    text = "  ".join(sentences)
    options = {"with_scores": True, "with_alignments": True, "num_beams": 3, "num_hypotheses": 2}
    ((first, second),) = translate(model, tokenizer, [text], **options)
    parts = translate(model, tokenizer, sentences, **options)
    assert first.text == text and second.text == "  ".join(row[1].text for row in parts)
    assert first.score == pytest.approx(sum(row[0].score for row in parts) / 3, rel=1e-4)
    assert first.alignment[5:7] == [(i + 5, k + 5) for i, k in parts[1][0].alignment]
    assert translate(model, tokenizer, [text], split_sentences="never")[0][0].text != text
    trained_on(["sentences"])
    assert best(copying, text) != [text] and best(copying, text, split_sentences="always") == [text]


def test_words_have_the_case_of_training(copying, trained_on):
    trained_on(spellings={"": "Cat Straße"})
    preparation = Preparation(*copying)
    assert preparation.sentence("THE DOG, {x}, SEES A CAT").text == "The dog, ⟦1⟧, sees a Cat"
    assert preparation.sentence("the dog sees a cat").text == "The dog sees a Cat"
    text = "DIE STRASSE, DIE STRASSE {x} SEES {y}"
    sentence = preparation.sentence(text)
    assert sentence.text == "Die Straße, die Straße ⟦1⟧ sees ⟦2⟧"
    assert sentence.restore(sentence.text)[0] == text
    assert edited(sentence.text, sentence.protected.source_edits()) == "Die Straße, die Straße {x} sees {y}"
    assert preparation.sentence("The dog sees a cat").text == "The dog sees a cat"
    trained_on(spellings={"de": "Hand", "en": "hand"})
    preparation = Preparation(*copying)
    assert preparation.sentence("MEINE HAND", direction=("de", "en")).text == "Meine Hand"
    assert preparation.sentence("MY HAND", direction=("en", "de")).text == "My hand"


def test_typos_in_frequent_words_are_corrected(copying, trained_on, caplog):
    trained_on(words={"": "sees sleep dog dogs"}, lookalikes={"": "esses"})
    texts = ["The odg sese a cat.", "the dog sese 🙂 in Paris.", "Dogs slepe. The dog sees a cat."]
    rows = translate(*copying, texts)
    expected = ["The dog sees a cat.", "The dog sees 🙂 in Paris.", "Dogs sleep. The dog sees a cat."]
    assert [row[0].text for row in rows] == expected
    assert all(row[0].remarks == ["corrected"] for row in rows) and "of 3 lines, 3 had typos" in caplog.text
    # Names, terms, and text as it is.
    prepared = Preparation(*copying)
    assert prepared.sentence("The esses seees").text == "The esses sees"
    assert prepared.sentence("THE ODG SEES A Odg").text != prepared.sentence("THE DOG SEES A Dog").text
    for term in ("slepe", "sese/odg", "odg, sese"):
        assert prepared.sentence(f"A Odg, a {term}", Glossary([(term, "x")])).text == f"A Odg, a {term}"
    assert Preparation(*copying, raw=True).sentence("A odg").text == "A odg"


def test_models_of_text_in_capitals_get_it_as_it_is(copying, trained_on):
    trained_on(["upper_case", "acronyms"])
    assert Preparation(*copying).sentence("THE DOG SEES NASA").text == "THE DOG SEES NASA"


def test_sentences_longer_than_in_training_are_cut(copying, trained_on, caplog):
    trained_on(source_length=8)
    rows = translate(*copying, ["The dog sees a cat, the dog sees a cat, dogs sleep.", "Dogs sleep."])
    assert rows[0][0].remarks == ["cut"] and rows[1][0].remarks is None
    assert len(rows[0][0].text) > len("The dog sees a cat.") * 1.5
    assert "of 2 lines, 1 had a sentence longer than any in training" in caplog.text


def test_lines_as_they_are(copying):
    assert best(copying, "The dog sees ⟦1⟧ in Paris.", raw=True) == ["The dog sees ⟦1⟧ in Paris."]
    with pytest.raises(ValueError, match="`protect` is a str; pass a list"):
        translate(*copying, ["a cat"], protect="cat")


def test_suspicious_translations():
    source = "A man in a red shirt rides a bicycle along the street with a dog."
    assert is_suspicious("a", "") and is_suspicious(source, "Ein Mann") and not is_suspicious(source, source[:30])
    assert not is_suspicious("", "") and not is_suspicious("A dog", "x") and not is_suspicious(source, "人" * 10)


def test_terms_of_a_glossary_come_first(copying):
    glossary = Glossary.of({"https://x.org": "the dog", "XQZ": "a cat", "3": "three"})
    (found,) = best(copying, "The dog sees https://x.org in Paris.", glossary=glossary)
    assert found.count("the dog") == 1 and "https" not in found
    preparation = Preparation(*copying)
    assert preparation.sentence("The XQZ sees 13 dogs, 3 {x}", glossary).text == "The XQZ sees ⟦1⟧ dogs, 3 ⟦2⟧"
    assert preparation.sentence("THE XQZ SEES A CAT", glossary).text == "The XQZ sees a cat"
    for text in ("The XQZ sees the dog.", "THE XQZ SEES THE DOG."):
        assert best(copying, text, glossary=glossary)[0].lower().count("a cat") == 1


def test_what_is_not_translated_does_not_count_in_the_score(copying):
    scores = [row[0].score for row in translate(*copying, ["Dogs sleep.", "Dogs sleep. 456."], with_scores=True)]
    assert scores[0] == pytest.approx(scores[1], rel=1e-4) and scores[0] < 0


@looped(
    ("options", "message"),
    [
        ({"protect": [3]}, "3 is a int, not a regular expression"),
        ({"protect": 5}, "`protect` is a int"),
        ({"raw": True, "protect": ["a"]}, "`protect` has no effect with `raw`"),
        ({"raw": True, "rules": ["typos"]}, "`rules` has no effect with `raw`"),
        ({"rules": ["typo"]}, "`rules`: there is no rule 'typo'; did you mean typos"),
        ({"rules": "typos"}, "`rules` is 'typos'; pass a list"),
        ({"rules": {"typos": False}}, "`rules` is {'typos': False}; pass a list"),
        ({"rules": 5}, "`rules` is 5; pass a list"),
        ({"rules": [["typos"]]}, "there is no rule"),
        ({"raw": True, "split_sentences": "always"}, "`raw` does not split sentences"),
        ({"split_sentences": "often"}, "`split_sentences` 'often' is not one of auto, never, always"),
    ],
)
def test_options_that_say_nothing(copying, options, message):
    with pytest.raises(ValueError, match=message):
        translate(*copying, ["a cat"], **options)


@pytest.mark.skipif(TEST_DEVICE != "cpu", reason="forked workers cannot use a GPU, which is the default device here")
@pytest.mark.parametrize("options", [{"num_workers": 1}, {"num_workers": 1, "batch_size": 2}])
def test_workers_of_a_pipeline(copying, options):
    pipe = pipeline("translation", model=copying[0], tokenizer=copying[1])
    texts = ["The dog sees 🙂 in Paris.", "Dogs sleep. A cat 🙂."]
    found = list(pipe((text for text in texts), **options))
    assert [row[0]["translation_text"] for row in found] == texts


def test_what_prepares_texts_can_be_pickled(copying):
    preparation = Preparation(*copying)
    expected = preparation.sentence("THE Café SEES 🙂")
    assert pickle.loads(pickle.dumps(preparation)).sentence("THE Café SEES 🙂") == expected


def test_words_are_numbered_across_sentences():
    layout = TextLayout(("a b", "c", "d"), ("", " ", "", " "))
    rows = [[Hypothesis(text, alignment=[(0, 0)])] for text in ("x", "y z", "w")]
    # There is no white space between c and d, but a space between z and w.
    assert join(layout, rows)[0].text == "x y z w " and join(layout, rows)[0].alignment == [(0, 0), (2, 1), (2, 3)]


def test_alignments_count_the_words_of_the_text(copying):
    preparation = Preparation(*copying)
    sentence = preparation.sentence("The dog `a b c` sees {x} a cat.")
    assert sentence.text == "The dog ⟦1⟧ sees ⟦2⟧ a cat."
    text, links = sentence.restore("⟦2⟧ the ⟦1⟧ dog", [(1, 3), (2, 2), (3, 1), (4, 0)])
    assert text == "{x} the `a b c` dog" and links == [(1, 5), (2, 2), (5, 1), (6, 0)]
    translator = Translator(*copying, with_alignments=True)
    ((aligned,),) = (text.sentences for text in translator.prepare(["The dog `a b c` sees {x} a cat."]))
    whole = translator.restore([aligned], [[Hypothesis(sentence.text)]])
    assert {i for i, _ in whole[0][0].alignment} <= set(range(9))
    as_it_is = Preparation(*copying, raw=True).sentence("a ⟦1⟧ dog")
    found = as_it_is.restore("⟦2⟧ ⟦3⟧. ⟦1⟧ dog ⟦1⟧", [(0, 0), (0, 1), (1, 2), (2, 3), (1, 4)])
    assert found == (". ⟦1⟧ dog", [(0, 0), (1, 1), (2, 2)])
    layout = split_sentences("One two three. Four five!", "en")
    first, second = Hypothesis("x y", alignment=[(0, 1)]), Hypothesis("z", alignment=[(1, 0)])
    assert len(layout.sentences) == 2 and join(layout, [[first], [second]])[0].alignment == [(0, 1), (4, 2)]
    layout = split_sentences("- One two three.\n* Four five!", "en")
    assert join(layout, [[first], [second]])[0].alignment == [(1, 2), (6, 4)]


def test_raw_outputs(copying, trained_on):
    preparation = Preparation(*copying)
    for text in ("The dog sees 🙂 in Paris.", "THE DOG SEES 12:30 IN PARIS.", "The Dog Sees A Cat."):
        sentence = preparation.sentence(text)
        assert preparation.raw_output(sentence, text) == sentence.text
    trained_on(spellings={"de": "Hand", "en": "hand"})
    preparation = Preparation(*copying)
    sentence = preparation.sentence("MY HAND", direction=("en", "de"))
    assert preparation.raw_output(sentence, "MEINE HAND", "de") == "Meine Hand"


def test_typographic_punctuation_that_a_vocabulary_lacks(copying):
    preparation = Preparation(*copying)
    assert preparation.sentence("A cat … sees “us” – now").text == "A cat ... sees “us” - now"
    assert preparation.sentence("A cat sees x–y@z.de").placeholders


def test_typographic_punctuation_that_training_hardly_saw(copying, trained_on):
    text = "A cat sees “us” 🙂"
    # The plain form must have been frequent.
    assert Preparation(*copying).sentence(text).text == "A cat sees “us” ⟦1⟧"
    trained_on(marks='“"')
    sentence = Preparation(*copying).sentence(text)
    assert sentence.text == 'A cat sees “us" ⟦1⟧' and sentence.restore(sentence.text)[0] == 'A cat sees “us" 🙂'


@pytest.mark.parametrize(
    ("text", "given"),
    [
        ("A cat  sees\tus ", "A cat sees us "),
        ("Ａ ﬁne 𝓬𝓪𝓽！", "A fine cat!"),
        ("A cat  1ª 🙂  `a  b`", "A cat ⟦1⟧ ⟦2⟧ ⟦3⟧"),
        ("Café ª", "Café ⟦1⟧"),
    ],
)
def test_text_is_written_as_in_training(copying, given, text):
    sentence = Preparation(*copying).sentence(text)
    assert sentence.text == given
    assert edited(given, sentence.protected.source_edits()).split() == text.split() or not sentence.placeholders


def test_half_width_kana_and_wide_spaces(copying, trained_on):
    japanese = train_tokenizer(["カタカナ ガギグ"] * 3, vocab_size=400)
    trained_on(tokenizer=japanese)
    assert Preparation(copying[0], japanese).sentence("ｶﾀｶﾅ\u3000ｶﾞｷﾞ").input_text == "カタカナ ガギ"


def test_letters_apart_are_noticed_at_the_first_line(caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    tokenizer = train_tokenizer(["cat", "dog", "bird"], algorithm="character")
    model = VanillaTransformerForConditionalGeneration(VanillaTransformerConfig(vocab_size=len(tokenizer), d_model=16))
    for lines, is_warned in ((["c a t", "dog"], True), (["cat", "d o g"], False), (["cat or dog"], False)):
        caplog.clear()
        preparation = Preparation(model, tokenizer)
        for line in lines:
            preparation.prepare([line])
        assert (len(caplog.records) == 1 and "'c a t'" in caplog.text) if is_warned else not caplog.records
    spaced = train_tokenizer(["c a t", "d o g", "b i r d"], algorithm="whitespace")
    Preparation(model, spaced).prepare(["c a t"])
    assert not caplog.records
