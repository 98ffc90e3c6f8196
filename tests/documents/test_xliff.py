from xml.etree import ElementTree

from hf_vanilla_transformer.documents import open_document
from tables import looped

XLIFF_1 = """<?xml version="1.0" encoding="UTF-8"?>
<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2">
 <!-- <source>no</source> -->
 <file original="a" source-language="en" target-language="fr" datatype="html">
  <body>
   <trans-unit id="1">
    <source>A <g id="1">red</g> dog &amp; <x id="2"/> a <bpt id="3">&lt;b></bpt>cat<ept id="3">&lt;/b></ept>.</source>
    <alt-trans><source>No</source><target>Nein</target></alt-trans>
   </trans-unit>
   <trans-unit id="2"><source>Done</source><target state="translated">Fertig</target></trans-unit>
   <trans-unit id="3"><source>New</source>
    <target xml:lang="de" state="new">New</target></trans-unit>
   <trans-unit id="4" translate="no"><source>No</source></trans-unit>
   <trans-unit id="5" approved="yes"><source>Yes</source></trans-unit>
   <trans-unit id="6"><source>Empty<x id="1" ctype="lb"/></source><target/></trans-unit>
   <trans-unit id="7"><source>12</source></trans-unit>
   <trans-unit id="8"><source><![CDATA[a < b]]> <mrk mtype="protected">X</mrk></source></trans-unit>
  </body>
 </file>
</xliff>
"""
XLIFF_2 = """<xliff xmlns="urn:oasis:names:tc:xliff:document:2.0" version="2.0" srcLang="en" trgLang="fr">
 <file id="f"><unit id="u">
  <segment state="initial">
   <source>A <pc id="1">red</pc> dog<ph id="2"/> <sc id="3"/>runs<ec startRef="3"/></source>
  </segment>
  <ignorable><source> x </source></ignorable>
  <segment state="final"><source>Done</source><target>Fertig</target></segment>
 </unit><unit id="v" translate="no"><segment><source>No</source></segment></unit></file>
</xliff>
"""


def filled(content, links=(), **options):
    document = open_document(content, "xliff", **options)
    return document.render([segment.fill(segment.text.upper(), links) for segment in document.segments])


def test_version_1_2():
    document = open_document(XLIFF_1, "xliff")
    assert [segment.text for segment in document.segments] == ["A red dog & ⟦1⟧ a cat.", "New", "Empty", "a < b ⟦1⟧"]
    rendered = filled(XLIFF_1.encode(), [(i, i) for i in range(7)], target_lang="de").decode()
    state = 'state="needs-review-translation" state-qualifier="mt-suggestion"'
    for expected in (
        f'<target {state}>A <g id="1">RED</g> DOG &amp; <x id="2"/> A '
        '<bpt id="3">&lt;b></bpt>CAT<ept id="3">&lt;/b></ept>.</target>\n    <alt-trans>',
        f'<target xml:lang="de" {state}>NEW</target>',
        f'<source>Empty<x id="1" ctype="lb"/></source><target {state}>EMPTY<x id="1" ctype="lb"/></target>',
        f"<source>12</source><target {state}>12</target>",
        f'<target {state}>A &lt; B <mrk mtype="protected">X</mrk></target>',
        'target-language="de"',
    ):
        assert expected in rendered
    assert rendered.count("<target") == 7
    ElementTree.fromstring(rendered)


def test_version_2():
    rendered = filled(XLIFF_2, [(i, i) for i in range(6)], target_lang="de")
    target = 'A <pc id="1">RED</pc> DOG<ph id="2"/> <sc id="3"/>RUNS<ec startRef="3"/>'
    expected = XLIFF_2.replace('"initial"', '"translated"').replace('trgLang="fr"', 'trgLang="de"')
    expected = expected.replace("\n  </segment>\n  <i", f"\n   <target>{target}</target>\n  </segment>\n  <i")
    assert rendered == expected
    ElementTree.fromstring(rendered)


