"""The trainer: the paper's optimizer and loss, exact accumulation, exact resuming, several processes, averaging."""

import json
import sys
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import datasets
import pytest
import torch
from torch.nn import functional as F
from transformers import AutoModelForSeq2SeqLM, Seq2SeqTrainer, Seq2SeqTrainingArguments

from devices import TEST_DEVICE
from hf_vanilla_transformer.data.batching import TokenBudgetBatchSampler, token_lengths
from hf_vanilla_transformer.data.encoding import tokenize_pairs
from hf_vanilla_transformer.errors import DataError
from hf_vanilla_transformer.model import loss_vanilla_transformer, modeling_vanilla_transformer
from hf_vanilla_transformer.pretrained.output_limits import EXTRA_OUTPUT_TOKENS
from hf_vanilla_transformer.training.arguments import VanillaTransformerTrainingArguments
from hf_vanilla_transformer.training.trainer import VanillaTransformerTrainer
from processes import leave, run_in_two
from trainers import (
    TOKENIZER,
    assert_same_weights,
    id_pairs,
    losses,
    token_stream,
    train_args,
    trainable_marian,
    trainable_model,
    trainer_of,
)

pytestmark = pytest.mark.usefixtures("one_thread")

# Tolerance for losses of equal pairs in batches of different sizes, for which a GPU takes different kernels.
SAME_LOSS = 1e-6 if TEST_DEVICE == "cpu" else 1e-5


# An epoch of one step, which does not magnify differences.
ONE_STEP = {"optim": "sgd", "learning_rate": 0.5, "lr_scheduler_type": "constant", "num_train_epochs": 1}


def assert_changed(model, start):
    assert max((model.state_dict()[name] - value).abs().max() for name, value in start.items()) > 1e-3


class Indexed(torch.utils.data.Dataset):
    """A dataset that supports only indexing by row number."""

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index % len(self.rows)]


class TestDefaults:
    def test_optimizer_and_schedule_are_the_papers(self, tmp_path):
        trainer = trainer_of(tmp_path, warmup_steps=1000)
        trainer.create_optimizer_and_scheduler(num_training_steps=3000)
        (group,) = {(*g["betas"], g["eps"], g["weight_decay"]) for g in trainer.optimizer.param_groups}
        assert group == (0.9, 0.98, 1e-9, 0.0)
        for step in range(1, 2001):
            trainer.optimizer.step()
            trainer.lr_scheduler.step()
            # Section 5.3, eq. 3.
            expected = 16**-0.5 * min(step**-0.5, step * 1000**-1.5)
            assert trainer.lr_scheduler.get_last_lr()[0] == pytest.approx(expected, rel=1e-12)

    def test_a_given_learning_rate_stays(self, tmp_path):
        assert trainer_of(tmp_path, learning_rate=0.5).args.learning_rate == 0.5


class TestLoss:
    @pytest.mark.parametrize("smoothing", [0.0, 0.1])
    def test_training_smooths_and_evaluation_does_not(self, tmp_path, smoothing):
        data, model = id_pairs(rows=20), trainable_model(dropout=0.0)
        trainer = trainer_of(
            tmp_path, model, data, max_tokens=10_000, max_steps=1, label_smoothing_factor=smoothing, eval_dataset=data
        )
        batch = trainer.data_collator([data[i] for i in range(20)]).to(model.device)
        with torch.no_grad():
            logits = model.eval()(**batch).logits.flatten(0, 1)
        smoothed, plain = (
            F.cross_entropy(logits, batch["labels"].flatten(), label_smoothing=epsilon) for epsilon in (smoothing, 0)
        )
        for generate in (True, False):
            trainer.args.predict_with_generate = generate
            assert trainer.evaluate()["eval_loss"] == pytest.approx(plain.item(), abs=1e-5)
        trainer.train()
        assert losses(trainer) == [pytest.approx(smoothed.item(), abs=1e-5)]

    def test_training_stores_no_logits(self, tmp_path, monkeypatch):
        model = trainable_model()
        trainer = trainer_of(tmp_path, model, max_steps=1)
        for module in (loss_vanilla_transformer, modeling_vanilla_transformer):
            monkeypatch.setattr(module, "summed_loss", lambda *arguments: pytest.fail("logits of a whole batch"))
        trainer.train()

    def test_accumulation_equals_one_large_batch(self, tmp_path):
        data = id_pairs()
        small = TokenBudgetBatchSampler(*token_lengths(data), 100, seed=42)
        labels = {sum(len(data[i]["labels"]) for i in batch) for batch in small}
        assert len(small) > 4 and len(labels) > 1, "batches of equal counts would show nothing"
        options = [{"max_tokens": 100_000}, {"max_tokens": 100, "gradient_accumulation_steps": len(small)}]
        one, many = (trainer_of(tmp_path, trainable_model(dropout=0.0), data, **ONE_STEP, **each) for each in options)
        start = {name: value.clone() for name, value in one.model.state_dict().items()}
        for trainer in (one, many):
            assert trainer.train().global_step == 1
        assert_changed(one.model, start)
        assert_same_weights(one.model, many.model, 1e-6)
        assert losses(one) == pytest.approx(losses(many), abs=1e-5)


