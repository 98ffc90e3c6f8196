"""Which checkpoint is the best: ties of the metric that decides, in choosing, keeping, loading and stopping."""

import pytest
import torch
from safetensors.torch import load_file

from hf_vanilla_transformer.training.callbacks import EarlyStopping
from trainers import SAVING, id_pairs, trainable_model, trainer_of

pytestmark = pytest.mark.usefixtures("one_thread")

OPTIONS = {**SAVING, "eval_strategy": "steps", "eval_steps": 2, "metric_for_best_model": "bleu"}


def trainer_with(folder, *evaluations, **options):
    """A trainer whose evaluations score as given, by BLEU, chrF and exact match."""
    scores = iter(evaluations)

    def scorer(prediction):
        return dict(zip(("bleu", "chrf", "exact_match"), next(scores), strict=True))

    options = {**OPTIONS, "load_best_model_at_end": True, "max_steps": 2 * len(evaluations), **options}
    model = trainable_model(dropout=0.0)
    return trainer_of(folder, model, eval_dataset=id_pairs(8), compute_metrics=scorer, **options)


class TestTies:
    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("evaluations", "best"),
        [
            ([(0, 10, 0), (0, 30, 1), (0, 20, 2)], 4),
            ([(0, 10, 0), (0, 30, 1), (0, 30, 2)], 6),
            ([(5, 10, 0), (5, 30, 1), (4, 40, 2)], 4),
            ([(0, 40, 9), (0, 30, 1), (1, 10, 0)], 6),
            ([(0, 30, 1), (0, 20, 0), (0, 25, 0)], 2),
            # Translations that are equally good: the first, as always.
            ([(100, 100, 100), (100, 100, 100), (100, 100, 100)], 2),
        ],
    )
    def test_other_scores_decide(self, tmp_path, evaluations, best):
        # With an average, the trained weights are not those of the best model.
        trainer = trainer_with(tmp_path, *evaluations, save_total_limit=1, ema_decay=0.9 if best == 4 else 0.0)
        trainer.train()
        assert trainer.state.best_global_step == best and trainer.state.best_metric == evaluations[best // 2 - 1][0]
        stored = load_file(tmp_path / f"checkpoint-{best}" / "model.safetensors")
        assert all(torch.equal(trainer.model.state_dict()[name], weight) for name, weight in stored.items())

    @pytest.mark.parametrize("rate", [0.01, 0.0])
    def test_the_loss_decides_where_nothing_scores(self, tmp_path, rate):
        trainer = trainer_with(tmp_path, *[(0, 0, 0)] * 3, learning_rate=rate, lr_scheduler_type="constant")
        trainer.train()
        losses = {entry["step"]: entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry}
        assert len(losses) == 3 and trainer.state.best_global_step == min(losses, key=losses.get)
        assert (trainer.state.best_global_step == 6) == (rate > 0)

    def test_one_line_says_so(self, tmp_path, caplog):
        trainer_with(tmp_path, (0, 10, 0), (0, 20, 0), (0, 30, 0)).train()
        assert caplog.text.count("step 4: eval_bleu is 0 as before and cannot tell which model is better; chrF") == 1
        assert "as before" not in caplog.text.replace("step 4: eval_bleu is 0 as before", "")

    @pytest.mark.slow
    def test_of_several_evaluation_sets(self, tmp_path):
        scores = iter([(0, 10), (0, 90), (0, 20), (0, 80), (0, 15), (0, 95)])

        def scorer(prediction):
            return dict(zip(("bleu", "chrf"), next(scores), strict=True))

        sets = {"near": id_pairs(8), "far": id_pairs(8, seed=1)}
        options = {**OPTIONS, "metric_for_best_model": "near_bleu"}
        trainer = trainer_of(tmp_path, eval_dataset=sets, compute_metrics=scorer, **options)
        trainer.train()
        assert trainer.state.best_global_step == 4


class TestEarlyStopping:
    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("evaluations", "last"),
        [
            ([(0, 10, 0), (0, 20, 0), (0, 30, 0), (0, 40, 0)], 8),
            ([(0, 10, 0), (0, 10, 1), (0, 10, 1), (0, 40, 0)], 6),
            ([(5, 50, 5), (5, 50, 5), (5, 50, 5), (5, 50, 5)], 4),
        ],
    )
    @pytest.mark.parametrize("save_strategy", ["steps", "no"])
    def test_a_tie_that_is_broken_is_an_improvement(self, tmp_path, evaluations, last, save_strategy):
        options = {"save_strategy": save_strategy, "load_best_model_at_end": save_strategy != "no"}
        trainer = trainer_with(tmp_path, *evaluations, **options)
        trainer.add_callback(EarlyStopping(1))
        trainer.train()
        assert trainer.state.global_step == last


class TestResuming:
    @pytest.mark.slow
    def test_ties_with_earlier_sessions(self, tmp_path):
        trainer_with(tmp_path, (0, 10, 0), (0, 30, 0)).train()
        resumed = trainer_with(tmp_path, (0, 20, 0), (0, 40, 0), max_steps=8)
        resumed.train(resume_from_checkpoint=True)
        assert resumed.state.best_global_step == 8
        again = trainer_with(tmp_path, (0, 35, 0), max_steps=10)
        again.train(resume_from_checkpoint=True)
        assert again.state.best_global_step == 8
