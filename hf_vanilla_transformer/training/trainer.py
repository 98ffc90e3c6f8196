"""Hugging Face `Trainer` with token-budget batches, the paper's loss and exact resuming.

Built on `trainer_loss` and `trainer_optimizer`; this part saves, resumes, and chooses the best model. Together, they
override each method of `Trainer` once.
"""

import pickle
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from math import isfinite
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import datasets
import torch
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, EvalLoopOutput, SaveStrategy, TrainOutput
from transformers.utils import logging

from ..data.encoding import PairCounts
from ..data.fingerprint import data_fingerprint
from ..errors import one_line, redacted
from ..files import SCRATCH, clear_scratch, disk_errors
from ..model.hub_code_vanilla_transformer import MODEL_TYPE, add_code
from ..pretrained.loading import without_message
from .arguments import with_fields, with_learning_rate
from .callbacks import ResumedState, breaks_tie, mean_training_loss, metric_name
from .checkpoints import best_checkpoint, newest_checkpoint, publish_checkpoint, rotate_checkpoints, trained_with
from .options import AUTO_METRIC
from .resuming import DATA, NEW_OPTIMIZER, SCORES, TEXT, Changes, changes_summary, check_changes, run_record
from .signals import DeferredSignals
from .time_budget import TimeBudget
from .trainer_optimizer import OptimizerTrainer

logger = logging.get_logger(__name__)

# On a GPU, steps between checks for signals in other processes, each of which waits for the device.
STEPS_BETWEEN_SIGNALS = 8

# Raised for files that torch can read but this run cannot use.
LOADING_ERRORS = (RuntimeError, ValueError, LookupError, TypeError, AttributeError, EOFError)

# Maximum length of torch's errors in a message.
SHOWN_ERROR = 200


