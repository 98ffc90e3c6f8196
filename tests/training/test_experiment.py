"""Whole experiments, from text files to a folder with model, results and card; resuming."""

import itertools
import json
import math
import sys
from functools import wraps
from importlib.util import find_spec

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, MarianMTModel

from experiments import TINY, assert_equal_weights, history, sentences, train, weights
from hf_vanilla_transformer import VanillaTransformerForConditionalGeneration, train_tokenizer
from hf_vanilla_transformer.inference.alignment import MAX_TOKENS
from hf_vanilla_transformer.inference.translation import translate
from hf_vanilla_transformer.training.metrics import METRIC_NAMES
from hf_vanilla_transformer.training.trainer import VanillaTransformerTrainer
from parallel_text import tsv, write
from paths import SCRIPTS
from processes import run_in_two
from trainers import At, Killed, kill, trainable_marian

pytestmark = pytest.mark.usefixtures("one_thread")


class TestFinished:
    """The run shared with other tests."""

    def test_files(self, finished):
        written = {path.name for path in finished.iterdir() if path.is_file()}
        expected = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json"}
        expected |= {"tokenizer_config.json", "all_results.json", "trainer_state.json", "test_translations.txt"}
        expected |= {"training_curve.png", "attention.png", "README.md"}
        assert written == expected

    def test_results(self, finished):
        results = json.loads((finished / "all_results.json").read_text())
        assert (results["train_pairs"], results["validation_pairs"], results["test_pairs"]) == (80, 12, 9)
        assert results["chosen_model"] in ("trained", "averaged") and results["train_tokens_per_second"] > 0
        assert results["averaged_checkpoints"] == 2 and results["sample_split"] == "test"
        test = {f"test_{key}{suffix}" for key in METRIC_NAMES for suffix in ("", "_signature")} | {"test_exact_match"}
        scores = {f"validation_{model}_{metric}" for model in ("trained", "averaged") for metric in ("bleu", "chrf")}
        assert test | scores <= results.keys()


