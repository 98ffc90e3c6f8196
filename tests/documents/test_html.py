import time
from timeit import timeit

from hypothesis import given, settings
from hypothesis import strategies as st

from fuzzing import texts
from hf_vanilla_transformer.documents import open_document
from tables import looped

PIECES = st.sampled_from(
    ["<p class='a'>", "</p>", "<br/>", '<a title="x > y">', "</a>", "<!-- a <b> -->", "<code>a b</code>", "<", "&amp;",
     "a b", "<b>", "</b>", "<i translate=no>", "</i>", "<p translate=yes>", "<script>", "</script>", "<svg>", "</svg>",
     "<title>", "<li>", "<img alt='a dog'>", "\r\n", "<a x='"]
)  # fmt: skip  # one a line would fill the screen


def found(html):
    return [segment.text for segment in open_document(html, "html").segments]


def itself(segment):
    return segment.fill(segment.text, [(i, i) for i in range(len(segment.text.split()))])


def same(html):
    document = open_document(html, "html")
    return document.render(map(itself, document.segments))


@looped(
    "html, expected",
    [
        ("<p>A man in a red shirt\n  rides a bicycle.</p>", ["A man in a red shirt rides a bicycle."]),
        ("<p>A dog.</p>\n <p>Two &lt; 3</p>", ["A dog.", "Two < 3"]),
        ('<a title="1 > 0 x" href=x>A</a> B', ["1 > 0 x", "A B"]),
        ("<script>if (a < b) {}</script><style>p {}</style>A<!-- no <b> -->", ["A"]),
        ("a < b and c > d", ["a < b and c > d"]),
        ("A <code>dog.run()</code> runs<br/>so", ["A ⟦1⟧ runs", "so"]),
        ("<!DOCTYPE html><HTML><title>A &amp; B</title>A</HTML>", ["A & B", "A"]),
        ("&nbsp;", []),
        ("12 <b>-</b> 7", []),
        ("A <!-- B", ["A"]),
        ("A <pre>B <b>C", ["A"]),
        (" \n", []),
        ("<p>a <b>b</b></p>c", ["a b", "c"]),
        # translate, as the HTML standard says.
        ("<div translate=no>a <p>b</p> <b translate=yes>c</b></div>d", ["c", "d"]),
        ("<p>Buy <span translate=no>Big <b>X</b></span> now</p>", ["Buy ⟦1⟧ now"]),
        ("<p>Buy <span class='x notranslate'>X</span> now</p>", ["Buy ⟦1⟧ now"]),
        ("a <code></code><script>x</script> b <code>x</code>, ⟦1⟧<kbd>⟦2⟧</kbd>.", ["a b ⟦2⟧, ⟦1⟧⟦3⟧."]),
        ("a<code> </code>b<kbd>&nbsp;</kbd>c<svg> </svg>d", ["a b cd"]),
        ("a<code> </code>, (<kbd> </kbd>b) <code> </code>c<code> </code><code>d</code>", ["a, (b) c ⟦1⟧"]),
        ("<pre translate=yes>a</pre><code translate=''>b</code>", ["a", "b"]),
        ("<p translate=no>a<p>b", ["b"]),
        ("<ul><li translate=no>a<li>b</ul>", ["b"]),
        ("<img alt='no' translate=no><div translate=no><img alt=no></div>", []),
        ("<textarea placeholder='Your name'>a <b>b</textarea>", []),
        ("<svg><text>a</text><path/></svg> b <math><mi>x</mi></math>", ["b ⟦1⟧"]),
        ("<kbd>a</kbd><samp>b</samp><var>c</var>", []),
        ("<p>A <ruby>漢<rt>かん</rt>字<rt>じ</rt></ruby>, <ruby>x<rp>(<rt>y<rp>)</ruby>.", ["A 漢字, x."]),
        # Attributes.
        ('<img alt="A dog"><input placeholder=Name aria-label="Your name" value=x>', ["A dog", "Name", "Your name"]),
        ("<input type=submit value=Send>", ["Send"]),
        ('<meta name=description content="A page"><meta name=author content="A man">', ["A page"]),
        ("&#" + "9" * 5000 + "; x", ["&#" + "9" * 5000 + "; x"]),
    ],
)
def test_texts(html, expected):
    assert found(html) == expected


@looped(
    "html, expected",
    [
        ("<HTML Lang=en class='x'>A", "<HTML Lang=\"de\" class='x'>A"),
        ("<html xml:lang='en' lang=\"en\"><p lang=fr>A", "<html xml:lang='de' lang=\"de\"><p lang=fr>A"),
        ("<html><body>A", "<html><body>A"),
        ("<html lang=en translate=no>A", "<html lang=en translate=no>A"),
    ],
)
def test_a_page_names_the_language_of_the_translation(html, expected):
    document = open_document(html, "html", target_lang="de")
    assert document.render(map(itself, document.segments)) == expected
    assert same(html) == html


@looped(
    "language, html, expected",
    [
        ("ar", "<html lang=en dir='ltr'><body dir=ltr>A", '<html lang="ar" dir=\'rtl\'><body dir="rtl">A'),
        ("heb_Hebr", "<html lang=en>A<p dir=ltr>B", '<html dir="rtl" lang="heb_Hebr">A<p dir=ltr>B'),
        ("az-Latn", '<html lang=fa dir="rtl">A', '<html lang="az-Latn" dir="ltr">A'),
        ("de", "<html lang=en dir=auto>A", '<html lang="de" dir=auto>A'),
    ],
)
def test_a_page_names_the_direction_of_the_translation(language, html, expected):
    document = open_document(html, "html", target_lang=language)
    assert document.render(map(itself, document.segments)) == expected


