"""Recipes and variants with several seeds."""

import json

import pytest

import compare_recipes
from experiments import MODEL, write_splits


@pytest.fixture
def recipe(tmp_path):
    content = {**MODEL, **write_splits(tmp_path), "max_tokens": 400, "warmup_steps": 10, "use_cpu": True}
    file = tmp_path / "recipe.json"
    file.write_text(json.dumps({name: str(value) for name, value in content.items()}))
    return str(file)


def compare(recipe, folder, *words):
    compare_recipes.main([recipe, "--output_dir", str(folder), *words, "--", "--max_steps", "2"])
    return json.loads((folder / "results.json").read_text())


@pytest.mark.slow
def test_means_and_spread_of_each_variant(recipe, tmp_path, capsys):
    folder = tmp_path / "runs"
    words = ["--seeds", "0", "1", "--variants", "", "max_steps=3 ema_decay=0.5"]
    results = compare(recipe, folder, *words)
    assert [[run["steps"] for run in runs] for runs in results.values()] == [[2, 2], [3, 3]]
    losses = [run["train_loss"] for run in results["recipe"]]
    assert losses[0] != losses[1]
    printed = capsys.readouterr()
    assert printed.out == (folder / "table.md").read_text()
    assert printed.out.splitlines()[0].startswith("| variant | runs | validation BLEU | test BLEU |")
    assert printed.out.splitlines()[3].startswith("| max_steps=3 ema_decay=0.5 | 2 |")
    assert printed.err.count("training") == 4
    for run in ("recipe/seed-0", "max_steps=3,ema_decay=0.5/seed-1"):
        assert "| on the test pairs | mean of 2 runs |" in (folder / run / "README.md").read_text()
    # A second call trains nothing.
    assert compare(recipe, folder, *words) == results
    assert capsys.readouterr().err == ""


def test_the_table_has_the_mean_and_the_extremes():
    runs = [
        {"chosen_model": "trained", "validation_trained_bleu": bleu, "train_runtime": 60 * bleu}
        for bleu in (1.0, 2.0, 6.0)
    ]
    assert compare_recipes.table({"recipe": runs, "one": runs[:1]}) == (
        "| variant | runs | validation BLEU | minutes |\n"
        "|---|---:|---:|---:|\n"
        "| recipe | 3 | 3.00 (1.00 to 6.00) | 3.00 (1.00 to 6.00) |\n"
        "| one | 1 | 1.00 | 1.00 |\n"
    )


@pytest.mark.slow
def test_a_run_that_fails_is_named(recipe, tmp_path, refused):
    error = refused(compare, recipe, tmp_path / "runs", "--seeds", "0", "--variants", "dropuot=0.1")
    assert "train.log: training ended with status 2" in error and "dropuot" in error
    assert not (tmp_path / "runs" / "results.json").exists()


def test_a_seed_given_twice(recipe, tmp_path, refused):
    assert "--seeds contains duplicates" in refused(compare, recipe, tmp_path / "runs", "--seeds", "1", "1")


def test_a_folder_with_runs_of_other_options(recipe, tmp_path, refused):
    folder = tmp_path / "runs"
    # A run that failed before its first checkpoint may be repeated with other options.
    for variant in ("dropuot=0.1", "max_steps=1"):
        begun = compare_recipes.run_folder(folder, "", 0)
        compare_recipes.check_and_record(begun, [recipe, variant], finished=False)
    (begun / "checkpoint-1").mkdir()
    compare_recipes.check_and_record(begun, [recipe, "max_steps=1"], finished=False)
    message = refused(compare, recipe, folder, "--seeds", "0")
    assert f"{begun} holds a run of another recipe or other options; name another --output_dir" in message
