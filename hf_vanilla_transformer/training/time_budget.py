"""Training within a time budget: the speed of the first steps sets the number of steps and the schedule."""

import time
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import datasets
import torch
from accelerate.utils import broadcast_object_list
from torch.optim.lr_scheduler import LambdaLR
from transformers import PreTrainedModel, TrainerCallback, TrainerControl, TrainerState
from transformers.trainer_utils import has_length
from transformers.utils import logging

from .arguments import SHARE_BETWEEN_EVALUATIONS, UNDECIDED_STEPS, with_fields, with_learning_rate
from .arguments import VanillaTransformerTrainingArguments as Arguments
from .auto_preset import dropout_of
from .resuming import DROPOUT, arguments_record
from .search_tuning import PAIRS as SEARCHED_PAIRS
from .search_tuning import SEARCHES_PER_PAIR
from .text_splits import TextSplits
from .trainer_loss import replaced

if TYPE_CHECKING:
    from .trainer import VanillaTransformerTrainer

logger = logging.get_logger(__name__)

# Steps are measured for this many seconds, or for this share of the time left. The first half is not counted: kernels
# are compiled and tuned in it.
MEASURED_SECONDS, MEASURED_SHARE = 60.0, 0.1

# Fewest measured stretches of steps, and steps between them; reading the clock waits for a GPU.
MIN_STRETCHES, STRETCH = 3, 8

# Evaluations of a run; fewer if they would take more than this share of the time left.
MIN_EVALUATIONS, MAX_EVALUATIONS, EVALUATION_SHARE = 2, 10, 0.2

# Most of the steps that warm-up may take, unless it was given.
WARMUP_SHARE = 0.1

# Share of the budget kept in reserve.
RESERVE = 0.02

# Relative difference in the remaining steps up to which the length is not corrected.
TOLERANCE = 0.02

# Time of the end of a run besides translations: alignment heads, pictures and card. On a CPU, 2 seconds were measured
# for words; the statistics of long sentences take longer.
FINAL_SECONDS = 6.0

# Translations that prove the rules for user text; 150 to 500 were measured.
PROOF_PAIRS = 400

# Seconds to write or verify a checkpoint, for each parameter: 0.28 for 5.2 million on a laptop's disk.
CHECKPOINT_SECONDS = 6e-8

# Places, in validation pairs sorted by length, of the batches whose translation is measured: first the median.
SAMPLED = (1 / 2, 5 / 6, 1 / 6)


class Costs(NamedTuple):
    """Seconds of a training step, of an evaluation with its checkpoint, and of the final evaluation and report."""

    step: float
    evaluation: float
    final: float


def possible_steps(seconds: float, costs: Costs, eval_steps: float) -> tuple[int, float]:
    """Return the number of steps that fit into the seconds left, at least 1, and `eval_steps`.

    `SHARE_BETWEEN_EVALUATIONS`, which stands for a value that was not given, is raised if evaluations are slow.
    """
    seconds -= costs.final
    if eval_steps == SHARE_BETWEEN_EVALUATIONS and costs.evaluation > 0:
        affordable = int(EVALUATION_SHARE * seconds / costs.evaluation)
        eval_steps = 1 / max(MIN_EVALUATIONS, min(MAX_EVALUATIONS, affordable))
    if eval_steps < 1:
        return max(1, int((seconds - costs.evaluation / eval_steps) / costs.step)), eval_steps
    return max(1, int(seconds / (costs.step + costs.evaluation / eval_steps))), eval_steps


def final_pairs(text: TextSplits, args: Arguments) -> int:
    """Number of translations in the final evaluation."""
    validation, test = (0 if pairs is None else len(pairs) for pairs in (text.validation, text.test))
    has_average = args.average_last_checkpoints > 1 and args.save_strategy != "no"
    tuned = SEARCHES_PER_PAIR * min(validation, SEARCHED_PAIRS) if args.tune_search else 0
    return (1 + has_average) * validation + tuned + test + PROOF_PAIRS


