"""What this model does its own way within `generate()` of transformers: the same results by less work.

Shape legend: B sentences, k beams, N = B * k rows, P cached positions, T target length, V target vocabulary,
c candidates kept of each sentence.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import GenerationMixin
from transformers.cache_utils import Cache
from transformers.masking_utils import create_masks_for_generate

from .configuration_vanilla_transformer import VanillaTransformerConfig
from .kernels_vanilla_transformer import packing

# What `generate()` passes on of the source, the same at every step and for all beams.
ENCODER_SIDE = ("encoder_outputs", "attention_mask")

# The score of a beam that must not be chosen; of finite size, as in transformers, so that sums of it are no NaN.
NEVER = -1e9

# Log-probabilities that are taken at a time on a CPU, so that they stay in its cache, and of them, those whose largest
# is found first.
CACHED_ELEMENTS = 2**20
BLOCK = 128


class VanillaTransformerGenerationMixin(GenerationMixin):
    """Beams that share their source, caches of which only the beams' own part moves, scores that are read once."""

    def prepare_inputs_for_generation(  # type: ignore[override]  # arguments that are only passed on stay unnamed
        self, input_ids: Any, next_sequence_length: int | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """Return the arguments of `forward` for the next step of `generate()`.

        Where a cache is handed to `generate()` with all target tokens (B, T) and no mask of them, only those that it
        has not seen are decoded; the base class would decode all of them again.
        """
        cache, mask = kwargs.get("past_key_values"), kwargs.get("decoder_attention_mask")
        if next_sequence_length is None and cache is not None and mask is None:
            seen = cache.get_seq_length()
            next_sequence_length = input_ids.shape[1] - seen if 0 < seen < input_ids.shape[1] else None
        base: Any = super()
        return base.prepare_inputs_for_generation(input_ids, next_sequence_length, **kwargs)

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """Decode as every model of transformers does, by the same arguments."""
        base: Any = super()
        with packing():
            return base.generate(*args, **kwargs)

    def _expand_inputs_for_generation(self, *args: Any, is_encoder_decoder: bool = True, **kwargs: Any) -> Any:
        """Repeat what belongs to the target for each beam; the source is encoded once for all beams of a sentence."""
        base: Any = super()
        source: dict[str, Any] = {name: kwargs.pop(name) for name in ENCODER_SIDE if name in kwargs}
        input_ids, kwargs = base._expand_inputs_for_generation(*args, is_encoder_decoder=False, **kwargs)
        return input_ids, {**kwargs, **source}

    def _reorder_cache(self, past_key_values: Any, beam_idx: Tensor) -> Any:
        """Let beams go on from others of their sentence, which have the same encoder: only their own past moves."""
        getattr(past_key_values, "self_attention_cache", past_key_values).reorder_cache(beam_idx)
        return past_key_values

    @staticmethod
    def create_masks_for_generate(
        config: VanillaTransformerConfig,
        inputs_embeds: Tensor,
        attention_mask: Tensor | None,
        past_key_values: Cache,
        **kwargs: Any,
    ) -> Any:
        """Return the decoder mask of one step over a static cache; `generate()` calls this.

        The mask (B, P + T) of a padded prefix is only widened to the cache, so that its shape stays the same at
        every step: the decoder counts positions by it, which a ready-made mask (B, 1, T, P + T) would not tell.
        """
        if attention_mask is None:
            return create_masks_for_generate(config, inputs_embeds, None, past_key_values, **kwargs)
        return F.pad(attention_mask, (0, past_key_values.get_max_length() - attention_mask.shape[-1]))

    def _beam_search(
        self,
        input_ids: Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        synced_gpus: bool = False,
        **model_kwargs: Any,
    ) -> Any:
        """Return the sequences (B * num_return_sequences, T) that beam search of transformers returns.

        Of each row's log-probabilities only the best are taken out, in one reading; the base class copies, normalizes
        and adds to all of them. It is left to it where it samples, reports what it saw, or waits for other processes.
        """
        options: Any = generation_config
        if synced_gpus or options.do_sample or options.return_dict_in_generate or options.low_memory:
            base: Any = super()
            return base._beam_search(
                input_ids, logits_processor, stopping_criteria, options, synced_gpus, **model_kwargs
            )
        model: Any = self
        beams = _Beams(input_ids, stopping_criteria, options)
        outputs = model._prefill(input_ids, options, model_kwargs, is_first_iteration=not options.is_assistant)
        while True:
            model_kwargs = model._update_model_kwargs_for_generation(outputs, model_kwargs, is_encoder_decoder=True)
            origin = beams.extend(*top_log_probs(outputs.logits[:, -1], beams.kept, logits_processor, input_ids))
            # The scores of a whole vocabulary are large: gone before the next ones come.
            del outputs
            if beams.is_done:
                return beams.best(options.num_return_sequences)
            if (cache := model_kwargs.get("past_key_values")) is not None:
                model_kwargs["past_key_values"] = model._reorder_cache(cache, origin)
            input_ids = beams.tokens()
            step = 1 if model_kwargs["use_cache"] else None
            inputs = model.prepare_inputs_for_generation(input_ids, next_sequence_length=step, **model_kwargs)
            outputs = model(**inputs, return_dict=True)


class _Beams:
    """The k running hypotheses of each of B sentences, and the k best that have ended.

    What goes on, what has ended and when all is done follows transformers, so that its settings mean the same.
    """

    def __init__(self, input_ids: Tensor, stopping_criteria: Any, options: Any):
        """Start from the prefixes (N, T), equal for the beams of a sentence."""
        self.stopping_criteria, self.options = stopping_criteria, options
        self.beams, self.length = options.num_beams, input_ids.shape[1]
        self.prompt, sentences = self.length, input_ids.shape[0] // self.beams
        pad, eos = options._pad_token_tensor, options._eos_token_tensor
        # Enough that k go on even if the best of each end.
        self.kept = max(2, 1 + (0 if eos is None else len(eos))) * self.beams
        filler = -1 if eos is None else int(pad or eos[0])
        self.running = input_ids.new_full((sentences, self.beams, options.max_length), filler)
        self.running[..., : self.length] = input_ids.view(sentences, self.beams, -1)
        # Beams that are still equal count once.
        self.running_scores = torch.full((sentences, self.beams), NEVER, device=input_ids.device)
        self.running_scores[:, 0] = 0
        self.ended, self.ended_scores = self.running, torch.full_like(self.running_scores, NEVER)
        self.has_ended = torch.zeros_like(self.ended_scores, dtype=torch.bool)
        self.lengths = torch.full_like(self.has_ended, self.length, dtype=torch.long)
        self.may_improve = torch.ones_like(self.has_ended[:, :1])
        self.is_done = False

    def extend(self, log_probs: Tensor, tokens: Tensor) -> Tensor:
        """Lengthen the hypotheses by one token and return whose past each goes on from, as rows (N).

        Takes candidates for each row, (N, c) of them: their log-probabilities and tokens.
        """
        sentences, (rows, candidates) = self.running.shape[0], log_probs.shape
        scores = self.running_scores[..., None] + log_probs.view(sentences, self.beams, candidates)
        scores, chosen = scores.flatten(1).topk(self.kept)
        beam = chosen // candidates
        sequences = take(self.running, beam)
        sequences[..., self.length] = tokens.view(sentences, -1).gather(1, chosen)
        self.length += 1
        ends = self.stopping_criteria(sequences[..., : self.length].flatten(0, 1), None).view(sentences, self.kept)
        self._collect(sequences, scores, ends)
        self.running_scores, best = (scores + ends * NEVER).topk(self.beams)
        self.running = take(sequences, best)
        self._judge(ends)
        first_rows = torch.arange(0, rows, self.beams, device=beam.device)
        return (take(beam, best) + first_rows[:, None]).flatten()

    def tokens(self) -> Tensor:
        """Return the running hypotheses (N, T)."""
        return self.running[..., : self.length].flatten(0, 1)

    def best(self, count: int) -> Tensor:
        """Return the `count` best of each sentence that have ended, the best first, (B * count, T)."""
        return self.ended[:, :count, : int(self.lengths[:, :count].max())].flatten(0, 1)

    def _collect(self, sequences: Tensor, scores: Tensor, ends: Tensor) -> None:
        """Keep the k best of those that have ended and of those that `ends` (B, c) says end now."""
        ends = ends.clone()
        ends[:, self.beams :] = False
        closed = ~self.may_improve
        if self.options.early_stopping is True:
            closed = closed | self.has_ended.all(1, keepdim=True)
        scores = scores / (self.length - self.prompt) ** self.options.length_penalty + closed * NEVER + ~ends * NEVER
        self.ended_scores, best = torch.cat((self.ended_scores, scores), 1).topk(self.beams)
        self.ended = take(torch.cat((self.ended, sequences), 1), best)
        self.has_ended = take(torch.cat((self.has_ended, ends), 1), best)
        self.lengths = take(
            torch.cat((self.lengths, torch.full_like(best, self.length)[:, :1].expand_as(ends)), 1), best
        )

    def _judge(self, ends: Tensor) -> None:
        """Find which sentences may still improve, and whether the search is done."""
        options, length = self.options, self.length
        if options.early_stopping == "never" and options.length_penalty > 0:
            length = options.max_length
        best_possible = self.running_scores[:, :1] / (length - self.prompt) ** options.length_penalty
        worst = self.ended_scores.amin(1, keepdim=True).where(self.has_ended, NEVER)
        self.may_improve &= (best_possible > worst).any(1, keepdim=True)
        full = options.early_stopping is True and bool(self.has_ended.all())
        self.is_done = full or not bool(self.may_improve.any()) or bool(ends.all())


def take(x: Tensor, places: Tensor) -> Tensor:
    """Return, of each sentence of `x` (B, c, ...), the candidates at `places` (B, k): (B, k, ...)."""
    return x[torch.arange(len(x), device=x.device)[:, None], places]


def top_log_probs(logits: Tensor, count: int, logits_processor: Any, input_ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return the `count` best tokens of each row of `logits` (N, V), and before them their log-probabilities, (N, c).

    Processors, which may change any log-probability by the tokens so far (N, T), need all of them at once.
    """
    if logits_processor:
        return largest(logits_processor(input_ids, logits.log_softmax(-1, dtype=torch.float32)), count)
    rows = max(1, CACHED_ELEMENTS // logits.shape[1]) if logits.device.type == "cpu" else len(logits)
    parts = [largest(chunk.log_softmax(-1, dtype=torch.float32), count) for chunk in logits.split(rows)]
    values, tokens = zip(*parts, strict=True)
    return torch.cat(values), torch.cat(tokens)


def largest(x: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the `count` largest of each row of `x` (N, V), or all if there are fewer, and their places, (N, c).

    They lie in the blocks whose maxima are largest, which are found first: a maximum takes a fraction of the time of
    a selection.
    """
    rows, size = x.shape
    whole = size - size % BLOCK
    if whole <= 2 * count * BLOCK:
        values, places = x.topk(min(count, size))
        return values, places
    blocks = x[:, :whole].unflatten(1, (-1, BLOCK)).amax(-1).topk(count, sorted=False).indices
    places = (blocks[..., None] * BLOCK + torch.arange(BLOCK, device=x.device)).flatten(1)
    if whole < size:
        places = torch.cat((places, torch.arange(whole, size, device=x.device).expand(rows, -1)), 1)
    values, chosen = x.gather(1, places).topk(count)
    return values, places.gather(1, chosen)


__all__ = ["VanillaTransformerGenerationMixin"]
