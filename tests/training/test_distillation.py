"""Distillation, from a teacher to a student that is exported and compared."""

import json
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from transformers import AutoTokenizer

from experiments import SHAPE, TINY, arguments, sentences, train
from hf_vanilla_transformer import VanillaTransformerEnsemble
from hf_vanilla_transformer.inference.ctranslate2 import load_ctranslate2
from hf_vanilla_transformer.inference.translation import load, translate
from hf_vanilla_transformer.training import distill, distillation, synthetic
from hf_vanilla_transformer.training.arguments import parse_overrides
from hf_vanilla_transformer.training.setup import load_or_build_model
from parallel_text import lines, tsv, write
from trainers import TOKENIZER

pytest.importorskip("ctranslate2", reason="installed by the extra `export`")
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def teacher(finished):
    return load(str(finished), device="cpu")


@pytest.fixture(autouse=True)
def _long_translations_are_kept(monkeypatch):
    monkeypatch.setattr(synthetic, "is_cut_off", lambda _: False)


def student_of(teacher, finished, folder, **options):
    """Distill the finished run, whose translations never end, into a tiny student."""
    shape = {**SHAPE, "tokenizer_name_or_path": str(finished), "max_length_ratio": 100}
    chosen = {name: options.pop(name) for name in ("num_hypotheses", "num_beams") if name in options}
    return distill(*teacher, *arguments(folder, shape, max_steps=2, **options), **chosen)


@pytest.mark.slow
def test_a_teacher_of_the_opposite_direction(teacher, finished, files, tmp_path):
    with pytest.raises(ValueError, match="the teacher translates en to xx; name a model of the opposite direction"):
        student_of(teacher, finished, tmp_path / "student", **files, source_lang="xx", target_lang="en")
    assert not (tmp_path / "student").exists()


@pytest.mark.slow
def test_a_student_and_what_is_measured(teacher, finished, files, tmp_path, capsys, monkeypatch):
    folder = tmp_path / "student"
    monkeypatch.setattr(teacher[0], "name_or_path", "me/teacher")
    compared = student_of(teacher, finished, folder, **files)
    printed = capsys.readouterr().out
    sources = {source for source, _ in sentences()}
    assert f"synthetic    {len(sources)} in {folder}/distilled-" in printed
    (made,) = folder.glob("distilled-*.translations.txt")
    assert len(list(filter(None, made.read_text().split("\n")))) == len(sources)
    assert AutoTokenizer.from_pretrained(folder).get_vocab() == teacher[1].get_vocab()
    card = (folder / "README.md").read_text()
    assert " and synthetic pairs." in card and "base_model:\n- me/teacher\n" in card
    # The comparison agrees with the saved models.
    assert compared == json.loads((folder / "distillation.json").read_text())
    assert (compared["split"], compared["sentences"]) == ("test", 9)
    test_sources = [source for source, _ in sentences(9, 2)]
    outputs = [row[0].text for row in translate(*load(str(folder), device="cpu"), test_sources)]
    assert lines(outputs) == (folder / "test_translations.txt").read_text()
    results = json.loads((folder / "all_results.json").read_text())
    assert results["train_pairs"] == 80 + len(sources)
    systems = compared["systems"]
    assert systems["student"]["bleu"] == pytest.approx(results["test_bleu"])
    assert list(systems) == ["teacher", "student", "student int8", "student int8, greedy"]
    for name, system in systems.items():
        assert f"\n{name:20}  {system['bleu']:6.2f}" in printed
        assert system["sentences_per_second"] == pytest.approx(9 / system["seconds"])
    weights = sum(weight.numel() for weight in teacher[0].parameters()) * 4
    assert systems["teacher"]["megabytes"] == pytest.approx(weights / 1e6)
    exported = load_ctranslate2(folder / "ctranslate2")
    assert systems["student int8"]["megabytes"] * 1e6 == (folder / "ctranslate2" / "model.bin").stat().st_size
    assert len(translate(*exported, test_sources, num_beams=1)) == 9


@pytest.mark.slow
def test_repeated_runs_share_the_translations(teacher, finished, files, tmp_path, monkeypatch):
    shared = {**files, "synthetic_dir": str(tmp_path / "shared"), "eval_strategy": "no"}
    student_of(teacher, finished, tmp_path / "one", **shared, num_beams=2, num_hypotheses=2)
    monkeypatch.setattr(synthetic, "translate_lines", Mock(side_effect=AssertionError))
    student_of(teacher, finished, tmp_path / "two", **shared, num_beams=2, num_hypotheses=2, train_weight=0)
    (made,) = (tmp_path / "shared").glob("distilled-*.translations.txt")
    pairs = sum(map(bool, made.read_text().split("\n")))
    sizes = [json.loads((tmp_path / name / "all_results.json").read_text())["train_pairs"] for name in ("one", "two")]
    assert sizes == [80 + pairs, pairs] and pairs > 80


@pytest.mark.slow
def test_validation_pairs_are_held_out_from_the_teacher(teacher, finished, files, tmp_path):
    options = {"train_file": files["train_file"], "validation_split_size": 0.2}
    compared = student_of(teacher, finished, tmp_path / "student", **options)
    (made,) = (tmp_path / "student").glob("distilled-*.sentences.txt")
    translated = set(made.read_text().splitlines())
    held_out = {source for source, _ in sentences()} - translated
    assert compared["split"] == "validation" and held_out and translated


def test_without_pairs_to_compare_on(teacher, finished, files, tmp_path, capsys):
    compared = student_of(teacher, finished, tmp_path / "student", train_file=files["train_file"])
    assert compared == {} and not (tmp_path / "student" / "distillation.json").exists()
    assert (tmp_path / "student" / "ctranslate2" / "model.bin").is_file()
    assert "it is not compared with its teacher" in capsys.readouterr().out


