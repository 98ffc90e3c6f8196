import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuzzing import texts
from hf_vanilla_transformer.errors import DataError
from hf_vanilla_transformer.text.protection import (
    ITEMS as PATTERNS,
)
from hf_vanilla_transformer.text.protection import (
    PLACEHOLDERS,
    Protector,
    edited,
    moved,
    protect_pair,
    read_patterns,
    with_placeholders,
)
from tables import looped

ITEMS = [
    "https://example.org/a?b=c&d=(e)", "www.example.org", "HTTP://EXAMPLE.ORG", "ann.lee+x@mail.example.co.uk",
    "{name}", "{{ user.name }}", "${x}", "%1$s", "%(count)d", "%.2f", "<b>", '<a href="x > y">', "&nbsp;", "`ls -l`",
    "foo_bar", "os.getcwd()", "@ann", "#Dogs",
    "example.org", "Example.com.au:80/a?b=c", "my-report_2.final.PDF", "Node.js", "C++", "F#",
    "C:\\Users\\Ann\\Lee.txt", "~/.local/bin", "../x/y", "/usr/lib/x.so",
    "12345", "-3.5", "1,000.50", "12/05/2020", "2020-05-12T10:00:00Z", "10:30", "5%",
    "$5.99", "-£3", "5 €", "20°C", "3:30pm", "5kg", "100m²",
    "{n, plural, =0 {no dog} other {{n} dogs}}", "{ who,select, a{he} other{they} }",
    "{who, select, a {{n, plural, one {his dog} other {his {n, number} dogs}}} other {{n, plural, other {a 'dog'}}}}",
    "{n, plural, offset:1 =0 {'}' no} one {a dog''s} other {the dogs' '{n}'}}", "{a.length,plural,\nother {#\ndogs}}",
    "{n, number}", "{d, date, short}", "{0, time, ::jmm}", "{ name }",
    "🙂", "👨‍👩‍👧", "❤️", "🇩🇪", "1️⃣", "⟦1⟧",
]  # fmt: skip  # one per line would be no clearer
LONG = 20_000


def found(text, **options):
    return [text[start:end] for start, end in Protector(**options).spans(text)]


def protected_text(text, placeholders):
    return with_placeholders(text, Protector().spans(text), placeholders)


@looped("item", ITEMS)
@looped("text", ["A dog {} runs.", "{} a dog", "A dog {}.", "See ({}), dogs", "“{}”!"])
def test_items_wherever_they_stand(item, text):
    assert found(text.format(item)) == [item]


@looped("item", [":-)", ";)", ":D", ":'(", "xDD", "<3", "\\o/", "^_^"])
@looped("text", ["A dog {} runs.", "{} a dog", "A dog. {}", "A dog {}."])
def test_emoticons_stand_alone(item, text):
    assert found(text.format(item)) == [item] and found(f"A dog{item}", kinds={*PATTERNS} - {"numbers"}) == []


@looped(
    "text",
    [
        "A 2nd dog's A4 page, AT&T and R&D: 50 cents'", "5 < 6 > 4", "he/she, and/or", "a %", "a < b > c", "5<a",
        "It`s a dog and it`s big.", "80er, 5kgs, 2x",
        "he/she/it and /or/", "at 10:(", "the end.It is. See e.g. no.come", "Tom:D", "(a:b) =", "i.e.",
        "{cat, dog}", "{a cat}", "{pick, select}",
        "a :Dance", "``A dog'' , he said , ``and a cat", "x<y then a dog and z>w",
    ],
)  # fmt: skip  # one per line would be no clearer
def test_words_quotes_and_comparisons_are_no_items(text):
    assert all(re.fullmatch(r"\d+", each) for each in found(text))


def test_numbers_patterns_and_what_a_vocabulary_lacks():
    assert found("12 dogs see x@y.de", kinds={*PATTERNS} - {"numbers"}) == ["x@y.de"]
    assert found("EL NI\u00d1O \u0394", is_known="el nio\u00f1".__contains__) == ["\u0394"]
    assert found("Ann Lee has 2 dogs", patterns=[re.compile("Ann Lee"), re.compile("Lee has")]) == ["Ann Lee", "2"]
    assert found("Zoë and Иван, 犬が走る ☭", is_known=lambda c: c in "が走る") == ["Zoë", "Иван", "犬", "☭"]


