"""Test, benchmark and train on a GPU within ten minutes, saving each result as soon as it is available.

    python3 scripts/gpu_report.py --output_dir report --multi30k FOLDER
    python3 scripts/gpu_report.py generate profile --output_dir report

Parts, most valuable first: check (the tests), train, text and generate (speed against other implementations, on
identical batches and on real text), profile (the slowest operations), compile (decoding with torch.compile), multi30k
(a recipe through its test BLEU, with as many steps as the remaining time allows). A part that fails, or is interrupted
at its time limit, does not stop the others. The output folder holds a log of each part and report.json. --device cpu
is a dry run at small sizes.
"""

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

PARTS = {
    "check": "-m pytest -q --dist worksteal -W default --tb=short -p no:cacheprovider -m 'not slow'",
    "train": "scripts/benchmark.py train --baselines marian --torch_compile --steps 0",
    "text": "scripts/benchmark.py train --baselines marian --packing --tokens 0",
    "generate": "scripts/benchmark.py generate --baselines marian ctranslate2 --num_beams 4 1",
    "profile": "scripts/benchmark.py profile --num_beams 4",
    "compile": "scripts/benchmark.py generate --baselines marian --torch_compile",
    "multi30k": "scripts/train_translation.py scripts/recipes/multi30k_fast.yaml",
}
GPU = "--device cuda --dtype bfloat16 --preset base --vocab_size 37000"
CPU = "--device cpu --dtype bfloat16 --preset tiny --vocab_size 500 --length 8 --rounds 1 --roofline_seconds 0.1"
SIZES = {
    "cuda": {
        "check": "-n 12 tests/gpu tests/model tests/fast tests/search tests/inference "
        "tests/training/test_trainer.py tests/training/test_muon.py",
        "train": f"{GPU} --tokens 25000 --rounds 5",
        "text": f"{GPU} --max_tokens 50000 --steps 20 --rounds 5",
        "generate": f"{GPU} --batch_size 128 1 --rounds 5",
        "profile": f"{GPU} --tokens 25000 --batch_size 128 --rounds 3",
        "compile": f"{GPU} --batch_size 128 --num_beams 1 4 --rounds 3",
        "multi30k": "--max_tokens 8192 --warmup_steps 100",
    },
    "cpu": {
        "check": "-n 1 tests/gpu",
        "train": f"{CPU} --tokens 64",
        "text": f"{CPU} --max_tokens 1024 --steps 2 --text_vocab_size 500 --max_train_samples 500",
        "generate": f"{CPU} --batch_size 1 2",
        "profile": f"{CPU} --tokens 64 --batch_size 2",
        "compile": f"{CPU} --batch_size 2 --num_beams 1",
        "multi30k": "--max_train_samples 500 --vocab_size 500 --max_tokens 512 --final_num_beams 1 "
        "--generation_max_length 16 --config_overrides encoder_layers=1,decoder_layers=1,"
        "position_embedding_type=learned,max_position_embeddings=128",
    },
}
# Time limits in seconds on a GPU, their multiple by device, and seconds from SIGINT to SIGKILL: pytest waits ten for
# its workers before it prints its summary.
SECONDS = {"check": 180, "train": 120, "text": 90, "generate": 150, "profile": 90, "compile": 90, "multi30k": 600}
SLACK = {"cuda": 1, "cpu": 4}
GRACE = 20
# multi30k: steps per second (cuda: about an H100's), and seconds for everything else, such as tokenizer and test.
STEPS_PER_SECOND = {"cuda": 12, "cpu": 0.1}
BESIDE_STEPS = 60
# On few cores, threads of several processes mostly wait for each other.
VARIABLES: dict[str, dict[str, str]] = {"cuda": {}, "cpu": {"OMP_NUM_THREADS": "1"}}
# The Multi30k splits that a part reads, and their file names.
SPLITS = {"text": ("train",), "multi30k": ("train", "validation", "test")}
FILES = {"train": "train", "validation": "val", "test": "test_2016_flickr"}
# The end of a log: bytes kept and lines printed.
KEPT_BYTES, SHOWN_LINES = 2**21, 15


