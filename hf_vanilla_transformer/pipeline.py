"""`pipeline("translation", model=...)`, which transformers no longer has since its version 5."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import AutoModelForSeq2SeqLM, GenerationConfig, Pipeline, pipelines
from transformers.pipelines import PIPELINE_REGISTRY

from .scoring import Score, Target, score
from .translation import Search, encode, position_limit

TASK = "translation"

# Settings of `generate()` that bound an output.
BOUNDS = ("max_length", "max_new_tokens")

# The hooks that a pipeline overrides are declared without their arguments.
Base: Any = Pipeline


class TranslationPipeline(Base):
    """Translates by any encoder-decoder: a Transformer of this package, MarianMT, BART, ...

    ```python
    translate = pipeline("translation", model="my-model")
    translate("A man rides a bicycle.", num_beams=5)  # [{"translation_text": "..."}]
    translate(["One.", "Two."], batch_size=2)  # a dict for each text
    translate("One.", num_beams=4, num_return_sequences=3, return_scores=True)  # three dicts, with "score"
    ```

    A generator or a `datasets` column gives an iterator over lists of dicts. Where neither call nor model bounds the
    output, it may have 50 tokens more than the longest source of its batch (section 6.1 of the paper). Whatever
    else `generate()` takes can be given to the pipeline or to the call.

    Call it with:
        inputs: A text, a list of texts, a generator, or a data set.
        batch_size: Texts to translate at a time.
        num_return_sequences: Translations of each text, the best first; where there are more than one, a list of texts
            gives a list of lists.
        return_scores: Whether to add "score": what beam search ranks by, log-probability / length **
            length_penalty, in nats.
        return_tensors: Whether to return "translation_token_ids" instead of "translation_text".
        return_text: Whether to return "translation_text"; by default where `return_tensors` is not set.
        clean_up_tokenization_spaces: As in the tokenizer's `decode`.
        truncation: Whether to cut longer sources to the tokenizer's `model_max_length`; in any case no source keeps
            more tokens than the model has positions.

    Raises:
        ValueError: An input is no text, the model is no encoder-decoder, or an option is out of its range.
    """

    _load_processor = False
    _load_image_processor = False
    _load_feature_extractor = False
    _load_tokenizer = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Set up the pipeline from the arguments of `transformers.pipeline`."""
        super().__init__(*args, **kwargs)
        if not (self.model.can_generate() and self.model.config.is_encoder_decoder):
            raise ValueError(f"{type(self.model).__name__} is no encoder-decoder that generates; use such a model")
        if self.tokenizer is None:
            raise ValueError("there is no tokenizer; name one, or a folder that holds it beside the model")

    def __call__(self, inputs: Any, **kwargs: Any) -> Any:
        """Translate; the class says what and how."""
        if isinstance(inputs, list | tuple):
            results = super().__call__(list(inputs), **kwargs) if inputs else []
            return [row[0] for row in results] if all(len(row) == 1 for row in results) else results
        return super().__call__(inputs, **kwargs)

    def score(self, sources: Sequence[str], targets: Sequence[Target], **options: Any) -> list[Score]:
        """Return how likely the model finds each target; see `hf_vanilla_transformer.scoring.score`."""
        return score(self.model, self.tokenizer, sources, targets, **options)

    def _sanitize_parameters(
        self,
        truncation: bool | None = None,
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
        return given(truncation=truncation), {**given(return_scores=return_scores), **generate_options}, after

    def preprocess(self, input_: Any, truncation: bool = False) -> dict[str, torch.Tensor]:
        """Return the ids of a text, (1, S), and a mask of ones; a blank text has none."""
        if not isinstance(input_, str):
            raise ValueError(f"the input {input_!r} is a {type(input_).__name__}, not a text; pass strings")
        bounds = [position_limit(self.model.config), self.tokenizer.model_max_length if truncation else None]
        (ids,), _ = encode(self.tokenizer, [input_], min((n for n in bounds if n is not None), default=None))
        row = torch.tensor([ids], dtype=torch.long)
        return {"input_ids": row, "attention_mask": torch.ones_like(row)}

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
        own = {name: getattr(self.model.generation_config, name) for name in BOUNDS}
        if not generate_options.keys() & own.keys():
            generate_options |= {name: bound for name, bound in own.items() if bound is not None}
        columns = zip(input_tensors["input_ids"], input_tensors["attention_mask"], strict=True)
        ids = [row[mask.bool()].tolist() for row, mask in columns]
        # The whole batch is decoded at once.
        search = Search(self.model, self.tokenizer, number, 1, return_scores, generate_options)
        order = sorted((i for i, row in enumerate(ids) if row), key=lambda i: -len(ids[i]))
        pad = self.tokenizer.pad_token_id or 0
        outputs = torch.full((len(ids), number, 1), pad)
        scores = torch.zeros(len(ids), number)
        if order:
            sequences, found = search.generate_batch([ids[i] for i in order])
            sequences = sequences.view(len(order), number, -1).cpu()
            outputs = outputs.repeat(1, 1, sequences.shape[-1])
            outputs[order] = sequences
            if return_scores:
                scores[order] = torch.tensor(found).view(len(order), -1)
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
