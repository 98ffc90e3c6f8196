"""The paper's training recipe as a Hugging Face `Trainer`."""

import math
from collections.abc import Iterator
from functools import partial
from inspect import signature
from itertools import count
from pathlib import Path
from typing import Any, cast

import datasets
import torch
from torch.distributed.fsdp import register_fsdp_forward_method
from torch.utils.data import DataLoader, IterableDataset
from transformers import (
    DataCollatorForSeq2Seq,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Seq2SeqTrainer,
)
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import EvalLoopOutput, TrainOutput
from transformers.utils import logging

from ..data.batching import TokenBudgetBatchSampler, TokenBudgetStream, token_lengths
from ..errors import DataError
from ..inference.loading import check_finite
from ..inference.translation import EXTRA_OUTPUT_TOKENS, position_limit
from ..model.hub_code_vanilla_transformer import MODEL_TYPE, add_code
from ..model.loss_vanilla_transformer import IGNORE_INDEX
from .arguments import DEFAULT_METRIC, VanillaTransformerTrainingArguments, peak_learning_rate
from .callbacks import EpochOfSampler, FindBestCheckpoint, RunRecord
from .checkpoints import (
    expire_incomplete_checkpoints,
    newest_checkpoint,
)

logger = logging.get_logger(__name__)

# Losses and gradient norms are checked at once where that is free; elsewhere reading them waits for the device.
READ_AT_ONCE = ("cpu",)
UNREAD_LIMIT = 64


class EndlessStream(IterableDataset):
    """The batches of a `TokenBudgetStream`, epoch after epoch, so that training by steps sees one stream."""

    def __init__(self, batches: TokenBudgetStream) -> None:
        """Wrap a stream of batches."""
        self.batches = batches

    def __iter__(self) -> Iterator[list[Any]]:
        """Yield the batches of epoch 0, 1, 2, ...

        Raises:
            DataError: An epoch has no batch.
        """
        for epoch in count():
            self.batches.set_epoch(epoch)
            batch = None
            for batch in self.batches:
                yield batch
            if batch is None:
                raise DataError("the stream has no pairs that the filters keep; check the data and the length options")


