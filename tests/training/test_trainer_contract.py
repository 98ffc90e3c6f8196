"""What users expect of `Seq2SeqTrainer`, of the plain one and of ours: accumulation, grouping, resuming, adapters."""

import copy
import json
from pathlib import Path

import numpy as np
import peft
import pytest
import torch
from transformers import (
    AutoModelForSeq2SeqLM,
    DataCollatorForSeq2Seq,
    PreTrainedModel,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    TrainerCallback,
)

from hf_vanilla_transformer.training import VanillaTransformerTrainer, VanillaTransformerTrainingArguments
from processes import run_in_two
from tiny import VOCABULARIES, tiny_model
from trainers import losses
from translators import ENGLISH, SHARED, SPANISH, build

pytestmark = pytest.mark.usefixtures("one_thread")

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
# The same for both kinds, without an optimizer that would magnify tiny differences.
GRADIENT_DESCENT = {"optim": "sgd", "learning_rate": 0.5, "lr_scheduler_type": "constant", "max_grad_norm": 0.0}


def trainer_of(folder, kind, model=None, callbacks=None, **options):
    """A trainer with batches of a number of pairs, not of tokens, so that both kinds see the same batches."""
    trainer, arguments, own = KINDS[kind]
    if kind == "ours":
        own = {**own, "max_tokens": 0}
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


def weights(model):
    return {name: weight.detach().clone() for name, weight in model.named_parameters()}


def close(actual, expected, tolerance=1e-5):
    assert actual.keys() == expected.keys()
    for name, weight in expected.items():
        torch.testing.assert_close(actual[name], weight, rtol=tolerance, atol=tolerance, msg=name)


class Gradients(TrainerCallback):
    """Records the gradients of the first step."""

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        self.kept = {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}


def first_step(folder, kind, model, split, smoothing):
    """Gradients of 16 pairs, split into this many batches, the weights after the step, and the loss."""
    keeper, (rows, steps) = Gradients(), split
    options = {"per_device_train_batch_size": rows, "gradient_accumulation_steps": steps, "max_steps": 1}
    options |= {**GRADIENT_DESCENT, "label_smoothing_factor": smoothing}
    trainer = trainer_of(folder, kind, copy.deepcopy(model), callbacks=[keeper], **options)
    trainer.train()
    return keeper.kept, weights(trainer.model), losses(trainer)[0]


class TestAccumulation:
    @pytest.mark.parametrize("smoothing", [0.0, 0.1])
    @EVERY_TRAINER
    def test_every_split_of_a_batch_has_the_same_gradient(self, kind, smoothing, tmp_path):
        counts, model = [len(row["labels"]) for row in ROWS[:16]], tiny_model()
        assert len({sum(counts[i : i + 4]) for i in range(0, 16, 4)}) > 1, "equal numbers would show nothing"
        steps = {split: first_step(tmp_path, kind, model, split, smoothing) for split in SPLITS}
        gradients, after, found = ({split: step[i] for split, step in steps.items()} for i in range(3))
        for each in gradients.values():
            close(each, gradients[16, 1], 1e-6)
        assert max((after[16, 1][name] - weight).abs().max() for name, weight in weights(model).items()) > 1e-3
        for split in SPLITS:
            close(after[split], after[16, 1], 1e-6)
            assert found[split] == pytest.approx(found[16, 1], abs=1e-5)


class TestPaddingOnTheLeft:
    """Tokenizers of decoders pad on the left, and collators the labels with them."""

    # The plain trainer smooths labels itself, for which it withholds them from the model.
    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("collator_has_model", "smoothing"),
        [(True, 0.0), (False, 0.0), (True, 0.1)],
        ids=["decoder input", "labels alone", "smoothed"],
    )
    @EVERY_TRAINER
    def test_is_learned_from_as_padding_on_the_right(self, kind, collator_has_model, smoothing, tmp_path):
        base, found = tiny_model(), []
        for side in ("right", "left"):
            tokenizer, model = copy.deepcopy(SHARED), copy.deepcopy(base)
            tokenizer.padding_side = side
            trainer = trainer_of(tmp_path, kind, model, label_smoothing_factor=smoothing, **GRADIENT_DESCENT)
            trainer.data_collator = DataCollatorForSeq2Seq(tokenizer, model=model if collator_has_model else None)
            trainer.train()
            found.append((losses(trainer), trainer.evaluate()["eval_loss"], weights(model)))
        (curve, loss, expected), (other_curve, other_loss, actual) = found
        assert other_curve == pytest.approx(curve, abs=1e-5) and other_loss == pytest.approx(loss, abs=1e-5)
        close(actual, expected)


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


