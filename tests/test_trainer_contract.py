"""What users expect of `Seq2SeqTrainer`, of the plain one and of ours: accumulation, grouping, resuming, adapters."""

import copy
import json
import os
import subprocess
from pathlib import Path

import numpy as np
import peft
import pytest
import torch
from transformers import (
    AutoModelForSeq2SeqLM,
    DataCollatorForSeq2Seq,
    EarlyStoppingCallback,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
)

from distributed_worker import ACCELERATE_LAUNCH
from hf_vanilla_transformer.training import VanillaTransformerTrainer, VanillaTransformerTrainingArguments
from translators import ENGLISH, SHARED, SPANISH, build

ROWS = [
    {"input_ids": source, "labels": target}
    for source, target in zip(
        SHARED(ENGLISH * 7)["input_ids"], SHARED(text_target=(SPANISH * 8)[3:38])["input_ids"], strict=True
    )
][:32]
KINDS = {
    "plain": (Seq2SeqTrainer, Seq2SeqTrainingArguments, {}),
    "ours": (VanillaTransformerTrainer, VanillaTransformerTrainingArguments, {"warmup_steps": 2}),
}
EVERY_TRAINER = pytest.mark.parametrize("kind", KINDS)
SPLITS = ((16, 1), (8, 2), (4, 4), (1, 16))


def trainer_of(folder, kind, model=None, callbacks=None, **options):
    """A trainer of batches of so many pairs, not of tokens, so that both kinds see the same."""
    trainer, arguments, own = KINDS[kind]
    if kind == "ours":
        own = {**own, "max_tokens": None}
    defaults = {
        "eval_strategy": "no", "save_strategy": "no", "logging_steps": 1, "learning_rate": 1e-2, "max_steps": 4,
        "per_device_train_batch_size": 4, "report_to": [], "disable_tqdm": True, "use_cpu": True, "seed": 3,
    }  # fmt: skip  # a list of settings
    model = model or build("shared")[0]
    return trainer(
        model,
        arguments(str(folder), **{**defaults, **own, **options}),
        train_dataset=ROWS,
        eval_dataset=ROWS[:8],
        data_collator=DataCollatorForSeq2Seq(SHARED, model=model),
        processing_class=SHARED,
        callbacks=callbacks,
    )


def losses(trainer):
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def weights(model):
    return {name: weight.detach().clone() for name, weight in model.named_parameters()}


def close(actual, expected, tolerance=1e-5):
    assert actual.keys() == expected.keys()
    for name, weight in expected.items():
        torch.testing.assert_close(actual[name], weight, rtol=tolerance, atol=tolerance, msg=name)


def gradient_norm(folder, kind, model, batch_size, accumulation):
    """The norm of the first step's gradient over 16 pairs, dealt out in so many batches."""
    options = {"per_device_train_batch_size": batch_size, "gradient_accumulation_steps": accumulation}
    trainer = trainer_of(folder, kind, copy.deepcopy(model), max_steps=1, max_grad_norm=1e9, **options)
    trainer.train()
    return next(entry["grad_norm"] for entry in trainer.state.log_history if "grad_norm" in entry)


