"""The whole way through scripts/train_translation.py: inputs, faults, files, resuming, choice of the model."""

import gzip
import json
import math
import os
import random
import runpy
import subprocess
import sys
from importlib.util import find_spec
from itertools import count, islice
from unittest.mock import Mock

import datasets
import pytest
import torch
from huggingface_hub import ModelCard
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    MarianConfig,
    MarianMTModel,
    PreTrainedTokenizerFast,
    TrainerCallback,
    TrainerState,
)

from hf_vanilla_transformer import (
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
    train_tokenizer,
)
from hf_vanilla_transformer.data.arguments import DataArguments
from hf_vanilla_transformer.inference.translation import translate
from hf_vanilla_transformer.training import experiment
from hf_vanilla_transformer.training.arguments import (
    ModelArguments,
    VanillaTransformerTrainingArguments,
    parse_overrides,
)
from hf_vanilla_transformer.training.checkpoints import average_checkpoints, last_checkpoints
from hf_vanilla_transformer.training.experiment import train_translation
from hf_vanilla_transformer.training.trainer import VanillaTransformerTrainer
from paths import SCRIPTS
from processes import run_in_two

pytestmark = pytest.mark.usefixtures("one_thread")

SCRIPT = SCRIPTS / "train_translation.py"
main = runpy.run_path(str(SCRIPT))["main"]

TINY = "d_model=16,encoder_layers=1,decoder_layers=1,encoder_attention_heads=2,decoder_attention_heads=2"
TINY += ",encoder_ffn_dim=32,decoder_ffn_dim=32"
SHAPE = ["--preset", "tiny", "--config_overrides", TINY]
MODEL = [*SHAPE, "--tokenizer_algorithm", "word", "--min_frequency", "1"]
SCHEDULE = ["--max_tokens", "400", "--warmup_steps", "10", "--num_train_epochs", "2", "--logging_steps", "5"]
OPTIONS = [*MODEL, *SCHEDULE, "--use_cpu"]


def sentences(rows=80, seed=0):
    """Pairs of sentences, the target having the words of the source in capitals; other seeds have other sources."""
    generator, words = random.Random(seed), ["ant", "bee", "cat", "dog", "eel", "fox"]
    lines = (" ".join(generator.choices(words, k=generator.randint(2, 6))) for _ in count())
    own = (line for line in lines if sum(map(ord, line)) % 3 == seed)
    return [(line, line.upper()) for line in islice(own, rows)]


def write(path, text):
    path.parent.mkdir(exist_ok=True)
    content = text if isinstance(text, bytes) else text.encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return str(path)


def lines(items):
    return "".join(f"{item}\n" for item in items)


def tsv(pairs):
    return lines("\t".join(pair) for pair in pairs)


@pytest.fixture
def files(tmp_path):
    """The arguments that name training, validation and test pairs."""
    parts = {"train": sentences(), "validation": sentences(12, 1), "test": sentences(9, 2)}
    return [
        word
        for split, pairs in parts.items()
        for word in (f"--{split}_file", write(tmp_path / f"{split}.tsv", tsv(pairs)))
    ]


@pytest.fixture
def run(tmp_path):
    """Train by the script, in this process, and return the folder of the model and its results."""

    def train(*words, folder="model", options=OPTIONS):
        main([*words, *options, "--output_dir", str(tmp_path / folder)])
        return tmp_path / folder, json.loads((tmp_path / folder / "all_results.json").read_text())

    return train


@pytest.fixture
def fail(tmp_path, capsys):
    """Return the one line in which the script refuses its input, having trained nothing."""

    def refuse(*words, options=OPTIONS, folder="model"):
        before = set(tmp_path.glob("*/checkpoint-*"))
        with pytest.raises(SystemExit) as stop:
            main([*words, *options, "--output_dir", str(tmp_path / folder)])
        printed = capsys.readouterr()
        assert stop.value.code == 2
        messages = [
            line for line in printed.err.split("\n") if line and "usage:" not in line and "Warning" not in line
        ]
        assert len(messages) == 1, printed.err
        assert "'loss'" not in printed.out and set(tmp_path.glob("*/checkpoint-*")) == before
        return messages[0]

    return refuse


def weights(folder):
    return AutoModelForSeq2SeqLM.from_pretrained(folder).state_dict()


def assert_equal_weights(one, other):
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert torch.equal(value, other[name]), name


def history(folder, key="loss"):
    log = json.loads((folder / "trainer_state.json").read_text())["log_history"]
    return [(entry["step"], entry[key]) for entry in log if key in entry]


