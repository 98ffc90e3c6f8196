import pytest
import torch

from benchmarking import results, small_arguments, small_options
from benchmarks.measure import Case, Disagreement
from benchmarks.run import BENCHMARKS, run_benchmarks
from hf_vanilla_transformer.data.arguments import DataArguments


def fake_case(name, ours=lambda: None):
    return Case("train", name, {"ours": ours, "marian": lambda: None})


def one_case(args, data_args):
    yield fake_case("one")


def test_results_say_where_they_come_from(tmp_path):
    run_benchmarks({"fake": one_case}, small_arguments(tmp_path, threads=1), DataArguments())
    found = results(tmp_path)
    assert found["machine"]["versions"]["torch"] in torch.__version__
    assert found["machine"]["threads"] == 1 and found["machine"]["hardware"]
    assert found["roofline"]["rates"].keys() == {"float32", "bandwidth"}
    assert found["arguments"]["rounds"] == 2 and found["data"]["on_long"] == "drop"
    (one,) = found["measurements"]
    assert len(one["costs"]["marian"]) == 2 and set(one["ratios"]) == {"marian"}
    assert {path.name for path in tmp_path.iterdir()} == {"results.json", "table.md"}


def test_an_interrupted_run_keeps_its_measurements(tmp_path):
    def interrupt():
        raise KeyboardInterrupt

    def benchmark(args, data_args):
        yield fake_case("one")
        yield fake_case("two", interrupt)

    with pytest.raises(KeyboardInterrupt):
        run_benchmarks({"fake": benchmark}, small_arguments(tmp_path), DataArguments())
    assert [each["name"] for each in results(tmp_path)["measurements"]] == ["one"]
    assert "| train | one |" in (tmp_path / "table.md").read_text(encoding="utf-8")


def test_a_failed_benchmark_does_not_stop_the_others(tmp_path):
    def failing(args, data_args):
        raise Disagreement("they differ")
        yield

    with pytest.raises(ValueError, match="bad: they differ"):
        run_benchmarks({"bad": failing, "good": one_case}, small_arguments(tmp_path), DataArguments())
    found = results(tmp_path)
    assert found["failed"] == ["bad: they differ"] and len(found["measurements"]) == 1


# The program


@pytest.fixture(scope="module")
def program(load_script):
    return load_script("benchmark")


def test_bad_arguments_end_in_one_line(program, tmp_path, refused):
    words = ["train", *small_options(rounds=0), "--output_dir", str(tmp_path)]
    assert "--rounds is 0" in refused(program.main, words)


def test_interrupting_the_program_says_where_the_results_are(program, tmp_path, capsys, monkeypatch):
    def interrupt(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(program, "run_benchmarks", interrupt)
    with pytest.raises(SystemExit) as ended:
        program.main(["train", *small_options(), "--output_dir", str(tmp_path)])
    assert ended.value.code == 130
    assert capsys.readouterr().err == "interrupted; the results so far are in the output folder\n"


@pytest.mark.parametrize(
    ("words", "names"), [(["startup", "data", "startup"], ["startup", "data"]), (["all"], list(BENCHMARKS))]
)
def test_the_program_runs_the_named_benchmarks(program, tmp_path, monkeypatch, words, names):
    calls = []
    monkeypatch.setattr(program, "run_benchmarks", lambda *args: calls.append(args))
    # Old names of two options.
    aliases = ["--peers", "bart", "--limit_seconds", "0.25"]
    options = small_options()
    start = options.index("--roofline_seconds")
    del options[start : start + 2]
    program.main([*words, *options, *aliases, "--output_dir", str(tmp_path)])
    ((benchmarks, args, data_args, show_progress),) = calls
    assert list(benchmarks) == names and args.baselines == ["bart"] and args.roofline_seconds == 0.25


@pytest.mark.parametrize(
    "words", [("train", "startup"), ("--device", "--preset"), ("results.json", "Ctrl-C"), ("--train_source_file",)]
)
def test_help_answers_a_new_users_questions(program, capsys, words):
    with pytest.raises(SystemExit) as ended:
        program.main(["--help"])
    text = capsys.readouterr().out
    assert not ended.value.code and all(word in text for word in words)
