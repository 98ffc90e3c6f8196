"""Two processes against one: the same losses, weights and outputs, however the work is dealt out."""

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch

from distributed_worker import ACCELERATE_LAUNCH, batches, train
from hf_vanilla_transformer import VanillaTransformerForConditionalGeneration
from tiny import VOCABULARIES, close, tiny_model

WORKER = Path(__file__).parent / "distributed_worker.py"
SHAPES = {"paper": {}, "two vocabularies": VOCABULARIES["separate"], "biases": {"attention_bias": True}}
# Heads that two processes can share.
HEADS = {"encoder_attention_heads": 4, "decoder_attention_heads": 2}


def launch(task: str, folder: Path) -> dict:
    """Run a task of the worker in two processes, and return what the first reports."""
    command = [*ACCELERATE_LAUNCH, str(WORKER), task, str(folder)]
    settings = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(command, capture_output=True, text=True, env=settings)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((folder / "result.json").read_text())


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
def test_tensor_parallel_is_the_same_model(changes, tmp_path):
    model = tiny_model(**HEADS, **changes)
    model.save_pretrained(tmp_path)
    found = launch("tensor_parallel", tmp_path)
    batch = batches()[0]
    outputs = model(**batch)
    outputs.loss.backward()
    assert found["loss"] == pytest.approx(outputs.loss.item(), abs=1e-5)
    close(torch.tensor(found["logits"]), outputs.logits)
    close(torch.tensor(found["grad"]), model.model.encoder.layers[0].fc1.weight.grad)
    source = {name: batch[name] for name in ("input_ids", "attention_mask")}
    assert found["ids"] == model.generate(**source, max_new_tokens=6, eos_token_id=None).tolist()
    assert found["local"] == [[8, 16], [16, 8], [16, 16], [16, 16]]


def test_the_plan_names_parts_that_there_are():
    """A part that a configuration leaves out is not in its model's plan."""
    model = tiny_model()
    plan = model.tp_plan
    assert plan["lm_head"] == "colwise_gather_output"
    assert plan["model.decoder.layers.*.encoder_attn.k_proj"] == "colwise"
    assert plan["model.encoder.layers.*.fc2"] == "rowwise"
    without = VanillaTransformerForConditionalGeneration(tiny_model(encoder_ffn_dim=0).config).tp_plan
    assert "model.encoder.layers.*.fc1" not in without and "model.decoder.layers.*.fc1" in without
