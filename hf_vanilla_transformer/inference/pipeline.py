"""`pipeline("translation", model=...)` and `pipeline("translation_en_to_de", ...)`, which transformers 5 dropped.

Shape legend: B batch, S source length, T target length, n translations per text.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from operator import itemgetter
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset
from transformers import AutoModelForSeq2SeqLM, GenerationConfig, pipelines
from transformers.pipelines import PIPELINE_REGISTRY
from transformers.pipelines.base import ChunkPipeline
from transformers.utils import logging

from ..data.features import Features
from ..options import check_choice
from ..pretrained.languages import (
    DIRECTLY,
    check_direction,
    choose_pivot,
    directions_of,
    has_tags,
    is_multilingual,
    recorded_pivots,
)
from ..pretrained.loading import check_finite
from ..pretrained.output_limits import LENGTH_BOUNDS, OutputLimits
from ..text.facts import ENTRY
from ..text.sentences import TextLayout
from .decoding import Decoder, Generated
from .preparation import Preparation, Prepared, SplitSentences
from .scoring import Score, Target, score
from .translation import checked_sentence, checked_sentences
from .translator import MAX_TOKENS, Translator, join, remark_text

logger = logging.get_logger(__name__)

TASK = "translation"
# Task names with languages, such as "translation_en_to_de".
DIRECTED_TASK = re.compile(f"{TASK}_(.+)_to_(.+)")

# Options of `preprocess`, `_forward` and `postprocess`; all others are settings of `generate()`.
STEP_OPTIONS = (
    ("truncation", "src_lang", "tgt_lang", "split_sentences", "protect", "raw", "rules"),
    ("return_scores",),
    ("return_tensors", "return_text", "clean_up_tokenization_spaces"),
)

# Untyped: transformers declares a pipeline's hooks without arguments.
Base: Any = ChunkPipeline


class CheckedDataset(Dataset[str]):
    """A dataset that checks on access that each item is text."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> str:
        return checked_sentence(self.dataset[index], index + 1)


