import pytest

from hf_vanilla_transformer.data.arguments import DataArguments
from tutorials.common import TutorialArguments, TutorialResult
from tutorials.run import TUTORIALS, reproduce


def result(name="fake", reproduced=True):
    return TutorialResult(name, "a claim", "a result", {}, reproduced)


def test_there_are_seven_tutorials():
    assert list(TUTORIALS) == "phrases attention copy opus_books statquest encoder_decoder complexity".split()


def test_a_failed_tutorial_does_not_stop_the_others(tmp_path):
    def fail(args, data_args):
        raise ValueError("nowhere.tsv: cannot be read")

    tutorials = {"one": fail, "two": lambda args, data_args: result("two")}
    with pytest.raises(ValueError, match=r"one: nowhere\.tsv"):
        reproduce(tutorials, TutorialArguments(output_dir=str(tmp_path)), DataArguments())
    assert [path.name for path in tmp_path.glob("*.json")] == ["two.json"]


def test_what_is_not_reproduced_is_said(tmp_path, capsys):
    tutorials = {"fake": lambda args, data_args: result(reproduced=False)}
    reproduce(tutorials, TutorialArguments(output_dir=str(tmp_path)), DataArguments())
    file = tmp_path / "fake.json"
    assert capsys.readouterr().out == f"| fake | a claim | a result |\nfake: not reproduced; see {file}\n"


def test_all_runs_each_in_order(load_script, tmp_path, monkeypatch):
    called = []
    for name in list(TUTORIALS):
        monkeypatch.setitem(TUTORIALS, name, lambda *args, name=name: called.append(name) or result(name))
    load_script("reproduce_tutorials").main(["all", "--output_dir", str(tmp_path)])
    assert called == list(TUTORIALS)
    assert all((tmp_path / f"{name}.json").is_file() for name in TUTORIALS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("phrases", "--seeds", "0"), "--seeds is 0"),
        (("rhymes",), "invalid choice: 'rhymes'"),
        (("opus_books", "--preset", "huge"), "unknown preset 'huge'"),
        (("opus_books", "--train_file", "nowhere.tsv"), "nowhere.tsv"),
        (("opus_books", "--dataset_name", "nowhere/at-all"), "nowhere/at-all: cannot be loaded"),
    ],
)
def test_bad_arguments_end_in_one_line(run, tmp_path, arguments, message, refused):
    assert message in refused(run, arguments[0], tmp_path / "run", *arguments[1:])


def test_an_output_folder_that_cannot_be_made_is_named(run, tmp_path, refused):
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert f"{tmp_path / 'file'} cannot be created" in refused(run, "attention", tmp_path / "file")
