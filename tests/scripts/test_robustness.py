"""Changes of text as people type it, and scores of its translations."""

import json
from random import Random

import pytest

import robustness
from hf_vanilla_transformer.data.toy_corpus import load_toy_corpus
from hf_vanilla_transformer.inference.translation import Hypothesis
from tables import looped
from translators import ENGLISH, SPANISH, save_translator

SOURCES = ["A dog runs.", "Two men sit outside!", "It rains.", "Nobody is there."]
REFERENCES = ["Ein Hund läuft.", "Zwei Männer sitzen draußen!", "Es regnet.", "Niemand ist da."]
ITEMS = [name for name, kind in robustness.KINDS.items() if kind.items]


def text_of(name, seed=0, sources=SOURCES):
    return robustness.changed(name, sources, REFERENCES, seed)


@looped(
    ("name", "expected"),
    [
        ("as_it_is", "Two men sit outside!"),
        ("upper_case", "TWO MEN SIT OUTSIDE!"),
        ("title_case", "Two Men Sit Outside!"),
        ("lower_case", "two men sit outside!"),
        ("exclamation", "Two men sit outside!!!"),
        ("no_punctuation", "Two men sit outside"),
    ],
)
def test_changes_without_chance(name, expected):
    assert text_of(name).sources[1] == expected


@looped("name", robustness.KINDS)
def test_the_same_seed_draws_the_same(name):
    assert text_of(name) == text_of(name)
    many = [f"number {i} of many long sentences" for i in range(len(REFERENCES))]
    texts = [text_of(name, seed, many).sources for seed in range(20)]
    assert (texts.count(texts[0]) < 20) == (name in ("typo", "key") or (name in ITEMS and name != "exclamation"))


@looped("name", ITEMS)
def test_each_sentence_gets_one_item(name):
    sources, references, items = text_of(name)
    assert references == REFERENCES and set(items) <= set(robustness.KINDS[name].items)
    for source, item, plain in zip(sources, items, SOURCES, strict=True):
        assert source.count(item) == 1
        if name == "exclamation":
            assert source == plain[:-1] + item
        else:
            assert robustness.without_item(source, item, "") == plain
            assert source.split().index(item) in range(1, len(plain.split()) + (name == "emoji_at_end"))


def test_an_item_never_stands_first():
    places = {robustness.insert("a b c", "X", Random(seed)) for seed in range(20)}
    assert places == {"a X b c", "a b X c"}
    assert robustness.insert("a", "X", Random(0)) == "a X"


def test_two_letters_within_one_word_are_swapped():
    found = {robustness.swap_letters("An elephant, 1234.", "", Random(seed)) for seed in range(200)}
    swapped = ("eelphant", "elpehant", "elehpant", "elepahnt", "elephnat")
    assert found == {f"An {word}, 1234." for word in swapped}
    for text in ("", "a cat", "noon"):
        assert robustness.swap_letters(text, "", Random(0)) == text


def test_a_neighbouring_key_replaces_an_inner_letter():
    assert {robustness.hit_neighbouring_key("A boat, 12.", "", Random(seed)) for seed in range(20)} == {
        f"A {word}, 12." for word in ("biat", "bpat")
    }
    assert robustness.hit_neighbouring_key("a cat", "", Random(0)) == "a cat"


def test_names_are_in_a_script_that_the_text_lacks():
    sources = ["Ольга читает книгу.", "Она здесь.", "Ελένη", "Идёт дождь."]
    for seed in range(10):
        assert not set(robustness.changed("name", sources, REFERENCES, seed).items) & {"Ольга", "Ελένη"}
    every = "".join(robustness.NAMES)
    assert set(robustness.changed("name", [every], ["x"], 0).items) < set(robustness.NAMES)


def test_references_have_the_case_that_is_asked_for():
    assert text_of("upper_case").references[0] == "EIN HUND LÄUFT."
    assert text_of("title_case").references[0] == "Ein Hund Läuft."
    assert text_of("lower_case").references == REFERENCES


@looped("reference, expected", [("y.", "x."), ("y .", "x ."), ("y", "x"), ("y !", "x !")])
def test_final_punctuation_is_spaced_as_in_the_reference(reference, expected):
    assert {robustness.with_final_punctuation(f"x{mark}", "", reference) for mark in ("", " .", "!!!")} == {expected}


def test_three_sentences_on_a_line():
    text = text_of("three_sentences")
    assert text.sources == ["A dog runs. Two men sit outside! It rains."]
    assert text.references == [" ".join(REFERENCES[:3])] and text.items == [""]


def measured(name, translations, plain=REFERENCES):
    texts = {kind: text_of(kind) for kind in (robustness.PLAIN, name)}
    return robustness.measure(texts, {robustness.PLAIN: list(plain), name: translations}, "13a")[name]


