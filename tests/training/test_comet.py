import os

import pytest

from hf_vanilla_transformer.training.comet import comet_scores

SYSTEMS = {"one": ["a", "b\r b"], "other": ["c", "d"]}
MODEL = "Unbabel/wmt22-comet-da"


@pytest.mark.usefixtures("comet")
class TestScores:
    def test_the_mean_over_all_references(self):
        found = comet_scores(SYSTEMS, ["x", "y\r"], [["a", "z"], ["b b", "d", "e"]], MODEL)
        assert found == {"one": 2 / 5, "other": 1 / 5}

    def test_no_sentences(self):
        with pytest.raises(ValueError, match="are empty"):
            comet_scores({"one": []}, [], [], MODEL)

    def test_a_model_that_is_not_there(self, capfd):
        with pytest.raises(ValueError, match="`comet` wmt20: comet-score failed .*wmt20 not supported") as caught:
            comet_scores(SYSTEMS, ["x", "y"], [["a"], ["b"]], "wmt20")
        assert "\n" not in str(caught.value) and capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("#!/bin/sh\n", "FileNotFoundError"),
        ('#!/bin/sh\nfor last; do :; done\necho "{}" > "$last"\n', "KeyError"),
        ('#!/bin/sh\nfor last; do :; done\necho "{" > "$last"\n', "JSONDecodeError"),
        (
            '#!/bin/sh\nfor last; do :; done\nprintf \'{"%s": [], "%s": []}\' $4 $5 > $last\n',
            "0 scores for 2 segments",
        ),
        ("#!/no/interpreter\n", "FileNotFoundError"),
    ],
)
def test_a_broken_program(monkeypatch, tmp_path, program, reason):
    (tmp_path / "comet-score").write_text(program)
    (tmp_path / "comet-score").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(ValueError, match=f"`comet`: comet-score gave no scores .*{reason}.*; reinstall it: uv"):
        comet_scores(SYSTEMS, ["x", "y"], [["a"], ["b"]], MODEL)