def main(argv: list[str] | None = None) -> int:
    """Run the parts; return 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="part", help=f"{', '.join(PARTS)} (default: all).")
    parser.add_argument("--output_dir", required=True, type=Path, help="Folder of the logs and report.json.")
    parser.add_argument("--device", choices=SIZES, default="cuda", help="cuda (default) or cpu.")
    parser.add_argument("--wheels", type=Path, help="Folder of wheels to install besides torch.")
    parser.add_argument("--multi30k", type=Path, help="Folder with train, val and test_2016_flickr, .en and .de.")
    parser.add_argument("--max_steps", type=int, help="Training steps of multi30k (default: from the time left).")
    parser.add_argument("--seconds", type=float, default=600, help="Time for all parts (default: 600).")
    args = parser.parse_args(argv)
    if unknown := set(args.parts) - set(PARTS):
        parser.error(f"unknown part {unknown.pop()}; choose from {', '.join(PARTS)}")
    end, report = time.monotonic() + args.seconds, {}
    args.output_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        environment = prepare_environment(args, Path(folder))
        for part in args.parts or [part for part in PARTS if args.multi30k or part != "multi30k"]:
            start, log, results = time.monotonic(), args.output_dir / f"{part}.log", Path(folder, part)
            limit = min(SECONDS[part] * SLACK[args.device], end - start - GRACE)
            command = command_of(part, args, results, limit)
            status = run(command, environment, log, limit)
            report[part] = {"status": status, "seconds": time.monotonic() - start, "command": shlex.join(command)}
            for file in results.glob("*results.json"):
                report[part][file.stem] = json.loads(file.read_text(encoding="utf-8"))
            (args.output_dir / "report.json").write_text(json.dumps(report, indent=1), encoding="utf-8")
            print(f"{part}: {status}, {report[part]['seconds']:.0f} s", *last_lines(log), sep="\n  ", flush=True)
    return int(any(result["status"] != "ok" for result in report.values()))


def prepare_environment(args: argparse.Namespace, folder: Path) -> dict[str, str]:
    """Install the wheels under `folder`, and return the environment variables of the parts."""
    # dill recognizes installed packages by this folder name.
    site = folder / "site-packages"
    if wheels := sorted(args.wheels.glob("*.whl")) if args.wheels else []:
        options = "-m pip install -q --no-index --no-deps --no-compile --disable-pip-version-check --target"
        subprocess.run([sys.executable, *options.split(), site, *wheels], check=False)
    path = os.pathsep.join(filter(None, (str(site), str(ROOT), os.environ.get("PYTHONPATH"))))
    own = {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1", "TEST_DEVICE": args.device}
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "cache")}
    return {**os.environ, **own, **offline, **VARIABLES[args.device]}


def command_of(part: str, args: argparse.Namespace, results: Path, seconds: float) -> list[str]:
    """Return the command of a part that writes to the folder `results` and takes at most `seconds`."""
    command = [sys.executable, *shlex.split(PARTS[part]), *shlex.split(SIZES[args.device][part])]
    command += [] if part == "check" else ["--output_dir", str(results)]
    for split in SPLITS.get(part, ()) if args.multi30k else ():
        for side, language in (("source", "en"), ("target", "de")):
            file = (args.multi30k / f"{FILES[split]}.{language}").resolve()
            command += [f"--{split}_{side}_file", str(file if file.exists() else f"{file}.gz")]
    if part == "multi30k":
        steps = int((seconds - BESIDE_STEPS) * STEPS_PER_SECOND[args.device])
        command += ["--max_steps", str(args.max_steps or max(1, steps))]
    return command


def run(command: list[str], environment: dict[str, str], log: Path, seconds: float) -> str:
    """Run a command with its output in a log, for `seconds` plus a grace period; return how it ended."""
    if seconds <= 0:
        return "not started: no time left"
    with log.open("wb") as file:
        streams: dict[str, Any] = {"stdout": file, "stderr": subprocess.STDOUT}
        process = subprocess.Popen(command, cwd=ROOT, env=environment, process_group=0, **streams)
    try:
        status = process.wait(seconds)
        return f"failed with status {status}" if status else "ok"
    except subprocess.TimeoutExpired:
        # Like Ctrl-C: pytest prints its summary, and benchmarks keep their results.
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
        return f"interrupted after {seconds:.0f} s"
    finally:
        # Includes its child processes.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def last_lines(log: Path) -> list[str]:
    """Drop the start of a long log; return its last lines."""
    text = log.read_bytes()[-KEPT_BYTES:] if log.exists() else b""
    log.write_bytes(text)
    return text.decode(errors="replace").splitlines()[-SHOWN_LINES:]


if __name__ == "__main__":
    # Both interrupt the running part. As a shell's background job, this process and its children would ignore SIGINT.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    sys.exit(main())