@pytest.mark.parametrize("placeholders", [PLACEHOLDERS, PLACEHOLDERS[:1], ()])
def test_what_is_put_back(placeholders):
    for text in [*ITEMS, " ".join(ITEMS), "A dog 🙂 runs (https://x.org), see 🙂🙂."]:
        protected = protected_text(text, placeholders)
        assert edited(protected.text, protected.source_edits()) == text
        translation, _ = protected.restore(protected.text)
        assert all(translation.count(item.text) >= 1 for item in protected.items)


@settings(max_examples=300, derandomize=True, database=None, deadline=None)
@given(st.lists(st.one_of(st.sampled_from(ITEMS), texts()), max_size=6), st.integers(0, 9), texts())
def test_every_item_is_kept_once_whatever_the_translation(parts, count, translation):
    text = " ".join(parts)
    protected = protected_text(text, PLACEHOLDERS[:count])
    assert edited(protected.text, protected.source_edits()) == text
    words = range(len(translation.split()))
    result, links = protected.restore(translation, [(0, word) for word in words] if protected.text.strip() else [])
    assert all(item.text in result for item in protected.items)
    assert all(0 <= source < len(text.split()) and 0 <= target < len(result.split()) for source, target in links)


@settings(max_examples=300, derandomize=True, database=None, deadline=None)
@given(
    st.lists(st.sampled_from(["dog", "cat", "{}", "({})", "{},"]), min_size=1, max_size=12),
    st.lists(
        st.sampled_from(["Hund", "Katze", *map("⟦{}⟧".format, range(1, 12)), "⟦1⟧⟦2⟧", "⟦3⟧.", "."]), max_size=12
    ),
    st.sampled_from([0, 2, 9]),
)
def test_no_placeholder_stays(parts, translation, count):
    names = [f"{{x{number}}}" for number in range(len(parts))]
    text = " ".join(map(str.format, parts, names))
    protected = protected_text(text, PLACEHOLDERS[:count])
    words = protected.text.split()
    for links in ([], [(i % len(words), i) for i in range(len(translation) if words else 0)]):
        result, _ = protected.restore(" ".join(translation), links)
        assert all(result.count(name) == 1 for name in names if name in text)
        assert "⟦" not in result and "⟧" not in result and "  " not in result and result.strip() == result


def test_places_without_a_placeholder():
    protected = protected_text("A dog https://x.org sleeps, 🙂.", ())
    assert protected.text == "A dog sleeps,."
    links = [(0, 0), (1, 2), (2, 1)]
    assert protected.restore("Ein schläft Hund.", links)[0] == "Ein schläft Hund https://x.org 🙂."
    middle = protected_text("Dogs, a cat, 🙂 sleep", ())
    links = [(0, 0), (2, 1), (3, 2)]
    assert middle.restore("Hunde, Katze schlafen", links)[0] == "Hunde, Katze 🙂 schlafen"
    again = protected_text("A dog 🙂 sleeps", PLACEHOLDERS)
    # The links of the words that leave with a placeholder do, too.
    links = [(1, 0), (2, 1), (2, 2), (2, 3), (3, 4)]
    assert again.restore("Hund ⟦1⟧ ⟦1⟧ ⟦2⟧ x", links) == ("Hund 🙂 x", [(1, 0), (2, 1), (3, 2)])
    assert moved("Hund ⟦1⟧ x", [(5, 8, "a b c")]) == {0: 0, 1: 1, 2: 4}


def test_placeholders_of_the_text_itself_are_not_used_again():
    protected = with_placeholders("⟦1⟧ sees {x}", [(9, 12)])
    assert protected.text == "⟦1⟧ sees ⟦2⟧" and protected.restore("⟦2⟧ sieht ⟦1⟧")[0] == "{x} sieht ⟦1⟧"
    assert with_placeholders("{x} sees ⟦1⟧", [(0, 3), (9, 12)]).placeholders == ("⟦1⟧", "⟦2⟧")


