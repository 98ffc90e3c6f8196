import numpy as np
import pytest
import torch

from hf_vanilla_transformer.data.arguments import DataArguments
from hf_vanilla_transformer.training.trainer import VanillaTransformerTrainer
from tutorials import copy_task
from tutorials.common import TutorialArguments
from tutorials.copy_task import (
    COPY_LENGTH,
    LIGHT_COPY_TASK,
    CopyTask,
    build_copier,
    draw_sequences,
    greedy_copy,
    learn_to_copy,
)


def test_sequences_begin_with_the_start_symbol_and_have_no_padding():
    sequences = draw_sequences(500, torch.Generator().manual_seed(0))
    assert sequences.shape == (500, COPY_LENGTH)
    assert (sequences[:, 0] == 1).all() and set(sequences[:, 1:].flatten().tolist()) == set(range(1, 11))


def test_untrained_models_decode_as_many_symbols():
    source = torch.arange(COPY_LENGTH)[None] + 1
    decoded = [greedy_copy(build_copier(LIGHT_COPY_TASK, seed), source) for seed in range(2)]
    for ids in decoded:
        assert ids.shape == (1, COPY_LENGTH) and ids[0, 0] == 1 and 0 <= ids.min() and ids.max() < 11
    assert not torch.equal(*decoded)


def test_only_whole_sequences_count(monkeypatch, tmp_path):
    monkeypatch.setattr(copy_task, "train", lambda *args, **kwargs: None)
    monkeypatch.setattr(copy_task, "greedy_copy", lambda model, sequences: sequences.masked_fill(sequences == 7, 8))
    exact = learn_to_copy(LIGHT_COPY_TASK, 0, TutorialArguments(output_dir=str(tmp_path)))
    test = draw_sequences(1000, torch.Generator().manual_seed(0))
    assert exact == pytest.approx(1 - (test == 7).any(1).float().mean().item())


@pytest.mark.slow
def test_interrupted_copying_resumes_and_leaves_no_checkpoint(monkeypatch, tmp_path):
    steps, stop = [], [True]
    training_step = VanillaTransformerTrainer.training_step

    def counted(self, *args, **kwargs):
        steps.append(self.state.global_step)
        if stop and self.state.global_step == 3:
            raise KeyboardInterrupt
        return training_step(self, *args, **kwargs)

    monkeypatch.setattr(VanillaTransformerTrainer, "training_step", counted)
    monkeypatch.setattr(copy_task, "COPY_SAVE_STEPS", 2)
    monkeypatch.setattr(copy_task, "COPY_TEST_SEQUENCES", 50)
    task = CopyTask("tiny", steps=5, learning_rate=1e-3, warmup_steps=1)
    args = TutorialArguments(output_dir=str(tmp_path))
    with pytest.raises(KeyboardInterrupt):
        learn_to_copy(task, 0, args)
    stop.clear()
    resumed = learn_to_copy(task, 0, args)
    assert steps == [0, 1, 2, 3, 2, 3, 4]
    assert not any(path.is_dir() for path in (tmp_path / "copy").iterdir())
    assert resumed == learn_to_copy(task, 0, args)


def test_every_seed_must_copy(monkeypatch, tmp_path):
    exact = iter([1.0, 0.5])
    monkeypatch.setattr(copy_task, "learn_to_copy", lambda task, seed, args: next(exact))
    args = TutorialArguments(output_dir=str(tmp_path), light=True, seeds=2, max_steps=20)
    result = copy_task.reproduce_copy(args, DataArguments())
    assert not result.reproduced and "worst 50.0%" in result.result and result.figures["steps"] == 20
    assert "N=2, d_model=128, h=4, d_ff=512" in result.claim and np.shape(result.figures["untrained"]) == (10, 10)


@pytest.mark.slow
def test_light_copying_is_exact(run, tmp_path):
    result = run("copy", tmp_path, "--light")
    assert result["reproduced"] and min(result["figures"]["exact"]) >= 0.99
    assert len(result["figures"]["untrained"]) == 10
