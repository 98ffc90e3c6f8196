"""Training on a GPU: mixed precision, resuming, skipping bad steps, data parallelism, and the command."""

import json
import math
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

pytest.importorskip("datasets", reason="the extra `train` installs it")

from distributed_worker import train as train_by_hand
from experiments import MODEL, SCHEDULE, write_splits
from processes import surroundings
from tiny import close, tiny_model
from trainers import SAVING, assert_same_weights, id_pairs, losses, trainable_model, trainer_of

# A GPU sums embedding gradients in arbitrary order: equal runs differ in the last bits, which steps magnify.
ANY_ORDER = 1e-3


def run(folder, device, **options):
    trainer = trainer_of(folder, trainable_model(), use_cpu=device == "cpu", **options)
    trainer.train()
    assert trainer.model.device.type == device
    return trainer


@pytest.fixture(params=[{}, {"bf16": True}, {"fp16": True}], ids=str)
def precision(request, device):
    if device == "cpu" and "bf16" not in request.param:
        pytest.skip("a CPU refuses fp16, and tests/training has float32")
    return request.param


def test_a_run_learns_and_ends_finite(device, tmp_path, precision):
    trainer = run(tmp_path, device, num_train_epochs=8, warmup_steps=10, **precision)
    found, weights = losses(trainer), list(trainer.model.parameters())
    assert all(map(math.isfinite, found)) and found[-1] < found[0] - 0.1
    assert all(weight.isfinite().all() and weight.dtype == torch.float32 for weight in weights)
    assert (getattr(trainer.accelerator, "scaler", None) is not None) == ("fp16" in precision)


def test_a_resumed_run_has_the_same_losses(device, tmp_path, precision):
    options = {**SAVING, **precision}
    whole = run(tmp_path, device, **options)
    resumed = trainer_of(tmp_path, trainable_model(seed=7), use_cpu=device == "cpu", **options)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert losses(resumed, 4) == pytest.approx(losses(whole, 4), abs=0 if device == "cpu" else ANY_ORDER)
    assert len(losses(resumed, 4)) == 2


def test_a_gpu_trains_as_a_cpu_does(cuda, tmp_path):
    trainers = []
    for device in ("cpu", cuda):
        trainer = trainer_of(tmp_path / device, trainable_model(dropout=0.0), use_cpu=device == "cpu", max_steps=8)
        trainer.train()
        trainers.append(trainer)
    assert losses(trainers[1]) == pytest.approx(losses(trainers[0]), abs=ANY_ORDER)
    assert_same_weights(trainers[0].model, trainers[1].model.to("cpu"), ANY_ORDER)


@pytest.mark.parametrize("precision, tolerance", [("float32", ANY_ORDER), ("bfloat16", 0.02)])
def test_muon_in_stacks_learns_as_it_does_by_matrices(device, tmp_path, monkeypatch, precision, tolerance):
    """Stacks are a GPU's path, here run on both devices and compared with a CPU's plain path."""
    monkeypatch.setattr("hf_vanilla_transformer.training.muon.bf16_is_fast", lambda: precision == "bfloat16")
    found = []
    for stacks, where in ((False, "cpu"), (True, device)):
        monkeypatch.setattr("hf_vanilla_transformer.training.muon.launches_cost", lambda device, stacks=stacks: stacks)
        model = trainable_model(dropout=0.0, encoder_layers=2)
        options = {"muon": True, "learning_rate": 0.01, "max_steps": 8}
        trainer = trainer_of(tmp_path / f"{stacks}", model, use_cpu=where == "cpu", **options)
        trainer.train()
        assert trainer.model.device.type == where
        found.append(losses(trainer))
    assert found[1] == pytest.approx(found[0], abs=tolerance)
    assert found[0][-1] < found[0][0] - 0.1


@pytest.mark.parametrize("policy", ["stop", "skip"])
def test_a_bad_gradient_is_noticed(device, tmp_path, policy):
    """A GPU checks groups of steps, a CPU each step, both before logging."""
    options = {"max_steps": 6, "on_nonfinite": policy, "logging_steps": 3}
    trainer = trainer_of(tmp_path, trainable_model(), use_cpu=device == "cpu", **options)
    compute = trainer.compute_loss

    def spoil(*args, **kwargs):
        loss = compute(*args, **kwargs)
        return loss * math.nan if trainer.state.global_step == 1 else loss

    trainer.compute_loss = spoil
    if policy == "stop":
        with pytest.raises(ValueError, match="^step 2: gradient norm is nan"):
            trainer.train()
    else:
        trainer.train()
        assert trainer.run_record.skipped_steps == 1
        assert all(parameter.isfinite().all() for parameter in trainer.model.parameters())


def test_evaluation_while_training(device, tmp_path):
    options = {"eval_strategy": "epoch", "predict_with_generate": True, "metric_for_best_model": "loss"}
    data, logged = id_pairs(), []
    for where in dict.fromkeys(("cpu", device)):
        trainer = trainer_of(
            tmp_path / where, trainable_model(dropout=0.0), data, use_cpu=where == "cpu", eval_dataset=data, **options
        )
        trainer.train()
        logged.append([entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry])
    assert logged[0] == pytest.approx(logged[-1], abs=ANY_ORDER) and len(logged[0]) == 2


def test_batches_do_not_wait_for_a_gpu(cuda, tmp_path):
    trainer = run(tmp_path, cuda, max_steps=1)
    assert trainer.args.dataloader_pin_memory and trainer.accelerator.non_blocking


@pytest.mark.filterwarnings("ignore")
def test_data_parallel_training_on_one_device(device, tmp_path):
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("nccl" if device == "cuda" else "gloo", store=store, rank=0, world_size=1)
    try:
        model = tiny_model().to(device)
        wrapped = DistributedDataParallel(model, device_ids=[0] if device == "cuda" else None)
        found = train_by_hand(wrapped)
        del wrapped
    finally:
        dist.destroy_process_group()
    one = tiny_model()
    assert found == pytest.approx(train_by_hand(one), abs=1e-4)
    for name, weight in one.state_dict().items():
        close(model.state_dict()[name].cpu(), weight, 1e-4)


@pytest.mark.parametrize("launcher", ["python", "torchrun"])
def test_the_command_trains(cuda, tmp_path, launcher):
    """Run directly, and with torchrun in one process."""
    options = {**MODEL, **SCHEDULE, **write_splits(tmp_path), "num_train_epochs": 1, "output_dir": tmp_path / "run"}
    words = [*(f"--{name}={value}" for name, value in options.items()), "--bf16"]
    start = [] if launcher == "python" else ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=1"]
    environment = surroundings()
    del environment["CUDA_VISIBLE_DEVICES"]
    command = [sys.executable, *start, "-m", "hf_vanilla_transformer", "train", *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads((tmp_path / "run" / "all_results.json").read_text())
    assert math.isfinite(results["train_loss"])
