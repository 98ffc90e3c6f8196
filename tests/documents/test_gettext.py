import polib

from hf_vanilla_transformer.documents import open_document

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
msgstr "Fertig"

#, fuzzy
msgid "Old"
msgstr "Alt"

msgid "one dog"
msgid_plural "two dogs"
msgstr[0] "ein Hund"
msgstr[1] ""

#~ msgid "Gone"
#~ msgstr ""
"""


def test_only_messages_without_translation_get_one():
    document = open_document(PO, "po", target_lang="de")
    assert [segment.text for segment in document.segments] == ['A "dog" %s', "runs", "one dog", "two dogs"]
    for _ in range(2):
        rendered = document.render([segment.fill(f"<{segment.text}>\0") for segment in document.segments])
        entries = {entry.msgid: entry for entry in polib.pofile(rendered)}
        assert entries['A "dog" %s\nruns\n'].msgstr == '<A "dog" %s>\0\n<runs>\0\n'
        assert entries["Done"].msgstr == "Fertig" and entries["Old"].fuzzy and entries["Gone"].obsolete
        forms = entries["one dog"].msgstr_plural
        assert forms == {0: "ein Hund", 1: "<two dogs>\0", 2: "<two dogs>\0"}
        assert polib.pofile(rendered).metadata["Language"] == "de"


def test_line_ends_and_all_else_stay():
    content = PO.replace("\n", "\r\n").encode()
    document = open_document(content, "po")
    rendered = document.render([""] * len(document.segments))
    assert rendered.count(b"\n") == rendered.count(b"\r\n") and b"#, c-format\r\n" in rendered
    before, after = polib.pofile(PO), polib.pofile(rendered.decode().replace("\r\n", "\n"))
    assert [(each.msgid, each.msgctxt, each.comment) for each in after] == [
        (each.msgid, each.msgctxt, each.comment) for each in before
    ]
    assert after.metadata == before.metadata


def test_a_template_has_as_many_forms_as_msgstr():
    content = 'msgid "a"\nmsgid_plural "b"\nmsgstr[0] ""\nmsgstr[1] ""\n'
    document = open_document(content, "po")
    (entry,) = polib.pofile(document.render(["x", "y"]))
    assert entry.msgstr_plural == {0: "x", 1: "y"}
