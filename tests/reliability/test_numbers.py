"""Non-finite numbers from any source are never used for a training step, saved or served."""

import json
import math
import random
import shutil
import struct
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import pipeline

from faults import NUMBERS, spoil_gradients, spoil_losses
from hf_vanilla_transformer.export import export_model
from hf_vanilla_transformer.inference import ctranslate2 as runtime
from parallel_text import tsv, write, write_lines
from processes import leave, run_in_two
from reliability import cases
from trainers import SAVING, At, id_pairs, trainable_model, trainer_of
from translators import ENGLISH, SPANISH, save_publishable

pytestmark = pytest.mark.usefixtures("one_thread")

DATA = id_pairs()


def snapshot(trainer):
    """Copies of weights and optimizer state."""
    states = trainer.optimizer.state_dict()["state"].values()
    tensors = [*trainer.model.state_dict().values(), *(each for state in states for each in state.values())]
    return [tensor.clone() for tensor in tensors]


def equal(one, other):
    return len(one) == len(other) and all(map(torch.equal, one, other))


class Injection:
    """A random run of six steps with a non-finite number in one of them."""

    def __init__(self, seed):
        draw = random.Random(seed)
        self.seed, self.kind, self.value = seed, draw.choice(["loss", "gradient", "weight"]), draw.choice(NUMBERS)
        self.step, self.accumulation = draw.randint(2, 6), draw.randint(1, 3)
        self.micro_batch, self.policy = draw.randrange(self.accumulation), draw.choice(["stop", "skip"])
        self.max_grad_norm, self.bf16, self.place = draw.choice([0.0, 1.0]), draw.random() < 0.3, draw.random()

    def __str__(self):
        return str(vars(self))

    def trainer(self, folder, monkeypatch):
        """Return a trainer with the injected number."""
        options = {"max_grad_norm": self.max_grad_norm, "bf16": self.bf16, "on_nonfinite": self.policy}
        options |= {**SAVING, "save_steps": 1, "save_total_limit": 9, "gradient_accumulation_steps": self.accumulation}
        trainer = trainer_of(folder, trainable_model(), DATA, **options)
        # The last step of an epoch has the remaining batches.
        batches = len(trainer.get_train_dataloader())
        epoch, step = divmod(self.step - 1, -(-batches // self.accumulation))
        passes = [epoch * batches + min(step * self.accumulation + self.micro_batch, batches - 1)]
        parameters = list(trainer.model.parameters())
        parameter = parameters[int(self.place * len(parameters))]
        element = int(self.place * parameter.numel())
        if self.kind == "loss":
            spoil_losses(monkeypatch, passes, self.value)
        elif self.kind == "gradient":
            spoil_gradients(parameter, passes, self.value, element)
        else:
            spoil = At(self.step, lambda **kwargs: parameter.data.view(-1)[element : element + 1].fill_(self.value))
            trainer.add_callback(spoil)
        return trainer


def check(injection, folder, monkeypatch):
    trainer, states = injection.trainer(folder, monkeypatch), {}
    for step in (injection.step - 1, injection.step):
        trainer.add_callback(At(step, lambda step=step, **kwargs: states.update({step: snapshot(trainer)})))
    before, at, stopped = injection.step - 1, injection.step, None
    try:
        trainer.train()
    except ValueError as error:
        stopped = str(error)
    saved = sorted(int(path.name.removeprefix("checkpoint-")) for path in folder.glob("checkpoint-*"))
    if injection.kind == "weight":
        assert stopped and stopped.startswith(f"step {at}: 1 of ") and saved == list(range(1, at))
    elif injection.policy == "stop":
        assert stopped and stopped.startswith(f"step {at}: {injection.kind}") and " pair" in stopped
        assert f"the last checkpoint is {folder / f'checkpoint-{before}'}" in stopped and "\n" not in stopped
        # No step was taken with it, and nothing saved.
        assert equal(states[before], snapshot(trainer)) and saved == list(range(1, at))
    else:
        assert stopped is None and trainer.run_record.skipped_steps == 1 and trainer.state.global_step == 6
        assert equal(states[before], states[at]) and not equal(states[at], snapshot(trainer)) or at == 6
        assert saved == list(range(1, 7))
    for step in saved:
        weights = load_file(folder / f"checkpoint-{step}/model.safetensors")
        assert all(weight.isfinite().all() for weight in weights.values())


@pytest.mark.slow
def test_training(tmp_path, monkeypatch, tried):
    count = cases(6, 120)
    for seed in range(count):
        injection, folder = Injection(seed), tmp_path / str(seed)
        with monkeypatch.context() as patch:
            try:
                check(injection, folder, patch)
            except Exception as error:
                raise AssertionError(f"{injection}: {error}") from error
        shutil.rmtree(folder)
    what = "a loss, gradient or weight becomes NaN or infinite in training: a step with it, or a checkpoint of it"
    tried(what, count)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A saved model with a model card, and text."""
    folder = save_publishable("shared", tmp_path_factory.mktemp("numbers") / "model", num_beams=2).parent
    write_lines(folder / "source", ENGLISH)
    write_lines(folder / "target", SPANISH)
    write(folder / "pairs.tsv", tsv([("source", "target"), *zip(ENGLISH, SPANISH, strict=True)]))
    return folder


# Commands that load a model.
TRANSLATE = "translate --input {files}/source --output {out} --model {model}"
COMMANDS = {
    "translate": TRANSLATE,
    "translate in bfloat16": f"{TRANSLATE} --bf16 --format json",
    "score": "score --source {files}/source --target {files}/target --output {out} --model {model}",
    "export to CTranslate2": "export --to ctranslate2 --output_dir {out} --model {model}",
    "export to ONNX": "export --to onnx --output_dir {out} --model {model}",
    "export to Marian": "export --to marian --output_dir {out} --model {model}",
    "publish": "publish --repo_id me/model --dry_run --model {model}",
    "average": "average --output_dir {out} --checkpoints {model}",
    "train": "train --train_file {files}/pairs.tsv --output_dir {out} --max_steps 1 --use_cpu "
    "--model_name_or_path {model}",
}


@pytest.fixture
def refused(run, files, tmp_path):
    """Run a command on a model; return whether it exits with status 2 and one line about NaN."""

    def start(command, model):
        status, printed, error = run(*command.format(files=files, out=tmp_path / "out", model=model).split())
        errors = [line for line in error.splitlines() if "error:" in line]
        return status == 2 and printed == error and len(errors) == 1 and "NaN or infinite" in errors[0]

    return start


def spoil(folder, whole, weight, value, draw):
    """Save weights with one element replaced by `value`, and describe it."""
    spoiled, element = whole[weight].clone(), draw.randrange(whole[weight].numel())
    spoiled.view(-1)[element] = value
    save_file({**whole, weight: spoiled}, folder / "model.safetensors", metadata={"format": "pt"})
    return f"{weight}[{element}] = {value}"


def test_every_command_refuses_every_weight(files, tmp_path, refused, tried):
    whole, draw = load_file(files / "model/model.safetensors"), random.Random(0)
    names = [*COMMANDS, "pipeline"]
    chosen = [(weight, name) for name in names for weight in draw.sample(sorted(whole), cases(1, len(whole)))]
    folder, out = tmp_path / "model", tmp_path / "out"
    shutil.copytree(files / "model", folder)
    for weight, name in chosen:
        case = f"{name}: {spoil(folder, whole, weight, draw.choice(NUMBERS), draw)}"
        if name == "pipeline":
            with pytest.raises(ValueError, match="NaN or infinite"):
                pipeline("translation", model=str(folder), device="cpu")
        else:
            assert refused(COMMANDS[name], folder), case
            # A training run creates its folder before loading.
            assert not out.exists() or (out.is_dir() and not any(out.rglob("*.safetensors"))), case
            shutil.rmtree(out, ignore_errors=True)
    tried("a weight in a model's folder is NaN or infinite: served, saved, exported or published", len(chosen))


def test_every_weight_of_an_export(files, tmp_path, refused, tried):
    pytest.importorskip("ctranslate2", reason="exports run in CTranslate2, of the extra `export`")
    export_model(files / "model", "ctranslate2", tmp_path / "export", quantization="int8_float16")
    draw, file = random.Random(1), tmp_path / "export/model.bin"
    content = file.read_bytes()
    # Copied, since the file is memory-mapped.
    variables = [(name, values.copy()) for name, values in runtime._read_variables(file)]
    chosen = draw.sample(variables, cases(4, len(variables)))
    command = f"{TRANSLATE} --backend ctranslate2"
    for name, values in chosen:
        value = draw.choice(NUMBERS)
        kind = {4: "<f", 2: "<e"}[values.itemsize]
        # The name is followed by shape, type and number of bytes.
        prefix = struct.pack("<H", len(name) + 1) + name.encode() + b"\0"
        shape = content.index(prefix) + len(prefix)
        start = shape + 1 + 4 * content[shape] + 1 + 4
        assert content[start : start + values.nbytes] == values.tobytes()
        spoiled = bytearray(content)
        struct.pack_into(kind, spoiled, start + values.itemsize * draw.randrange(values.size), value)
        file.write_bytes(spoiled)
        assert refused(command, tmp_path / "export") and not (tmp_path / "out").exists(), f"{name} = {value}"
    tried("a weight or scale of a CTranslate2 export is NaN or infinite: served", len(chosen))


@pytest.mark.parametrize("size", [7e4, 3e38])
def test_finite_weights_that_overflow_another_type(files, tmp_path, refused, tried, size):
    whole, draw = load_file(files / "model/model.safetensors"), random.Random(2)
    chosen = draw.sample(sorted(whole), cases(2, len(whole)))
    folder, out = tmp_path / "model", tmp_path / "out"
    shutil.copytree(files / "model", folder)
    for weight in chosen:
        spoil(folder, whole, weight, size, draw)
        assert refused(f"{COMMANDS['export to CTranslate2']} --quantization float16", folder), weight
        assert not out.exists()
        with pytest.raises(ValueError, match="NaN or infinite.* another dtype than float16"):
            pipeline("translation", model=str(folder), device="cpu", dtype=torch.float16)
    tried("a finite weight overflows the float16 that is asked for: served or exported", 2 * len(chosen))


def run_as_process(folder, policy):
    """Train in one of two processes started by `run_in_two`; the second has one infinite loss."""
    trainer = trainer_of(folder, trainable_model(dropout=0.0), DATA, max_tokens=64, max_steps=6, on_nonfinite=policy)
    rank = trainer.args.process_index
    with pytest.MonkeyPatch.context() as patch:
        spoil_losses(patch, [2] if rank == 1 else [], math.inf)
        try:
            trainer.train()
            stopped = None
        except ValueError as error:
            stopped = str(error)
    weights = torch.cat([weight.flatten() for weight in trainer.model.state_dict().values()])
    found = {"stopped": stopped, "step": trainer.state.global_step, "skipped": trainer.run_record.skipped_steps}
    Path(folder, f"{policy}-{rank}.json").write_text(json.dumps({**found, "weights": weights.double().sum().item()}))
    leave()


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["stop", "skip"])
def test_two_processes_agree(tmp_path, policy, tried):
    run_in_two(Path(__file__), tmp_path, policy)
    first, second = (json.loads((tmp_path / f"{policy}-{rank}.json").read_text()) for rank in (0, 1))
    assert first == second and math.isfinite(first["weights"])
    if policy == "stop":
        assert first["stopped"].startswith("step 3: loss is inf (rank 1, ") and first["step"] == 2
    else:
        assert (first["stopped"], first["step"], first["skipped"]) == (None, 6, 1)
    tried("a loss of one of two processes becomes infinite: a step with it, or processes that disagree", 1)


if __name__ == "__main__":
    run_as_process(sys.argv[1], sys.argv[2])
