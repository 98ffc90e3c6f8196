"""The trainer's loss, token-budget batches and evaluation."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from functools import partial
from inspect import signature
from itertools import count, islice
from typing import Any, cast

import datasets
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import register_fsdp_forward_method
from torch.utils.data import DataLoader, IterableDataset
from transformers import DataCollatorForSeq2Seq, PreTrainedModel, PreTrainedTokenizerBase, Seq2SeqTrainer

from ..data.augmentation import COPIES, Noise, parse_shares
from ..data.batching import (
    EpochRows,
    TokenBudgetBatchSampler,
    TokenBudgetStream,
    collate_packed,
    dense_alignments,
    token_lengths,
)
from ..data.encoding import LengthLimits, Prefixes
from ..data.reading import ALIGNMENT_COLUMN, PART_COLUMN
from ..data.resampling import Resampling
from ..errors import DataError
from ..model.loss_vanilla_transformer import IGNORE_INDEX
from ..pretrained.output_limits import LENGTH_BOUNDS, OutputLimits, row_limit_options
from ..pretrained.teacher_forcing import position_limit
from .arguments import VanillaTransformerTrainingArguments
from .callbacks import SamplerEpoch
from .guided_alignment import AlignmentHead

# Number of labels in all accumulated batches of all processes; None: in the batch alone.
ItemCount = Tensor | int | None


class EndlessStream(IterableDataset):
    """Batches of a `TokenBudgetStream`, epoch after epoch, for training by steps."""

    def __init__(self, batches: TokenBudgetStream) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[list[Any]]:
        for epoch in count():
            self.batches.set_epoch(epoch)
            batch = None
            for batch in self.batches:
                yield batch
            if batch is None:
                raise DataError("no pair of the stream passes the filters; check the data and the length limits")


class AlignedPairsCollator(DataCollatorForSeq2Seq):
    """`DataCollatorForSeq2Seq` that gives aligned pairs their `alignments` (B, T, S)."""

    def __call__(self, features: list[dict[str, Any]], return_tensors: str | None = None) -> Any:
        if "alignments" not in features[0]:
            return super().__call__(features, return_tensors)
        alignments = [feature["alignments"] for feature in features]
        pairs = [{name: value for name, value in feature.items() if name != "alignments"} for feature in features]
        batch: Any = super().__call__(pairs, return_tensors)
        batch["alignments"] = dense_alignments(alignments, batch["labels"], batch["attention_mask"])
        return batch


class LossTrainer(Seq2SeqTrainer):
    """Loss, batches and evaluation of `VanillaTransformerTrainer`.

    The default collator is `AlignedPairsCollator`: if the data have `alignments`, the head that
    `generation_config.alignment_heads` names learns them. With `args.packing`, training batches are packed, whatever
    the collator. Our model smooths labels in its own loss, and only in training; the evaluation loss is plain
    cross-entropy, averaged over all labels.

    Attributes:
        epoch_rows: Rows of each epoch, with `args.max_tokens`; None for all.
        source_prefixes: Prefix of the sources of each part, for epochs that retokenize them.
    """

    args: VanillaTransformerTrainingArguments
    epoch_rows: EpochRows | None = None
    source_prefixes: Prefixes = ()
    # Has hooks in the model between batches.
    _alignment_head: AlignmentHead | None = None
    # Replaces the collator with `args.packing`.
    packed_collator: Callable[[list[Any]], dict[str, Any]] = staticmethod(collate_packed)

    def prepare_loss(self, has_collator: bool) -> None:
        """Complete the constructor: the loss, and the collator if none was given."""
        model: Any = self.model
        # The default collator of `Trainer` does not pad labels.
        tokenizer = self.processing_class
        if isinstance(tokenizer, PreTrainedTokenizerBase) and not has_collator:
            self.data_collator = AlignedPairsCollator(tokenizer, model=model)
        self._set_signature_columns_if_needed()
        cast(Any, self._signature_columns).append("alignments")
        unwrapped = model.get_base_model() if hasattr(model, "get_base_model") else model
        parameters = signature(unwrapped.forward).parameters
        if self.args.packing and not getattr(unwrapped, "takes_packing", False):
            raise ValueError(
                f"`packing`: {type(model).__name__} does not accept packed pairs, only models of this package do; "
                "leave it out"
            )
        if self.args.packing and self.args.n_gpu > 1:
            raise ValueError(
                f"`packing`: one process cannot split a packed batch among {self.args.n_gpu} GPUs; start one process "
                "per GPU with `accelerate launch`, or set CUDA_VISIBLE_DEVICES"
            )
        self.model_smooths_labels = "smoothing" in parameters
        if self.model_smooths_labels:
            # Otherwise `Trainer` would take the labels from the model and smooth stored logits.
            self.label_smoother = None
        elif self.label_smoother is None and "num_items_in_batch" not in parameters:
            # Marian, BART and T5 accept any keyword, so `Trainer` assumes that they divide by the labels of all
            # accumulated batches. They divide by those of one, so it would sum means and scale gradients up.
            self.model_accepts_loss_kwargs = False
        # Decoding starts with the encoder; a sharded model must gather its own parameters before that.
        register_fsdp_forward_method(model, "generate")
        self.add_callback(SamplerEpoch)
        # Mean loss and number of labels of each batch of an evaluation.
        self._batch_losses: list[Tensor] = []

    # Loss

    def batch_loss(self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool, count: ItemCount) -> Any:
        """Compute the loss of a batch: in training smoothed and, if no outputs are returned, without logits.

        In evaluation, it is the mean over the batch's own labels, later weighted by their number.
        """
        if not model.training and self.compute_loss_func is None:
            count = None
        if self.model_smooths_labels and "labels" in inputs and model.training:
            smoothing = self.args.label_smoothing_factor
            inputs = {**inputs, "smoothing": smoothing, "skip_logits": not return_outputs}
        return self._guided_loss(model, inputs, return_outputs, count)

    def _guided_loss(self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool, count: ItemCount) -> Any:
        """The loss of `Trainer`, plus `args.guided_alignment_weight` times that of the batch's `alignments`."""
        if "alignments" not in inputs:
            return super().compute_loss(model, inputs, return_outputs, count)
        if self._alignment_head is None:
            self._alignment_head = AlignmentHead.of(self.accelerator.unwrap_model(self.model))
        others = {name: value for name, value in inputs.items() if name != "alignments"}
        # Not detached after this pass, because gradient checkpointing runs it again.
        self._alignment_head.attach()
        result: Any = super().compute_loss(model, others, return_outputs, count)
        guided = self._alignment_head.loss(inputs, count)
        guided = self.args.guided_alignment_weight * self._loss_scale(count) * guided
        return (result[0] + guided, result[1]) if return_outputs else result + guided

    def _detach(self) -> None:
        if self._alignment_head is not None:
            self._alignment_head.detach()

    def _loss_scale(self, num_items_in_batch: ItemCount) -> float:
        """Factor that `Trainer` applies to a loss: the number of processes whose labels it counted, to undo averaging.

        It depends on sharding and on the release of transformers, and is therefore probed with a loss of 1.
        """
        probe = copy(self)
        if self.compute_loss_func is not None:
            probe.compute_loss_func = lambda *args, **kwargs: 1.0
        model = cast(Any, lambda **inputs: {"loss": 1.0})
        return cast(float, super(LossTrainer, probe).compute_loss(model, {}, num_items_in_batch=num_items_in_batch))

    # Batches

    def get_train_dataloader(self) -> DataLoader:
        """Return batches of at most `args.max_tokens` tokens or, without it, those of `Trainer`.

        Raises:
            DataError: There are no pairs, or a pair is longer than the budget.
        """
        # Dispatching needs batches of equal width, and would cut a packed row into one part per process. Instead, each
        # process reads the whole stream and keeps its own batches.
        config = self.accelerator.dataloader_config
        dispatches = bool(config.dispatch_batches) and not self.args.packing
        collator = self.packed_collator if self.args.packing else self.data_collator
        with replaced(self, "data_collator", collator), replaced(config, "dispatch_batches", dispatches):
            return self._train_dataloader()

    def _train_dataloader(self) -> DataLoader:
        if not self.args.max_tokens:
            return super().get_train_dataloader()
        if self.train_dataset is None:
            raise ValueError("training needs a `train_dataset`.")
        dataset: Any = self.train_dataset
        collator: Any = self.data_collator
        if not isinstance(dataset, datasets.Dataset):
            collator = self._get_collator_with_removed_columns(collator, description="training")
        elif is_resampled(self.args):
            collator = self._resampling(dataset)
        else:
            dataset = self._remove_unused_columns(dataset, description="training")
        names = ("num_workers", "pin_memory", "persistent_workers", "prefetch_factor")
        options = {"collate_fn": collator, **{name: getattr(self.args, f"dataloader_{name}") for name in names}}
        if not hasattr(dataset, "__len__"):
            return self._stream_loader(dataset, options)
        # Each of n processes has every n-th batch; the sampler made their number a multiple of n.
        with replaced(self.accelerator, "even_batches", False):
            return self.accelerator.prepare(DataLoader(dataset, batch_sampler=self._sampler(dataset), **options))

    def _resampling(self, dataset: datasets.Dataset) -> Resampling:
        """Return a collator that retokenizes pairs in each epoch; batches are still formed by their plain lengths."""
        columns = {*dataset.column_names}
        needed = {"source", "target"} | ({ALIGNMENT_COLUMN} if "alignments" in columns else set())
        needed |= {PART_COLUMN} if len(self.source_prefixes) > 1 else set()
        if missing := needed - columns:
            raise ValueError(
                f"`augment`: the training data lack {' and '.join(sorted(missing))} columns; create them with "
                "`tokenize_pairs(..., keep_text=True)`"
            )
        limit = position_limit(cast(PreTrainedModel, self.model).config)
        tokenizer: Any = self.processing_class
        return resampling(tokenizer, self.args, LengthLimits(limit, limit), self.data_collator, self.source_prefixes)

    def _sampler(self, dataset: Any) -> TokenBudgetBatchSampler:
        return TokenBudgetBatchSampler(
            *token_lengths(dataset),
            self.args.max_tokens,
            seed=data_seed(self.args),
            num_replicas=self.args.world_size,
            epoch_rows=self.epoch_rows,
        )

    def _training_rows(self, step: int, micro_batch: int) -> list[int]:
        """Row numbers in a micro-batch of this process; empty for a stream, or without `max_tokens`."""
        if not (self.args.max_tokens and hasattr(self.train_dataset, "__len__")):
            return []
        world, accumulated = self.args.world_size, self.args.gradient_accumulation_steps
        sampler = self._sampler(self.train_dataset)
        per_epoch = -(-(len(sampler) // world) // accumulated)
        epoch, step_in_epoch = divmod(step - 1, per_epoch)
        sampler.set_epoch(epoch)
        first = (step_in_epoch * accumulated + micro_batch) * world + self.args.process_index
        return next(islice(sampler, first, None))

    def _stream_loader(self, stream: Any, options: dict[str, Any]) -> DataLoader:
        """Return this process's batches of a stream, which every process reads whole."""
        batches = TokenBudgetStream(
            stream,
            self.args.max_tokens,
            seed=data_seed(self.args),
            num_replicas=self.args.world_size,
            rank=self.args.process_index,
        )
        # A worker without a shard of the stream would wait for pairs that never come.
        options["num_workers"] = min(options["num_workers"], getattr(stream, "num_shards", options["num_workers"]))
        if not options["num_workers"]:
            options |= {"persistent_workers": False, "prefetch_factor": None}
        return DataLoader(EndlessStream(batches), batch_size=None, **options)

    # Evaluation

    def begin_evaluation(self) -> None:
        # `Seq2SeqTrainer` would count the duplicate rows that fill the last batch of several processes.
        self.gather_function = partial(
            self.accelerator.gather_for_metrics, use_gather_object=self.args.eval_use_gather_object
        )
        self._batch_losses = []
        self._detach()

    def _mean_loss(self) -> float:
        """Mean loss of all labels of an evaluation, in all processes; `Trainer` would average the means of batches."""
        batches = self.accelerator.gather(torch.stack(self._batch_losses)).cpu().double()
        # A batch without labels may have a NaN loss.
        losses, labels = batches[batches[:, 1] > 0].T
        return ((losses * labels).sum() / labels.sum()).item()

    def prediction_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
        **gen_kwargs: Any,
    ) -> tuple[Any, Tensor | None, Tensor | None]:
        """Evaluate a batch; output lengths are bounded, since an untrained model rarely ends its sentences."""
        requested = gen_kwargs or getattr(self, "_gen_kwargs", {})
        options = {name: value for name, value in requested.items() if value is not None}
        is_decoded = self.args.predict_with_generate and not prediction_loss_only and "input_ids" in inputs
        if is_decoded and not options.keys() & {*LENGTH_BOUNDS}:
            options |= self._row_limits(inputs, options)
        if "labels" in inputs:
            inputs = {**inputs, "labels": self._mask_duplicates(inputs["labels"])}
        outputs = super().prediction_step(model, inputs, prediction_loss_only, ignore_keys, **options)
        loss = cast(Tensor | None, outputs[0])
        if loss is not None and "labels" in inputs:
            count = inputs["labels"].ne(IGNORE_INDEX).sum()
            self._batch_losses.append(torch.stack([loss.float(), count.to(loss.device, torch.float32)]))
        return outputs

    def _row_limits(self, inputs: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
        """Return arguments of `generate()` that bound the output of each source (B, S) by its own length."""
        model: Any = self.model
        settings, input_ids = model.generation_config, inputs["input_ids"]
        if settings.max_new_tokens is not None:
            return {}
        mask = inputs.get("attention_mask")
        lengths = (input_ids.ne(settings.pad_token_id or 0) if mask is None else mask).sum(1)
        limits = [*map(OutputLimits(model), lengths.tolist())]
        forced_end = options.get("forced_eos_token_id", settings.forced_eos_token_id)
        return row_limit_options(limits, model.device, forced_end, **options)

    def _mask_duplicates(self, labels: Tensor) -> Tensor:
        """Mask the labels (B, T) of rows that only fill the last batch of several processes."""
        state = self.accelerator.gradient_state
        if self.args.world_size == 1 or not state.end_of_dataloader or state.remainder < 1:
            return labels
        own = max(0, state.remainder - self.args.process_index * len(labels))
        duplicates = torch.arange(min(own, len(labels)), len(labels), device=labels.device)
        return labels.index_fill(0, duplicates, IGNORE_INDEX)


def data_seed(args: VanillaTransformerTrainingArguments) -> int:
    """Seed of the batches and of noise."""
    return args.seed if args.data_seed is None else args.data_seed


def is_resampled(args: VanillaTransformerTrainingArguments) -> bool:
    """Whether each epoch retokenizes the training pairs."""
    return bool(parse_shares(args.augment))


def resampling(
    tokenizer: PreTrainedTokenizerBase,
    args: VanillaTransformerTrainingArguments,
    limits: LengthLimits,
    collate: Callable[[list[Any]], Any] = list,
    prefixes: Prefixes = (),
) -> Resampling:
    """Return the retokenizer of training pairs in each epoch."""
    shares = parse_shares(args.augment)
    if COPIES in shares and hasattr(tokenizer, "target_tokenizer"):
        raise ValueError(
            f"`augment`: {COPIES} of targets as sources need one vocabulary for both sides; leave {COPIES} out, or "
            "`separate_vocabularies` and different tokenizers"
        )
    noise = Noise(shares, data_seed(args), tokenizer)
    return Resampling(tokenizer, noise, limits, collate, prefixes)


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
