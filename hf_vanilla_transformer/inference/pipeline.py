"""`pipeline("translation", model=...)`, which transformers no longer has since its version 5."""

from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import AutoModelForSeq2SeqLM, GenerationConfig, Pipeline, pipelines
from transformers.pipelines import PIPELINE_REGISTRY
from transformers.utils import logging

from .scoring import Score, Target, score
from .translation import LENGTH_BOUNDS, Search, checked_string, encode, position_limit, strings, tightest_limit

logger = logging.get_logger(__name__)

TASK = "translation"

# The hooks that a pipeline overrides are declared without their arguments.
Base: Any = Pipeline


class CheckedDataset(Dataset[str]):
    """A data set whose items are texts, or else named by their number when they are read."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        """Return the number of items."""
        return len(self.dataset)

    def __getitem__(self, index: int) -> str:
        """Return the text at a place, counted from 0."""
        return checked_string(self.dataset[index], index + 1)


class TranslationPipeline(Base):
    """Translates by any encoder-decoder: a Transformer of this package, MarianMT, BART, ...

    ```python
    translate = pipeline("translation", model="my-model")
    translate("A man rides a bicycle.", num_beams=5)  # [{"translation_text": "..."}]
    translate(["One.", "Two."], batch_size=2)  # a dict for each text
    translate("One.", num_beams=4, num_return_sequences=3, return_scores=True)  # three dicts, with "score"
    ```

    A generator, any other iterator, or a `KeyDataset` gives an iterator over lists of dicts. Where neither call nor
    model bounds the output, it may have 50 tokens more than the longest source of its batch (section 6.1 of the
    paper). Whatever else `generate()` takes can be given to the pipeline or to the call.

    Call it with:
        inputs: A text; a list, a tuple or a `datasets` column of texts; an iterator over texts, or a data set.
        batch_size: Texts to translate at a time. Those of a list are batched by length, and come back in their order.
        num_return_sequences: Translations of each text, the best first; where there are more than one, a list of texts
            gives a list of lists.
        return_scores: Whether to add "score": what beam search ranks by, log-probability / length **
            length_penalty, in nats.
        return_tensors: Whether to return "translation_token_ids" instead of "translation_text": the start token, the
            translation, and padding to the longest of the batch.
        return_text: Whether to return "translation_text"; by default where `return_tensors` is not set.
        clean_up_tokenization_spaces: As in the tokenizer's `decode`.
        truncation: Whether to cut longer sources to the tokenizer's `model_max_length`; in any case no source keeps
            more tokens than the model has positions, and a warning says so if it had.
        src_lang: Language of the sources, for tokenizers of several languages (NLLB, mBART-50, M2M100, ...).
        tgt_lang: Language to translate into, for the same; by default both are those that the tokenizer is set to.

    Raises:
        ValueError: An input is no text, the model is no encoder-decoder, or an option is out of its range.
    """

    _load_processor = False
    _load_image_processor = False
    _load_video_processor = False
    _load_feature_extractor = False
    _load_tokenizer = True

    def __init__(self, *args: Any, local_files_only: bool | None = None, **kwargs: Any) -> None:
        """Set up the pipeline from the arguments of `transformers.pipeline`, which has used `local_files_only`."""
        super().__init__(*args, **kwargs)
        if not (self.model.can_generate() and self.model.config.is_encoder_decoder):
            raise ValueError(f"{type(self.model).__name__} is no encoder-decoder that generates; use such a model")
        if self.tokenizer is None:
            raise ValueError("there is no tokenizer; name one, or a folder that holds it beside the model")

    def __call__(self, inputs: Any, **kwargs: Any) -> Any:
        """Translate; the class says what and how."""
        if isinstance(inputs, str):
            return super().__call__(checked_string(inputs, 1), **kwargs)
        if isinstance(inputs, Sequence):
            results = super().__call__(list(strings(inputs)), **kwargs) if len(inputs) else []
            return [row[0] for row in results] if all(len(row) == 1 for row in results) else results
        if isinstance(inputs, Iterable) and not isinstance(inputs, Mapping):
            return super().__call__(strings(inputs), **kwargs)
        if isinstance(inputs, Dataset):
            return super().__call__(CheckedDataset(inputs), **kwargs)
        raise ValueError(f"the input is a {type(inputs).__name__}, not a text; pass a string, or several of them")

    def score(
        self,
        sources: Sequence[str],
        targets: Sequence[Target],
        *,
        src_lang: str | None = None,
        tgt_lang: str | None = None,
        **options: Any,
    ) -> list[Score]:
        """Return how likely the model finds each target; see `hf_vanilla_transformer.inference.scoring.score`."""
        options = self._choose_languages(src_lang, tgt_lang) | options
        return score(self.model, self.tokenizer, sources, targets, **options)

    def get_iterator(self, inputs: Any, num_workers: int, batch_size: int, *params: Any) -> Any:
        """Return the results one by one; a list is translated in batches of similar length."""
        if batch_size == 1 or not isinstance(inputs, list):
            return super().get_iterator(inputs, num_workers, batch_size, *params)
        # From long to short, so that what needs the most memory comes first.
        order = sorted(range(len(inputs)), key=lambda i: -len(inputs[i]))
        results = super().get_iterator([inputs[i] for i in order], num_workers, batch_size, *params)
        return map(itemgetter(1), sorted(zip(order, results, strict=True), key=itemgetter(0)))

    def _sanitize_parameters(
        self,
        truncation: bool | None = None,
        src_lang: str | None = None,
        tgt_lang: str | None = None,
        return_scores: bool | None = None,
        return_tensors: bool | None = None,
        return_text: bool | None = None,
        clean_up_tokenization_spaces: bool | None = None,
        **generate_options: Any,
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        def given(**options: Any) -> dict[str, Any]:
            return {name: value for name, value in options.items() if value is not None}

        after = given(
            return_tensors=return_tensors,
            return_text=return_text,
            clean_up_tokenization_spaces=clean_up_tokenization_spaces,
        )
        before = given(truncation=truncation, src_lang=src_lang, tgt_lang=tgt_lang)
        return before, {**given(return_scores=return_scores), **generate_options}, after

    def _choose_languages(self, src_lang: str | None, tgt_lang: str | None) -> dict[str, int]:
        """Set a tokenizer of several languages to two of them, and return what `generate()` must be told."""
        build = getattr(self.tokenizer, "_build_translation_inputs", None)
        if build is None:
            if src_lang or tgt_lang:
                raise ValueError(
                    f"{type(self.tokenizer).__name__} has no languages to choose from; leave src_lang and tgt_lang out"
                )
            return {}
        src_lang, tgt_lang = src_lang or self.tokenizer.src_lang, tgt_lang or self.tokenizer.tgt_lang
        inputs = build("", return_tensors=None, src_lang=src_lang, tgt_lang=tgt_lang)
        self.tokenizer.tgt_lang = tgt_lang
        return {"forced_bos_token_id": inputs["forced_bos_token_id"]}

    def preprocess(
        self, input_: str, truncation: bool = False, src_lang: str | None = None, tgt_lang: str | None = None
    ) -> dict[str, torch.Tensor]:
        """Return the ids of a text and a mask of ones, (1, S), or one masked token for a blank text.

        With several languages, also `forced_bos_token_id` (1).
        """
        languages = self._choose_languages(src_lang, tgt_lang)
        limit = tightest_limit(
            position_limit(self.model.config), self.tokenizer.model_max_length if truncation else None
        )
        (ids,), cut = encode(self.tokenizer, [input_], limit)
        if cut and not truncation:
            logger.warning(f"a text of more tokens than the model's {limit} positions was cut: {input_[:50]!r}...")
        return {
            "input_ids": torch.tensor([ids or [self.tokenizer.pad_token_id or 0]]),
            "attention_mask": torch.tensor([[1] * len(ids) or [0]]),
            **{name: torch.tensor([value]) for name, value in languages.items()},
        }

    def _forward(
        self,
        input_tensors: dict[str, torch.Tensor],
        return_scores: bool = False,
        num_return_sequences: int | None = None,
        generation_config: GenerationConfig | None = None,
        **generate_options: Any,
    ) -> dict[str, torch.Tensor]:
        """Return target ids (B, n, T) and scores (B, n), 0 for a blank text."""
        if generation_config is not None:
            generate_options = generation_config.to_diff_dict() | generate_options
            generate_options.pop("transformers_version", None)
        given = (num_return_sequences, generate_options.pop("num_return_sequences", None))
        number = next((n for n in (*given, self.model.generation_config.num_return_sequences) if n is not None), 1)
        own = {name: getattr(self.model.generation_config, name) for name in LENGTH_BOUNDS}
        if not generate_options.keys() & own.keys():
            generate_options |= {name: bound for name, bound in own.items() if bound is not None}
        if "forced_bos_token_id" in input_tensors:
            generate_options.setdefault("forced_bos_token_id", int(input_tensors["forced_bos_token_id"][0]))
        columns = zip(input_tensors["input_ids"], input_tensors["attention_mask"], strict=True)
        ids = [row[mask.bool()].tolist() for row, mask in columns]
        # The whole batch is decoded at once.
        search = Search(self.model, self.tokenizer, number, 1, return_scores, generate_options)
        places = [i for i, row in enumerate(ids) if row]
        pad = self.tokenizer.pad_token_id or 0
        outputs = torch.full((len(ids), number, 1), pad)
        scores = torch.zeros(len(ids), number)
        if places:
            sequences, found = search.generate_batch([ids[i] for i in places])
            sequences = sequences.view(len(places), number, -1).cpu()
            outputs = outputs.repeat(1, 1, sequences.shape[-1])
            outputs[places] = sequences
            if return_scores:
                scores[places] = torch.tensor(found).view(len(places), -1)
        return {"output_ids": outputs, **({"scores": scores} if return_scores else {})}

    def postprocess(
        self,
        model_outputs: dict[str, torch.Tensor],
        return_tensors: bool = False,
        return_text: bool | None = None,
        clean_up_tokenization_spaces: bool | None = None,
    ) -> list[dict[str, Any]]:
        """Return a record for each translation of one text."""
        (sequences,), records = model_outputs["output_ids"], []
        for place, sequence in enumerate(sequences):
            record: dict[str, Any] = {}
            if return_tensors:
                record["translation_token_ids"] = sequence
            if return_text or (return_text is None and not return_tensors):
                record["translation_text"] = self.tokenizer.decode(
                    sequence,
                    skip_special_tokens=True,
                    clean_up_tokenization_spaces=clean_up_tokenization_spaces,
                )
            if "scores" in model_outputs:
                record["score"] = model_outputs["scores"][0, place].item()
            records.append(record)
        return records


def register() -> None:
    """Make `transformers.pipeline("translation", ...)` find the pipeline; doing so again changes nothing."""
    # Newer releases refuse the tasks that they removed before they look for somebody else's.
    getattr(pipelines, "REMOVED_TASKS", {}).pop(TASK, None)
    if TASK not in PIPELINE_REGISTRY.supported_tasks:
        PIPELINE_REGISTRY.register_pipeline(TASK, TranslationPipeline, pt_model=AutoModelForSeq2SeqLM, type="text")
        # By this mark `save_pretrained` would store code beside the model, and loading would ask to trust it.
        del TranslationPipeline._registered_impl


__all__ = ["TranslationPipeline", "register"]