@dataclass(eq=False)
class TimeBudget(TrainerCallback):
    """Sets the length of training, once its speed is known, so that the run ends within `args.time_budget` minutes.

    Until then, the schedule follows a running estimate. The length is corrected once, after half of the budget. All
    processes go by the clock of the first. A resumed run keeps the length that is recorded in its checkpoint.

    Attributes:
        trainer: The trainer.
        start: When the budget began, by `clock`.
        final_pairs: Number of translations after training.
    """

    trainer: "VanillaTransformerTrainer"
    start: float = 0.0
    final_pairs: int = 0

    clock = staticmethod(time.monotonic)

    def __post_init__(self) -> None:
        self.start = self.start or self.clock()

    @property
    def _seconds(self) -> float:
        """The budget without its reserve."""
        return (1 - RESERVE) * 60 * cast(float, self.trainer.args.time_budget)

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        now = self._now()
        # Steps and seconds at the ends of measured stretches, and when to stop measuring.
        self._marks = [(state.global_step, now)]
        self._until = now + max(0.0, min(MEASURED_SECONDS, MEASURED_SHARE * (self._seconds - now)))
        self._warmup = args.warmup_steps
        self._is_decided = self._is_corrected = args.max_steps != UNDECIDED_STEPS
        if not self._is_decided:
            self._show_total(None)

    def on_step_end(
        self,
        args: Any,
        state: TrainerState,
        control: TrainerControl,
        train_dataloader: Any = None,
        **kwargs: Any,
    ) -> None:
        taken = state.global_step - self._marks[0][0]
        if not self._is_decided:
            # The first marks are close together, because steps may be slow.
            if taken % STRETCH == 0 or taken & (taken - 1) == 0:
                self._measure()
        elif not self._is_corrected and taken % max(1, state.max_steps // MAX_EVALUATIONS) == 0:
            self._correct()
        if not has_length(train_dataloader):
            # By the decided length; `Trainer` still counts by the undecided one.
            state.epoch = state.global_step / state.max_steps

    # Measuring

    def _now(self) -> float:
        """Seconds since the start, by the clock of the first process, once the device has caught up."""
        if self.trainer.args.device.type != "cpu":
            torch.accelerator.synchronize()
        return float(broadcast_object_list([self.clock() - self.start])[0])

    def _measure(self) -> None:
        """Continue the running estimate or, once enough is measured, decide."""
        step = self.trainer.state.global_step
        self._marks.append((step, now := self._now()))
        costs = Costs(self._step_seconds(), 0.0, 0.0)
        if len(self._marks) <= MIN_STRETCHES or now < self._until:
            args = self._shortened(step + possible_steps(self._seconds - now, costs, 1)[0])
            self._set_schedule(with_fields(args, learning_rate=self.trainer.args.learning_rate))
            return
        costs = Costs(costs.step, *self._evaluation_seconds())
        # The next steps are timed from here.
        self._decision = step, now = step, self._now()
        self._marks.append(self._decision)
        number, eval_steps = possible_steps(self._seconds - now, costs, cast(float, self.trainer.args.eval_steps))
        self._is_decided = True
        self._set_length(step + number, eval_steps)
        evaluations = round(1 / eval_steps if eval_steps < 1 else number / eval_steps) if costs.evaluation else 0
        self._announce(now, number, evaluations, costs)

    def _step_seconds(self) -> float:
        """Seconds of a step, without the first half of the time if there are marks after it."""
        *marks, (step, now) = self._marks
        half = (self._marks[0][1] + now) / 2
        first, since = next((mark for mark in marks[1:] if mark[1] >= half), marks[-1])
        # A coarse clock may stand still for some steps.
        return max(1e-4, (now - since) / (step - first))

    def _evaluation_seconds(self) -> tuple[float, float]:
        """Estimate the seconds of an evaluation with its checkpoint, and of everything after training."""
        trainer, args = self.trainer, self.trainer.args
        checkpoint = CHECKPOINT_SECONDS * cast(PreTrainedModel, trainer.model).num_parameters()
        final = FINAL_SECONDS + checkpoint * args.average_last_checkpoints
        evaluation = checkpoint if args.save_strategy != "no" else 0.0
        held_out = isinstance(trainer.eval_dataset, datasets.Dataset)
        pairs: Any = trainer.eval_dataset if held_out else trainer.train_dataset
        if isinstance(pairs, datasets.Dataset) and {"input_ids", "labels"} <= {*pairs.column_names}:
            during, after = self._translation_seconds(pairs)
            final += after * self.final_pairs
            if held_out and args.eval_strategy != "no":
                evaluation += during * len(pairs) / args.world_size
        return evaluation, final

    def _translation_seconds(self, pairs: datasets.Dataset) -> tuple[float, float]:
        """Measure the seconds per pair in evaluations during and after training.

        Outputs of a model that is hardly trained go on to the limit. Its next evaluations may take as long, but not
        the final one: until the length is corrected, its outputs are as long as the targets.
        """
        trainer, args, model = self.trainer, self.trainer.args, cast(Any, self.trainer.model)
        collate = trainer._get_collator_with_removed_columns(trainer.data_collator, description="evaluation")
        size, measured, seconds = min(args.eval_batch_size, len(pairs)), 0, [0.0, 0.0]
        trainer.begin_evaluation()
        is_training = model.training
        model.eval()
        for place in SAMPLED:
            first = max(0, min(round(place * len(pairs) - size / 2), len(pairs) - size))
            inputs = collate([*pairs.select(range(first, first + size))])
            bound = {} if self._is_decided else {"max_length": inputs["labels"].shape[1] + 1}
            times = [self._now()]
            trainer.prediction_step(model, inputs, False, num_beams=args.generation_num_beams)
            times.append(self._now())
            with replaced(args, "predict_with_generate", True):
                trainer.prediction_step(model, inputs, False, None, num_beams=args.final_num_beams, **bound)
            times.append(self._now())
            seconds = [total + end - begin for total, begin, end in zip(seconds, times, times[1:], strict=False)]
            measured += size
            if sum(seconds) > (self._until - self._marks[0][1]) / 3:
                break
        model.train(is_training)
        return seconds[0] / measured, seconds[1] / measured

    # Deciding

    def _correct(self) -> None:
        """Adjust the length once, after half of the time, by the speed since the decision."""
        step = self.trainer.state.global_step
        self._marks.append((step, now := self._now()))
        if now < self._seconds / 2 or step == self.trainer.state.max_steps:
            return
        self._is_corrected = True
        # The slower of all steps since the decision and the last of them, with their evaluations.
        step_seconds = max((now - since) / (step - mark) for mark, since in (self._decision, self._marks[-2]))
        costs = Costs(step_seconds, 0.0, self._evaluation_seconds()[1])
        now, eval_steps = self._now(), cast(float, self.trainer.args.eval_steps)
        number = possible_steps(self._seconds - now, costs, eval_steps)[0]
        if abs(number / (self.trainer.state.max_steps - step) - 1) > TOLERANCE:
            self._set_length(step + number, eval_steps)
            self._announce(now, number, 0, costs)

    def _shortened(self, steps: int) -> Arguments:
        """Return arguments with a warm-up for this many steps and, if it was derived, the learning rate for that."""
        trainer, args = self.trainer, self.trainer.args
        if args.is_given("warmup_steps"):
            return with_fields(args, max_steps=steps)
        derived = with_learning_rate(with_fields(args, learning_rate=None), trainer.model).learning_rate
        rate = None if args.learning_rate == derived else args.learning_rate
        warmup = min(self._warmup, max(1, int(WARMUP_SHARE * steps)))
        args = with_fields(args, max_steps=steps, warmup_steps=warmup, learning_rate=rate)
        return with_learning_rate(args, trainer.model)

    def _set_length(self, steps: int, eval_steps: float) -> None:
        """Let training end after this many steps in all, and record that for resumed runs."""
        trainer, state = self.trainer, self.trainer.state
        args = self._shortened(steps)
        save_steps = eval_steps if args.save_steps == args.eval_steps else args.save_steps
        args = with_fields(args, eval_steps=eval_steps, save_steps=save_steps)
        self._set_schedule(args)
        trainer.args = args
        names = ("max_steps", "warmup_steps", "learning_rate", "eval_steps", "save_steps")
        trainer.trained_with = {**(trainer.trained_with or {}), **arguments_record(args, names)}
        state.max_steps = steps
        state.compute_steps(args, steps)
        if epoch_steps := self._epoch_steps():
            state.num_train_epochs = ceil(steps / epoch_steps)
            if args.dropout_is_open and not self._is_corrected:
                dropout = dropout_of(steps / epoch_steps)
                trainer.trained_with[DROPOUT] = cast(Any, trainer.model).config.dropout = dropout
        self._show_total(steps)

    def _set_schedule(self, args: Arguments) -> None:
        """Let the learning rate follow the schedule of the arguments from the next step on."""
        trainer = self.trainer
        # accelerate and DeepSpeed may wrap it.
        schedule: Any = getattr(trainer.lr_scheduler, "scheduler", trainer.lr_scheduler)
        if not isinstance(schedule, LambdaLR):
            return
        rate, before = cast(float, args.learning_rate), cast(float, trainer.args.learning_rate)
        groups, change = schedule.optimizer.param_groups, rate / before if before else 1.0
        # A schedule sets the rate of its optimizer, so it is created for another one.
        other = torch.optim.SGD([{"params": [torch.zeros(1)]} for _ in groups], lr=rate)
        with replaced(trainer, "args", args), replaced(trainer, "lr_scheduler", None):
            schedule.lr_lambdas = cast(Any, trainer.create_scheduler(args.max_steps, other)).lr_lambdas
        schedule.base_lrs = [base * change for base in schedule.base_lrs]
        for group, base, factor in zip(groups, schedule.base_lrs, schedule.lr_lambdas, strict=True):
            group["initial_lr"], group["lr"] = base, base * factor(schedule.last_epoch)
        schedule._last_lr = [group["lr"] for group in groups]

    def _epoch_steps(self) -> int | None:
        loader = self.trainer.callback_handler.train_dataloader
        return ceil(len(loader) / self.trainer.args.gradient_accumulation_steps) if has_length(loader) else None

    # Showing

    def _announce(self, now: float, number: int, evaluations: int, costs: Costs) -> None:
        """Print the length of the run and its expected end; warn if that is too late."""
        trainer, budget = self.trainer, cast(float, self.trainer.args.time_budget)
        if not trainer.is_world_process_zero():
            return
        steps, left = trainer.state.max_steps, number * costs.step + evaluations * costs.evaluation + costs.final
        epochs = f" ({steps / epoch_steps:.3g} epochs)" if (epoch_steps := self._epoch_steps()) else ""
        parts = [f"{steps} steps{epochs}, {1 / costs.step:.3g} per second"]
        if trainer.args.dropout_is_open:
            parts.append(f"dropout {cast(Any, trainer.model).config.dropout:g}")
        parts += [f"{evaluations} evaluations of {costs.evaluation:.3g} seconds"] if evaluations else []
        parts.append(f"{costs.final:.0f} seconds of final evaluation")
        end = time.strftime("%H:%M:%S", time.localtime(time.time() + left))
        print(
            f"budget       {', '.join(parts)}; expected end {end}, after {(now + left) / 60:.1f} minutes", flush=True
        )
        if now + left > 60 * budget:
            logger.warning(f"`time_budget` {budget:g} will probably be exceeded by the final evaluation; raise it")

    def _show_total(self, steps: int | None) -> None:
        """Set the number of steps of the progress bar."""
        for callback in self.trainer.callback_handler.callbacks:
            if bar := getattr(callback, "training_bar", None):
                bar.total = steps
                bar.refresh()