def test_items_stay_apart_as_they_were():
    protected = protected_text("Call 112 {a} at https://a.b/c today 15 times (x 🙂)", PLACEHOLDERS)
    glued = "Ruf⟦1⟧⟦2⟧an⟦3⟧⟦4⟧ ⟦5⟧)"
    assert protected.restore(glued)[0] == "Ruf 112 {a} an https://a.b/c 15 🙂)"
    together = protected_text("a5{x}b", PLACEHOLDERS)
    assert together.restore(together.text)[0] == "a5{x}b"
    ends = protected_text("See {a} and {b} dogs", PLACEHOLDERS)
    assert ends.restore("Hunde.⟦2⟧ (⟦1⟧)")[0] == "Hunde. {b} ({a})"
    codes = protected_text("See {a} {b} dogs", PLACEHOLDERS[:1])
    assert codes.restore("⟦1⟧ Hunde", [(1, 0), (2, 1)])[0] == "{a} {b} Hunde"
    brackets = with_placeholders("((x)) y", [(2, 3), (4, 5)], ())
    assert edited(brackets.text, brackets.source_edits()) == "((x)) y"


def test_patterns_within_links_and_accents_of_their_own():
    link = "https://a.b/3"
    assert found(f"Ann reads {link} today", patterns=[re.compile("a.b"), re.compile("Ann")]) == ["Ann", link]
    known = set("Acafeitsn. ")
    assert found("A cafe\u0301 is. x\u0301", is_known=known.__contains__) == ["cafe\u0301", "x\u0301"]


def test_pairs_have_placeholders_for_what_both_have():
    protector = Protector()
    source, target = protect_pair("In 1999, 7 dogs at https://x.org", "7 Hunde 1999 in https://x.org", protector)
    assert (source, target) == ("In ⟦1⟧, ⟦2⟧ dogs at ⟦3⟧", "⟦2⟧ Hunde ⟦1⟧ in ⟦3⟧")
    assert protect_pair("5 dogs `a b`", "fünf Hunde `a b`", protector) == ("5 dogs `a b`", "fünf Hunde `a b`")
    many = " ".join(str(number) for number in range(20, 40))
    assert protect_pair(many, many, protector)[0].count("⟦") == len(PLACEHOLDERS)


@looped(
    "text",
    [
        *(character * LONG for character in "`a{$%@❤<-"),
        "a." * LONG,
        "a_" * LONG,
        "1," * LONG,
        "https://" * LONG,
        "<a " + "'" * LONG,
        "a@" + "b." * LONG,
        "x." * LONG + "(",
        "%(" * LONG,
        "{n,plural,a{b}" * LONG,
        "{n,plural,a{'y'}" * LONG,
        "{n,plural,a{'{" * LONG,
        "{n,select,a{''" + "{'{" * LONG,
        "{n,number," * LONG,
        "❤\u200d" * LONG,
        "https://x" + "." * LONG,
    ],
)
def test_time_is_linear(text):
    protector = Protector()
    seconds = []
    for part in (text[: len(text) // 4], text):
        start = time.perf_counter()
        protector.spans(part)
        seconds.append(time.perf_counter() - start)
    assert seconds[1] < 10 * seconds[0] + 0.05, "four times the text would take sixteen times as long"


def test_many_missing_items_take_linear_time():
    seconds = []
    for count in (5_000, 20_000):
        protected = with_placeholders(text := "A dog " + "{x}. " * count, Protector().spans(text), ())
        start = time.perf_counter()
        protected.restore("Ein Hund.")
        seconds.append(time.perf_counter() - start)
    assert seconds[1] < 10 * seconds[0] + 0.05, "four times the items would take sixteen times as long"


def test_files_of_patterns(tmp_path):
    path = tmp_path / "names.txt"
    path.write_text("Ann( Lee)?\n\n[A-Z]{3}-\\d+\n", encoding="utf-8")
    assert [pattern.pattern for pattern in read_patterns(path)] == ["Ann( Lee)?", "[A-Z]{3}-\\d+"]
    for wrong, message in [
        ("a(", "line 2: 'a\\(' is not a valid regular expression"),
        ("x*", "line 2: 'x\\*' matches the empty string"),
        ("x{99999999999}", "line 2: 'x\\{9+}' is not a valid regular expression: the repetition number is too large"),
        ("(" * 3000 + "x" + ")" * 3000, "line 2: '\\({10}.* is not a valid regular expression: maximum recursion"),
    ]:
        path.write_text(f"Ann\n{wrong}\n", encoding="utf-8")
        with pytest.raises(DataError, match=message):
            read_patterns(path)