def test_control_characters_are_left_out():
    document = open_document(XLIFF_2, "xliff")
    ElementTree.fromstring(document.render([segment.fill("\0a\x1b <&>") for segment in document.segments]))


def test_messages_do_not_break_pairs():
    document = open_document(XLIFF_2.replace("dog", "{n, plural, other {<pc>a}} b</pc>"), "xliff")
    for translation in ("", "⟦1⟧", "⟦2⟧ ⟦1⟧"):
        ElementTree.fromstring(document.render([each.fill(translation) for each in document.segments]))


@looped(
    "source, text",
    [
        ('a <sm id="1" translate="no"/>Foo <sm id="2"/>x<em startRef="2"/><em startRef="1"/> b', "a ⟦1⟧ b"),
        ('a <sm id="1" translate="no"/>Foo', "a ⟦1⟧"),
        ('a <sm id="1" translate="no"/>Foo <pc id="2">x<em startRef="1"/> y</pc> b', "a ⟦1⟧ b"),
        ('a <pc id="2">b <sm id="1" translate="no"/>Foo</pc> x<em startRef="1"/> c', "a b ⟦1⟧⟦2⟧ c"),
        ('a <sm id="1"/>b<em startRef="1"/>', "a b"),
        (
            'a <sm id="1" translate="no"/>b <sm id="2" translate="no"/>x<em startRef="1"/> y <em startRef="2"/>c',
            "a ⟦1⟧c",
        ),
        ('a <mrk id="3" translate="no">b <sm id="1" translate="no"/>x</mrk> y<em startRef="1"/> c', "a ⟦1⟧ c"),
        ('a <pc id="2">b <sm id="1" translate="no"/>Foo</pc><em startRef="1"/> c', "a b ⟦1⟧ c"),
    ],
)
def test_untranslatable_ranges(source, text):
    document = open_document(f"<xliff><segment><source>{source}</source></segment></xliff>", "xliff")
    (segment,) = document.segments
    assert segment.text == text
    assert f"<target>{source}</target>" in document.render([segment.fill(text, [(i, i) for i in range(9)])])
    ElementTree.fromstring(document.render([segment.fill("⟦2⟧ ⟦1⟧")]))


def test_untranslatable_ranges_go_on_in_the_next_segment():
    sources = [
        'a <sm id="1" translate="no"/>Foo',
        "",
        "Bar",
        'x<em startRef="1"/> b',
        '<sm id="1" translate="no"/>Foo',
    ]
    segments = "".join(f"<segment><source>{each}</source><target/></segment>" for each in sources)
    document = open_document(f"<xliff><unit>{segments}</unit><unit>{segments}</unit></xliff>", "xliff")
    assert [segment.text for segment in document.segments] == ["a ⟦1⟧", "⟦1⟧ b"] * 2


@looped(
    "opening, closing",
    [
        ('<sc id="1"/>', '<ec startRef="1"/>'),
        ('<bx id="1"/>', '<ex id="1"/>'),
        ('<bpt id="1">[</bpt>', '<ept id="1">]</ept>'),
    ],
)
@looped("order", ["a {0}b <pc>c {1}d</pc> e", "a <pc>b {0}c</pc> {1}d e", "a <pc>b</pc> {0}<pc>c {1}d</pc> e"])
def test_separate_elements_that_overlap_others(order, opening, closing):
    source = order.format(opening, closing)
    document = open_document(f"<xliff><segment><source>{source}</source></segment></xliff>", "xliff")
    (segment,) = document.segments
    links = [(i, i) for i in range(5)]
    assert f"<target>{source}</target>" in document.render([segment.fill(segment.text, links)])
    for shift in range(1, 5):
        rendered = document.render([segment.fill("A B C D E", [(i, (i + shift) % 5) for i in range(5)])])
        assert "".join(ElementTree.fromstring(rendered).find(".//target/pc").itertext())
