"""Two processes against one: the same losses, weights and outputs, however the model is sharded."""

import gc
import json
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoModelForSeq2SeqLM

import distributed_worker
from distributed_worker import TRAINING, batches, source_of, train
from hf_vanilla_transformer import (
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerForSequenceClassification,
)
from processes import run_in_two, surroundings
from tiny import VOCABULARIES, close, close_gradients, gradients, tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")

WORKER = Path(distributed_worker.__file__)
SHAPES = {
    "paper": {},
    "two vocabularies": VOCABULARIES["separate"],
    "biases": {**VOCABULARIES["tied"], "attention_bias": True, "lm_head_bias": True},
}
# Heads that two processes can share.
HEADS = {"encoder_attention_heads": 4, "decoder_attention_heads": 2}


def launch(task: str, folder: Path) -> dict:
    """Run a task of the worker in two processes, and return what the first reports."""
    done = run_in_two(WORKER, task, folder)
    assert "match nothing" not in done.stderr and "not applied" not in done.stderr, done.stderr
    return json.loads((folder / "result.json").read_text())


SECOND = """
import sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from distributed_worker import train
from processes import leave
from tiny import tiny_model
torch.set_num_threads(1)
dist.init_process_group("gloo", store=dist.TCPStore("localhost", int(sys.argv[1])), rank=1, world_size=2)
train(DistributedDataParallel(tiny_model()), 1, 2)
leave()
"""


@pytest.mark.slow
def test_data_parallel_training_is_training():
    """This process is the first one, so that only the second needs to start."""
    # The defaults are minutes, which a busy machine may need to import torch twice.
    limit = timedelta(days=1)
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False, timeout=limit)
    command = [sys.executable, "-c", SECOND, str(store.port)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, env=surroundings(), **pipes) as second:
        try:
            dist.init_process_group("gloo", store=store, rank=0, world_size=2, timeout=limit)
            model = tiny_model()
            found = train(DistributedDataParallel(model), 0, 2)
            dist.barrier()
            # The wrapper goes before its group, which it would otherwise end as `leave` describes.
            gc.collect()
        except BaseException:
            second.kill()
            raise
        finally:
            # The output of the second process explains most failures of the first.
            output, _ = second.communicate()
            print(output)
            if dist.is_initialized():
                dist.destroy_process_group()
        assert second.returncode == 0, output
    one = tiny_model()
    losses = train(one)
    assert found == pytest.approx(losses, abs=1e-5) and abs(losses[-1] - losses[0]) > 1e-3
    for name, weight in one.state_dict().items():
        close(model.state_dict()[name], weight)


@pytest.mark.slow
@pytest.mark.parametrize("changes", SHAPES.values(), ids=SHAPES)
def test_fully_sharded_training_is_training(changes, tmp_path):
    model = tiny_model(**changes)
    model.save_pretrained(tmp_path)
    found = launch("fsdp2", tmp_path)
    losses = train(model)
    assert found["losses"] == pytest.approx(losses, abs=1e-5)
    assert losses[-1] != pytest.approx(losses[0], abs=1e-3)
    state = torch.load(tmp_path / "fsdp2.pt", weights_only=True)
    trained = dict(model.named_parameters(remove_duplicate=False))
    assert set(state) <= set(trained) | {name for name, _ in model.named_buffers()}
    for name, weight in state.items():
        close(weight, trained[name].detach())


@pytest.mark.slow
@pytest.mark.parametrize("changes", SHAPES.values(), ids=SHAPES)
def test_a_model_sharded_by_its_own_plan(changes, tmp_path):
    model = tiny_model(**changes)
    model.save_pretrained(tmp_path)
    found = launch("fsdp2_by_plan", tmp_path)
    layers = [f"model.{side}.layers.{i}" for side, number in (("decoder", 3), ("encoder", 2)) for i in range(number)]
    assert found["sharded"] == ["", *layers]
    assert found["losses"] == pytest.approx(train(model), abs=1e-5)
    saved = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "trained")
    assert saved.all_tied_weights_keys == model.all_tied_weights_keys
    for name, weight in saved.state_dict().items():
        close(weight, model.state_dict()[name])
    assert found["ids"] == saved.generate(**source_of(batches()[0]), max_new_tokens=6, eos_token_id=None).tolist()


@pytest.mark.slow
@pytest.mark.parametrize("changes", SHAPES.values(), ids=SHAPES)
def test_tensor_parallel_is_the_same_model(changes, tmp_path):
    model = tiny_model(**HEADS, **changes)
    model.save_pretrained(tmp_path)
    found = launch("tensor_parallel", tmp_path)
    batch = batches()[0]
    outputs, training = model(**batch), model(**batch, **TRAINING)
    training.loss.backward()
    assert found["loss"] == pytest.approx(outputs.loss.item(), abs=1e-5)
    assert found["training_loss"] == pytest.approx(training.loss.item(), abs=1e-5)
    close(torch.tensor(found["logits"]), outputs.logits)
    close_gradients(torch.load(tmp_path / "grads.pt", weights_only=True), gradients(model))
    assert found["ids"] == model.generate(**source_of(batch), max_new_tokens=6, eos_token_id=None).tolist()
    saved = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "saved").state_dict()
    assert all(torch.equal(saved[name], weight) for name, weight in model.state_dict().items())
    assert found["local"] == [[8, 16], [16, 8], [16, 16], [16, 16]]


def test_the_plan_names_parts_that_there_are():
    """Modules that a configuration omits are not in its model's plan."""
    model = tiny_model()
    plan = model.tp_plan
    assert plan["lm_head"] == "colwise_gather_output"
    assert plan["model.decoder.layers.*.encoder_attn.k_proj"] == "colwise"
    assert plan["model.encoder.layers.*.fc2"] == "rowwise"
    without = VanillaTransformerForConditionalGeneration(tiny_model(encoder_ffn_dim=0).config).tp_plan
    assert "model.encoder.layers.*.fc1" not in without and "model.decoder.layers.*.fc1" in without
    assert set(model.fsdp_plan) == {"model.encoder.layers.*", "model.decoder.layers.*"}
    classifier = VanillaTransformerForSequenceClassification(model.config)
    assert set(classifier.fsdp_plan) == {"model.encoder.layers.*"}
    assert classifier.tp_plan and all(name.startswith("model.encoder.") for name in classifier.tp_plan)