class VanillaTransformerTrainer(OptimizerTrainer):
    """`Seq2SeqTrainer` with token-budget batches and a loss that never stores the logits.

    See `LossTrainer` for batches and loss; `OptimizerTrainer` stops or skips at a NaN or infinite loss or gradient.
    Encoder-decoders of other packages train as with `Seq2SeqTrainer`.

    Checkpoints are written atomically: whenever a run is killed, it loses nothing that it saved. Ctrl-C and SIGTERM
    take effect in all processes after the step, once a checkpoint is saved; a second Ctrl-C, or the first with
    `save_strategy="no"`, at once. Resumed from that checkpoint, a run ends as if never interrupted. Resuming with
    other settings is refused, unless `args.resume_with_changes` is set.

    Other metrics break ties of `metric_for_best_model`: on targets of fewer than four tokens, BLEU is 0 in every
    evaluation, and `Trainer` would keep the first checkpoint.

    Attributes:
        experiment: What to record besides arguments, model, tokenizer and token ids.
        time_budget: Sets the length of training, with `args.time_budget`.
    """

    experiment: Mapping[str, Any] = {}
    time_budget: TimeBudget | None = None
    # Record that checkpoints store, and its changes since the checkpoint to resume from.
    trained_with: dict[str, Any] | None = None
    _changes: Changes = {}
    # Whether a checkpoint is being written, and whether it is scheduled.
    _is_saving, _is_scheduled = False, True
    _warned_of_tie = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Set up as `Seq2SeqTrainer`, with a learning rate derived from the model's width unless one is given."""
        super().__init__(*args, **kwargs)
        self.args = with_learning_rate(self.args, self.model)
        self.prepare_loss(has_collator=bool(kwargs.get("data_collator") or args[2:]))
        self.prepare_checks()
        self.add_callback(ResumedState)
        if self.args.time_budget is not None:
            self.time_budget = TimeBudget(self)
            self.add_callback(self.time_budget)
        # As given, before an evaluation resolves `auto`.
        self._metric = self.args.metric_for_best_model
        self._signals = DeferredSignals()
        # Step of the last call of `_maybe_log_save_evaluate`, and of the last checkpoint of this session.
        self._last_call_step: int | None = None
        self._last_saved_step: int | None = None

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> TrainOutput:
        """Train; `resume_from_checkpoint=True` resumes from the newest complete checkpoint.

        The model ends up as the best checkpoint or, without one, as the average of the weights.

        Raises:
            ValueError: There is no such checkpoint, the disk is full, or a loss, a gradient or a weight is NaN or
                infinite.
        """
        output_dir = cast(str, self.args.output_dir)
        if resume_from_checkpoint is True:
            resume_from_checkpoint = newest_checkpoint(output_dir)
            if resume_from_checkpoint is None:
                raise ValueError(f"{output_dir} holds no complete checkpoint to resume from")
        self._begin(resume_from_checkpoint or None)
        self._clear_scratch(output_dir)
        if resume_from_checkpoint and self.args.should_save:
            saved = Path(output_dir, Path(resume_from_checkpoint).name)
            if saved.is_dir() and saved.samefile(resume_from_checkpoint):
                # If the program was killed before it deleted what this checkpoint supersedes.
                rotate_checkpoints(saved, self.args.save_total_limit, best_checkpoint(saved))
                clear_scratch(output_dir)
        self._last_call_step = self._last_saved_step = None
        self._is_scheduled = True
        signals = self._signals if self.args.save_strategy != SaveStrategy.NO else nullcontext()
        # That warning is about changed arguments, which we check, and wrong for fractions and token-budget batches.
        with signals, without_message("trainer_utils", "do not match the ones in the `trainer_state.json`"):
            self._forget_steps()
            try:
                output = super().train(resume_from_checkpoint, *args, **kwargs)
                loaded_best = self.args.load_best_model_at_end and self.state.best_model_checkpoint is not None
                if self._average and not loaded_best:
                    self._average.copy_to_parameters()
            finally:
                self._average = None
                self._detach()
                # `Trainer` leaves it set when training fails, and a later evaluation would count as part of training.
                self.is_in_train = False
            self._check_finite()
            return output

    # Signals

    def _maybe_log_save_evaluate(
        self, tr_loss: torch.Tensor, grad_norm: Any, model: torch.nn.Module, trial: Any, *args: Any, **kwargs: Any
    ) -> None:
        """Log, evaluate and save; on a signal to stop, save in any case and stop.

        `Trainer` calls this after each step and again after an epoch. The last step of an epoch is saved by the second
        call, after its evaluation, because a resumed run starts with the next epoch and would skip that evaluation.
        """
        state, control = self.state, self.control
        is_first_call, self._last_call_step = self._last_call_step != state.global_step, state.global_step
        is_last_step = (
            float(state.epoch or 0).is_integer() or control.should_training_stop or control.should_epoch_stop
        )
        if is_first_call and is_last_step:
            postponed, control.should_save = control.should_save, False
            super()._maybe_log_save_evaluate(tr_loss, grad_norm, model, trial, *args, **kwargs)
            self.control.should_save = postponed
            return
        number = self._received_signal(is_last_step)
        # The log in a checkpoint covers all of its steps.
        control.should_log = control.should_log or bool(number)
        super()._maybe_log_save_evaluate(tr_loss, grad_norm, model, trial, *args, **kwargs)
        # After early stopping, the second call may have a checkpoint to save.
        if not number or (is_first_call and self.control.should_training_stop):
            return
        # Only now: with `save_strategy="best"`, the evaluation decides whether this step is saved.
        if self._last_saved_step != state.global_step:
            self._is_scheduled = False
            self._save_checkpoint(model, trial)
            self.control = self.callback_handler.on_save(self.args, self.state, self.control)
        self._signals.deliver(number)

    def _received_signal(self, is_last_step: bool) -> int:
        """Number of a signal to stop, received by this or another process; 0: none."""
        if self.args.world_size == 1:
            return self._signals.pending
        if self.args.device.type != "cpu" and not is_last_step and self.state.global_step % STEPS_BETWEEN_SIGNALS:
            return 0
        return int(self.accelerator.gather(torch.tensor([self._signals.pending], device=self.args.device)).max())

    # Saving

    def _save_checkpoint(self, model: torch.nn.Module, trial: Any) -> None:
        """Save a checkpoint atomically: under a temporary name until all processes are done."""
        counts = getattr(self.train_dataset, "counts", None)
        if isinstance(counts, PairCounts) and counts.read:
            # The counts of a stream are recorded, because a finished run that is resumed reads nothing from it.
            self.run_record.train_pairs = counts.kept
        run_dir = Path(self._get_output_dir(trial))
        name = f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        partial, checkpoint = run_dir / SCRATCH / name, run_dir / name
        earlier, best = any(run_dir.glob(f"{PREFIX_CHECKPOINT_DIR}-*")), self.state.best_model_checkpoint
        remedy = "continue with `resume_from_checkpoint=last`" if earlier else "start again"
        self._clear_scratch(run_dir)
        self.accelerator.wait_for_everyone()
        self._is_saving = True
        try:
            with disk_errors(checkpoint, f"make room, and {remedy}"):
                super()._save_checkpoint(model, trial)
                self.save_trained_weights(partial)
                if self.state.best_global_step == self.state.global_step:
                    # Never an unscheduled one: the next checkpoint deletes it, and uninterrupted runs have none.
                    self.state.best_model_checkpoint = str(checkpoint) if self._is_scheduled else best
                self.accelerator.wait_for_everyone()
                if self.args.should_save:
                    self.state.save_to_json(str(partial / TRAINER_STATE_NAME))
                    publish_checkpoint(partial, checkpoint, self._is_scheduled, self.trained_with)
                    rotate_checkpoints(checkpoint, self.args.save_total_limit, self.state.best_model_checkpoint)
        finally:
            self._is_saving = False
            self._clear_scratch(run_dir)
        self._last_saved_step = self.state.global_step
        self.accelerator.wait_for_everyone()
        if self.args.push_to_hub:
            self._push_from_checkpoint(str(checkpoint))

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the model, or its average, unless a weight is NaN or infinite.

        Raises:
            ValueError: Training diverged.
        """
        self._check_finite()
        with self._with_average():
            super().save_model(output_dir, _internal_call)
        # `Trainer` pushes all that it saves.
        is_own = getattr(getattr(self.model, "config", None), "model_type", None) == MODEL_TYPE
        if self.args.push_to_hub and self.args.should_save and is_own:
            add_code(output_dir or self.args.output_dir)

    def _clear_scratch(self, run_dir: str | Path) -> None:
        if self.args.should_save:
            clear_scratch(run_dir)

    def _get_output_dir(self, trial: Any) -> str:
        """Return the folder of checkpoints; while one is saved, the temporary folder."""
        run_dir = super()._get_output_dir(trial)
        return str(Path(run_dir, SCRATCH)) if self._is_saving else run_dir

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Push a checkpoint once it is complete; report pushes that fail in the background."""
        if self._is_saving:
            return
        earlier = list(getattr(self.push_in_progress, "jobs", ()))
        super()._push_from_checkpoint(checkpoint_folder)
        for job in getattr(self.push_in_progress, "jobs", ()):
            if job not in earlier:
                job.add_done_callback(self._warn_of_failed_push)

    def _warn_of_failed_push(self, job: Future[Any]) -> None:
        if not job.cancelled() and (error := job.exception()):
            logger.warning(
                f"a push to the Hub failed: {redacted(one_line(error), self.args.hub_token)}; training continues"
            )

    # Resuming

    def _begin(self, checkpoint: str | None) -> None:
        """Record what the run trains with, and compare it with the record of the checkpoint to resume from."""
        record, self._changes = run_record(self.args, self.model, self.processing_class), {}
        record["metric_for_best_model"] = self._metric
        if TEXT not in self.experiment and isinstance(self.train_dataset, datasets.Dataset):
            record[DATA] = data_fingerprint(self.train_dataset, ("input_ids", "labels"))
        record |= self.experiment
        if checkpoint:
            before = trained_with(checkpoint)
            self._changes = check_changes(checkpoint, record, self.args.resume_with_changes)
            record = {**(before or {}), **record}
            if before is None and self.is_world_process_zero():
                logger.warning(f"{checkpoint} has no record of its settings, so changes go unnoticed")
            if self._changes and self.is_world_process_zero():
                logger.warning(changes_summary(checkpoint, self._changes))
        self.trained_with = record

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        """Train for an epoch, unless the run is finished: when resuming one, `Trainer` would take another step."""
        if self.control.should_training_stop or self.state.global_step >= self.state.max_steps:
            self.control.should_training_stop = True
            return
        super()._run_epoch(*args, **kwargs)

    def _finalize_training(self, trial: Any, num_train_samples: float, start_time: float) -> TrainOutput:
        """End training with loss and time of the whole run; `Trainer` counts only this session and process."""
        if self.state.global_step == self.run_record.first_step > 0 and self.is_world_process_zero():
            logger.warning(
                f"the run was complete: {self.state.global_step} steps of {self.state.max_steps}; to train longer, "
                "raise `max_steps`, `num_train_epochs` or `time_budget`"
            )
        if self.time_budget:
            # The number that `Trainer` began with was not decided yet.
            num_train_samples = self.state.max_steps * self.get_total_train_batch_size(self.args)
        self._tr_loss = self.accelerator.gather(self._tr_loss).mean()
        mean = mean_training_loss(self.state.log_history)
        if mean is not None:
            # From the log, which ends with the last step: bit-identical however often the run was interrupted.
            self._initial_global_step, self._total_loss_scalar = 0, mean * self.state.global_step
            self._tr_loss.zero_()
        return super()._finalize_training(trial, num_train_samples, start_time - self.run_record.seconds)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: torch.nn.Module | None = None) -> None:
        with _loading(resume_from_checkpoint):
            super()._load_from_checkpoint(resume_from_checkpoint, model)
            self.load_trained_weights(resume_from_checkpoint, model)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Load the optimizer state; after changes, settings and schedule come from the arguments."""
        if not (checkpoint and self._changes) or self.is_deepspeed_enabled:
            with _loading(checkpoint):
                super()._load_optimizer_and_scheduler(checkpoint)
            return
        optimizer, schedule = cast(torch.optim.Optimizer, self.optimizer), cast(Any, self.lr_scheduler)
        settings = [{**group} for group in optimizer.param_groups]
        if not NEW_OPTIMIZER & self._changes.keys():
            if "lr_scheduler_type" in self._changes:
                # The saved state of another schedule does not fit.
                self.lr_scheduler = cast(Any, SimpleNamespace(load_state_dict=lambda state: None))
            with _loading(checkpoint):
                super()._load_optimizer_and_scheduler(checkpoint)
            for group, own in zip(optimizer.param_groups, settings, strict=True):
                group.update({**own, "params": group["params"]})
        self.lr_scheduler = schedule
        if isinstance(schedule, LambdaLR):
            step = schedule.last_epoch or self.state.global_step
            self.lr_scheduler = LambdaLR(optimizer, schedule.lr_lambdas, last_epoch=step - 1)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        """Restore the random generators, unless the seed has changed."""
        if "seed" not in self._changes:
            with _loading(checkpoint):
                super()._load_rng_state(checkpoint)

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Warn about missing weights, except tied ones, which a checkpoint stores once."""
        tied = getattr(self.model, "all_tied_weights_keys", None) or {}
        load_result.missing_keys[:] = [key for key in load_result.missing_keys if key not in tied]
        super()._issue_warnings_after_load(load_result)

    # Evaluation

    def evaluation_loop(
        self,
        dataloader: DataLoader,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """Evaluate the average of the weights, if there is one, with the mean loss of all labels."""
        prefix = metric_key_prefix
        self.begin_evaluation()
        with self._with_average():
            output = super().evaluation_loop(dataloader, description, prediction_loss_only, ignore_keys, prefix)
        metrics = cast(dict[str, float], output.metrics)
        if self._batch_losses:
            metrics[f"{prefix}_loss"] = self._mean_loss()
        self.check_evaluation(metrics, prefix)
        self._resolve_metric(metrics, prefix)
        return output

    def _resolve_metric(self, metrics: Mapping[str, float], prefix: str) -> None:
        """Resolve the metric `auto` by the first evaluation set: BLEU if it is computed, else the loss."""
        sets = [f"eval_{name}" for name in self.eval_dataset] if isinstance(self.eval_dataset, dict) else ["eval"]
        if self.args.metric_for_best_model != AUTO_METRIC or prefix not in sets[:1]:
            return
        computed = f"{prefix}_bleu" in metrics
        metric = f"{prefix}_{'bleu' if computed else 'loss'}".removeprefix("eval_")
        if metric != "bleu":
            logger.warning(f"evaluation does not compute eval_bleu: eval_{metric} decides which model is best")
        self.args = with_fields(self.args, metric_for_best_model=metric, greater_is_better=computed)

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        """Decide whether this model is the best, by finite and comparable scores, and by other metrics in a tie."""
        name = metric_name(self.args)
        if not isfinite(value := metrics.get(name, 0.0)):
            logger.warning(f"step {self.state.global_step}: {name} is {value}, so this is not the best model")
            return False
        if breaks_tie(self.args, self.state, metrics):
            if not self._warned_of_tie:
                logger.warning(
                    f"step {self.state.global_step}: {name} is {value:g} as before and cannot tell which model is "
                    "better; chrF, SER, exact match and, if nothing is right, the loss break ties"
                )
            self._warned_of_tie = True
            # Makes an equal value count as better.
            self.state.best_metric = None
        if SCORES & self._changes.keys():
            self.state.best_metric = self.state.best_model_checkpoint = self.state.best_global_step = None
            self._changes = {name: change for name, change in self._changes.items() if name not in SCORES}
        return super()._determine_best_metric(metrics, trial)


@contextmanager
def _loading(checkpoint: str | None) -> Iterator[None]:
    """Name the checkpoint in errors from files that do not fit this model and optimizer."""
    try:
        yield
    except pickle.UnpicklingError:
        # The error's own text advises unpickling anything.
        raise ValueError(
            f"`resume_from_checkpoint` {checkpoint}: a file in it is a pickle that holds more than tensors, which is "
            "never run; resume from a checkpoint of your own"
        ) from None
    except LOADING_ERRORS as error:
        raise ValueError(
            f"`resume_from_checkpoint` {checkpoint} cannot be loaded ({one_line(error)[:SHOWN_ERROR]}); resume from "
            "another checkpoint of this model"
        ) from error
