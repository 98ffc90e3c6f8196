"""Cross-attention for the page: a heat map as an HTML table, and a text alternative.

Shape legend: N layers, h heads, S source length, T target length.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..inference.preparation import Prepared
from ..pretrained.languages import is_multilingual, set_languages, tag_sources
from ..pretrained.teacher_forcing import cross_attentions, position_limit
from .engine import Choice

# As a layer or head: mean over all.
MEAN = -1

# Cells that a browser draws without delay.
MAX_CELLS = 20_000

NO_WEIGHTS = (
    "This model runs in CTranslate2, which does not expose attention weights. To see the map, serve the model it was "
    "exported from."
)

# How tokenizers write the space before a word; the page uses the first form.
WORD_STARTS = ("▁", "Ġ")
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


@dataclass(frozen=True)
class AttendedPair:
    """Tokens of a sentence and its translation as the model sees them, and the attention between them.

    Attributes:
        source_tokens: S readable tokens, end token included.
        target_tokens: T readable tokens, end token included.
        weights: (N, h, T, S); row t produced target token t. None if the model exposes no attention weights.
    """

    source_tokens: list[str]
    target_tokens: list[str]
    weights: torch.Tensor | None

    def weights_of(self, layer: int, head: int) -> torch.Tensor | None:
        """Return the weights (T, S) of a layer and head, each counted from 0 or `MEAN`."""
        if self.weights is None:
            return None
        heads = self.weights.mean(0) if layer == MEAN else self.weights[layer]
        return heads.mean(0) if head == MEAN else heads[head]


def attend(choice: Choice, sentence: Prepared, translation: str) -> AttendedPair:
    """Return the tokens of a sentence and its translation with their attention; run in the model's thread.

    The translation is truncated to the model's maximum length.
    """
    model, tokenizer = choice.model.model, choice.model.tokenizer
    if is_multilingual(tokenizer):
        set_languages(tokenizer, choice.source, choice.target)
    # A sentence on its way through another language is tagged with that.
    direction = (choice.source, choice.target) if sentence.final_lang and choice.source and choice.target else None
    (source_ids,) = tag_sources(tokenizer, [list(sentence.ids)], [direction])
    limit = position_limit(model.config)
    output = choice.model.preparation.raw_output(sentence, translation, choice.target)
    target_ids = tokenizer(text_target=output, truncation=limit is not None, max_length=limit)["input_ids"]
    weights = None
    if isinstance(model, PreTrainedModel) and source_ids and target_ids:
        (weights,) = cross_attentions(model, [(source_ids, target_ids)])
    return AttendedPair(
        readable_tokens(getattr(tokenizer, "source_tokenizer", tokenizer), source_ids),
        readable_tokens(getattr(tokenizer, "target_tokenizer", tokenizer), target_ids),
        weights,
    )


def aligning_heads(model: Any) -> tuple[int, int]:
    """Return the initial layer and head: the best alignment head, else the mean of the penultimate layer."""
    match getattr(model.generation_config, "alignment_heads", None):
        case [[int(layer), int(head)], *_]:
            return layer, head
    return max(0, getattr(model.config, "decoder_layers", 1) - 2), MEAN


def readable_tokens(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> list[str]:
    """Return tokens as text, with ▁ for the space before a word."""
    return [
        _readable(raw or "", str(tokenizer.decode([token])))
        for token, raw in zip(ids, tokenizer.convert_ids_to_tokens(list(ids)), strict=True)
    ]


def _readable(raw: str, text: str) -> str:
    """Return a token as one-line text; `raw` is its vocabulary entry, unreadable in byte-level vocabularies."""
    starts_word = raw.startswith(WORD_STARTS) or text.startswith(" ")
    # Part of a character has no text of its own.
    word = raw if "\ufffd" in text or not text.strip() else text.strip(" ")
    word = word.lstrip("".join(WORD_STARTS)) if starts_word else word
    return CONTROL.sub(lambda match: repr(match[0])[1:-1], f"{WORD_STARTS[0] if starts_word else ''}{word}")


def _marked(token: str) -> str:
    """Return a token as HTML, with the ▁ before a word dimmed."""
    word = token.removeprefix(WORD_STARTS[0])
    return f"<i>{WORD_STARTS[0]}</i>{escape(word)}" if word != token else escape(token)


def tokens_html(pair: AttendedPair) -> str:
    """Return the tokens of both sides as HTML lists."""
    html = "<h3>Tokens</h3>"
    for side, tokens in (("Text", pair.source_tokens), ("Translation", pair.target_tokens)):
        items, label = "".join(f"<li>{_marked(token)}</li>" for token in tokens), f"Tokens of the {side.lower()}"
        html += f'<h4>{side}: {len(tokens)} tokens</h4><ol class="vt-tokens" aria-label="{label}">{items}</ol>'
    return html


def map_html(pair: AttendedPair, layer: int, head: int) -> str:
    """Return the weights of a layer and head as an HTML table, or a note why there is none."""
    weights = pair.weights_of(layer, head)
    if weights is None:
        return f'<p class="vt-note">{NO_WEIGHTS}</p>'
    size = f"{len(pair.target_tokens)} by {len(pair.source_tokens)} tokens"
    if weights.numel() > MAX_CELLS:
        return f'<p class="vt-note">A map of {size} is too large to draw; translate a shorter sentence to see one.</p>'
    percent, strongest = (weights * 100).round().int().tolist(), weights.argmax(-1).tolist()
    columns = "".join(f'<th scope="col"><span>{_marked(token)}</span></th>' for token in pair.source_tokens)
    rows = "".join(
        f'<tr><th scope="row">{_marked(token)}</th>{_cells(row, best, stop=i == 0)}</tr>'
        for i, (token, row, best) in enumerate(zip(pair.target_tokens, percent, strongest, strict=True))
    )
    label = f"Attention of {size}, in percent; the list of alignments is a text alternative"
    return (
        f'<div class="vt-frame"><div class="vt-map" style="--columns:{len(pair.source_tokens)}">'
        f'<table role="grid" aria-label="{label}"><thead><tr>'
        f"<td>text →<br>translation ↓</td>{columns}</tr></thead><tbody>{rows}</tbody></table></div>"
        "<output>Point at a cell or use the arrow keys to read its weight.</output></div>"
    )


def _cells(row: list[int], strongest: int, stop: bool) -> str:
    """Return the cells of a row; with `stop`, its strongest cell is a tab stop."""
    cells = ""
    for i, weight in enumerate(row):
        # Above 50 % in the dark theme and 72 % in the light one, the other text color has more contrast.
        classes = {"vt-best": i == strongest, "vt-over-50": weight > 50, "vt-over-72": weight > 72}
        names = " ".join(name for name, holds in classes.items() if holds)
        tab = " tabindex=0" if stop and i == strongest else ""
        cells += f'<td style="--w:{weight}%" class="{names}"{tab}>{weight or ""}</td>'
    return cells


def alignment_html(pair: AttendedPair, layer: int, head: int) -> str:
    """Return the source token each target token attended to most, as text alternative of the map."""
    weights = pair.weights_of(layer, head)
    if weights is None:
        return ""
    best, places = weights.max(-1)
    items = "".join(
        f"<li>{_marked(target)} ← {_marked(pair.source_tokens[place])} <small>{weight:.0%}</small></li>"
        for target, weight, place in zip(pair.target_tokens, best.tolist(), places.tolist(), strict=True)
    )
    return f'<h3>Strongest alignments</h3><ul class="vt-alignment">{items}</ul>'
