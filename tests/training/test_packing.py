"""Training on packed batches: the same run as on padded ones, whatever the data source."""

import copy
import json
import math
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.data import IterableDataset

from faults import spoil_losses
from hf_vanilla_transformer.training.arguments import VanillaTransformerTrainingArguments
from processes import leave, run_in_two
from trainers import assert_same_weights, id_pairs, losses, token_stream, trainable_marian, trainable_model, trainer_of

pytestmark = pytest.mark.usefixtures("one_thread")

# So that a step does not magnify differences.
GRADIENT_DESCENT = {"optim": "sgd", "learning_rate": 0.5, "lr_scheduler_type": "constant", "max_steps": 8}


class Unnumbered(IterableDataset):
    """Pairs without a number or an index."""

    def __iter__(self):
        return iter(list(id_pairs()))


def run(folder, packing, train=None, shape=None, **options):
    model = trainable_model(dropout=0.0, **(shape or {}))
    trainer = trainer_of(folder, model, train, packing=packing, **{**GRADIENT_DESCENT, **options})
    start = copy.deepcopy(model.state_dict())
    trainer.train()
    assert max((weight - start[name]).abs().max() for name, weight in model.state_dict().items()) > 1e-2
    return trainer


RUNS = {
    "token batches": {},
    "sentence batches": {"max_tokens": 0},
    "accumulation": {"gradient_accumulation_steps": 3},
    "no smoothing": {"label_smoothing_factor": 0.0},
    "checkpointing": {"gradient_checkpointing": True},
    "workers": {"dataloader_num_workers": 2},
    "stream": {"train": token_stream},
    "stream of sentence batches": {"train": Unnumbered, "max_tokens": 0},
    "learned positions": {"shape": {"position_embedding_type": "learned"}},
    "skipping": {"on_nonfinite": "skip"},
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`gradient_checkpointing.*is deprecated:FutureWarning")
@pytest.mark.parametrize("options", RUNS.values(), ids=RUNS)
def test_the_same_run_as_without(tmp_path, options):
    options = dict(options)
    make = options.pop("train", lambda: None)
    plain, packed = (run(tmp_path, packing, make(), **options) for packing in (False, True))
    assert losses(packed) == pytest.approx(losses(plain), abs=1e-5)
    assert_same_weights(packed.model, plain.model, 1e-5)


def test_autocast(tmp_path):
    plain, packed = (run(tmp_path, packing, bf16=True) for packing in (False, True))
    assert losses(packed) == pytest.approx(losses(plain), abs=2e-2)


# torch.compile warns about its own code.
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")
@pytest.mark.slow
def test_compiled(tmp_path):
    options = {"torch_compile": True, "torch_compile_backend": "aot_eager", "max_steps": 4}
    torch._dynamo.reset()
    plain, packed = run(tmp_path, False, max_steps=4), run(tmp_path, True, **options)
    torch._dynamo.reset()
    assert losses(packed) == pytest.approx(losses(plain), abs=1e-5)
    assert_same_weights(packed.model, plain.model, 1e-5)


def test_batches_are_one_row_of_the_same_pairs(tmp_path):
    padded, packed = (list(trainer_of(tmp_path, packing=packing).get_train_dataloader()) for packing in (False, True))
    assert len(packed) == len(padded) > 2
    for one, many in zip(packed, padded, strict=True):
        assert one.keys() == {"input_ids", "labels", "packing"}
        assert one["input_ids"].tolist() == [many["input_ids"][many["attention_mask"].bool()].tolist()]
        assert one["labels"].tolist() == [many["labels"][many["labels"].ne(-100)].tolist()]


def test_evaluation_stays_padded(tmp_path):
    data = id_pairs(20)
    trainers = [trainer_of(tmp_path, packing=packing, eval_dataset=data) for packing in (False, True)]
    for trainer in trainers:
        trainer.get_train_dataloader()
        batch = next(iter(trainer.get_eval_dataloader()))
        assert len(batch["input_ids"]) == len(data) and "packing" not in batch
    first, second = (trainer.evaluate()["eval_loss"] for trainer in trainers)
    assert first == second


@pytest.mark.parametrize("make", [id_pairs, token_stream], ids=["pairs", "stream"])
def test_resuming_is_exact(tmp_path, make):
    """Resumes in the second epoch, with dropout."""
    options = {"packing": True, "max_steps": 12, "save_strategy": "steps", "save_steps": 9}
    whole = trainer_of(tmp_path, train=make(), **options)
    whole.train()
    resumed = trainer_of(tmp_path, trainable_model(seed=7), make(), **options)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-9"))
    assert losses(resumed, 9) == losses(whole, 9) != []
    assert_same_weights(whole.model, resumed.model)


def test_a_bad_loss_names_the_pairs(tmp_path, monkeypatch):
    messages = []
    for packing in (False, True):
        spoil_losses(monkeypatch, [3], math.nan)
        with pytest.raises(ValueError, match=r"^step 4: loss is nan \(\d+ pairs, rows .*, longest source 'w") as stop:
            trainer_of(tmp_path, packing=packing).train()
        messages.append(str(stop.value))
        monkeypatch.undo()
    assert messages[0] == messages[1]


class TestRefusals:
    def test_other_models(self, tmp_path):
        with pytest.raises(
            ValueError, match="^`packing`: MarianMTModel does not accept packed pairs, .* leave it out$"
        ):
            trainer_of(tmp_path, trainable_marian(), packing=True)

    def test_several_gpus_in_one_process(self, tmp_path, monkeypatch):
        monkeypatch.setattr(VanillaTransformerTrainingArguments, "n_gpu", 2)
        with pytest.raises(ValueError, match="^`packing`: one process cannot split .* 2 GPUs; .*`accelerate launch`"):
            trainer_of(tmp_path, packing=True)


def run_as_process(folder):
    """Train in one of the processes that `run_in_two` starts, with and without packing, and write what came out."""
    kinds = {
        "token batches": {"max_tokens": 64},
        "sentence batches": {"max_tokens": 0},
        "stream": {"train": token_stream(), "max_tokens": 64},
    }
    found = {}
    for name, options in kinds.items():
        runs = [run(folder, packing, **options) for packing in (False, True)]
        states = [trainer.model.state_dict() for trainer in runs]
        difference = max((states[0][name] - weight).abs().max().item() for name, weight in states[1].items())
        found[name] = [*map(losses, runs), difference]
    # accelerate would split batches of unequal widths among processes, which fails without packing.
    found["sentences of a stream"] = losses(run(folder, True, Unnumbered(), max_tokens=0))
    if runs[0].is_world_process_zero():
        Path(folder, "found.json").write_text(json.dumps(found))
    leave()


@pytest.mark.slow
def test_two_processes(tmp_path):
    run_in_two(Path(__file__), tmp_path)
    found = json.loads((tmp_path / "found.json").read_text())
    learned = found.pop("sentences of a stream")
    assert learned[-1] < learned[0] - 0.1
    assert len(found) == 3
    for plain, packed, difference in found.values():
        assert packed == pytest.approx(plain, abs=1e-5) and difference < 1e-5


if __name__ == "__main__":
    run_as_process(sys.argv[1])