@looped("name", robustness.KINDS)
def test_perfect_translations(name):
    """Neither inserted items nor the source's final punctuation count as errors."""
    text = text_of(name)
    if name == "exclamation":
        translations = [f"{reference[:-1]}!!!" for reference in REFERENCES]
    elif name in ITEMS:
        translations = [f"{item} {reference}" for item, reference in zip(text.items, REFERENCES, strict=True)]
    else:
        translations = text.references
    row = measured(name, translations)
    assert row["bleu"] == pytest.approx(100) and row["lowercase_bleu"] == pytest.approx(100)
    assert row["suspicious"] == 0 and row["lines"] == len(text.sources)
    assert row.get("kept") == (len(REFERENCES) if name in ITEMS else None)
    assert row.get("difference") == (None if name == robustness.PLAIN else pytest.approx(0))


def test_items_count_once_and_to_the_letter():
    items = text_of("link").items
    translations = [REFERENCES[0], f"{items[1]} {items[1]}", items[2].upper(), f"Niemand {items[3]} ist da."]
    assert measured("link", translations)["kept"] == 1


def test_the_difference_ignores_case():
    row = measured("upper_case", REFERENCES)
    assert row["bleu"] < 20 and row["lowercase_bleu"] == pytest.approx(100) and row["difference"] == pytest.approx(0)
    assert measured("lower_case", ["ein hund", *REFERENCES[1:]])["difference"] < -5


def test_three_on_a_line_are_compared_with_the_same_one_by_one():
    (line,) = text_of("three_sentences").references
    wrong = ["Falsch hier.", *REFERENCES[1:3], "Auch falsch und nicht in einer Zeile."]
    assert measured("three_sentences", [" ".join(wrong[:3])], wrong)["difference"] == pytest.approx(0)
    assert measured("three_sentences", [line], wrong)["difference"] > 5


def test_empty_and_short_translations_and_loops_are_suspicious():
    assert measured("lower_case", [" ", "Zwei Mä", "Es regnet", "Niemand"])["suspicious"] == 1
    assert measured("lower_case", ["Ein", "Zwei", "Es", "Niemand"])["suspicious"] == 3
    loops = ["Ein Hundundundundundund.", "Zwei Männnnner", "sehr sehr sehr sehr sehr müde", "ha ha ha ha da"]
    assert measured("lower_case", loops)["suspicious"] == 3


def test_the_table_has_means_and_extremes():
    rows = [
        {"as_it_is": {"lines": 4, "bleu": bleu, "lowercase_bleu": bleu + 1, "suspicious": 0}}
        | {"link": {"lines": 4, "bleu": 1, "lowercase_bleu": 2, "difference": -bleu, "kept": kept, "suspicious": 1}}
        for bleu, kept in ((30, 1), (32, 4))
    ]
    header = "| text | BLEU | lower-cased | difference | items kept | suspicious |\n|---|---:|---:|---:|---:|---:|\n"
    link = "link or address in the middle"
    assert robustness.table(rows[:1]) == (
        f"{header}| as it is | 30.0 | 31.0 |  |  | 0 of 4 |\n| {link} | 1.0 | 2.0 | -30.0 | 1 of 4 | 1 of 4 |"
    )
    assert robustness.table(rows).splitlines()[2:] == [
        "| as it is | 31.0 (30.0 to 32.0) | 32.0 (31.0 to 33.0) |  |  | 0 (0 to 0) of 4 |",
        f"| {link} | 1.0 (1.0 to 1.0) | 2.0 (2.0 to 2.0) | -31.0 (-32.0 to -30.0) | 2 (1 to 4) of 4 "
        "| 1 (1 to 1) of 4 |",
    ]


@pytest.fixture
def words(tmp_path, monkeypatch):
    """Command-line arguments, in a folder with a model and text."""
    monkeypatch.chdir(tmp_path)
    save_translator("shared", tmp_path / "model")
    (tmp_path / "source").write_text("\n".join([*ENGLISH[:4], " "]), encoding="utf-8")
    (tmp_path / "reference").write_text("\n".join([*SPANISH[:4], " "]), encoding="utf-8")
    return ["--source", "source", "--reference", "reference", "--model"]


def test_models_are_measured_and_printed(words, tmp_path, capsys):
    save_translator("learned", tmp_path / "other")
    robustness.main([*words, "model", "other", "--kinds", "three_sentences", "link", "--output", "rows.json"])
    printed = capsys.readouterr()
    titles = [line.split(" | ")[0] for line in printed.out.splitlines()[2:]]
    assert titles == ["| as it is", "| link or address in the middle", "| three sentences on a line"]
    assert " to " in printed.out.splitlines()[2]
    assert printed.err.endswith("translating with model\ntranslating with other\n")
    content = json.loads((tmp_path / "rows.json").read_text(encoding="utf-8"))
    assert content["texts"]["as_it_is"]["sources"] == ENGLISH[:4] and not content["raw"]
    for name in ("model", "other"):
        found = content["models"][name]
        assert found["rows"].keys() == found["translations"].keys() == {"as_it_is", "link", "three_sentences"}
        assert found["rows"]["link"]["lines"] == 4 and found["rows"]["three_sentences"]["lines"] == 1


