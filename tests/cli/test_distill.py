"""`vanilla-transformer distill`; distillation itself is tested in tests/training."""

import json
from unittest.mock import Mock

import pytest

from experiments import TINY, write_splits
from hf_vanilla_transformer.cli.main import main
from hf_vanilla_transformer.inference.translation import load
from hf_vanilla_transformer.training import distillation, synthetic
from translators import save_translator

pytestmark = pytest.mark.usefixtures("one_thread")

SCHEDULE = ["--max_tokens", "400", "--max_steps", "2", "--warmup_steps", "10", "--use_cpu"]


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    folder = tmp_path_factory.mktemp("teacher")
    save_translator("shared", folder)
    return str(folder)


@pytest.fixture
def words(tmp_path, teacher):
    files = [word for name, path in write_splits(tmp_path).items() for word in (f"--{name}", path)]
    return ["distill", "--model", teacher, *files, *SCHEDULE, "--output_dir", str(tmp_path / "student")]


@pytest.fixture
def given(monkeypatch):
    """Mock of `distill` that records the arguments."""
    seen = Mock()
    monkeypatch.setattr(distillation, "distill", seen)
    return seen


@pytest.mark.slow
def test_two_models_teach_a_student_that_is_exported_and_compared(words, teacher, tmp_path, capsys):
    pytest.importorskip("ctranslate2", reason="installed by the extra `export`")
    words[2:3] = [teacher, teacher]
    main([*words, "--preset", "tiny", "--config_overrides", TINY, "--num_beams", "2", "--num_hypotheses", "2"])
    systems = json.loads((tmp_path / "student" / "distillation.json").read_text())["systems"]
    assert "\nstudent int8, greedy" in capsys.readouterr().out and systems["teacher"]["device"] == "cpu"
    assert systems["teacher"]["megabytes"] * 1e6 == 2 * 4 * load(teacher)[0].num_parameters()
    main(
        ["translate", "--backend", "ctranslate2", "--model", str(tmp_path / "student" / "ctranslate2")]
        + ["--input", str(tmp_path / "test.tsv"), "--output", str(tmp_path / "hyp")]
    )
    assert len((tmp_path / "hyp").read_text().splitlines()) == 9


@pytest.mark.parametrize(
    ("options", "preset", "names_teacher"),
    [
        ([], "student", True),
        (["--preset", "tiny"], "tiny", True),
        (["--vocab_size", "300"], "student", False),
        (["--tokenizer_name_or_path", "other"], "student", False),
        (["--model_name_or_path", "other"], "base", False),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else str(value),
)
def test_the_student_by_default(words, given, teacher, options, preset, names_teacher):
    main([*words, *options])
    model_args = given.call_args.args[2]
    assert model_args.preset == preset
    assert (model_args.tokenizer_name_or_path == teacher) is names_teacher


def test_options_reach_the_teacher(words, given, tmp_path):
    (tmp_path / "x.yaml").write_text("num_beams: 3\nnum_hypotheses: 2\ntrain_weight: 0\n")
    main(["distill", str(tmp_path / "x.yaml"), *words[1:], "--teacher_max_tokens", "99"])
    assert given.call_args.kwargs == {"num_hypotheses": 2, "num_beams": 3, "max_tokens": 99}
    assert given.call_args.args[3].train_weight == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--num_hypotheses", "3", "--num_beams", "2"], "3 hypotheses need as many beams, but --num_beams is 2"),
        (["--num_beams", "0"], "--num_beams is 0"),
        (["--streaming"], "--streaming: the teacher needs the training pairs in memory"),
        (["--model", "absent"], "absent"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_faults(words, refusal, options, message, tmp_path):
    assert message in refusal(*words, *options)


def test_interrupted_while_the_teacher_translates(words, monkeypatch, capsys):
    def some(model, tokenizer, lines, **_):
        yield from ([Mock(text="no", remarks=None)] for _ in range(2))
        raise KeyboardInterrupt

    monkeypatch.setattr(synthetic, "CHUNK_SIZE", 1)
    monkeypatch.setattr(synthetic, "translate_lines", some)
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 130
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("interrupted; finished lines are kept in ") and last.endswith("start it again")