class TranslationPipeline(Base):
    """Translates with any encoder-decoder: a model of this package, MarianMT, BART, ...

    ```python
    translate = pipeline("translation", model="my-model")
    translate("A man rides a bicycle.", num_beams=5)  # [{"translation_text": "..."}]
    translate(["One.", "Two."], batch_size=2)  # a dict for each text
    translate("Ask Ann. Or see https://example.org.", protect=["Ann"])  # both stay; two sentences, joined
    translate("One.", num_beams=4, num_return_sequences=3, return_scores=True)  # three dicts, with "score"
    ```

    A task such as "translation_en_to_de" sets the languages of a multilingual tokenizer, and the prefix for that task
    in the model's `task_specific_params`, as in T5.

    An iterator or a `KeyDataset` gives an iterator over lists of dicts. If neither call nor model bounds the output,
    it may have 50 tokens more than its source (section 6.1 of the paper), or as many as in training.
    Pipeline and call accept all other settings of `generate()`.

    Call it with:
        inputs: A text; a list, tuple or `datasets` column of texts; an iterator over texts, or a dataset.
        batch_size: Texts to translate at a time. A list is batched by length; results keep its order.
        num_return_sequences: Translations of each text, best first; if more than one, a list of texts gives a list of
            lists.
        return_scores: Whether to add "score", the ranking score of beam search: log-probability / length **
            length_penalty, in nats.
        return_tensors: Whether to return "translation_token_ids" instead of "translation_text": for each sentence the
            start token, the model's output, and padding to the longest of the batch.
        return_text: Whether to return "translation_text"; by default only if `return_tensors` is not set.
        clean_up_tokenization_spaces: As in the tokenizer's `decode`.
        truncation: Whether to truncate sentences to the tokenizer's `model_max_length`.
        split_sentences, protect, raw, rules: As for `translate_lines`.
        src_lang: Source language, for multilingual tokenizers (NLLB, mBART-50, M2M100, ...); by default that of the
            task's name, else the tokenizer's current one.
        tgt_lang: Target language, likewise.
        pivot: As for `translate_lines`.

    Raises:
        ValueError: An input is not text, the model is not an encoder-decoder or translates the opposite direction,
            a weight is not finite, or an option is out of range.
    """

    _load_processor = False
    _load_image_processor = False
    _load_video_processor = False
    _load_feature_extractor = False
    _load_tokenizer = True

    def __init__(
        self, *args: Any, local_files_only: bool | None = None, pivot: str | None = None, **kwargs: Any
    ) -> None:
        """Take the arguments of `transformers.pipeline`, which has already applied `local_files_only`."""
        super().__init__(*args, **kwargs)
        self._pivot = pivot
        if not (self.model.can_generate() and self.model.config.is_encoder_decoder):
            raise ValueError(f"{type(self.model).__name__} is not an encoder-decoder with `generate()`; use one")
        if self.tokenizer is None:
            raise ValueError("there is no tokenizer; pass `tokenizer`, or a model folder that contains it")
        # `transformers.pipeline` loads the model without `load_model`, which checks this.
        name = f"model {self.model.name_or_path}".rstrip()
        check_finite(self.model, name)
        named = DIRECTED_TASK.fullmatch(self.task or "")
        source, target = named.groups() if named else (None, None)
        if is_multilingual(self.tokenizer):
            self._preprocess_params: Any = _drop_none(src_lang=source, tgt_lang=target) | self._preprocess_params
        else:
            check_direction(self.tokenizer, source, target, name)
        tasks = getattr(self.model.config, "task_specific_params", None) or {}
        self._prefix = tasks.get(self.task, {}).get("prefix", "")
        self._cached: tuple[Any, Translator] | None = None

    def __call__(self, inputs: Any, pivot: str | None = None, **kwargs: Any) -> Any:
        if through := self._chosen_pivot(pivot or self._pivot, **kwargs):
            inputs = self._first_leg(inputs, through, kwargs)
            # A worker process cannot run the first leg.
            kwargs |= {"src_lang": through, "num_workers": 0}
        features = Features.of(self.tokenizer)
        if isinstance(inputs, str):
            return super().__call__(checked_sentence(inputs, 1, features), **kwargs)
        if isinstance(inputs, Sequence):
            results = super().__call__(list(checked_sentences(inputs, features)), **kwargs) if len(inputs) else []
            return [row[0] for row in results] if all(len(row) == 1 for row in results) else results
        if isinstance(inputs, Iterable) and not isinstance(inputs, Mapping):
            return super().__call__(checked_sentences(inputs, features), **kwargs)
        if isinstance(inputs, Dataset):
            return super().__call__(CheckedDataset(inputs), **kwargs)
        raise ValueError(f"the input is a {type(inputs).__name__}, not text; pass a string or a list of strings")

    def _chosen_pivot(
        self, wanted: str | None, src_lang: str | None = None, tgt_lang: str | None = None, **_: Any
    ) -> str | None:
        """Return the language that a call goes through, None for directly."""
        direction, languages = None, self._call_languages(src_lang, tgt_lang)
        if has_tags(self.tokenizer):
            direction = next(directions_of(self.tokenizer, *languages, may_pivot=True)[0])
        return choose_pivot(self.tokenizer, recorded_pivots(self.model), wanted, direction)

    def _first_leg(self, inputs: Any, pivot: str, options: dict[str, Any]) -> Any:
        """Return the best translations into another language, lazily unless the inputs are text or a sequence."""
        outputs = {"num_return_sequences": 1, "return_scores": False, "return_tensors": False, "return_text": True}
        results = self(inputs, **{**options, **outputs, "tgt_lang": pivot, "pivot": DIRECTLY})
        if isinstance(inputs, str):
            return results[0]["translation_text"]
        if isinstance(inputs, Sequence):
            return [record["translation_text"] for record in results]
        return (record["translation_text"] for (record,) in results)

    def score(
        self,
        sources: Sequence[str],
        targets: Sequence[Target],
        *,
        src_lang: str | None = None,
        tgt_lang: str | None = None,
        **options: Any,
    ) -> list[Score]:
        """Score each target as a translation of its source; see `hf_vanilla_transformer.score`."""
        options |= zip(("src_lang", "tgt_lang"), self._call_languages(src_lang, tgt_lang), strict=True)
        return score(self.model, self.tokenizer, [self._prefix + source for source in sources], targets, **options)

    def get_iterator(self, inputs: Any, num_workers: int, batch_size: int, *params: Any) -> Any:
        """Return the results one by one; a list is translated in batches of similar length."""
        if batch_size == 1 or not isinstance(inputs, list):
            return super().get_iterator(inputs, num_workers, batch_size, *params)
        # Longest first: if memory runs out, it does so at once.
        order = sorted(range(len(inputs)), key=lambda i: -len(inputs[i]))
        results = super().get_iterator([inputs[i] for i in order], num_workers, batch_size, *params)
        return map(itemgetter(1), sorted(zip(order, results, strict=True), key=itemgetter(0)))

    def _sanitize_parameters(self, **options: Any) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """Split options among the steps; settings of `generate()` go to `_forward`."""
        preprocess, forward, postprocess = (
            _drop_none(**{name: options.pop(name, None) for name in names}) for names in STEP_OPTIONS
        )
        check_choice(SplitSentences, **_drop_none(split_sentences=preprocess.get("split_sentences")))
        # Hashable, as parameters of the pipeline.
        preprocess |= {name: tuple(value) for name, value in preprocess.items() if isinstance(value, list)}
        return preprocess, forward | options, postprocess

    def preprocess(
        self,
        input_: str,
        truncation: bool = False,
        src_lang: str | None = None,
        tgt_lang: str | None = None,
        split_sentences: SplitSentences = "auto",
        protect: Iterable[str] = (),
        raw: bool = False,
        rules: Iterable[str] | None = None,
    ) -> Iterator[dict[str, Any]]:
        """Yield each prepared sentence of a text with what the other steps need.

        A multilingual tokenizer adds `forced_bos_token_id` (1).
        """
        directions, languages = directions_of(self.tokenizer, *self._languages(src_lang, tgt_lang))
        limit = self.tokenizer.model_max_length if truncation else None
        translator = self._translator(limit, split_sentences, protect, raw, rules)
        (text,) = translator.prepare([input_], directions)
        sentences = text.sentences or [Prepared("")]
        if not truncation and any(sentence.is_truncated for sentence in sentences):
            limit = translator.max_source_length
            logger.warning(f"a text longer than the model's {limit} positions was truncated: {input_[:50]!r}...")
        for i, sentence in enumerate(sentences, start=1):
            yield {
                **{name: torch.tensor([value]) for name, value in languages.items()},
                "sentence": sentence,
                "layout": text.layout,
                "is_last": i == len(sentences),
            }

    def _call_languages(self, src_lang: str | None, tgt_lang: str | None) -> tuple[str | None, str | None]:
        """Return the languages of a call, defaulting to those of the pipeline."""
        own = self._preprocess_params
        return self._languages(src_lang or own.get("src_lang"), tgt_lang or own.get("tgt_lang"))

    def _languages(self, src_lang: str | None, tgt_lang: str | None) -> tuple[str | None, str | None]:
        """Return the languages, defaulting to the current ones of a multilingual tokenizer."""
        if not is_multilingual(self.tokenizer):
            return src_lang, tgt_lang
        return src_lang or self.tokenizer.src_lang, tgt_lang or self.tokenizer.tgt_lang

    def _translator(
        self,
        max_source_length: int | None = None,
        split_sentences: SplitSentences = "auto",
        protect: Iterable[str] = (),
        raw: bool = False,
        rules: Iterable[str] | None = None,
    ) -> Translator:
        """Return the `Translator` for these options, cached until they change."""
        options = max_source_length, split_sentences, protect, raw, rules
        if self._cached is None or self._cached[0] != options:
            preparation = Preparation(self.model, self.tokenizer, protect, raw, self._prefix, rules)
            translator = Translator(
                self.model,
                self.tokenizer,
                preparation,
                max_source_length=max_source_length,
                split_sentences=split_sentences,
                pivot=DIRECTLY,
            )
            self._cached = options, translator
        return self._cached[1]

    def _forward(
        self,
        input_tensors: dict[str, Any],
        return_scores: bool = False,
        num_return_sequences: int | None = None,
        generation_config: GenerationConfig | None = None,
        **generate_options: Any,
    ) -> dict[str, Any]:
        """Return target ids (B, n, T) and scores (B, n), 0 for a sentence with nothing to translate."""
        options = self._generation_options(generation_config, generate_options)
        candidates = (
            num_return_sequences,
            options.pop("num_return_sequences", None),
            self.model.generation_config.num_return_sequences,
        )
        n = next((value for value in candidates if value is not None), 1)
        if "forced_bos_token_id" in input_tensors:
            options.setdefault("forced_bos_token_id", int(input_tensors["forced_bos_token_id"][0]))
        decoder = Decoder(self.model, self.tokenizer, n, MAX_TOKENS, return_scores, options)
        # A batch has a list of them.
        batch = input_tensors["sentence"]
        sentences: list[Prepared] = batch if isinstance(batch, list) else [batch]
        filled = [sentence for sentence in sentences if sentence.ids]
        rows = iter(decoder.decode_batch(filled) if filled else ())
        padding = self.tokenizer.pad_token_id or 0
        blank = [Generated([padding], 0.0)] * n
        generated = [row for sentence in sentences for row in (next(rows) if sentence.ids else blank)]
        # A limit of the caller is no surprise.
        is_asked = bool(generate_options.keys() & {*LENGTH_BOUNDS})
        sequences = [torch.tensor(row.ids, device="cpu") for row in generated]
        columns = {
            "output_ids": pad_sequence(sequences, True, padding),
            "are_whole": torch.tensor([is_asked or row.is_whole for row in generated], device="cpu"),
        }
        if return_scores:
            columns["scores"] = torch.tensor([row.score for row in generated], device="cpu")
        outputs = {name: column.unflatten(0, (len(sentences), n)) for name, column in columns.items()}
        return outputs | {name: input_tensors[name] for name in ("sentence", "layout", "is_last")}

    def _generation_options(self, config: GenerationConfig | None, options: dict[str, Any]) -> dict[str, Any]:
        """Return the call's settings, plus the model's length bounds unless the call has its own.

        Outputs of a model that training told the lengths of its targets are bounded by these instead.
        """
        if config is not None:
            options = config.to_diff_dict() | options
            for name in ("transformers_version", ENTRY):
                options.pop(name, None)
        settings = self.model.generation_config
        if options.keys() & {*LENGTH_BOUNDS} or OutputLimits(self.model).are_learned:
            return dict(options)
        return options | _drop_none(**{name: getattr(settings, name) for name in LENGTH_BOUNDS})

    def postprocess(
        self,
        model_outputs: list[dict[str, Any]],
        return_tensors: bool = False,
        return_text: bool | None = None,
        clean_up_tokenization_spaces: bool | None = None,
    ) -> list[dict[str, Any]]:
        """Return a dict for each translation of one text."""
        layout: TextLayout = model_outputs[0]["layout"]
        rows = []
        for output in model_outputs:
            scores = output["scores"][0].tolist() if "scores" in output else repeat(None)
            texts = self.tokenizer.batch_decode(
                output["output_ids"][0],
                skip_special_tokens=True,
                clean_up_tokenization_spaces=clean_up_tokenization_spaces,
            )
            generated = map(Generated, repeat([]), scores, output["are_whole"][0].tolist())
            rows.append([row.hypothesis(text) for text, row in zip(texts, generated, strict=True)])
        sentences = [output["sentence"] for output in model_outputs]
        # In a worker process, `preprocess` leaves no translator here.
        translator = self._cached[1] if self._cached else self._translator(raw=True)
        rows = translator.restore(sentences, rows)
        hypotheses, records = join(layout, rows) if layout.sentences else rows[0], []
        for remark in hypotheses[0].remarks or ():
            level = logging.INFO if remark == "corrected" else logging.WARNING
            logger.log(level, f"a text {remark_text(remark)}: {layout.fill(layout.sentences)[:50]!r}...")
        for i, hypothesis in enumerate(hypotheses):
            record: dict[str, Any] = {}
            if return_tensors:
                record["translation_token_ids"] = torch.cat([output["output_ids"][0, i] for output in model_outputs])
            if return_text or (return_text is None and not return_tensors):
                record["translation_text"] = hypothesis.text
            if hypothesis.score is not None:
                record["score"] = hypothesis.score
            records.append(record)
        return records


def _drop_none(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


class TaskAliases(dict[str, str]):
    """Task aliases, where every name that matches `DIRECTED_TASK` is an alias of `TASK`."""

    def __contains__(self, task: object) -> bool:
        return super().__contains__(task) or bool(DIRECTED_TASK.fullmatch(str(task)))

    def __missing__(self, task: str) -> str:
        return TASK


def register() -> None:
    """Register the pipeline as `transformers.pipeline("translation", ...)`; idempotent."""
    # Newer releases refuse removed tasks before they look at registered ones.
    getattr(pipelines, "REMOVED_TASKS", {}).pop(TASK, None)
    if TASK not in PIPELINE_REGISTRY.supported_tasks:
        PIPELINE_REGISTRY.register_pipeline(TASK, TranslationPipeline, pt_model=AutoModelForSeq2SeqLM, type="text")
        # With this attribute `save_pretrained` would save code with the model, and loading would ask to trust it.
        del TranslationPipeline._registered_impl
        PIPELINE_REGISTRY.task_aliases = TaskAliases(PIPELINE_REGISTRY.task_aliases)