class TestRuns:
    def test_learns(self, tmp_path, files):
        """Some 400 steps suffice for this easy task; the reported results match the run's files."""
        write(tmp_path / "train.tsv", tsv(sentences(400)))
        options = {"num_train_epochs": 36, "eval_strategy": "steps", "eval_steps": 120, "learning_rate": 0.01}
        wider = TINY.replace("d_model=16", "d_model=32")
        options |= {"warmup_steps": 20, "config_overrides": wider, "label_smoothing_factor": 0.05}
        options |= {"metric_for_best_model": "exact_match", "seed": 1}
        results = train(tmp_path / "model", **files, **options)
        assert results["test_exact_match"] > 50
        model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "model")
        tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
        pairs = sentences(9, 2)
        outputs = [row[0].text for row in translate(model, tokenizer, [source for source, _ in pairs])]
        matches = sum(output == target for output, (_, target) in zip(outputs, pairs, strict=True))
        assert results["test_exact_match"] == pytest.approx(100 * matches / 9)

    def test_of_symbols(self, tmp_path, capsys):
        """Of several references, which outputs may equal."""
        words = ["".join(letters) for letters in itertools.product("abcdef", repeat=3)]
        pairs = [(word, " ".join(word.upper())) for word in words]
        splits = {"train": pairs[:160], "validation": pairs[160:170] + [(pairs[160][0], "A B")], "test": pairs[170:]}
        files = {f"{split}_file": write(tmp_path / f"{split}.tsv", tsv(rows)) for split, rows in splits.items()}
        columns = {"source_column": "0", "target_column": "1"}
        results = train(tmp_path / "model", **files, **columns)
        printed = capsys.readouterr().out
        assert "best model   by WER on the validation pairs; targets have 6 symbols separated by spaces" in printed
        assert results["best_checkpoint_metric"] == "wer" and results["target_notation"] == "whitespace"
        for scores in ("validation_trained_", "validation_averaged_", "test_"):
            assert results[f"{scores}exact_match"] == pytest.approx(100 - results[f"{scores}wer"])
            assert f"{scores}ser" in results and f"{scores}bleu" not in results
        assert results["test_wer_signature"] == f"sources:{len(words) - 170}|refs:{len(words) - 170}|case:mixed"
        assert [step for step, _ in history(tmp_path / "model", "eval_ser")] and "translations of" not in printed
        state = json.loads((tmp_path / "model" / "trainer_state.json").read_text())
        assert state["best_metric"] == min(value for _, value in history(tmp_path / "model", "eval_wer"))
        card = (tmp_path / "model" / "README.md").read_text()
        assert "| WER |" in card and "pipeline_tag: text-generation" in card and "BLEU" not in card

    @pytest.mark.slow
    def test_marian(self, tmp_path, files):
        tokenizer = train_tokenizer([text for pair in sentences() for text in pair], algorithm="word")
        for part in (trainable_marian(vocab_size=len(tokenizer), max_position_embeddings=40), tokenizer):
            part.save_pretrained(tmp_path / "marian")
        results = train(tmp_path / "model", {}, **files, model_name_or_path=str(tmp_path / "marian"))
        assert isinstance(AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "model"), MarianMTModel)
        assert math.isfinite(results["train_loss"]) and "test_bleu" in results

    @pytest.mark.slow
    def test_no_file_holds_the_token(self, tmp_path, files, capsys, monkeypatch):
        command = ["train.py", "--hub_token", "hf_secret", "--api_key", "hf_secret", "--max_tokens", "400"]
        monkeypatch.setattr(sys, "argv", command)
        reports = ["tensorboard"] if find_spec("tensorboard") else []
        train(tmp_path / "model", **files, hub_token="hf_secret", report_to=reports, max_steps=2)
        folder = tmp_path / "model"
        written = {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        assert "training_args.bin" in written
        assert [name for name, content in written.items() if b"hf_secret" in content] == []
        printed = capsys.readouterr()
        assert "hf_secret" not in printed.out + printed.err
        assert bool(list(folder.rglob("events.out.tfevents.*"))) == bool(reports)

    def test_divergence_leaves_no_model(self, tmp_path, files):
        options = {"learning_rate": 1e30, "optim": "sgd", "lr_scheduler_type": "constant"}
        with pytest.raises(ValueError, match="^step 2: .* training has diverged; start again with a `learning_rate`"):
            train(tmp_path / "model", **files, **options)
        assert not list(tmp_path.glob("model/**/*.safetensors"))

    @pytest.mark.slow
    @pytest.mark.parametrize("with_validation", [False, True])
    def test_a_line_of_thousands_of_words(self, tmp_path, files, monkeypatch, with_validation):
        """A long pair is not trained on, shown or drawn, and is truncated where every pair is scored."""
        rows = [*sentences(20), ("ant bee " * 2500, "ANT BEE " * 2500)]
        file = write(tmp_path / "long.tsv", tsv(rows[::-1]))
        lengths = []
        forward = VanillaTransformerForConditionalGeneration.forward

        @wraps(forward)
        def recorded(self, input_ids=None, **inputs):
            if input_ids is not None:
                lengths.append(input_ids.shape[1])
            return forward(self, input_ids, **inputs)

        monkeypatch.setattr(VanillaTransformerForConditionalGeneration, "forward", recorded)
        held_out = {"validation_file": file, "test_file": file} if with_validation else {}
        options = {"max_source_length": 20, "max_target_length": 20, "max_steps": 1}
        results = train(tmp_path / "model", train_file=file, **held_out, **options)
        # Alignment heads are chosen by longer pairs, too.
        assert results["train_pairs"] == 20 and 0 < max(lengths) <= (MAX_TOKENS if with_validation else 20)
        assert results.get("validation_pairs", 21) == 21
        samples = json.loads((tmp_path / "model" / "all_results.json").read_text())["sample_split"]
        assert samples == ("test" if with_validation else "train")
        assert (tmp_path / "model" / "attention.png").is_file()

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("extras", "tolerance"),
        [
            ({}, 1e-5),
            ({"ema_decay": 0.5}, 1e-5),
            # Its matrix products, in bfloat16 where that is faster, amplify rounding errors of gradients.
            ({"muon": True, "learning_rate": 0.01}, 1e-3),
        ],
        ids=["plain", "moving average", "Muon"],
    )
    def test_two_processes(self, tmp_path, files, extras, tolerance):
        """With token-budget batches, two processes train, score and write the same as one."""
        # One batch per epoch, shared by two processes.
        options = {"optim": "sgd", "learning_rate": 0.5, "lr_scheduler_type": "constant", "max_tokens": 100000}
        options |= {"config_overrides": f"{TINY},dropout=0", "num_train_epochs": 4, "logging_steps": 1}
        options |= {"average_last_checkpoints": 2, **extras}
        one, two = tmp_path / "one", tmp_path / "two"
        results = train(one, **files, **options)
        settings = {"preset": "tiny", "tokenizer_algorithm": "word", "min_frequency": 1, "warmup_steps": 10}
        settings = {**settings, **files, **options, "use_cpu": True, "output_dir": two}
        words = [f"--{name}={value}" for name, value in settings.items()]
        done = run_in_two(SCRIPTS / "train_translation.py", *words)
        assert done.stdout.count("test BLEU  ") == 1 and "accumulated x 2 processes" in done.stdout
        assert "Traceback" not in done.stderr and "%|" not in done.stderr
        assert sorted(path.name for path in two.iterdir()) == sorted(path.name for path in one.iterdir())
        for key in ("loss", "eval_chrf", "eval_bleu"):
            found, expected = history(two, key), history(one, key)
            assert [step for step, _ in found] == [step for step, _ in expected] and len(found) == 4
            assert [value for _, value in found] == pytest.approx([value for _, value in expected], abs=tolerance)
        assert history(one)[0][1] - history(one)[-1][1] > 0.01
        for name, value in weights(one).items():
            torch.testing.assert_close(weights(two)[name], value, rtol=tolerance, atol=tolerance, msg=name)
        assert (two / "test_translations.txt").read_text() == (one / "test_translations.txt").read_text()
        found = json.loads((two / "all_results.json").read_text())
        assert found["steps"] == results["steps"] and found["test_chrf"] == results["test_chrf"]
        assert found["train_loss"] == pytest.approx(results["train_loss"], abs=tolerance)