@looped(
    "html, translation, expected",
    [
        ("The <ruby>漢字<rt>かん</rt></ruby>.", "Das Zeichen.", "Das <ruby>Zeichen<rt>かん</rt></ruby>."),
        ("The long<wbr>word", "Das Langwort", "Das <wbr>Langwort"),
        ("The long<wbr>word", "Das longline", "Das long<wbr>line"),
    ],
)
def test_readings_and_line_breaks_follow_their_word(html, translation, expected):
    (segment,) = open_document(html, "html").segments
    assert segment.fill(translation, [(0, 0), (1, 1)]) == expected


@looped(
    "html",
    [
        "<!DOCTYPE html>\r\n<html lang=en>\r\n<head><title>A &amp; B</title></head>\r\n<body><P CLASS=x>A <B>dog</B>."
        "</p>\r\n\r\n<ul><li> one <li>two</ul></body></html>\r\n",
        "<p>\n  <b>\n Hello\n</b>\n</p>",
        "<p>Use <code>x</code> now, and <a><code>y</code></a> <code>⟦1⟧</code>, ⟦2⟧ then (<kbd>z</kbd>).</p>",
        "<p>Empty <code> </code>here <code> </code> and<code></code>.<code> </code></p>",
        "<p>word<code> </code>, then <code> </code> or <var>x</var><i>.<kbd> </kbd></i></p>",
        "<p> <code>x</code> is <b><code>y</code></b>\n</p>",
        'A <a href="u" title=\'T "x"\'>B</a> <img src=x alt="c &lt; d"> e',
        "<b>x <i>y</b> z</i>",
        "<p>A <ruby>漢<rt>かん</rt>字<rt>じ</rt></ruby></p>",
        "<p><ruby>x<rp>(</rp><rt>y</rt><rp>)</rp></ruby> <ruby>x<rt>y</ruby>",
        "A Donau<wbr>dampf<wbr>schiff, x",
        "<table><tr><td>a<td>b <!-- c --> d</table>",
        "<a>text<p>para</p></a>",
        "a\0001\0b\0 <i title='q\0'>x</i>",
        "<p>&nbsp;&copy{n, plural, other {\0&eacute; dogs}}\0&#1;{n, select, other {&AMP}}</p>",
        "<img alt='&nbsp;\"'> <img alt='A &quot;{n, plural, other {\0\"&eacute;\"}}&quot;'>",
        "</b> x <p",
        "<?xml version='1.0'?><title/><script src='x'/><p>a <b class='y'/> <code/> b</p>",
    ],
)
def test_the_same_texts_give_the_same_document(html):
    assert same(html) == html.replace('"x"', "&quot;x&quot;")


def test_texts_in_attributes_are_escaped():
    document = open_document("see <img alt=dog> here", "html")
    assert document.render(["\"a\" & 'b'", itself(document.segments[1])]) == 'see <img alt=""a" & \'b\'"> here'
    assert document.segments[0].fill("\"a\" & 'b'") == "&quot;a&quot; &amp; &#x27;b&#x27;"


@settings(max_examples=300, derandomize=True, database=None, deadline=None)
@given(st.lists(st.one_of(texts(), PIECES), max_size=12).map("".join), st.data())
def test_translations_change_no_structure(html, data):
    document = open_document(html, "html")
    translations = [
        " ".join(["x", data.draw(st.one_of(texts(), PIECES)), *(item.placeholder for item in segment.items)]).strip()
        for segment in document.segments
    ]
    filled = [segment.fill(text) for segment, text in zip(document.segments, translations, strict=True)]
    again = open_document(document.render(filled), "html")
    assert len(again.segments) == len(document.segments)
    words = [" ".join(text.split()) for text in translations]
    assert [" ".join(segment.text.split()) for segment in again.segments if not segment.tags] == [
        text for text, segment in zip(words, again.segments, strict=True) if not segment.tags
    ]


@looped(
    "start, repeated, end",
    [
        ("", "<b>a ", ""), ("", "<b>a", "</b>"), ("", "</i>", ""), ("<b>", "<a x='", ""), ("", "<!--", ""),
        ("", "<title>", ""), ("", "<code>", ""), ("", "<p translate=no><b translate=yes>", ""), ("a", ".<wbr>", ""),
        ("", "a <img> .", ""), ("", "<a alt='x' ", ">"), ("", "<", ""), ("", "&", ""), ("", "a<b>a</b>", ""),
        ("a", "<b>", "</b>"), ("a", "<b></b>", ""), ("a", ",<img>", " b"), ("", "a<br>", ""),
        ("", "a<code> </code>", ""), ("", "{n,plural,a{", ""), ("", "{n,plural,a{x}", ""),
        ("", "{n,plural,a{b}}&amp;", ""),
    ],
)  # fmt: skip  # one a line would fill the screen
def test_hostile_input_takes_linear_time(start, repeated, end):
    def seconds(count):
        # Without garbage collection, which takes as long as the rest when many objects are alive.
        return timeit(lambda: same(start + repeated * count + end * count), timer=time.process_time, number=1)

    seconds(10)
    # Eight times as much: quadratic time would be 64-fold.
    assert seconds(4000) < 24 * max(min(seconds(500), seconds(500)), 0.004)