def test_a_direction_of_several(words, tmp_path, monkeypatch, refused):
    save_translator("multilingual", tmp_path / "many")
    calls = []

    def translate(model, tokenizer, sentences, **options):
        calls.append(options)
        return [[Hypothesis(sentence)] for sentence in sentences]

    monkeypatch.setattr(robustness, "translate", translate)
    words = [*words, "many", "--kinds", "lower_case"]
    robustness.main([*words, "--target_lang", "de"])
    assert calls[0]["src_lang"] == "en" and calls[0]["tgt_lang"] == "de"
    assert "choose one with --source_lang and --target_lang" in refused(robustness.main, words)


def test_the_test_pairs_of_the_built_in_corpus(words, tmp_path):
    options = ["--kinds", "lower_case", "--max_sentences", "2", "--tokenize", "char", "--output", "rows.json"]
    robustness.main(["--toy_corpus", "--model", "model", *options])
    content = json.loads((tmp_path / "rows.json").read_text(encoding="utf-8"))
    assert content["texts"]["as_it_is"]["sources"] == load_toy_corpus(1, num_validation=1)["test"]["source"][:2]
    assert content["models"]["model"]["bleu_tokenize"] == "char"


def test_a_card_gets_the_table_once(words, tmp_path, monkeypatch, capsys):
    card = tmp_path / "model" / "README.md"
    card.write_text("# model\n\n## Results\n\nNone.\n\n## Training\n\nOne step.\n", encoding="utf-8")
    for kind in ("upper_case", "link"):
        monkeypatch.setattr(
            "sys.argv", ["scripts/robustness.py", *words, "model", "--kinds", kind, "--card", str(card)]
        )
        robustness.main()
        rows = capsys.readouterr().out
    before, section = card.read_text(encoding="utf-8").split("## Text as people type it\n\n")
    assert before == "# model\n\n## Results\n\nNone.\n\n"
    assert section.startswith(f"{rows}\n```sh\npython scripts/robustness.py --source source")
    assert section.endswith("\n```\n\n## Training\n\nOne step.\n")


def test_options_of_the_search(words, monkeypatch, capsys):
    calls = []

    def translate(model, tokenizer, sentences, **options):
        calls.append((list(sentences), options))
        return [[Hypothesis(sentence)] for sentence in sentences]

    monkeypatch.setattr(robustness, "translate", translate)
    robustness.main([*words, "model", "--kinds", "lower_case", "--max_sentences", "2"])
    robustness.main([*words, "model", "--kinds", "lower_case", "--num_beams", "3", "--raw"])
    assert [len(sentences) for sentences, _ in calls] == [4, 8]
    assert calls[0][1]["num_beams"] == 1 and not calls[0][1].get("raw")
    assert calls[1][1]["num_beams"] == 3 and calls[1][1]["raw"] is True


@looped(
    ("words_given", "message"),
    [
        (["--max_sentences", "0"], "--max_sentences is 0; it must be positive"),
        (["--max_sentences", "2"], "--kinds three_sentences needs 3 sentences, but there are 2; give more"),
        (["--tokenize", "14a"], "--tokenize 14a is unknown"),
        (["--kinds", "shouting"], "invalid choice: 'shouting'"),
        (["--output", "reference"], "--output reference is the input reference and would replace it"),
        (["--output", "model/config.json"], "is the input model/config.json and would replace it"),
        (["--models", "model", "model"], "--models contains duplicates; name each model once"),
        (["--card", "reference"], "reference: no section `## Training`; use a card that training wrote"),
        (["--card", "none.md"], "none.md: not a readable model card"),
        (["--card", "card.md", "--output", "card.md"], "--output card.md is the input card.md and would replace it"),
        (["--toy_corpus"], "--source and --toy_corpus are both given; keep one of them"),
        (["--source", "short"], "short has 1 lines but reference has more"),
        (["--source", "empty", "--reference", "empty"], "empty and empty hold no sentences; name files with text"),
    ],
)
def test_what_it_refuses(words_given, message, words, tmp_path, refused):
    (tmp_path / "short").write_text("a cat\n", encoding="utf-8")
    (tmp_path / "empty").write_text("\n", encoding="utf-8")
    (tmp_path / "card.md").write_text("## Training\n", encoding="utf-8")
    assert message in refused(robustness.main, [*words, "model", *words_given])
