"""The table in docs/reliability.md is generated from records of the reliability tests."""

import pytest

from modules import import_file
from paths import ROOT

DOCUMENT = "# Title\n\n<!-- table of make test-reliability -->\nold\n<!-- end of the table -->\nend\n"


@pytest.fixture(scope="module")
def table():
    return import_file(ROOT / "tests" / "reliability" / "table.py", "reliability_table")


def report(tmp_path, fault=""):
    case = '<testcase classname="tests.reliability.test_killed_training.TestKills" name="test_a[{}]">{}<properties>'
    case += '<property name="tried" value="{}|kill -9 while saving|nothing"/></properties></testcase>'
    path = tmp_path / "report.xml"
    path.write_text(
        f"<testsuites><testsuite>{case.format(1, '', 20)}{case.format(2, fault, 5)}</testsuite></testsuites>"
    )
    return path


def test_equal_rows_are_added_up_and_replace_the_old_table(table, tmp_path):
    document = tmp_path / "reliability.md"
    document.write_text(DOCUMENT)
    table.main(str(document), str(report(tmp_path)))
    written = document.read_text()
    assert "| killed training | kill -9 while saving | 25 | nothing |\n" in written
    assert written.startswith("# Title\n") and written.endswith("<!-- end of the table -->\nend\n")
    assert "old" not in written


def test_a_failed_test_leaves_the_table_as_it_was(table, tmp_path):
    document = tmp_path / "reliability.md"
    document.write_text(DOCUMENT)
    with pytest.raises(ValueError, match=r"test_a\[2\] failed"):
        table.main(str(document), str(report(tmp_path, "<failure>lost</failure>")))
    assert document.read_text() == DOCUMENT