class VanillaTransformerTrainer(Seq2SeqTrainer):
    """`Seq2SeqTrainer` with token-budget batches and a loss that never stores the logits.

    Batches follow `args.max_tokens`; the training data have `input_ids` and `labels`, and are padded by a
    `DataCollatorForSeq2Seq` unless another collator is given. For our model, smoothing happens in the model's own
    loss, only while training: evaluation reports the plain cross-entropy, the mean over all labels. Other
    encoder-decoders are trained as `Seq2SeqTrainer` trains them.

    A loss or gradient that is not finite ends training with a ValueError that names the step, and weights that are not
    finite are never saved.
    """

    args: VanillaTransformerTrainingArguments

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Take the arguments of `Seq2SeqTrainer`, and derive a learning rate that is not given."""
        super().__init__(*args, **kwargs)
        model: Any = self.model
        if self.args.learning_rate is None:
            self.args.learning_rate = peak_learning_rate(model.config.hidden_size, self.args.warmup_steps)
        # The collator that `Trainer` falls back on does not pad labels.
        tokenizer = self.processing_class
        if isinstance(tokenizer, PreTrainedTokenizerBase) and not (kwargs.get("data_collator") or args[2:]):
            self.data_collator = DataCollatorForSeq2Seq(tokenizer, model=model)
        unwrapped = model.get_base_model() if hasattr(model, "get_base_model") else model
        parameters = signature(unwrapped.forward).parameters
        self.model_smooths_labels = "smoothing" in parameters
        if self.model_smooths_labels:
            # Otherwise `Trainer` would take the labels from the model and smooth stored logits.
            self.label_smoother = None
        elif self.label_smoother is None and "num_items_in_batch" not in parameters:
            # Marian, BART and T5 seem to divide by the labels of all accumulated batches, since they take any keyword,
            # but divide by those of one: `Trainer` would add up means and train with a gradient that is too large.
            self.model_accepts_loss_kwargs = False
        # Decoding begins with the encoder; the whole model must gather what is its own first, where it is sharded.
        register_fsdp_forward_method(model, "generate")
        self.add_callback(EpochOfSampler)
        self.add_callback(FindBestCheckpoint)
        self.add_callback(RunRecord)
        # Of an evaluation: the mean loss and the number of labels of each batch.
        self._batch_losses: list[torch.Tensor] = []
        # Step, name and value of losses and gradient norms that are not checked yet.
        self._unread: list[tuple[int, str, torch.Tensor]] = []

    @property
    def run_record(self) -> RunRecord:
        """Training time of earlier sessions; `restore_callback_states_from_checkpoint` replaces the callback."""
        return next(callback for callback in self.callback_handler.callbacks if isinstance(callback, RunRecord))

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> TrainOutput:
        """Train; `resume_from_checkpoint=True` resumes from the newest complete checkpoint.

        Raises:
            ValueError: There is no such checkpoint, or training diverged.
        """
        if resume_from_checkpoint is True:
            resume_from_checkpoint = newest_checkpoint(self.args.output_dir)
            if resume_from_checkpoint is None:
                raise ValueError(f"{self.args.output_dir} holds no complete checkpoint to resume from")
        if self.args.should_save:
            expire_incomplete_checkpoints(self.args.output_dir)
        self._unread.clear()
        output = super().train(resume_from_checkpoint, *args, **kwargs)
        self._check_finite()
        return output

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        """Train for an epoch; `Trainer` itself would take one more step when a finished run is resumed."""
        if self.control.should_training_stop or self.state.global_step >= self.state.max_steps:
            self.control.should_training_stop = True
            return
        super()._run_epoch(*args, **kwargs)

    def _finalize_training(self, *args: Any, **kwargs: Any) -> TrainOutput:
        """End training; `Trainer` itself would add the unlogged loss of this process alone."""
        self._tr_loss = self.accelerator.gather(self._tr_loss).mean()
        return super()._finalize_training(*args, **kwargs)

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Train on a batch, and queue its loss for the check."""
        loss = super().training_step(*args, **kwargs)
        self._unread.append((self.state.global_step + 1, "loss", loss))
        return loss

    def _get_grad_norm(self, model: torch.nn.Module, grad_norm: Any = None) -> Any:
        """Return the gradient norm, and check what is queued; a GradScaler skips infinite gradients by itself."""
        norm = super()._get_grad_norm(model, grad_norm)
        if norm is not None and getattr(self.accelerator, "scaler", None) is None:
            norm_of_all = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
            self._unread.append((self.state.global_step + 1, "gradient norm", torch.as_tensor(norm_of_all)))
        if self.args.device.type in READ_AT_ONCE or len(self._unread) >= UNREAD_LIMIT:
            self._check_steps()
        return norm

    def _check_steps(self) -> None:
        """Raise a ValueError for the first unchecked step with a loss or gradient that is not finite."""
        unread, self._unread = self._unread, []
        if not unread:
            return
        # All in one go: each reading waits for the device.
        values = torch.stack([value.to(self.args.device, torch.float32) for *_, value in unread]).tolist()
        for (step, name, _), value in zip(unread, values, strict=True):
            if not math.isfinite(value):
                raise ValueError(f"step {step}: {name} is {value}{self._remedy}")

    def _check_finite(self) -> None:
        """Raise a ValueError if a step or a weight is not finite."""
        self._check_steps()
        try:
            check_finite(cast(PreTrainedModel, self.model), f"step {self.state.global_step}")
        except ValueError as error:
            raise ValueError(f"{error}{self._remedy}") from error

    @property
    def _remedy(self) -> str:
        kept = newest_checkpoint(self.args.output_dir)
        last = f"; the last checkpoint is {kept}" if kept else ""
        rate, clip = f"{self.args.learning_rate:.3g}", "" if self.args.max_grad_norm else ", or --max_grad_norm 1"
        return f": training has diverged; start again with a --learning_rate below {rate}{clip}{last}"

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the model, unless a weight is not finite; a checkpoint is complete only when its last file is written.

        Raises:
            ValueError: Training diverged.
        """
        self._check_finite()
        if _internal_call and output_dir is not None:
            # Left by an earlier session; `Trainer` writes it after all else.
            if self.args.should_save:
                Path(output_dir, TRAINER_STATE_NAME).unlink(missing_ok=True)
            self.accelerator.wait_for_everyone()
        super().save_model(output_dir, _internal_call)

    def _save_rng_state(self, output_dir: str) -> None:
        """Save this process's random state; the file that completes a checkpoint waits for those of all processes."""
        super()._save_rng_state(output_dir)
        self.accelerator.wait_for_everyone()

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        """Save as `Trainer` does, and with the code what is to be pushed to the Hub."""
        super()._save(output_dir, state_dict)
        if self.args.push_to_hub and getattr(getattr(self.model, "config", None), "model_type", None) == MODEL_TYPE:
            add_code(output_dir or self.args.output_dir)

    def get_train_dataloader(self) -> DataLoader:
        """Return batches within `args.max_tokens`, or the ordinary ones without it.

        Raises:
            DataError: A pair is longer than the budget, or there are fewer pairs than processes.
        """
        if not getattr(self.args, "max_tokens", None):
            return super().get_train_dataloader()
        if self.train_dataset is None:
            raise ValueError("training needs a `train_dataset`.")
        dataset: Any = self.train_dataset
        options: dict[str, Any] = {
            "collate_fn": self.data_collator,
            "num_workers": self.args.dataloader_num_workers,
            "pin_memory": self.args.dataloader_pin_memory,
            "persistent_workers": self.args.dataloader_persistent_workers,
            "prefetch_factor": self.args.dataloader_prefetch_factor,
        }
        if isinstance(dataset, datasets.Dataset):
            dataset = self._remove_unused_columns(dataset, description="training")
        else:
            options["collate_fn"] = self._get_collator_with_removed_columns(self.data_collator, description="training")
        if not hasattr(dataset, "__len__"):
            return self._stream_loader(dataset, options)
        sampler = TokenBudgetBatchSampler(
            *token_lengths(dataset), self._max_tokens, seed=self._data_seed, num_replicas=self.args.world_size
        )
        return self._shared_out(DataLoader(dataset, batch_sampler=sampler, **options))

    @property
    def _max_tokens(self) -> int:
        return cast(int, self.args.max_tokens)

    @property
    def _data_seed(self) -> int:
        return self.args.seed if self.args.data_seed is None else self.args.data_seed

    def _stream_loader(self, stream: Any, options: dict[str, Any]) -> DataLoader:
        """Return the batches of a stream; every process reads all of it and keeps its share."""
        batches = TokenBudgetStream(
            stream,
            self._max_tokens,
            seed=self._data_seed,
            num_replicas=self.args.world_size,
            rank=self.args.process_index,
        )
        # A worker without a shard of the stream would wait for pairs that never come.
        workers = min(options["num_workers"], getattr(stream, "num_shards", options["num_workers"]))
        single = {"persistent_workers": False, "prefetch_factor": None} if workers == 0 else {}
        return DataLoader(EndlessStream(batches), batch_size=None, **{**options, "num_workers": workers, **single})

    def _shared_out(self, loader: DataLoader) -> DataLoader:
        """Give each process every n-th batch; the sampler has made their number a multiple of n already."""
        even_batches, self.accelerator.even_batches = self.accelerator.even_batches, False
        try:
            return self.accelerator.prepare(loader)
        finally:
            self.accelerator.even_batches = even_batches

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        """Return the loss; our model smooths it while training, and stores no logits where none are returned.

        Evaluation takes the mean over a batch's own labels, by whose number it is weighted.
        """
        if not model.training and self.compute_loss_func is None:
            num_items_in_batch = None
        if self.model_smooths_labels and "labels" in inputs and model.training:
            smoothing = self.args.label_smoothing_factor
            inputs = {**inputs, "smoothing": smoothing, "skip_logits": not return_outputs}
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)

    def evaluation_loop(
        self,
        dataloader: DataLoader,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """Evaluate; the loss is the mean over all labels, where `Trainer` has that of the batches' means.

        `Seq2SeqTrainer` would count those rows twice that fill the last batch of several processes.
        """
        self.gather_function = partial(
            self.accelerator.gather_for_metrics, use_gather_object=self.args.eval_use_gather_object
        )
        self._batch_losses = []
        output = super().evaluation_loop(dataloader, description, prediction_loss_only, ignore_keys, metric_key_prefix)
        metrics = cast(dict[str, float], output.metrics)
        if self._batch_losses:
            metrics[f"{metric_key_prefix}_loss"] = self._mean_batch_loss()
        self._settle_best_metric(metrics, metric_key_prefix)
        return output

    def _mean_batch_loss(self) -> float:
        """Return the mean loss of all labels of an evaluation, in all processes."""
        batches = self.accelerator.gather(torch.stack(self._batch_losses)).cpu().double()
        # The mean loss of no label may be NaN.
        losses, labels = batches[batches[:, 1] > 0].T
        return ((losses * labels).sum() / labels.sum()).item()

    def _settle_best_metric(self, metrics: dict[str, float], prefix: str) -> None:
        """Let the loss decide what is best where nothing computes the default metric; of several sets, the first."""
        sets = [f"eval_{name}" for name in self.eval_dataset] if isinstance(self.eval_dataset, dict) else ["eval"]
        if self.args.metric_for_best_model != DEFAULT_METRIC or prefix not in sets[:1]:
            return
        computed = f"{prefix}_{DEFAULT_METRIC}" in metrics
        metric = f"{prefix}_{DEFAULT_METRIC if computed else 'loss'}".removeprefix("eval_")
        if metric != DEFAULT_METRIC:
            logger.warning(f"evaluation computes no eval_{DEFAULT_METRIC}: eval_{metric} decides which model is best")
            self.args.metric_for_best_model, self.args.greater_is_better = metric, computed

    def _without_repeats(self, labels: torch.Tensor) -> torch.Tensor:
        """Return labels without those of the rows that only fill the last batch of several processes."""
        state = self.accelerator.gradient_state
        if self.args.world_size == 1 or not state.end_of_dataloader or state.remainder < 1:
            return labels
        own = max(0, state.remainder - self.args.process_index * len(labels))
        return labels.index_fill(
            0, torch.arange(min(own, len(labels)), len(labels), device=labels.device), IGNORE_INDEX
        )

    def prediction_step(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
        **gen_kwargs: Any,
    ) -> tuple[Any, torch.Tensor | None, torch.Tensor | None]:
        """Evaluate a batch; what is generated has a bound, since an untrained model often does not end by itself."""
        options = {
            name: value
            for name, value in (gen_kwargs or getattr(self, "_gen_kwargs", {})).items()
            if value is not None
        }
        if not {"max_length", "max_new_tokens"} & options.keys() and "input_ids" in inputs:
            bound = inputs["input_ids"].shape[1] + EXTRA_OUTPUT_TOKENS
            options["max_length"] = min(bound, position_limit(cast(PreTrainedModel, self.model).config) or bound)
        if "labels" in inputs:
            inputs = {**inputs, "labels": self._without_repeats(inputs["labels"])}
        outputs = super().prediction_step(model, inputs, prediction_loss_only, ignore_keys, **options)
        loss = cast(torch.Tensor | None, outputs[0])
        if loss is not None and "labels" in inputs:
            count = inputs["labels"].ne(IGNORE_INDEX).sum()
            self._batch_losses.append(torch.stack([loss.float(), count.to(loss.device, torch.float32)]))
        return outputs

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Tied weights are stored once: that the other names are missing from a checkpoint is no news."""
        tied = getattr(self.model, "all_tied_weights_keys", None) or {}
        load_result.missing_keys[:] = [key for key in load_result.missing_keys if key not in tied]
        super()._issue_warnings_after_load(load_result)


__all__ = ["EndlessStream", "VanillaTransformerTrainer"]
