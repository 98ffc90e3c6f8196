"""Train a recipe and its variants, each with several seeds, and print means and ranges.

    python scripts/compare_recipes.py scripts/recipes/demo.yaml --seeds 0 1 2 --output_dir runs/demo-seeds
    python scripts/compare_recipes.py scripts/recipes/demo.yaml --seeds 0 1 --output_dir runs/gains \
        --variants "" "ema_decay=0.999" "muon=true max_steps=200" -- --max_steps 400

A variant is a space-separated list of `train` options as name=value; "" is the recipe itself. `train` options after --
apply to every run. Repeating the command resumes it: finished runs are not trained again.

The output folder holds table.md, results.json and a run folder for each variant and seed, with its log in train.log
and the means in its model card.
"""

import json
import subprocess
import sys
from pathlib import Path
from statistics import mean
from typing import Any

from _imports import importing

with importing():
    from hf_vanilla_transformer.cli.options import OneLineParser, Terminated, one_line_errors
    from hf_vanilla_transformer.files import atomic_write
    from hf_vanilla_transformer.training.model_card import add_spread

COLUMNS = {
    "validation BLEU": lambda results: results.get(f"validation_{results['chosen_model']}_bleu"),
    "test BLEU": lambda results: results.get("test_bleu"),
    "test BLEU, lowercase": lambda results: results.get("test_lowercase_bleu"),
    "test chrF2": lambda results: results.get("test_chrf"),
    "test chrF++": lambda results: results.get("test_chrfpp"),
    "test TER": lambda results: results.get("test_ter"),
    "minutes": lambda results: results["train_runtime"] / 60,
}


def main(argv: list[str] | None = None) -> None:
    """Train and compare; invalid input exits with status 2 and one line on standard error."""
    parser = OneLineParser(description=__doc__)
    parser.usage = "%(prog)s RECIPE --output_dir FOLDER [options] [-- options of train]"
    parser.add_argument("recipe", help="Argument file of `train`.")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="One run for each (default: 0 1 2).")
    parser.add_argument("--variants", nargs="+", default=[""], help="Options that override the recipe's.")
    parser.add_argument("--output_dir", required=True, help="Folder of the runs and the table.")
    parser.add_help_options()
    with one_line_errors(parser, advice="repeat the command to resume"):
        words = sys.argv[1:] if argv is None else argv
        end = words.index("--") if "--" in words else len(words)
        arguments, options = parser.parse_args(words[:end]), words[end + 1 :]
        if len(set(arguments.seeds)) < len(arguments.seeds):
            raise ValueError("--seeds contains duplicates; each run needs its own seed")
        folder, results = Path(arguments.output_dir), {}
        for variant in arguments.variants:
            runs = [train(arguments.recipe, options, variant, seed, folder) for seed in arguments.seeds]
            results[variant or "recipe"] = runs
            save(results, folder)
            add_spread_to_cards(runs, [run_folder(folder, variant, seed) for seed in arguments.seeds])
        print(table(results), end="")


def train(recipe: str, options: list[str], variant: str, seed: int, folder: Path) -> dict[str, Any]:
    """Train unless finished, and return the results; errors quote the last line of the log."""
    run = run_folder(folder, variant, seed)
    finished, log = run / "all_results.json", run / "train.log"
    words = [f"--{word}" for word in variant.split()]
    check_and_record(run, [Path(recipe).read_text(encoding="utf-8"), *options, *words], finished.is_file())
    if not finished.is_file():
        own = ["--seed", str(seed), "--output_dir", str(run), "--resume_from_checkpoint", "last"]
        print(f"training {run}", file=sys.stderr)
        if status := run_logged(["train", recipe, *options, *words, *own], log):
            last = log.read_text(encoding="utf-8").strip().splitlines()[-1:]
            raise ValueError(f"{log}: training ended with status {status}: {' '.join(last)}")
    return json.loads(finished.read_text(encoding="utf-8"))


def check_and_record(run: Path, words: list[str], finished: bool) -> None:
    """Record the recipe and options of a run; raise a ValueError if it was started with others."""
    file, content = run / "run.json", f"{json.dumps(words)}\n"
    begun = finished or any(run.glob("checkpoint-*"))
    if begun and file.is_file() and file.read_text(encoding="utf-8") != content:
        raise ValueError(f"{run} holds a run of another recipe or other options; name another --output_dir")
    run.mkdir(parents=True, exist_ok=True)
    with atomic_write(file) as output:
        output.write(content.encode())


def run_folder(folder: Path, variant: str, seed: int) -> Path:
    return folder / (variant.replace(" ", ",").replace("/", "_") or "recipe") / f"seed-{seed}"


def run_logged(words: list[str], log: Path) -> int:
    """Run a command of the package; if interrupted, wait until it has saved a checkpoint."""
    command = [sys.executable, "-m", "hf_vanilla_transformer", *words]
    with log.open("a") as output, subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT) as process:
        try:
            return process.wait()
        except KeyboardInterrupt as interrupt:
            # Ctrl-C reaches both processes, SIGTERM only this one.
            if isinstance(interrupt, Terminated):
                process.terminate()
            process.wait()
            raise


def add_spread_to_cards(runs: list[dict[str, Any]], folders: list[Path]) -> None:
    """Add the means of several tested runs to their model cards, if they still exist."""
    if len(runs) > 1 and all("test_bleu" in run for run in runs):
        for card in filter(Path.is_file, (folder / "README.md" for folder in folders)):
            add_spread(card, runs)


def save(results: dict[str, list[dict[str, Any]]], folder: Path) -> None:
    with atomic_write(folder / "results.json") as file:
        file.write(f"{json.dumps(results, indent=2)}\n".encode())
    with atomic_write(folder / "table.md") as file:
        file.write(table(results).encode())


def table(results: dict[str, list[dict[str, Any]]]) -> str:
    """Return a table with a row for each variant: the mean over its runs and, for several runs, the range."""
    runs = [run for runs in results.values() for run in runs]
    columns = [name for name, value in COLUMNS.items() if all(value(run) is not None for run in runs)]
    lines = [f"| variant | runs | {' | '.join(columns)} |", f"|---|---:|{'---:|' * len(columns)}"]
    for variant, runs in results.items():
        cells = [_spread([COLUMNS[name](run) for run in runs]) for name in columns]
        lines.append(f"| {variant} | {len(runs)} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _spread(values: list[float]) -> str:
    text = f"{mean(values):.2f}"
    return text if len(values) == 1 else f"{text} ({min(values):.2f} to {max(values):.2f})"


if __name__ == "__main__":
    main()