class TestAccumulation:
    @EVERY_TRAINER
    def test_every_split_of_a_batch_has_the_same_gradient(self, kind, tmp_path):
        model, _ = build("shared")
        model.config.dropout = 0.0
        norms = [gradient_norm(tmp_path, kind, model, *split) for split in SPLITS]
        print(
            "\n" + "  ".join(f"{rows}x{steps}: {norm:.6f}" for (rows, steps), norm in zip(SPLITS, norms, strict=True))
        )
        assert norms == pytest.approx([norms[0]] * len(norms), rel=1e-5)

    def test_what_marian_makes_of_it(self, tmp_path):
        """Why that is worth a test: with the plain trainer, Marian's gradient grows with the number of batches."""
        model, _ = build("marian")
        for module in model.modules():
            if hasattr(module, "dropout"):
                module.dropout = 0.0
        norms = [gradient_norm(tmp_path, "plain", model, *split) for split in SPLITS]
        print("\ngradient norm, Marian:", *(f"{norm:.6f}" for norm in norms))
        assert norms[1] > 1.5 * norms[0] and norms[-1] > 8 * norms[0]

    @EVERY_TRAINER
    def test_the_logged_loss_is_the_mean_over_all_labels(self, kind, tmp_path):
        model, _ = build("shared")
        model.config.dropout = 0.0
        smoothing = {"label_smoothing_factor": 0.0}
        found = []
        for rows, steps in SPLITS[:3]:
            options = {"per_device_train_batch_size": rows, "gradient_accumulation_steps": steps, **smoothing}
            trainer = trainer_of(tmp_path, kind, copy.deepcopy(model), max_steps=1, **options)
            trainer.train()
            found += losses(trainer)
        assert found == pytest.approx([found[0]] * 3, abs=1e-4)


@EVERY_TRAINER
def test_grouping_by_length(kind, tmp_path):
    trainer = trainer_of(tmp_path, kind, train_sampling_strategy="group_by_length", max_steps=2)
    sampler = trainer._get_train_sampler(trainer.train_dataset)
    assert type(sampler).__name__ == "LengthGroupedSampler"
    order = [len(ROWS[place]["input_ids"]) for place in sampler]
    shuffled = np.random.default_rng(0).permutation(order)
    assert np.abs(np.diff(order)).sum() < np.abs(np.diff(shuffled)).sum()
    trainer.train()
    assert len(losses(trainer)) == 2


@EVERY_TRAINER
def test_predictions_are_generated(kind, tmp_path):
    model, _ = build("shared")
    trainer = trainer_of(tmp_path, kind, model, predict_with_generate=True, generation_num_beams=2)
    predictions = trainer.predict(ROWS[:4], max_new_tokens=6).predictions
    source = SHARED.pad([{"input_ids": row["input_ids"]} for row in ROWS[:4]], return_tensors="pt")
    source.pop("token_type_ids", None)
    expected = model.generate(**source, num_beams=2, max_new_tokens=6)
    width = expected.shape[1]
    assert predictions[:, :width].tolist() == expected.tolist() and (predictions[:, width:] == 0).all()


@EVERY_TRAINER
def test_resuming_is_exact(kind, tmp_path):
    options = {"max_steps": 6, "save_strategy": "steps", "save_steps": 3, "lr_scheduler_type": "linear"}

    def model():
        made, _ = build("shared")
        made.config.dropout = 0.2
        return made

    whole = trainer_of(tmp_path / "whole", kind, model(), **options)
    whole.train()
    resumed = trainer_of(tmp_path / "whole", kind, model(), **options)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-3"))
    close(weights(resumed.model), weights(whole.model), 0)
    assert losses(resumed) == losses(whole)


