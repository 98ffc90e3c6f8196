"""The program of both processes in `test_distributed.py`."""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor
from transformers import AutoModelForSeq2SeqLM
from transformers.distributed import DistributedConfig

import hf_vanilla_transformer  # noqa: F401  # registers the model with the Auto classes
from processes import leave

STEPS, RATE = 3, 0.05
# Our trainer's loss options.
TRAINING = {"smoothing": 0.1, "skip_logits": True}


def batches() -> list[dict[str, torch.Tensor]]:
    """Batches of four pairs with unequal numbers of labels, the same in every process."""
    generator = torch.Generator().manual_seed(7)
    made = []
    for _ in range(STEPS):
        source = torch.randint(4, 40, (4, 6), generator=generator)
        labels = torch.randint(4, 40, (4, 5), generator=generator)
        labels[0, 2:] = labels[3, 4:] = -100
        mask = torch.ones_like(source)
        mask[1, 3:] = 0
        made.append({"input_ids": source, "attention_mask": mask, "labels": labels})
    return made


def part(batch: dict[str, torch.Tensor], rank: int, world: int) -> dict[str, torch.Tensor]:
    """Return the rows of one rank."""
    return {name: rows[rank::world] for name, rows in batch.items()}


def train(model, rank: int = 0, world: int = 1) -> list[float]:
    """Train with plain gradient descent, and return each step's loss over all processes."""
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    device, losses = next(model.parameters()).device, []
    for batch in batches():
        batch = {name: rows.to(device) for name, rows in batch.items()}
        count = batch["labels"].ne(-100).sum()
        loss = model(**part(batch, rank, world), num_items_in_batch=count, **TRAINING).loss
        # DDP and FSDP average gradients; this makes it their sum.
        (loss * world).backward()
        optimizer.step()
        optimizer.zero_grad()
        total = loss.detach().clone()
        if world > 1:
            dist.all_reduce(total)
        losses.append(total.item())
    return losses


def fsdp2(folder: Path) -> dict:
    """Train with the weights, gradients and optimizer state of every layer sharded."""
    rank, world = dist.get_rank(), dist.get_world_size()
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    model.train()
    mesh = init_device_mesh("cpu", (world,))
    kinds = tuple(model._no_split_modules)
    layers = [module for module in model.modules() if type(module).__name__ in kinds]
    for layer in layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    assert all(isinstance(p, DTensor) for p in model.parameters()) and len(layers) == 5
    losses = train(model, rank, world)
    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if rank == 0:
        torch.save(state, folder / "fsdp2.pt")
    return {"losses": losses}


def fsdp2_by_plan(folder: Path) -> dict:
    """Load a model sharded by its own plan, train it, decode, and save it unsharded."""
    rank, world = dist.get_rank(), dist.get_world_size()
    model = AutoModelForSeq2SeqLM.from_pretrained(folder, distributed_config=DistributedConfig(fsdp_size=world))
    model.train()
    sharded = sorted(name for name, module in model.named_modules() if isinstance(module, FSDPModule))
    losses = train(model, rank, world)
    # Decoding starts with the encoder, before the root module has gathered its own parameters.
    register_fsdp_forward_method(model, "generate")
    ids = model.eval().generate(**source_of(batches()[0]), max_new_tokens=6, eos_token_id=None)
    model.save_pretrained(folder / "trained", is_main_process=rank == 0)
    return {"losses": losses, "sharded": sharded, "ids": ids.tolist()}


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Gather the shards of a tensor."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def source_of(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the inputs of `generate()` in a batch."""
    return {name: batch[name] for name in ("input_ids", "attention_mask")}


def tensor_parallel(folder: Path) -> dict:
    """Decode and compute a gradient with heads and feed-forward units sharded."""
    model = AutoModelForSeq2SeqLM.from_pretrained(folder, tp_plan="auto")
    layer = model.model.encoder.layers[0]
    sharded = [layer.self_attn.q_proj.weight, layer.self_attn.out_proj.weight, layer.fc1.weight, layer.fc2.weight]
    assert all(isinstance(weight, DTensor) for weight in sharded)
    local = [tuple(weight.to_local().shape) for weight in sharded]
    batch = batches()[0]
    outputs = model(**batch)
    loss = model(**batch, **TRAINING).loss
    loss.backward()
    grads = {name: whole(weight.grad) for name, weight in model.named_parameters()}
    ids = model.generate(**source_of(batch), max_new_tokens=6, eos_token_id=None)
    model.save_pretrained(folder / "saved")
    if dist.get_rank() == 0:
        torch.save(grads, folder / "grads.pt")
    return {
        "loss": whole(outputs.loss).item(),
        "logits": whole(outputs.logits).tolist(),
        "training_loss": whole(loss).item(),
        "ids": ids.tolist(),
        "local": local,
    }


TASKS = {task.__name__: task for task in (fsdp2, fsdp2_by_plan, tensor_parallel)}

if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    task, target = TASKS[sys.argv[1]], Path(sys.argv[2])
    result = task(target)
    if dist.get_rank() == 0:
        (target / "result.json").write_text(json.dumps(result))
    leave()