# PEFT uses a name that transformers has renamed.
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
class TestAdapters:
    """LoRA by PEFT."""

    SOURCE = dict(SHARED(ENGLISH, padding=True, return_tensors="pt", return_token_type_ids=False))
    LABELS = SHARED(text_target=SPANISH, padding=True, return_tensors="pt")["input_ids"]

    def logits_of(self, model):
        return model(**self.SOURCE, labels=self.LABELS).logits

    def trained_and_loaded(self, folder, kind, base, **options):
        """Train adapters, and return the model and a reloaded copy, after checking that their outputs are equal."""
        plain = copy.deepcopy(base)
        base.save_pretrained(folder / "base")
        model = peft.get_peft_model(base, peft.LoraConfig(task_type="SEQ_2_SEQ_LM", **options))
        trainer = trainer_of(folder / "run", kind, model, learning_rate=0.05)
        trainer.train()
        trainer.save_model(folder / "adapter")
        path = folder / "adapter" / "adapter_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"base_model_name_or_path": str(folder / "base")}))
        loaded = peft.AutoPeftModelForSeq2SeqLM.from_pretrained(folder / "adapter")
        logits = self.logits_of(model.eval())
        assert (logits - self.logits_of(plain.eval())).abs().max() > 1e-2
        torch.testing.assert_close(self.logits_of(loaded), logits, rtol=1e-5, atol=1e-5)
        return model, loaded

    @EVERY_TRAINER
    @pytest.mark.parametrize("targets", [["q_proj", "v_proj"], "all-linear"], ids=["some", "all"])
    def test_train_save_load_merge(self, kind, targets, tmp_path):
        base, _ = build("shared")
        before = weights(base)
        model, loaded = self.trained_and_loaded(tmp_path, kind, base, r=4, lora_alpha=8, target_modules=targets)
        changed = {name.replace(".base_layer", "").removeprefix("base_model.model."): weight
                   for name, weight in weights(model).items() if "lora_" not in name}  # fmt: skip  # one mapping
        close(changed, before, 0)
        assert not list((tmp_path / "adapter").glob("model*.safetensors"))
        ids, logits = loaded.generate(**self.SOURCE, max_new_tokens=5), self.logits_of(model)
        merged = loaded.merge_and_unload()
        merged.save_pretrained(tmp_path / "merged")
        again = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "merged")
        assert type(again) is type(build("shared")[0])
        for each in (merged, again):
            torch.testing.assert_close(self.logits_of(each), logits, rtol=1e-4, atol=1e-4)
        assert torch.equal(again.generate(**self.SOURCE, max_new_tokens=5), ids)

    def test_an_adapted_output_projection_is_trained(self, tmp_path):
        """Our loss avoids storing logits, but must not bypass the adapter."""
        curves = {}
        for kind in KINDS:
            config = peft.LoraConfig(task_type="SEQ_2_SEQ_LM", r=4, target_modules=["lm_head"])
            torch.manual_seed(1)
            model = peft.get_peft_model(tiny_model(**VOCABULARIES["separate"]), config)
            trainer = trainer_of(tmp_path, kind, model, **GRADIENT_DESCENT, label_smoothing_factor=0.1)
            start = weights(model)
            trainer.train()
            changed = {name for name, weight in weights(model).items() if not torch.equal(weight, start[name])}
            assert changed == {f"base_model.model.lm_head.lora_{part}.default.weight" for part in "AB"}
            curves[kind] = losses(trainer)
        assert curves["ours"] == pytest.approx(curves["plain"], abs=1e-5)
        assert curves["ours"][-1] < curves["ours"][0]

    # Its `ensure_weight_tying` knows two tied weights, not three; BART and Marian fail with it too.
    @pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`:UserWarning")
    @EVERY_TRAINER
    def test_whole_modules_beside_adapters(self, kind, tmp_path):
        """Trained copies of tied weights."""
        options = {"r": 2, "target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]}
        self.trained_and_loaded(tmp_path, kind, tiny_model(), **options)


DISTRIBUTED = {
    **GRADIENT_DESCENT, "learning_rate": 0.1, "max_steps": 4, "label_smoothing_factor": 0.1,
    "predict_with_generate": True, "generation_max_length": 8,
}  # fmt: skip  # a list of settings
TWO_PROCESSES = """
import json, sys
from pathlib import Path
import torch
from transformers import AutoModelForSeq2SeqLM
from processes import leave
from test_trainer_contract import DISTRIBUTED, ROWS, losses, trainer_of
folder, way, kinds = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
torch.set_num_threads(1)
sharding = {}
if way == "sharded":
    from transformers.distributed import DistributedConfig
    torch.distributed.init_process_group("gloo")
    sharding = {"distributed_config": DistributedConfig(fsdp_size=2)}
for kind in kinds:
    model = AutoModelForSeq2SeqLM.from_pretrained(folder / "base", **sharding)
    sizes = {"per_device_train_batch_size": 4, "per_device_eval_batch_size": 3}
    trainer = trainer_of(folder / "run", kind, model, **sizes, **DISTRIBUTED)
    assert trainer.args.world_size == 2
    trainer.train()
    wrapped = type(trainer.model_wrapped).__name__
    assert wrapped.startswith("FSDP") if sharding else wrapped == "DistributedDataParallel", wrapped
    trainer.save_model(folder / kind)
    found = {"losses": losses(trainer)}
    # The plain trainer does not let a model that is already sharded gather its weights for decoding.
    if kind == "ours" or not sharding:
        loss = trainer.evaluate(ROWS[:6])["eval_loss"]
        found |= {"loss": loss, "ids": trainer.predict(ROWS[:5]).predictions.tolist()}
        found |= {"uneven": [trainer.evaluate(ROWS[:rows])["eval_loss"] for rows in (2, 5, 7)]}
    if trainer.is_world_process_zero():
        Path(folder, f"{kind}.json").write_text(json.dumps(found))
leave()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "way",
    [
        "data parallel",
        # On CPUs accelerate leaves its own sharding out; this is that of transformers.
        pytest.param(
            "sharded",
            marks=pytest.mark.skipif(
                not hasattr(PreTrainedModel, "is_distributed_loading_by_transformers"),
                reason="the Trainer of this transformers wraps models that are already sharded",
            ),
        ),
    ],
)
def test_two_processes_train_and_predict_as_one(way, tmp_path):
    script, model = tmp_path / "train.py", tiny_model()
    script.write_text(f"import sys\nsys.path.append({str(Path(__file__).parent)!r})\n{TWO_PROCESSES}")
    model.save_pretrained(tmp_path / "base")
    run_in_two(script, tmp_path, way.split()[0], *KINDS)
    for kind in KINDS:
        found = json.loads((tmp_path / f"{kind}.json").read_text())
        # The same batches over all processes.
        sizes = {"per_device_train_batch_size": 8, "per_device_eval_batch_size": 6}
        one = trainer_of(tmp_path / "one", kind, copy.deepcopy(model), **sizes, **DISTRIBUTED)
        one.train()
        assert found["losses"] == pytest.approx(losses(one), abs=1e-5)
        close(weights(AutoModelForSeq2SeqLM.from_pretrained(tmp_path / kind)), weights(one.model))
        if "ids" in found:
            assert found["loss"] == pytest.approx(one.evaluate(ROWS[:6])["eval_loss"], abs=1e-5)
            # The plain trainer counts the duplicate row that fills the last batch.
            assert found["ids"][:5] == one.predict(ROWS[:5]).predictions.tolist()
            assert len(found["ids"]) == (5 if kind == "ours" else 6)
        if kind == "ours":
            expected = [one.evaluate(ROWS[:rows])["eval_loss"] for rows in (2, 5, 7)]
            assert found["uneven"] == pytest.approx(expected, abs=1e-6)


# torch itself reads these attributes and creates these objects where our loss breaks the graph.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.slow
@EVERY_TRAINER
def test_compiled_training_is_training(kind, tmp_path):
    curves = []
    for compiled in (False, True):
        settings = {"torch_compile": True, "torch_compile_backend": "aot_eager"} if compiled else {}
        trainer = trainer_of(tmp_path, kind, tiny_model(), **GRADIENT_DESCENT, **settings)
        trainer.train()
        curves.append(losses(trainer))
        torch.compiler.reset()
    assert curves[0] == pytest.approx(curves[1], abs=1e-5) and curves[0][0] != curves[0][-1]