class TestResuming:
    @pytest.mark.parametrize("streaming", [False, True])
    def test_goes_on_exactly(self, tmp_path, files, monkeypatch, streaming):
        options = {"eval_strategy": "steps", "eval_steps": 4, "max_steps": 12, "logging_steps": 1}
        # The final evaluation is the same for all runs, so keep it short.
        del files["test_file"]
        options |= {**files, "streaming": streaming, "average_last_checkpoints": 2, "final_num_beams": 1}
        dropout = {"config_overrides": f"{TINY},dropout=0.2"}
        whole, parts = tmp_path / "whole", tmp_path / "parts"
        train(whole, **options, **dropout)
        start = VanillaTransformerTrainer.__init__

        def started(self, *args, **kwargs):
            start(self, *args, **kwargs)
            self.add_callback(At(6, kill))

        with monkeypatch.context() as patch, pytest.raises(Killed):
            patch.setattr(VanillaTransformerTrainer, "__init__", started)
            train(parts, **options, **dropout)
        # Without its preset and tokenizer: they come from the checkpoint.
        results = train(parts, {}, **options, resume_from_checkpoint="last")
        assert history(parts) == history(whole) and history(parts, "eval_bleu") == history(whole, "eval_bleu")
        assert results["steps"] == 12
        assert_equal_weights(weights(whole), weights(parts))

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "options",
        [{}, {"max_steps": 5}, {"max_steps": 5, "save_strategy": "best"}, {"max_steps": 5, "streaming": True}],
    )
    def test_a_run_that_has_ended_is_evaluated_again(self, tmp_path, files, options):
        folder, options = tmp_path / "model", {**files, **options}
        first = train(folder, **options)
        (folder / "all_results.json").unlink()
        before = weights(folder)
        second = train(folder, **options, resume_from_checkpoint="last")
        timed = ("train_runtime", "train_tokens_per_second")
        assert {**second, **dict.fromkeys(timed)} == {**first, **dict.fromkeys(timed)}
        # The time of all sessions, except for the first one's after its last checkpoint.
        assert second["train_runtime"] > first["train_runtime"] / 2
        assert_equal_weights(weights(folder), before)