class TestWholeWay:
    def test_as_a_program(self, tmp_path, files):
        """What a user sees and gets: a quiet run, every file, and the same translations from a new process."""
        folder = tmp_path / "model"
        command = [sys.executable, str(SCRIPT), *files, *OPTIONS, "--output_dir", str(folder), "--seed", "3"]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        assert done.returncode == 0, done.stderr
        # Checkpoints follow one another so fast that their times can be equal.
        noise = [line for line in done.stderr.split("\n") if line and "mtime may not be reliable" not in line]
        assert noise == []
        for part in ("train        read 80, kept 80", "learning     up to 0.00791 after 10 steps", "test bleu"):
            assert part in done.stdout

        written = {path.name for path in folder.iterdir() if path.is_file()}
        expected = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json"}
        expected |= {"tokenizer_config.json", "all_results.json", "trainer_state.json", "test_translations.txt"}
        expected |= {"training_curve.png", "attention.png", "README.md"}
        assert written == expected
        results = json.loads((folder / "all_results.json").read_text())
        assert (results["train_pairs"], results["validation_pairs"], results["test_pairs"]) == (80, 12, 9)
        assert results["chosen_model"] in ("trained", "averaged") and results["train_tokens_per_second"] > 0
        settings = json.loads((folder / "generation_config.json").read_text())
        assert (settings["num_beams"], settings["max_length"]) == (4, 512)

        code = (
            "import sys, hf_vanilla_transformer; from transformers import AutoModelForSeq2SeqLM, AutoTokenizer;"
            "from hf_vanilla_transformer.inference.translation import translate;"
            "m = AutoModelForSeq2SeqLM.from_pretrained("
            "sys.argv[1]); t = AutoTokenizer.from_pretrained(sys.argv[1]); sources = sys.argv[2:];"
            "[print(row[0].text) for row in translate(m, t, sources)]"
        )
        sources = [source for source, _ in sentences(9, 2)]
        again = subprocess.run([sys.executable, "-c", code, str(folder), *sources], capture_output=True, text=True)
        assert again.returncode == 0, again.stderr
        assert again.stdout == (folder / "test_translations.txt").read_text()

    def test_the_model_card(self, files, run):
        folder, results = run(*files, "--source_lang", "en", "--target_lang", "xx")
        card = ModelCard.load(folder / "README.md")
        card_data = card.data.to_dict()
        assert card_data["language"] == ["en", "xx"] and card_data["pipeline_tag"] == "translation"
        (bleu, _) = card_data["model-index"][0]["results"][0]["metrics"]
        assert bleu["type"] == "bleu" and bleu["value"] == round(results["test_bleu"], 2)
        assert "| train | 80 |" in card.text and "| `warmup_steps` | 10 |" in card.text
        assert "\n\n\n" not in card.text and "{{" not in card.text and "{%" not in card.text
        # The example is Python.
        (code,) = [block.split("```")[0] for block in card.text.split("```python\n")[1:]]
        compile(code, "README.md", "exec")

    def test_the_card_quotes_any_text(self, tmp_path, run):
        path = write(tmp_path / "x.tsv", tsv([(r'C\C="C" | *x* \'', "$1 `b`")] * 20))
        folder, _ = run("--train_file", path)
        code = ModelCard.load(folder / "README.md").text.split("```python\n")[1].split("```")[0]
        compile(code, "README.md", "exec")
        assert r'"C\\C=\"C\" | *x* \\' in code

    @pytest.mark.parametrize(
        ("splits", "label"),
        [
            (1, "Some of the training pairs, which the model has seen:"),
            (2, "Some of the validation pairs, by which the model was chosen:"),
            (3, "Some of the test pairs:"),
        ],
    )
    def test_the_card_says_where_its_samples_are_from(self, files, run, capsys, splits, label):
        folder, results = run(*files[: 2 * splits], options=[*OPTIONS, "--max_steps", "2", "--max_tokens", "0"])
        card = ModelCard.load(folder / "README.md").text
        assert f"\n{label}\n\n```text\nsource:      " in card
        assert f"translations of {results['sample_split']} pairs\n" in capsys.readouterr().out
        # Nobody has named a language.
        assert "trained\non train.tsv." in card and "language to" not in card
        assert "| `max_steps` | 2 |" in card and "num_train_epochs" not in card
        assert "| `per_device_train_batch_size` | 8 |" in card and "max_tokens" not in card.split("```sh")[0]
        assert "\n\n\n" not in card

    def test_only_codes_are_languages_of_the_card(self, files, run):
        folder, _ = run(*files, "--source_lang", "English", "--target_lang", "pt-BR", "--max_steps", "1")
        card = ModelCard.load(folder / "README.md")
        assert card.data.to_dict()["language"] == ["pt-BR"] and "translate English to pt-BR on train.tsv" in card.text

    @pytest.mark.parametrize(
        "words",
        [
            ["--hub_token", "hf_secret"],
            ["--hub_token=hf_secret"],
            ["--hub-token", "hf_secret"],
            ["--hub_tok=hf_secret"],
        ],
    )
    def test_no_file_holds_the_token(self, files, run, capsys, monkeypatch, words):
        monkeypatch.setattr(
            sys, "argv", [str(SCRIPT), *files, *words, "--api_key", "hf_secret", "--max_tokens", "400"]
        )
        reports = ["--report_to", "tensorboard"] if find_spec("tensorboard") else []
        folder, _ = run(*files, *words, *reports, "--max_steps", "2")
        written = {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        assert "training_args.bin" in written
        assert [name for name, content in written.items() if b"hf_secret" in content] == []
        printed = capsys.readouterr()
        assert "hf_secret" not in printed.out + printed.err
        command = written["README.md"].decode().split("```sh\n")[1]
        assert "<secret>" in command and "--max_tokens 400" in command

    def test_the_token_of_an_argument_file(self, tmp_path, files, run):
        folder, _ = run(write(tmp_path / "x.yaml", "hub_token: hf_secret"), *files, "--max_steps", "2")
        assert not [path for path in folder.rglob("*") if path.is_file() and b"hf_secret" in path.read_bytes()]

    def test_learns(self, tmp_path, files, run):
        """Some 400 steps suffice for so easy a task; what the run says of itself is what its files give."""
        write(tmp_path / "train.tsv", tsv(sentences(400)))
        options = [*OPTIONS, "--num_train_epochs", "36", "--eval_strategy", "steps", "--eval_steps", "60"]
        options += ["--learning_rate", "0.01", "--warmup_steps", "20", "--config_overrides", f"{TINY},d_model=32"]
        options += ["--label_smoothing_factor", "0.05", "--metric_for_best_model", "exact_match", "--seed", "1"]
        folder, results = run(*files, options=options)
        assert results["test_exact_match"] > 50
        model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
        pairs = sentences(9, 2)
        outputs = [row[0].text for row in translate(model, tokenizer, [source for source, _ in pairs])]
        matches = sum(output == target for output, (_, target) in zip(outputs, pairs, strict=True))
        assert results["test_exact_match"] == pytest.approx(100 * matches / 9)

    def test_the_seed_decides(self, files, run):
        curves = [
            history(run(*files, "--seed", seed, folder=f"{number}")[0]) for number, seed in enumerate(("1", "1", "2"))
        ]
        assert curves[0] == curves[1] != curves[2]

    @pytest.mark.slow
    def test_two_processes(self, tmp_path, files, run):
        """Batches by tokens are dealt out so that what is trained, scored and written is that of one process."""
        options = [*files, *OPTIONS, "--optim", "sgd", "--learning_rate", "0.5", "--lr_scheduler_type", "constant"]
        # One batch an epoch, which two processes share.
        options += ["--max_tokens", "100000", "--config_overrides", f"{TINY},dropout=0", "--num_train_epochs", "4"]
        options += ["--logging_steps", "1", "--average_last_checkpoints", "2"]
        done = run_in_two(SCRIPT, *options, "--output_dir", tmp_path / "two")
        assert done.stdout.count("test bleu") == 1 and "accumulated x 2 processes" in done.stdout
        assert "Traceback" not in done.stderr and "%|" not in done.stderr
        two, (one, results) = tmp_path / "two", run(options=options)
        assert sorted(path.name for path in two.iterdir()) == sorted(path.name for path in one.iterdir())
        for key in ("loss", "eval_chrf", "eval_bleu"):
            found, expected = history(two, key), history(one, key)
            assert [step for step, _ in found] == [step for step, _ in expected] and len(found) == 4
            assert [value for _, value in found] == pytest.approx([value for _, value in expected], abs=1e-5)
        assert history(one)[0][1] - history(one)[-1][1] > 0.01
        for name, value in weights(one).items():
            torch.testing.assert_close(weights(two)[name], value, rtol=1e-5, atol=1e-5, msg=name)
        assert (two / "test_translations.txt").read_text() == (one / "test_translations.txt").read_text()
        found = json.loads((two / "all_results.json").read_text())
        assert found["steps"] == results["steps"] and found["test_chrf"] == results["test_chrf"]


class TestInputs:
    def test_two_gzip_files(self, tmp_path, run):
        sides = zip(*sentences(), strict=True)
        paths = [write(tmp_path / f"x.{i}.gz", lines(side)) for i, side in enumerate(sides)]
        words = ["--train_source_file", paths[0], "--train_target_file", paths[1], "--validation_split_size", "10"]
        _, results = run(*words)
        assert results["validation_pairs"] >= 10 and "test_bleu" not in results

    def test_json_lines_with_translations(self, tmp_path, run):
        rows = [json.dumps({"translation": {"en": source, "xx": target}}) for source, target in sentences()]
        words = [
            "--train_file",
            write(tmp_path / "x.jsonl", lines(rows)),
            "--source_lang",
            "en",
            "--target_lang",
            "xx",
        ]
        _, results = run(*words)
        assert results["train_pairs"] == 80 and results["chosen_model"] == "averaged"

    def test_a_folder_as_data_set(self, tmp_path, run):
        for split, rows in (("train", 80), ("validation", 10)):
            write(tmp_path / "set" / f"{split}.tsv", tsv([("source", "target"), *sentences(rows)]))
        for split in ("train", "validation"):
            pairs = [{"source": source, "target": target} for source, target in sentences(20)]
            write(tmp_path / "set" / f"{split}.jsonl", lines(map(json.dumps, pairs)))
            (tmp_path / "set" / f"{split}.tsv").unlink()
        _, results = run("--dataset_name", str(tmp_path / "set"))
        assert (results["train_pairs"], results["validation_pairs"]) == (20, 20)

    def test_streaming(self, files, run):
        folder, results = run(*files, "--streaming", "--max_steps", "12")
        assert (results["steps"], results["validation_pairs"]) == (12, 12)
        assert history(folder, "eval_loss")[-1][0] == 12 and len(history(folder, "eval_bleu")) > 2

    @pytest.mark.parametrize(("given", "expected"), [({}, 5), ({"eval_steps": 7}, 7)])
    def test_a_stream_is_evaluated_when_it_is_said(self, tmp_path, given, expected):
        args = VanillaTransformerTrainingArguments(str(tmp_path), max_steps=100, **given)
        text = {"train": datasets.Dataset.from_dict({"source": ["a"]}).to_iterable_dataset(), "validation": None}
        experiment.fit_to_splits(args, text)
        assert (args.eval_strategy, args.eval_steps, args.save_steps) == ("steps", expected, expected)

    @pytest.mark.parametrize("algorithm", ["bpe", "character"])
    def test_separate_vocabularies(self, files, run, algorithm):
        words = ["--separate_vocabularies", "--tokenizer_algorithm", algorithm, "--vocab_size", "300"]
        folder, _ = run(*files, options=[*OPTIONS, *words])
        config = AutoModelForSeq2SeqLM.from_pretrained(folder).config
        tokenizer = AutoTokenizer.from_pretrained(folder)
        assert not config.share_encoder_decoder_embeddings
        assert (config.vocab_size, config.decoder_vocab_size) == (len(tokenizer), tokenizer.target_vocab_size)

    def test_unigram(self, files, run):
        frequency = OPTIONS.index("--min_frequency")
        options = [*OPTIONS[:frequency], *OPTIONS[frequency + 2 :]]
        folder, _ = run(*files, options=[*options, "--tokenizer_algorithm", "unigram", "--vocab_size", "60"])
        assert type(AutoTokenizer.from_pretrained(folder).backend_tokenizer.model).__name__ == "Unigram"

    @pytest.mark.parametrize("suffix", ["yaml", "json"])
    def test_argument_file_and_command_line(self, tmp_path, files, run, suffix):
        arguments = {"seed": 5, "warmup_steps": "1e1", "lowercase": True, "eval_strategy": "no", "source_lang": None}
        text = json.dumps(arguments) if suffix == "json" else "\n".join(f"{k}: {v}" for k, v in arguments.items())
        text = text.replace("None", "null")
        options = [word for word in OPTIONS if word not in ("--warmup_steps", "10")]
        folder, _ = run(write(tmp_path / f"x.{suffix}", text), *files, "--seed", "6", options=options)
        card = (folder / "README.md").read_text()
        assert "| `seed` | 6 |" in card and "| `warmup_steps` | 10 |" in card
        assert AutoTokenizer.from_pretrained(folder).tokenize("ANT") == ["ant"]
        assert history(folder, "eval_loss") == []

    def test_going_on_from_a_model(self, tmp_path, files, run):
        first, _ = run(*files)
        words = [
            "--model_name_or_path",
            str(first),
            "--learning_rate",
            "0",
            *SCHEDULE,
            "--average_last_checkpoints",
            "0",
        ]
        second, results = run(*files, folder="second", options=[*words, "--use_cpu"])
        assert results["chosen_model"] == "trained"
        assert_equal_weights(weights(first), weights(second))

    def test_a_tokenizer_from_a_folder(self, tmp_path, files, run):
        tokenizer = train_tokenizer([text for pair in sentences() for text in pair], algorithm="character")
        tokenizer.save_pretrained(tmp_path / "tokenizer")
        words = ["--tokenizer_name_or_path", str(tmp_path / "tokenizer")]
        folder, _ = run(*files, options=[*SHAPE, *SCHEDULE, "--use_cpu", *words])
        assert AutoTokenizer.from_pretrained(folder).get_vocab() == tokenizer.get_vocab()

    def test_marian(self, tmp_path, files, run):
        tokenizer = train_tokenizer([text for pair in sentences() for text in pair], algorithm="word")
        ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
        layers = {f"{side}_{name}": 1 for side in ("encoder", "decoder") for name in ("layers", "attention_heads")}
        widths = {"d_model": 16, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "max_position_embeddings": 40}
        config = MarianConfig(vocab_size=len(tokenizer), forced_eos_token_id=2, **ids, **layers, **widths)
        for part in (MarianMTModel(config), tokenizer):
            part.save_pretrained(tmp_path / "marian")
        options = ["--model_name_or_path", str(tmp_path / "marian"), *SCHEDULE, "--use_cpu"]
        folder, results = run(*files, options=options)
        assert isinstance(AutoModelForSeq2SeqLM.from_pretrained(folder), MarianMTModel)
        assert math.isfinite(results["train_loss"]) and "test_bleu" in results

    def test_options_of_training(self, files, run):
        """Learned positions, sampling of presets, bfloat16 and no beams go the whole way too."""
        words = ["--config_overrides", f"{TINY},position_embedding_type=learned,max_position_embeddings=24"]
        words += ["--bf16", "--final_num_beams", "1", "--final_length_penalty", "0.6", "--max_tokens", "0"]
        words += ["--do_train", "--do_eval", "--do_predict"]
        folder, results = run(*files, options=[*OPTIONS, *words])
        assert json.loads((folder / "generation_config.json").read_text())["max_length"] == 24
        assert "test_bleu" in results

    def test_tensorboard(self, tmp_path, files, run):
        pytest.importorskip("tensorboard", reason="an optional dependency: the extra `tensorboard`")
        folder, _ = run(*files, "--report_to", "tensorboard")
        assert list(folder.rglob("events.out.tfevents.*"))

    def test_a_preset_brings_its_smoothing(self, tmp_path):
        for preset, given, expected in (
            ("table3-d-smoothing0.2", None, 0.2),
            ("table3-d-smoothing0.2", 0.1, 0.1),
            ("table3-d-smoothing0.2", 0.3, 0.3),
            ("table3-d-smoothing0.0", None, 0.0),
            ("table3-d-smoothing0.0", 0.1, 0.1),
            ("base", None, 0.1),
        ):
            args = VanillaTransformerTrainingArguments(str(tmp_path), label_smoothing_factor=given)
            experiment.check_arguments(ModelArguments(preset=preset), DataArguments(), args, None)
            assert args.label_smoothing_factor == expected

    @pytest.mark.parametrize("streaming", [False, True])
    @pytest.mark.parametrize("splits", [1, 2, 3])
    def test_blank_lines(self, tmp_path, run, splits, streaming):
        """They may come first, or alone, in any split."""
        files = []
        for split, pairs in list({"train": sentences(), "validation": sentences(5, 1), "test": []}.items())[:splits]:
            rows = [("", "X"), (" ", ""), ("\u3000", "Y"), *pairs, ("ant", "")]
            for side, texts in zip(("source", "target"), zip(*rows, strict=True), strict=True):
                files += [f"--{split}_{side}_file", write(tmp_path / f"{split}.{side}", lines(texts))]
        folder, results = run(*files, *["--streaming"] * streaming, "--max_steps", "2")
        assert results["sample_split"] == ("train" if splits == 1 else "validation")
        assert (folder / "README.md").is_file() and (folder / "attention.png").is_file()

    @pytest.mark.parametrize(
        ("what", "broken"),
        [
            ("training_curve.png", "hf_vanilla_transformer.inference.visualization.plot_training_curve"),
            ("attention.png", "hf_vanilla_transformer.training.experiment.cross_attention"),
            ("the model card", "hf_vanilla_transformer.training.experiment.write_model_card"),
        ],
    )
    def test_results_survive_what_follows(self, files, run, monkeypatch, capsys, what, broken):
        messages = []
        monkeypatch.setattr(experiment.logger, "warning", messages.append)

        def fails(*args, **kwargs):
            raise RuntimeError("no\nfont")

        monkeypatch.setattr(broken, fails)
        folder, results = run(*files, "--max_steps", "2")
        assert messages == [f"{what} could not be made (RuntimeError: no font)"]
        missing = {"training_curve.png", "attention.png", "README.md"} - {path.name for path in folder.iterdir()}
        assert missing == {what.replace("the model card", "README.md")}
        assert "test_bleu" in results and "test bleu" in capsys.readouterr().out

    def test_no_sample_at_all(self):
        blank = datasets.Dataset.from_dict({"source": ["", "a"], "target": ["b", " "]})
        assert experiment.choose_samples({"train": blank.to_iterable_dataset(), "test": blank}) == ("train", [])

    @pytest.mark.parametrize("number", [1, 9, 10, 11, 95])
    def test_samples_are_spread(self, number):
        pairs = datasets.Dataset.from_dict({"source": [f"{i}" for i in range(number)], "target": ["x"] * number})
        split, samples = experiment.choose_samples({"train": pairs, "validation": pairs})
        chosen = [int(pair["source"]) for pair in samples]
        assert split == "validation" and chosen == sorted(set(chosen)) and chosen[0] == 0
        assert len(chosen) == min(number, 10) or (number == 11 and len(chosen) == 6)
        assert chosen[-1] >= number * 0.8 - 1

    def test_the_summary_shows_what_may_be_a_header(self, files, run, capsys):
        run(*files, "--max_steps", "1")
        printed = capsys.readouterr().out
        source, target = sentences()[0]
        assert f"first pair   {source!r} -> {target!r} (if train.tsv has a header, name --source_column" in printed
        assert printed.count("first pair") == 3 and "no evaluation" not in printed
        run(*files[:2], "--source_column", "0", "--target_column", "1", "--max_steps", "1", folder="named")
        printed = capsys.readouterr().out
        assert "first pair" not in printed and "validation   none, so no evaluation" in printed


class TestWarmup:
    def test_a_long_one_is_warned_of_and_the_advice_taken(self, files, run, capsys):
        schedule = ["--max_tokens", "400", "--max_steps", "8", "--use_cpu"]
        run(*files, options=[*MODEL, *schedule])
        (warning,) = [line for line in capsys.readouterr().out.split("\n") if line.startswith("warning")]
        assert warning.endswith(
            "--warmup_steps 4000 is more than half of the 8 steps, whose highest learning rate is 7.9e-06; with "
            "--warmup_steps 2 it is 0.0079"
        )
        run(*files, options=[*MODEL, *schedule, "--warmup_steps", "2"], folder="advised")
        printed = capsys.readouterr().out
        assert "learning     up to 0.00791 after 2 steps" in printed and "warning" not in printed

    def test_a_given_rate_is_kept(self, tmp_path):
        args = VanillaTransformerTrainingArguments(str(tmp_path), learning_rate=0.5, warmup_steps=100)
        advice = experiment.warmup_advice(args, 16, 100, 40)
        assert advice.endswith("highest learning rate is 0.2; with --warmup_steps 10 it is 0.5")


class TestIgnoredOptions:
    """What would have no effect is refused by name."""

    @pytest.mark.parametrize(
        ("kind", "option"),
        [(ModelArguments, "preset"), (ModelArguments, "model_name_or_path"), (DataArguments, "validation_file")],
    )
    def test_an_empty_value(self, kind, option):
        with pytest.raises(ValueError, match=f"`{option}` is empty; give a value or leave it out"):
            kind(**{option: ""})

    TOKENIZER = {
        "tokenizer_algorithm": "bpe",
        "vocab_size": 8000,
        "min_frequency": 2,
        "separate_vocabularies": True,
        "lowercase": True,
        "normalization": "NFC",
    }

    @pytest.mark.parametrize("option", TOKENIZER)
    def test_of_a_tokenizer(self, option):
        for name in ("model_name_or_path", "tokenizer_name_or_path"):
            with pytest.raises(ValueError, match=f"--{name} brings its own .*; leave --{option} out"):
                ModelArguments(**{name: "there", option: self.TOKENIZER[option]})

    @pytest.mark.parametrize("option", ["preset", "config_overrides", "tokenizer_name_or_path"])
    def test_of_a_model(self, option):
        value = {"preset": "base", "config_overrides": "d_model=8"}.get(option, "there")
        with pytest.raises(ValueError, match=f"own tokenizer and configuration; leave --{option} out"):
            ModelArguments(model_name_or_path="there", **{option: value})

    def test_defaults(self):
        args = ModelArguments()
        assert (args.preset, args.tokenizer_algorithm, args.vocab_size) == ("base", "bpe", 8000)
        assert ModelArguments(model_name_or_path="there", attn_implementation="eager").attn_implementation == "eager"


class TestResuming:
    @pytest.mark.parametrize("streaming", [False, True])
    def test_goes_on_exactly(self, files, run, monkeypatch, capsys, streaming):
        options = [
            *OPTIONS,
            "--eval_strategy",
            "steps",
            "--eval_steps",
            "4",
            "--max_steps",
            "12",
            "--logging_steps",
            "1",
        ]
        options += ["--config_overrides", f"{TINY},dropout=0.2"] + ["--streaming"] * streaming
        whole, _ = run(*files, folder="whole", options=options)

        class Interrupt(TrainerCallback):
            def on_step_end(self, args, state, control, **kwargs):
                if state.global_step == 6:
                    raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            start = VanillaTransformerTrainer.__init__
            patch.setattr(
                VanillaTransformerTrainer,
                "__init__",
                lambda self, *args, **kwargs: start(self, *args, **kwargs) or self.add_callback(Interrupt),
            )
            with pytest.raises(SystemExit) as stop:
                run(*files, folder="parts", options=options)
        assert stop.value.code == 130
        message = "interrupted; --resume_from_checkpoint last continues from the last checkpoint"
        assert capsys.readouterr().err.splitlines()[-1] == message
        # Without its preset and tokenizer: they come from the checkpoint.
        parts, results = run(*files, "--resume_from_checkpoint", "last", folder="parts", options=options[len(MODEL) :])
        assert history(parts) == history(whole) and history(parts, "eval_bleu") == history(whole, "eval_bleu")
        assert results["steps"] == 12
        assert_equal_weights(weights(whole), weights(parts))

    @pytest.mark.parametrize("words", [[], ["--max_steps", "5"], ["--max_steps", "5", "--save_strategy", "best"]])
    def test_a_run_that_has_ended_is_evaluated_again(self, files, run, words):
        folder, first = run(*files, *words)
        (folder / "all_results.json").unlink()
        before = weights(folder)
        _, second = run(*files, *words, "--resume_from_checkpoint", "last")
        timed = ("train_runtime", "train_tokens_per_second")
        assert {**second, **dict.fromkeys(timed)} == {**first, **dict.fromkeys(timed)}
        # Of all sessions; the first one's last moments come after its last checkpoint.
        assert second["train_runtime"] > first["train_runtime"] / 2
        assert_equal_weights(weights(folder), before)

    def test_the_checkpoint_that_it_began_from_may_go(self, files, run):
        words = [*OPTIONS, "--average_last_checkpoints", "0", "--eval_strategy", "no", "--num_train_epochs"]
        folder, _ = run(*files, options=[*words, "1"])
        (begun,) = folder.glob("checkpoint-*")
        _, results = run(*files, "--resume_from_checkpoint", "last", options=[*words, "4"])
        assert not begun.exists() and results["epoch"] == 4 and results["train_tokens_per_second"] > 0

    def test_interrupted_while_the_first_checkpoint_is_saved(self, files, run, monkeypatch, capsys):
        with monkeypatch.context() as patch, pytest.raises(SystemExit) as stop:
            patch.setattr(TrainerState, "save_to_json", Mock(side_effect=KeyboardInterrupt))
            run(*files)
        message = "interrupted; there is no checkpoint yet, so the same command starts again"
        assert stop.value.code == 130 and capsys.readouterr().err.splitlines()[-1] == message
        # There is nothing to resume from, and nothing in the way.
        assert run(*files)[1]["steps"] == 6

    def test_what_a_kill_left_of_another_run_is_not_averaged(self, tmp_path, files, run):
        left = tmp_path / "model" / "checkpoint-4"
        left.mkdir(parents=True)
        model = VanillaTransformerForConditionalGeneration(VanillaTransformerConfig(vocab_size=30, d_model=16))
        model.save_pretrained(left)
        _, results = run(*files)
        assert results["steps"] == 6 and results["averaged_checkpoints"] == 2

    def test_an_older_checkpoint(self, files, run, fail, capsys):
        """Going on from it where newer ones lie would average two runs."""
        folder, _ = run(*files)
        older, newer = sorted(folder.glob("checkpoint-*"))
        capsys.readouterr()
        message = fail(*files, "--resume_from_checkpoint", str(older))
        assert f"already holds {newer.name}; resume from last, or name another --output_dir" in message
        _, results = run(*files, "--resume_from_checkpoint", str(older), folder="another")
        assert results["steps"] == 6 and "averaged_checkpoints" not in results

    def test_divergence_leaves_no_model(self, tmp_path, files, capsys):
        words = ["--learning_rate", "1e30", "--optim", "sgd", "--lr_scheduler_type", "constant"]
        with pytest.raises(SystemExit) as stop:
            main([*files, *OPTIONS, *words, "--output_dir", str(tmp_path / "model")])
        assert stop.value.code == 2 and "error: step 2: " in (message := capsys.readouterr().err.splitlines()[-1])
        assert "training has diverged; start again with a --learning_rate below 1e+30" in message
        assert not list(tmp_path.glob("model/**/*.safetensors"))

    def test_without_checkpoints(self, files, run):
        folder, results = run(*files, "--save_strategy", "no")
        assert results["chosen_model"] == "trained" and not list(folder.glob("checkpoint-*"))


class TestChoice:
    def scored(self, monkeypatch, scores):
        """Let the models that `choose_model` compares, the trained one first, have these scores."""
        scores = iter(scores)
        monkeypatch.setattr(experiment, "best_texts", lambda *args: [""])
        monkeypatch.setattr(
            experiment,
            "translation_scores",
            lambda *args, **kwargs: dict.fromkeys(experiment.METRICS, 0.0) | next(scores),
        )

    @pytest.fixture
    def trained(self, tmp_path, files, run):
        return run(*files, "--num_train_epochs", "3", "--average_last_checkpoints", "2")[0]

    @pytest.mark.parametrize(
        ("metric", "scores", "chosen"),
        [
            ("bleu", [{"bleu": 2.0}, {"bleu": 1.0}], "trained"),
            ("bleu", [{"bleu": 1.0}, {"bleu": 2.0}], "averaged"),
            ("chrf", [{"chrf": 2.0}, {"bleu": 9.0, "chrf": 1.0}], "trained"),
            ("loss", [{"bleu": 2.0}, {"chrf": 9.0, "bleu": 1.0}], "trained"),
        ],
    )
    def test_the_better_one_on_validation(self, trained, monkeypatch, metric, scores, chosen):
        self.scored(monkeypatch, scores)
        args = VanillaTransformerTrainingArguments(
            str(trained), metric_for_best_model=metric, average_last_checkpoints=2, use_cpu=True
        )
        text = {"validation": datasets.Dataset.from_list([{"source": "a", "target": "b"}])}
        results = {}
        model = experiment.choose_model(AutoTokenizer.from_pretrained(trained), text, args, results)
        assert results["chosen_model"] == chosen and results["averaged_checkpoints"] == 2
        averaged = average_checkpoints(last_checkpoints(trained, 2)).state_dict()
        assert_equal_weights(model.state_dict(), averaged if chosen == "averaged" else weights(trained))

    def test_early_stopping(self, files, run):
        words = ["--early_stopping_patience", "2", "--metric_for_best_model", "loss", "--num_train_epochs", "50"]
        folder, results = run(*files, options=[*OPTIONS, *words, "--learning_rate", "1e-12"])
        # Nothing improves at such a rate: the first evaluation is the best, and the second after it the last.
        assert len(history(folder, "eval_loss")) <= 5 and results["epoch"] <= 5


class TestFaults:
    def test_text(self, tmp_path, fail):
        two = ["--train_source_file", str(tmp_path / "a"), "--train_target_file", str(tmp_path / "b")]
        for source, target, message in (
            ("a\nb\n", "a\n", r"a has 2 lines but "),
            ("", "", "a: no lines in it"),
            (b"a\n\xff\n", "a\nb\n", "a, line 2: byte 0xff at position 1 is not UTF-8"),
        ):
            write(tmp_path / "a", source)
            write(tmp_path / "b", target)
            assert message in fail(*two)
        assert "no data is named" in fail()
        assert "no such file" in fail("--train_file", str(tmp_path / "none.tsv"))

    def test_columns_and_splits(self, tmp_path, fail):
        table = write(tmp_path / "x.csv", "en,xx\na,b\n")
        rows = write(tmp_path / "x.jsonl", '{"translation": {"en": "a", "xx": "b"}}\n')
        assert "no column 'source' or 'target'" in fail("--train_file", table)
        languages = ["--source_lang", "en", "--target_lang", "fr"]
        assert "the languages en, xx, not en and fr" in fail("--train_file", rows, *languages)
        assert "there are no training pairs" in fail("--test_file", write(tmp_path / "x.tsv", "a\tb\n"))

    def test_no_pair_fits(self, files, fail):
        assert "no pair is left" in fail(*files, "--max_source_length", "2", "--max_target_length", "2")
        assert "tokens (source and target) exceed --max_tokens 5" in fail(
            *files, options=[*OPTIONS, "--max_tokens", "5"]
        )

    def test_output_dir(self, tmp_path, files, fail):
        write(tmp_path / "model" / "config.json", "{}")
        assert "model already holds a model; name another folder" in fail(*files)
        message = fail(*files, "--resume_from_checkpoint", "last")
        assert "model holds no complete checkpoint; leave the option out" in message
        message = fail(*files, "--resume_from_checkpoint", str(tmp_path))
        assert f"{tmp_path}: it holds no trainer_state.json; name a complete checkpoint-<step> folder" in message
        write(tmp_path / "a-file", "")
        assert "a-file cannot be made: File exists" in fail(*files, folder="a-file")

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (["--preset", "smal"], "unknown preset 'smal'; did you mean small?"),
            (["--config_overrides", "d_model"], "'d_model' sets no field of the configuration; write field=value"),
            (["--config_overrides", "d_modle=8"], "did you mean d_model=...?"),
            (["--config_overrides", "from_pretrained=8"], "'from_pretrained=8' sets no field"),
            (["--config_overrides", "d_model=wide"], "d_model=wide is of the wrong type; d_model takes int"),
            (["--config_overrides", "d_model=17"], "`d_model` is 17"),
            (["--config_overrides", "vocab_size=5,decoder_vocab_size=5"], "the model's `vocab_size` is 5"),
            (
                ["--config_overrides", "pad_token_id=3"],
                "the tokenizer has pad_token_id 0, but the model pad_token_id 3",
            ),
            (
                ["--config_overrides", f"{TINY},position_embedding_type=learned,max_position_embeddings=4"],
                "the longest validation pair has 7 tokens on one side, but the model has 4 positions",
            ),
            (["--tokenizer_algorithm", "magic"], "magic"),
            (["--model_name_or_path", "there"], "brings its own tokenizer and configuration"),
            (["--do_predict"], "--do_predict without --do_train: this command always trains"),
            (["--do_eval", "--do_predict"], "--do_eval and --do_predict without --do_train"),
            (["--do_train", "false"], "--do_train false: this command always trains"),
            (["--early_stopping_patience", "1", "--eval_strategy", "no"], "needs evaluations; set --eval_strategy"),
            (["--metric_for_best_model", "bleurt"], "--metric_for_best_model bleurt is unknown; use bleu, chrf"),
            (["--predict_with_generate", "false"], "bleu needs --predict_with_generate; use loss without it"),
            (["--streaming"], "say how long to train by --max_steps"),
            (["--final_num_beams", "0"], "--final_num_beams 0 leaves no hypothesis"),
            (["--generation_num_beams", "0"], "--generation_num_beams 0 leaves no hypothesis"),
            (["--generation_max_length", "0"], "--generation_max_length 0 leaves no token"),
            (["--attn_implementation", "flash_attention_2"], "--attn_implementation flash_attention_2 cannot be used"),
            (["--attn_implementation", "flash"], "--attn_implementation flash cannot be used"),
            (["--warmup_steps", "0"], "--warmup_steps is 0, from which no learning rate follows"),
            (["--save_strategy", "steps"], "requires the save and eval strategy to match"),
            (["--lr_scheduler_type", "sqrt"], "sqrt"),
            (["--vocab_size", "many"], "invalid int value: 'many'"),
            (["--colour", "red"], "--colour"),
            (["--report_to", "nothing-known"], "nothing-known"),
        ],
    )
    def test_arguments(self, files, fail, words, message):
        assert message in fail(*files, options=[*OPTIONS, *words])

    def test_early_stopping_without_validation(self, files, fail):
        assert "--early_stopping_patience needs validation pairs" in fail(*files[:2], "--early_stopping_patience", "1")

    def test_names_of_models(self, tmp_path, files, fail):
        (tmp_path / "empty").mkdir()
        for name in (str(tmp_path / "none"), str(tmp_path / "empty")):
            assert f"tokenizer {name} cannot be loaded" in fail(
                *files, options=[*SHAPE, *SCHEDULE, "--tokenizer_name_or_path", name]
            )
            assert f"tokenizer {name} cannot be loaded" in fail(
                *files, options=[*SCHEDULE, "--model_name_or_path", name]
            )
        train_tokenizer(["a"]).save_pretrained(tmp_path / "empty")
        message = fail(*files, options=[*SCHEDULE, "--model_name_or_path", str(tmp_path / "empty")])
        assert f"model {tmp_path / 'empty'} cannot be loaded" in message
        one = str(tmp_path / "empty" / "tokenizer.json")
        assert f"{one} cannot be loaded: it is a file; name the folder" in fail(
            *files, options=[*SCHEDULE, "--model_name_or_path", one]
        )

    def test_special_tokens_of_another_kind(self, tmp_path, files, fail):
        vocabulary = ["<s>", "<pad>", "</s>", "<unk>", "ant"]
        inner = Tokenizer(models.WordLevel({token: i for i, token in enumerate(vocabulary)}, unk_token="<unk>"))
        inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        inner.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])
        special = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
        PreTrainedTokenizerFast(tokenizer_object=inner, **special).save_pretrained(tmp_path / "other")
        words = [*SHAPE, *SCHEDULE, "--use_cpu", "--tokenizer_name_or_path", str(tmp_path / "other")]
        message = fail(*files, options=words)
        remedy = "pad_token_id=1,bos_token_id=0,eos_token_id=2,decoder_start_token_id=0"
        assert "the tokenizer has pad_token_id 1, bos_token_id 0, but the model pad_token_id 0" in message
        assert message.endswith(f"--config_overrides {remedy}")
        main(
            [
                *files,
                *words,
                "--config_overrides",
                f"{TINY},{remedy}",
                "--output_dir",
                str(tmp_path / "model"),
            ]
        )

    def test_argument_files(self, tmp_path, fail):
        for text, message in (
            ("seed: 1\nwarmup: 3\n", "unknown argument warmup; did you mean warmup_steps?"),
            ("- seed\n", "holds no mapping of argument names"),
            ("seed: [1\n", "x.yaml cannot be read: line 2: expected"),
            (b"\xff", "x.yaml cannot be read"),
            ("optim_args: {a: 1}\n", "optim_args is a mapping; write it as a JSON string in quotes"),
            ("vocab_size: many\n", "invalid int value: 'many'"),
        ):
            assert message in fail(write(tmp_path / "x.yaml", text))
        assert "none.yaml cannot be read" in fail(str(tmp_path / "none.yaml"))

    def test_card_template(self, tmp_path, files):
        args = VanillaTransformerTrainingArguments(str(tmp_path / "model"), use_cpu=True)
        data_args = DataArguments(train_file=files[1])
        for content in (None, "{% if %}"):
            if content:
                write(tmp_path / "card.md", content)
            with pytest.raises(ValueError, match="card.md: not a readable template of the model card"):
                train_translation(ModelArguments(preset="tiny"), data_args, args, tmp_path / "card.md")

    def test_help(self, capsys):
        with pytest.raises(SystemExit) as stop:
            main(["--help"])
        assert stop.value.code == 0
        text = capsys.readouterr().out
        for name in ("--train_source_file", "--preset", "--max_tokens", "scripts/recipes/multi30k.yaml"):
            assert name in text


def test_overrides():
    text = "d_model=256, norm_position=pre,dropout=0,layer_norm_eps=1e-6,head_dim=None,attention_bias=True"
    assert parse_overrides(text) == {
        "d_model": 256,
        "norm_position": "pre",
        "dropout": 0,
        "layer_norm_eps": 1e-6,
        "head_dim": None,
        "attention_bias": True,
    }
    assert parse_overrides(None) == parse_overrides("") == {}