@EVERY_TRAINER
def test_early_stopping(kind, tmp_path):
    options = {
        "max_steps": 12, "eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2,
        "load_best_model_at_end": True, "metric_for_best_model": "loss", "learning_rate": 10.0,
    }  # fmt: skip  # a list of settings
    trainer = trainer_of(tmp_path, kind, callbacks=[EarlyStoppingCallback(1)], **options)
    trainer.train()
    measured = [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
    assert trainer.state.global_step < 12 and trainer.state.best_metric == min(measured)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(min(measured), abs=1e-5)


# PEFT asks models by a name that transformers has given a new one.
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
class TestAdapters:
    """LoRA by PEFT."""

    @EVERY_TRAINER
    @pytest.mark.parametrize("targets", [["q_proj", "v_proj"], "all-linear"], ids=["some", "all"])
    def test_train_save_load_merge(self, kind, targets, tmp_path):
        base, _ = build("shared")
        before = weights(base)
        base.save_pretrained(tmp_path / "base")
        config = peft.LoraConfig(task_type="SEQ_2_SEQ_LM", r=4, lora_alpha=8, target_modules=targets)
        model = peft.get_peft_model(base, config)
        trainer = trainer_of(tmp_path / "run", kind, model, learning_rate=0.05)
        trainer.train()
        changed = {name.replace(".base_layer", "").removeprefix("base_model.model."): weight
                   for name, weight in weights(model).items() if "lora_" not in name}  # fmt: skip  # one mapping
        close(changed, before, 0)
        model.eval()
        source = SHARED(ENGLISH, padding=True, return_tensors="pt", return_token_type_ids=False)
        labels = SHARED(text_target=SPANISH, padding=True, return_tensors="pt")["input_ids"]
        logits = model(**source, labels=labels).logits
        plain, _ = build("shared")
        assert (logits - plain(**source, labels=labels).logits).abs().max() > 1e-2

        trainer.save_model(tmp_path / "adapter")
        assert not list((tmp_path / "adapter").glob("model*.safetensors"))
        loaded = peft.AutoPeftModelForSeq2SeqLM.from_pretrained(self.located(tmp_path))
        torch.testing.assert_close(loaded(**source, labels=labels).logits, logits, rtol=1e-5, atol=1e-5)
        ids = loaded.generate(**source, max_new_tokens=5)

        merged = loaded.merge_and_unload()
        torch.testing.assert_close(merged(**source, labels=labels).logits, logits, rtol=1e-4, atol=1e-4)
        merged.save_pretrained(tmp_path / "merged")
        again = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "merged")
        assert type(again) is type(plain)
        torch.testing.assert_close(again(**source, labels=labels).logits, logits, rtol=1e-4, atol=1e-4)
        assert torch.equal(again.generate(**source, max_new_tokens=5), ids)

    def located(self, tmp_path):
        """Return the adapter's folder, which names the base model's."""
        path = tmp_path / "adapter" / "adapter_config.json"
        settings = json.loads(path.read_text()) | {"base_model_name_or_path": str(tmp_path / "base")}
        path.write_text(json.dumps(settings))
        return tmp_path / "adapter"


TWO_PROCESSES = """
import sys
sys.path.insert(0, sys.argv[2])
import json, torch
from test_trainer_contract import losses, trainer_of
from translators import build
from pathlib import Path
torch.set_num_threads(1)
for kind in ("plain", "ours"):
    model, _ = build("shared")
    model.config.dropout = 0.0
    trainer = trainer_of(sys.argv[1], kind, model, per_device_train_batch_size=4, max_steps=4)
    assert trainer.args.world_size == 2
    trainer.train()
    assert type(trainer.model_wrapped).__name__ == "DistributedDataParallel"
    trainer.save_model(f"{sys.argv[1]}/{kind}")
    if trainer.is_world_process_zero():
        Path(sys.argv[1], f"{kind}.json").write_text(json.dumps(losses(trainer)))
torch.distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_accelerate_launch_with_two_processes(tmp_path):
    """Fully sharded training is tested in test_distributed.py: on CPUs accelerate leaves its own out."""
    script = tmp_path / "train.py"
    script.write_text(TWO_PROCESSES)
    command = [*ACCELERATE_LAUNCH, str(script), str(tmp_path), str(Path(__file__).parent)]
    settings = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(command, capture_output=True, text=True, env=settings)
    assert done.returncode == 0, done.stdout + done.stderr
    for kind in KINDS:
        model, _ = build("shared")
        model.config.dropout = 0.0
        one = trainer_of(tmp_path / "one", kind, model, per_device_train_batch_size=8, max_steps=4)
        one.train()
        assert json.loads((tmp_path / f"{kind}.json").read_text()) == pytest.approx(losses(one), abs=1e-4)
        close(weights(AutoModelForSeq2SeqLM.from_pretrained(tmp_path / kind)), weights(one.model), 1e-4)
