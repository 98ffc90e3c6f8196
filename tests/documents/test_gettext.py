import polib
import pytest

from hf_vanilla_transformer.documents import open_document
from tables import looped

PO = r"""# Comment
msgid ""
msgstr ""
"Content-Type: text/plain; charset=UTF-8\n"
"Language: en\n"
"Plural-Forms: nplurals=3; plural=(n%10==1 ? 0 : 1);\n"

#: a.c:1
#, c-format
msgctxt "menu"
msgid "A \"dog\" %s\n"
"runs\n"
msgstr ""

msgid "Done"
msgstr ""
  "Fer"
"tig"

#, fuzzy
msgid "Old"
msgstr "Alt"

msgid "one dog"
msgid_plural "two dogs"
msgstr[0] "ein Hund"
msgstr[1] ""

#, fuzzy
#~ msgid "Gone"
#~ msgstr ""
"""


def filled(document, translate=str):
    return document.render([segment.fill(translate(segment.text)) for segment in document.segments])


def test_only_messages_without_translation_get_one():
    document = open_document(PO, "po", target_lang="de")
    assert [segment.text for segment in document.segments] == ['A "dog" %s', "runs", "one dog", "two dogs"]
    for _ in range(2):
        rendered = filled(document, "<{}>\0".format)
        entries = {entry.msgid: entry for entry in polib.pofile(rendered)}
        assert entries['A "dog" %s\nruns\n'].msgstr == '<A "dog" %s>\0\n<runs>\0\n'
        assert entries["Done"].msgstr == "Fertig" and entries["Old"].fuzzy and entries["Gone"].obsolete
        forms = entries["one dog"].msgstr_plural
        assert forms == {0: "ein Hund", 1: "<two dogs>\0", 2: "<two dogs>\0"}
        assert polib.pofile(rendered).metadata["Language"] == "de"


@looped("line_end", ["\n", "\r\n"])
def test_all_else_stays_byte_for_byte(line_end):
    content = PO.replace("\n", line_end)
    changed = content.replace('runs\\n"\nmsgstr ""\n'.replace("\n", line_end), "").replace(f'[1] ""{line_end}', "")
    rendered = filled(open_document(content.encode(), "po")).decode()
    added = 'runs\\n"\nmsgstr ""\n"A \\"dog\\" %s\\n"\n"runs\\n"\n'.replace("\n", line_end)
    forms = f'[1] "two dogs"{line_end}msgstr[2] "two dogs"{line_end}'
    assert added in rendered and forms in rendered
    assert rendered.replace(added, "").replace(forms, "") == changed
    # Nothing is left to translate.
    assert filled(open_document(rendered.encode(), "po", target_lang="fr")) == rendered.encode()


def test_flags_of_an_obsolete_message_are_its_own():
    (segment,) = open_document(PO + '\nmsgid "New"\nmsgstr ""', "po").segments[4:]
    assert segment.text == "New"


def test_a_template_has_as_many_forms_as_msgstr():
    content = 'msgid "a"\nmsgid_plural "b"\nmsgstr[0] ""\nmsgstr[1] ""'
    document = open_document(content, "po")
    assert document.render(["x", "y"]) == 'msgid "a"\nmsgid_plural "b"\nmsgstr[0] "x"\nmsgstr[1] "y"\n'


HEADER = 'msgid ""\nmsgstr "Content-Type: text/plain; charset={}\\n"\n'


@looped("charset, word", [("ISO-8859-1", "café"), ("CP1251", "собака"), ("EUC-JP", "犬"), ("big5", "狗")])
def test_files_keep_the_charset_that_they_declare(charset, word):
    content = HEADER.format(charset) + f'\n# {word}\nmsgid "{word} 1"\nmsgstr ""\n'
    document = open_document(content.encode(charset), "po")
    assert [segment.text for segment in document.segments] == [f"{word} 1"]
    assert document.render([word]) == content.replace('1"\nmsgstr ""', f'1"\nmsgstr "{word}"').encode(charset)
    # A translation outside the charset makes it UTF-8.
    rendered = document.render(["ħ \U0001f642"]).decode()
    assert rendered == content.replace('1"\nmsgstr ""', '1"\nmsgstr "ħ \U0001f642"').replace(charset, "UTF-8")


@pytest.mark.parametrize(
    "header, expected",
    [
        ("", "Language: de\n"),
        ("Language: \n", "Language: de\n"),
        ("X: y\nLanguage: en_US\n", "X: y\nLanguage: de\n"),
        ("Language: de_AT\n", "Language: de_AT\n"),
        ("X: y", "X: y\nLanguage: de\n"),
        ("Content-Type: text/plain; charset=CHARSET\n", "Content-Type: text/plain; charset=UTF-8\nLanguage: de\n"),
    ],
)
def test_the_header_names_language_and_charset(header, expected):
    escaped = header.replace("\n", "\\n")
    content = f'# x\nmsgid ""\nmsgstr "{escaped}"\n\nmsgid "a"\nmsgstr ""\n'
    rendered = open_document(content, "po", target_lang="de").render(["b"])
    assert rendered.startswith('# x\nmsgid ""\nmsgstr "')
    facts = dict(line.split(": ") for line in expected.splitlines())
    assert polib.pofile(rendered.replace("# x\n", "")).metadata == facts


def test_a_missing_header_is_added_where_required():
    assert open_document('msgid "a"\nmsgstr ""\n', "po").render(["b"]) == 'msgid "a"\nmsgstr "b"\n'
    rendered = open_document('msgid "a"\nmsgstr ""\n', "po", target_lang="de").render(["ß"])
    file = polib.pofile(rendered)
    assert file.metadata == {"Language": "de", "Content-Type": "text/plain; charset=UTF-8"}
    assert file.find("a").msgstr == "ß"