class TestAgainstSeq2SeqTrainer:
    @pytest.mark.parametrize("smoothing", [0.0, 0.1])
    @pytest.mark.parametrize("accumulation", [1, 2])
    def test_the_same_loss_and_weights(self, tmp_path, smoothing, accumulation):
        options = {"label_smoothing_factor": smoothing, "gradient_accumulation_steps": accumulation}
        options |= {"optim": "sgd", "learning_rate": 0.2, "lr_scheduler_type": "constant", "max_steps": 8}
        ours = trainer_of(tmp_path, trainable_model(dropout=0.0), max_tokens=0, **options)
        args = train_args(tmp_path, Seq2SeqTrainingArguments, max_grad_norm=0.0, **options)
        plain = trainer_of(tmp_path, trainable_model(dropout=0.0), kind=Seq2SeqTrainer, args=args)
        start = {name: value.clone() for name, value in plain.model.state_dict().items()}
        for trainer in (ours, plain):
            trainer.train()
        assert_changed(plain.model, start)
        assert losses(plain)[-1] < losses(plain)[0]
        assert losses(ours) == pytest.approx(losses(plain), abs=1e-5)
        assert_same_weights(ours.model, plain.model, 1e-6)

    def test_without_a_collator(self, tmp_path):
        args = train_args(tmp_path, max_steps=2)
        trainer = VanillaTransformerTrainer(
            trainable_model(), args, train_dataset=id_pairs(), processing_class=TOKENIZER
        )
        trainer.train()
        assert len(losses(trainer)) == 2

    @pytest.mark.parametrize("kind", ["list", "stream", "transform", "torch"])
    def test_data_with_more_columns(self, tmp_path, kind):
        rows = id_pairs().add_column("text", ["a text"] * 60)
        data = {
            "list": list,
            "stream": lambda rows: rows.to_iterable_dataset(),
            "transform": lambda rows: rows.with_transform(
                lambda batch: {name: [ids[-4:] for ids in batch[name]] for name in ("input_ids", "labels")}
            ),
            "torch": Indexed,
        }[kind](rows)
        plain = train_args(tmp_path, Seq2SeqTrainingArguments, max_steps=2)
        ours = train_args(tmp_path, max_steps=2, max_tokens=32)
        for trainer, args in ((Seq2SeqTrainer, plain), (VanillaTransformerTrainer, ours)):
            made = trainer_of(tmp_path, train=data, kind=trainer, args=args)
            made.train()
            assert len(losses(made)) == 2
        batches = islice(made.get_train_dataloader(), 9)
        sizes = [batch["input_ids"].numel() + batch["labels"].numel() for batch in batches]
        # Lengths are of the transformed rows, not of the stored ones.
        assert max(sizes) <= 32 and (kind != "transform" or min(sizes) > 16)

    def test_marian(self, tmp_path):
        options = {"eval_dataset": id_pairs(20), "num_train_epochs": 6, "learning_rate": 0.01}
        trainer = trainer_of(tmp_path, trainable_marian(), **options)
        before = trainer.evaluate()["eval_loss"]
        trainer.train()
        assert not trainer.model_smooths_labels
        assert trainer.evaluate()["eval_loss"] < before - 0.2

    @pytest.mark.parametrize("smoothing", [0.0, 0.1])
    def test_marian_accumulates_means(self, tmp_path, smoothing):
        # Pairs of equal length, so that the mean of means is the mean.
        data = datasets.Dataset.from_list([{"input_ids": [i, 5, 2], "labels": [5, i, 2]} for i in range(4, 12)])
        parts = [{"max_tokens": 48 // n, "gradient_accumulation_steps": n} for n in (1, 2)]
        options = {**ONE_STEP, "label_smoothing_factor": smoothing}
        one, two = (trainer_of(tmp_path, trainable_marian(), data, **options, **each) for each in parts)
        for trainer in (one, two):
            assert trainer.train().global_step == 1
        assert losses(one) == pytest.approx(losses(two), abs=1e-5)
        assert_same_weights(one.model, two.model, 1e-6)


class TestReproducibility:
    def test_the_seed_decides(self, tmp_path):
        curves = []
        for seed in (1, 1, 2):
            trainer = trainer_of(tmp_path, seed=seed)
            trainer.train()
            curves.append(losses(trainer))
        assert curves[0] == curves[1] != curves[2]

    @pytest.mark.parametrize(
        ("epochs", "options"),
        [(1.5, {}), (1, {}), (1.5, {"gradient_accumulation_steps": 2}), (None, {"max_steps": 12})],
        ids=["mid-epoch", "epoch", "accumulation", "stream"],
    )
    def test_resuming_is_exact(self, tmp_path, epochs, options):
        data, stopped = id_pairs() if epochs else token_stream(), 8
        if epochs:
            batches = len(TokenBudgetBatchSampler(*token_lengths(data), 128))
            updates = -(-batches // options.get("gradient_accumulation_steps", 1))
            stopped = int(epochs * updates)
            assert updates > 2
        options = {**options, "num_train_epochs": 3, "save_strategy": "steps", "save_steps": stopped}
        whole = trainer_of(tmp_path, train=data, **options)
        whole.train()
        resumed = trainer_of(tmp_path, trainable_model(seed=7), data, **options)
        resumed.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{stopped}"))
        assert whole.state.global_step == resumed.state.global_step > stopped
        assert losses(resumed, stopped) == losses(whole, stopped) != []
        assert_same_weights(whole.model, resumed.model)

    def test_data_seed_and_epoch_decide_the_order(self, tmp_path):
        loaders = [trainer_of(tmp_path, data_seed=seed).get_train_dataloader() for seed in (1, 1, 2)]
        first, same, other = ([batch["input_ids"].tolist() for batch in loader] for loader in loaders)
        assert first == same != other
        # A pass over the batches begins the next epoch.
        assert [batch["input_ids"].tolist() for batch in loaders[0]] != first

    def test_more_workers_than_shards_of_a_stream(self, tmp_path):
        curves, stream = [], token_stream()
        for workers in (1, 2):
            trainer = trainer_of(tmp_path, train=stream, max_steps=3, dataloader_num_workers=workers)
            trainer.train()
            curves.append(losses(trainer))
        assert curves[0] == curves[1]

    def test_persistent_workers_of_a_stream_without_workers(self, tmp_path):
        trainer = trainer_of(tmp_path, train=token_stream(), max_steps=3, dataloader_persistent_workers=True)
        assert next(iter(trainer.get_train_dataloader()))["labels"].numel()


class TestFinished:
    @pytest.mark.parametrize(
        ("options", "stream"),
        [
            ({"max_steps": 5}, False),
            ({"max_steps": 5}, True),
            ({"num_train_epochs": 1.5}, False),
            ({"num_train_epochs": 2}, False),
        ],
        ids=["steps", "stream", "part of an epoch", "epochs"],
    )
    def test_resuming_takes_no_step(self, tmp_path, options, stream):
        data = token_stream() if stream else id_pairs()
        options = {**options, "save_strategy": "steps", "save_steps": 3}
        first = trainer_of(tmp_path, train=data, **options)
        first.train()
        second = trainer_of(tmp_path, trainable_model(seed=7), data, **options)
        second.train(resume_from_checkpoint=True)
        assert first.state.global_step == second.state.global_step
        assert losses(first) == losses(second)
        assert_same_weights(first.model, second.model)


class TestEvaluation:
    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("kind", "smoothing", "generate"),
        [
            (trainable_model, 0.0, True),
            (trainable_model, 0.1, False),
            (trainable_marian, 0.0, False),
            (trainable_marian, 0.1, True),
        ],
    )
    def test_the_loss_does_not_depend_on_the_batch_size(self, tmp_path, kind, smoothing, generate):
        data, model = id_pairs(20), kind()
        for parameter in model.parameters():
            # So that pairs differ in their loss.
            parameter.data *= 2
        options = {"predict_with_generate": generate, "label_smoothing_factor": smoothing, "generation_max_length": 5}
        scored = {"compute_metrics": lambda prediction: {"rows": len(prediction.predictions)}} if generate else {}
        found, predicted = [], []
        options |= {"eval_dataset": data, **scored}
        for size in (1, 7, 20):
            trainer = trainer_of(tmp_path, model, per_device_eval_batch_size=size, **options)
            metrics = trainer.evaluate()
            found.append(metrics["eval_loss"])
            predicted.append(trainer.predict(data).metrics["test_loss"])
            assert metrics.get("eval_rows", 20) == 20
        # One batch is the mean over its labels by itself.
        assert [*found, *predicted] == pytest.approx([found[-1]] * 6, abs=SAME_LOSS)
        mean_of_means = sum(trainer.evaluate(data.select([i]))["eval_loss"] for i in range(20)) / 20
        assert abs(mean_of_means - found[-1]) > 1e-3, "pairs of equal losses would show nothing"

    def test_the_labels_of_other_processes_do_not_count(self, tmp_path):
        trainer = trainer_of(tmp_path)
        batch = trainer.data_collator([id_pairs(1)[0]]).to(trainer.args.device)
        own, gathered = (
            trainer.compute_loss(trainer.model.eval(), dict(batch), num_items_in_batch=count)
            for count in (None, torch.tensor(1000))
        )
        assert own.item() == gathered.item()

    @pytest.mark.parametrize(
        ("remainder", "process", "counted"), [(0, 1, 4), (-1, 1, 4), (6, 0, 4), (6, 1, 2), (3, 0, 3), (3, 1, 0)]
    )
    def test_rows_that_fill_the_last_batch_do_not_count(self, tmp_path, monkeypatch, remainder, process, counted):
        trainer = trainer_of(tmp_path)
        monkeypatch.setattr(type(trainer.args), "world_size", 2)
        monkeypatch.setattr(type(trainer.args), "process_index", process)
        state = SimpleNamespace(end_of_dataloader=True, remainder=remainder)
        monkeypatch.setattr(trainer.accelerator, "gradient_state", state)
        masked = trainer._mask_duplicates(torch.ones(4, 3, dtype=torch.long))
        assert masked.tolist() == [[1] * 3] * counted + [[-100] * 3] * (4 - counted)

    def test_the_loss_of_a_batch_without_labels(self, tmp_path):
        data = [*id_pairs(3), {"input_ids": [4, 2], "labels": [-100]}]
        trainers = (trainer_of(tmp_path, trainable_marian(), per_device_eval_batch_size=size) for size in (1, 4))
        losses = [trainer.evaluate(data)["eval_loss"] for trainer in trainers]
        assert losses[0] == pytest.approx(losses[1], abs=SAME_LOSS)

    @pytest.mark.parametrize(
        ("several", "scores", "decides"),
        [
            (False, None, "eval_loss"),
            (False, {"rouge": 1.0}, "eval_loss"),
            (True, None, "eval_near_loss"),
            (True, {"bleu": 5.0}, "eval_near_bleu"),
        ],
    )
    def test_what_decides_where_nothing_computes_the_default(self, tmp_path, caplog, several, scores, decides):
        """The loss or, with several evaluation sets, the metric of the first."""
        args = VanillaTransformerTrainingArguments(str(tmp_path), num_train_epochs=2, warmup_steps=4, max_tokens=128)
        sets = {"near": id_pairs(8), "far": id_pairs(8, seed=1)} if several else id_pairs(8)
        scorer = (lambda prediction: scores) if scores else None
        trainer = trainer_of(tmp_path, args=args, eval_dataset=sets, compute_metrics=scorer)
        trainer.train()
        measured = [entry[decides] for entry in trainer.state.log_history if decides in entry]
        best = max if decides.endswith("bleu") else min
        assert len(measured) == 2 and trainer.state.best_metric == best(measured)
        assert caplog.text.count(f"evaluation does not compute eval_bleu: {decides} decides which model is best") == 1

    @pytest.mark.parametrize("options", [{}, {"position_embedding_type": "learned", "max_position_embeddings": 20}])
    def test_decoding_without_an_end_is_bounded(self, tmp_path, options):
        model, data = trainable_model(**options), id_pairs(10)
        model.generation_config.suppress_tokens = [2]
        trainer = trainer_of(tmp_path, model, per_device_eval_batch_size=10)
        output = trainer.predict(data).predictions
        limits = [20 if options else len(ids) + EXTRA_OUTPUT_TOKENS for ids in data["input_ids"]]
        assert (output != 0).sum(1).tolist() == limits and (options or len(set(limits)) > 1)
        # An explicit limit takes priority.
        assert (trainer.predict(data, max_length=7).predictions != 0).sum(1).max() == 7

    def test_ends_with_the_best_model(self, tmp_path):
        # The targets of the validation pairs are unlike those of training, so that training on makes them worse.
        data = id_pairs()
        other = data.map(lambda row: {"labels": [4 + row["labels"][0] % 2] * (len(row["labels"]) - 1) + [2]})
        options = {"eval_strategy": "epoch", "save_strategy": "epoch", "metric_for_best_model": "loss"}
        options |= {"learning_rate": 0.02, "num_train_epochs": 6, "average_last_checkpoints": 2}
        trainer = trainer_of(tmp_path, trainable_model(dropout=0.0), data, eval_dataset=other, **options)
        trainer.train()
        history = [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
        assert min(history) < history[-1] - 1e-3
        assert trainer.evaluate()["eval_loss"] == pytest.approx(min(history), abs=1e-6)
        # The best one and the two that an average needs.
        assert len(list(tmp_path.glob("checkpoint-*"))) == 3


class TestFaults:
    def test_a_pair_longer_than_the_budget(self, tmp_path):
        with pytest.raises(DataError, match=r"exceed `max_tokens` 6; raise it"):
            trainer_of(tmp_path, max_tokens=6).train()

    def test_no_training_pairs(self, tmp_path):
        trainer = trainer_of(tmp_path)
        trainer.train_dataset = None
        with pytest.raises(ValueError, match="needs a `train_dataset`"):
            trainer.train()

    def test_a_stream_without_pairs(self, tmp_path):
        empty = datasets.Dataset.from_dict({"source": [" "], "target": ["w"]}).to_iterable_dataset()
        trainer = trainer_of(tmp_path, train=tokenize_pairs(empty, TOKENIZER)[0], max_steps=2)
        with pytest.raises(DataError, match="no pair of the stream passes the filters"):
            trainer.train()


STREAMED = {"max_tokens": 0, "per_device_train_batch_size": 4, "max_steps": 6}


def train_on_a_stream(folder, **options):
    """Train on batches of sentences, whose widths differ, from a data set without a length."""
    trainer = trainer_of(folder, trainable_model(dropout=0.0), id_pairs().to_iterable_dataset(), **STREAMED, **options)
    trainer.train()
    return trainer


def stream_as_process(folder):
    trainer = train_on_a_stream(folder)
    if trainer.is_world_process_zero():
        trainer.model.save_pretrained(folder)
        Path(folder, "found.json").write_text(json.dumps(losses(trainer)))
    leave()


@pytest.mark.slow
def test_a_stream_of_sentences_in_two_processes(tmp_path):
    run_in_two(Path(__file__), tmp_path)
    one = train_on_a_stream(tmp_path / "one", gradient_accumulation_steps=2)
    assert losses(one) == pytest.approx(json.loads((tmp_path / "found.json").read_text()), abs=1e-4)
    assert_same_weights(one.model, AutoModelForSeq2SeqLM.from_pretrained(tmp_path), 1e-4)


if __name__ == "__main__":
    stream_as_process(sys.argv[1])
