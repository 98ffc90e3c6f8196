import pytest

from hf_vanilla_transformer.documents import KINDS, kind_of, open_document
from hf_vanilla_transformer.errors import DataError


def test_kinds_by_ending():
    assert kind_of("a/b.HTML") == "html" and kind_of("x.txt") == "text"
    assert kind_of("x.docx") is None and kind_of("html") is None
    assert {kind_of(f"x.{kind}") for kind in KINDS} <= {*KINDS, None}


def test_plain_text_is_a_text_a_line():
    document = open_document(b"\xef\xbb\xbf A dog.\r\n\r\n12\r\nTwo", "text")
    assert [segment.text for segment in document.segments] == ["A dog.", "Two"]
    assert document.render(["Ein Hund.", "Zwei"]) == b"\xef\xbb\xbf Ein Hund.\r\n\r\n12\r\nZwei"


def test_text_comes_back_as_text():
    assert open_document("a\n", "text").render(["b"]) == "b\n"


def test_mistakes_are_named():
    with pytest.raises(DataError, match=r"^x.txt, line 2: byte 0xff is not UTF-8"):
        open_document(b"a\n\xff", "text", name="x.txt")
    with pytest.raises(DataError, match="UTF-16"):
        open_document("a".encode("utf-16"), "text")
    with pytest.raises(DataError, match="unknown kind 'pdf'"):
        open_document("a", "pdf")
    with pytest.raises(ValueError, match="0 texts for 1 segments"):
        open_document("a", "text").render([])