@pytest.mark.slow
def test_a_run_that_ended_before_the_comparison_goes_on(teacher, finished, files, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(distillation, "_compare", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            student_of(teacher, finished, tmp_path / "student", **files)
    with pytest.raises(ValueError, match="already holds a run; continue it with `resume_from_checkpoint=last`"):
        student_of(teacher, finished, tmp_path / "student", **files)
    compared = student_of(teacher, finished, tmp_path / "student", **files, resume_from_checkpoint="last")
    assert compared["sentences"] == 9


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"streaming": True, "max_steps": 2}, "`streaming`: the teacher needs the training pairs in memory"),
        ({"corpora": "x.yaml"}, "x.yaml: distillation uses only the training pairs and the teacher's; leave other"),
        ({"metric_for_best_model": "bleurt"}, "`metric_for_best_model` bleurt is unknown"),
    ],
)
def test_faults_are_said_before_anything_is_translated(teacher, finished, files, tmp_path, options, message):
    given = arguments(tmp_path / "student", {**SHAPE, "tokenizer_name_or_path": str(finished)}, **{**files, **options})
    with pytest.raises(ValueError, match=message):
        distill(*teacher, *given)
    assert not (tmp_path / "student").exists()


def test_without_ctranslate2(teacher, finished, files, tmp_path, monkeypatch):
    monkeypatch.setattr(distillation, "ctranslate2_missing", lambda: "it is not installed")
    with pytest.raises(ValueError, match="CTranslate2, which the student is exported to, cannot be used: it is not"):
        student_of(teacher, finished, tmp_path / "student", **files)


class Trained(Exception):
    """Raised when the student would be trained, to end a distillation there."""


def student_for(teacher, student, files, folder, monkeypatch):
    """Return the arguments of the student that would be trained."""
    monkeypatch.setattr(distillation, "translate_to_files", lambda *args, **kwargs: ("sentences", "translations"))
    train = Mock(side_effect=Trained)
    monkeypatch.setattr(distillation, "train_translation", train)
    model_args, *given = arguments(folder, student, **files)
    with pytest.raises(Trained):
        distill(teacher, TOKENIZER, model_args, *given)
    assert model_args.config_overrides == student.get("config_overrides")
    return train.call_args.args[0]


def untrained(model_args):
    with torch.device("meta"):
        return load_or_build_model(model_args, TOKENIZER)


DEEP = {"preset": "deep-encoder"}


@pytest.mark.parametrize(("preset", "options"), [("student", ""), ("student-12-1", "dropout=0.2,decoder_ffn_dim=256")])
def test_a_student_is_smaller_than_a_small_teacher(files, tmp_path, monkeypatch, capsys, preset, options):
    teacher = untrained(arguments(tmp_path, DEEP)[0])
    given = {"preset": preset, "config_overrides": options or None}
    student = student_for(teacher, given, files, tmp_path, monkeypatch)
    assert untrained(student).num_parameters() < teacher.num_parameters()
    assert parse_overrides(student.config_overrides).items() >= {"d_model": 128, **parse_overrides(options)}.items()
    assert "student      width 128: with 256, it would be larger than its teacher\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("teacher", "student"),
    [
        ({"preset": "base"}, {"preset": "student"}),
        (DEEP, {"preset": "student", "config_overrides": "d_model=192"}),
        (DEEP, {"preset": "small"}),
        (DEEP, {"preset": "auto"}),
    ],
)
def test_a_student_that_is_left_as_it_is(files, tmp_path, monkeypatch, capsys, teacher, student):
    given = student_for(untrained(arguments(tmp_path, teacher)[0]), student, files, tmp_path, monkeypatch)
    assert (given.preset, given.config_overrides) == (student["preset"], student.get("config_overrides"))
    assert "student      width" not in capsys.readouterr().out


def test_several_small_teachers_have_a_wide_student(files, tmp_path, monkeypatch):
    ensemble = VanillaTransformerEnsemble([load_or_build_model(arguments(tmp_path, DEEP)[0], TOKENIZER)] * 2)
    assert student_for(ensemble, {"preset": "student"}, files, tmp_path, monkeypatch).config_overrides
    others = [load_or_build_model(arguments(tmp_path, DEEP)[0], TOKENIZER) for _ in range(2)]
    ensemble = VanillaTransformerEnsemble(others)
    assert student_for(ensemble, {"preset": "student"}, files, tmp_path, monkeypatch).config_overrides is None


@pytest.mark.slow  # trains two models until they know their task
def test_a_student_learns_from_translations_alone(tmp_path):
    """The student does not see the training pairs; it can learn only from the teacher that targets are in capitals."""
    files = {"train_file": write(tmp_path / "train.tsv", tsv(sentences(400)))}
    files["test_file"] = write(tmp_path / "test.tsv", tsv(sentences(40, 2)))
    shape = {"config_overrides": TINY.replace("d_model=16", "d_model=32"), "preset": "tiny"}
    schedule = {"num_train_epochs": 36, "learning_rate": 0.01, "warmup_steps": 20, "eval_strategy": "no"}
    options = {**files, **schedule, "label_smoothing_factor": 0.05, "seed": 1}
    own = {"tokenizer_algorithm": "word", "min_frequency": 1}
    train(tmp_path / "teacher", {**shape, **own}, **options)
    given = arguments(
        tmp_path / "student", {**shape, "tokenizer_name_or_path": str(tmp_path / "teacher")}, **options, train_weight=0
    )
    compared = distill(*load(str(Path(tmp_path / "teacher")), device="cpu"), *given)
    systems = compared["systems"]
    assert systems["teacher"]["bleu"] > 60
    assert systems["student int8"]["bleu"] > systems["teacher"]["bleu"] - 15
