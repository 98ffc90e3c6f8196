"""Translations that become training pairs: which lines are written, reused, resumed and refused."""

from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from hf_vanilla_transformer.errors import DataError
from hf_vanilla_transformer.files import read_lines
from hf_vanilla_transformer.inference.translation import Hypothesis, translate
from hf_vanilla_transformer.training import synthetic
from hf_vanilla_transformer.training.synthetic import translate_to_files
from translators import ENGLISH, build

pytestmark = pytest.mark.usefixtures("one_thread")

ONE_PROCESS = SimpleNamespace(world_size=1, process_index=0, disable_tqdm=True)


@pytest.fixture(scope="module")
def teacher():
    return build("shared")


def files_of(teacher, sentences, folder, **options):
    return translate_to_files(*teacher, sentences, folder / "made", ONE_PROCESS, **options)


def content(text):
    return [list(read_lines(file)) for file in text]


def test_translations_of_different_sentences_with_words(teacher, tmp_path, capsys):
    text = files_of(teacher, [*ENGLISH, " ", ENGLISH[0], "a red\nhouse", ""], tmp_path, num_beams=2)
    sentences, translations = content(text)
    assert sentences == ENGLISH
    assert translations == [row[0].text for row in translate(*teacher, ENGLISH, num_beams=2)]
    assert all(translations) and len(set(translations)) > 1
    assert capsys.readouterr().out == f"synthetic    5 in {text.translations}, 0 empty or cut off\n"


def test_several_translations_of_each(teacher, tmp_path):
    sentences, translations = content(files_of(teacher, ENGLISH, tmp_path, num_beams=3, num_hypotheses=2))
    expected = [row.text for rows in translate(*teacher, ENGLISH, num_beams=3, num_hypotheses=2) for row in rows]
    assert translations == expected and sentences == [line for line in ENGLISH for _ in range(2)]


def test_the_same_call_translates_once(teacher, tmp_path, monkeypatch):
    first = files_of(teacher, ENGLISH, tmp_path, max_tokens=4096)
    with monkeypatch.context() as patch:
        patch.setattr(synthetic, "translate_lines", Mock(side_effect=AssertionError))
        assert files_of(teacher, iter(ENGLISH), tmp_path, max_tokens=64) == first
    others = [
        files_of(teacher, ENGLISH[1:], tmp_path),
        files_of(teacher, ENGLISH, tmp_path, num_beams=2),
        files_of(teacher, ENGLISH, tmp_path, num_beams=2, num_hypotheses=2),
        files_of(build("shared", dropout=0.3), ENGLISH, tmp_path),
    ]
    assert len({first, *others}) == 5


@pytest.mark.parametrize("number", [1, 2])
def test_an_interrupted_call_goes_on(teacher, tmp_path, monkeypatch, number):
    # A bound that does not depend on the batch: these outputs do not end by themselves.
    options = {"num_beams": 2, "num_hypotheses": number, "max_new_tokens": 8}
    whole = content(files_of(teacher, ENGLISH, tmp_path / "whole", **options))
    monkeypatch.setattr(synthetic, "CHUNK_SIZE", 2)
    asked = []

    def translate_lines(model, tokenizer, lines, **given):
        for line in lines:
            if len(asked) == 3:
                asked.append(line)
                raise KeyboardInterrupt
            asked.append(line)
            yield translate(model, tokenizer, [line], **{**given, "show_progress": False})[0]

    monkeypatch.setattr(synthetic, "translate_lines", translate_lines)
    with pytest.raises(KeyboardInterrupt, match="to go on, start it again"):
        files_of(teacher, ENGLISH, tmp_path / "part", **options)
    assert not list((tmp_path / "part").glob("*.translations.txt"))
    text = files_of(teacher, ENGLISH, tmp_path / "part", **options)
    assert content(text) == whole
    # The third was translated, but in no whole chunk.
    assert asked == [*ENGLISH[:4], *ENGLISH[2:]]
    assert sorted(path.suffix for path in (tmp_path / "part").iterdir()) == [".txt", ".txt"]


def test_empty_and_endless_translations(teacher, tmp_path, monkeypatch, capsys):
    found = [" ", "no " * 60, "no\ncat", "no " * 40, "a"]
    monkeypatch.setattr(synthetic, "translate_lines", lambda *_, **__: iter([[Hypothesis(text)] for text in found]))
    sentences, translations = content(files_of(teacher, ENGLISH, tmp_path))
    assert sentences == ENGLISH and translations == ["", "", "no cat", "no " * 40, "a"]
    assert "5 in " in (printed := capsys.readouterr().out) and ", 2 empty or cut off" in printed


def test_only_one_process_writes(teacher, tmp_path, capsys):
    two = SimpleNamespace(world_size=2, process_index=1, disable_tqdm=True)
    with pytest.raises(DataError, match="by one process, not by 2; start without a launcher until it is there"):
        translate_to_files(*teacher, ENGLISH, tmp_path / "made", two)
    first = files_of(teacher, ENGLISH, tmp_path)
    capsys.readouterr()
    assert translate_to_files(*teacher, ENGLISH, tmp_path / "made", two) == first
    assert capsys.readouterr().out == ""


def test_faults(teacher, tmp_path):
    with pytest.raises(DataError, match="there is no sentence to translate that is not blank"):
        files_of(teacher, ["", " "], tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="`synthetic_dir` .*file cannot be made"):
        files_of(teacher, ENGLISH, tmp_path / "file")
