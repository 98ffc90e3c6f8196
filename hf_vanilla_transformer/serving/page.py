"""Gradio page on the server's application: translation with alternatives, and the model's attention.

Each user's answer is kept in their session; the engine decodes the sentences of all users together.
"""

import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import wraps
from html import escape
from importlib.resources import files
from itertools import count
from typing import Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response

from ..errors import one_line
from ..extras import install_command
from ..pretrained.cards import card_examples
from .attention_map import MEAN, AttendedPair, aligning_heads, alignment_html, attend, map_html, tokens_html
from .batching import Busy, DecodingFailed
from .detection import AUTO, choose, detectable
from .engine import Choice, Engine, ServedModel, TranslatedText, TranslationOptions
from .limits import Limits
from .service import Service

try:
    import gradio as gr
except ImportError as error:
    raise ImportError(f"the page needs gradio; install it with `{install_command('demo')}`") from error

PATH = "/page"
TITLE = "Translate"
DETECT = "Detect language"

# Two cells of a heat map.
ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 8 8"><rect width="8" height="8" rx="2" fill="#1d4ed8"/>'
    '<path d="M2 2h2v2H2zM4 4h2v2H4z" fill="#fff"/></svg>'
)

# Seconds that an answer is kept in the session.
KEPT = 3600

# Maximum waiting events.
MAX_WAITING = 256

# Numbers of messages: a screen reader must read out a repeated message too.
NUMBERS = count()

# More would be of little use to a reader.
MAX_ALTERNATIVES = 8

# Errors whose message is shown to the user.
REFUSALS = (ValueError, Busy, DecodingFailed, HTTPException)

# Sliders for settings of `generate()`: minimum, maximum, step, label, explanation.
SLIDERS = {
    "length_penalty": (-2, 4, 0.1, "Length penalty", "Higher: longer translations."),
    "temperature": (0.1, 2, 0.05, "Temperature", "Lower: likelier words."),
    "top_p": (0.05, 1, 0.05, "Top-p", "Lower: fewer words to sample from."),
}

# Events are not part of an API and run concurrently: the engine batches them.
EVENT: dict[str, Any] = {"api_visibility": "private", "concurrency_limit": None, "show_progress": "minimal"}


@dataclass(frozen=True)
class Answer:
    """State of one user: the rank of the picked hypothesis per sentence, and the attention of the shown sentence."""

    choice: Choice
    translated: TranslatedText
    ranks: tuple[int, ...]
    sentence: int
    pair: AttendedPair

    @classmethod
    async def look(cls, choice: Choice, translated: TranslatedText, ranks: tuple[int, ...], sentence: int) -> "Answer":
        """Return the answer with the tokens and attention of this sentence."""
        hypothesis = translated.hypotheses[sentence][ranks[sentence]]
        pair = await choice.model.run(attend, choice, translated.text.sentences[sentence], hypothesis.text)
        return cls(choice, translated, ranks, sentence, pair)

    @property
    def text(self) -> str:
        """The translation, joined from the picked hypotheses."""
        rows = zip(self.translated.hypotheses, self.ranks, strict=True)
        return self.translated.text.layout.fill([row[rank].text for row, rank in rows])


def mount_page(
    application: FastAPI, engine: Engine, *, limits: Limits | None = None, api_key: str | None = None
) -> FastAPI:
    """Mount the page at /page on an application from `create_application`, with a redirect from /.

    With an API key, users must log in with it as the password, under any name.
    """

    @application.get("/", include_in_schema=False)
    async def start() -> RedirectResponse:
        # A relative URL works behind a proxy that serves the application under a path.
        return RedirectResponse(f"{PATH.removeprefix('/')}/")

    # Browsers request it at this path.
    @application.get("/favicon.ico", include_in_schema=False)
    async def icon() -> Response:
        return Response(ICON, media_type="image/svg+xml")

    service = Service(engine, limits or Limits(), api_key)
    folder = files(__package__)
    return gr.mount_gradio_app(
        application,
        Page(service).blocks,
        PATH,
        auth=(lambda _, password: service.accepts(password)) if api_key else None,
        auth_message="Log in with any name and the server's API key as the password." if api_key else None,
        footer_links=[],
        run_history=False,
        # Nothing is uploaded.
        max_file_size="1b",
        enable_monitoring=False,
        ssr_mode=False,
        theme=_theme(),
        css=(folder / "page.css").read_text(encoding="utf-8"),
        js=(folder / "page.js").read_text(encoding="utf-8"),
    )


def _theme() -> gr.themes.Base:
    """Return a theme with system fonts and enough contrast in small text."""
    quiet = {"body_text_color_subdued": "*neutral_600", "body_text_color_subdued_dark": "*neutral_300"}
    quiet |= {name.replace("body_text_color_subdued", "block_info_text_color"): color for name, color in quiet.items()}
    theme = gr.themes.Base(
        primary_hue="blue",
        neutral_hue="slate",
        font=["system-ui", "sans-serif"],
        font_mono=["ui-monospace", "monospace"],
    )
    button = {"button_primary_background_fill": "*primary_600", "button_primary_background_fill_hover": "*primary_700"}
    return theme.set(input_background_fill="*background_fill_primary", input_border_width="1px", **quiet, **button)


_Event = Callable[["Page", dict[Any, Any]], Awaitable[dict[Any, Any]]]


def _refusing(event: _Event) -> _Event:
    """Make an event show an expected error as the status and change nothing else."""

    @wraps(event)
    async def refusing(page: "Page", values: dict[Any, Any]) -> dict[Any, Any]:
        try:
            return await event(page, values)
        except REFUSALS as error:
            return {page.status: _refusal(error)}

    return refusing


class Page:
    """The page's components and their event handlers."""

    def __init__(self, service: Service):
        self.service = service
        self.models = service.engine.models
        self.card_examples = {name: card_examples(model.model) for name, model in self.models.items()}
        # Otherwise Gradio would report usage and check for a newer release.
        with gr.Blocks(analytics_enabled=False, title=TITLE) as self.blocks:
            self.answer = gr.State(None, time_to_live=KEPT)
            gr.HTML(_heading(self.models.values()))
            with gr.Row(equal_height=False):
                with gr.Column():
                    self._add_input(next(iter(self.models.values())))
                with gr.Column():
                    self._add_output()
            with gr.Column(visible=False, elem_id="vt-details") as self.details:
                self._add_details()
            self._connect()
        self.blocks.queue(max_size=MAX_WAITING, api_open=False)

    def _add_input(self, model: ServedModel) -> None:
        with gr.Row(visible=len(self.models) > 1 or len(model.pairs) > 1) as self.languages:
            names = list(self.models)
            self.model = gr.Dropdown(names, value=model.name, label="Model", visible=len(names) > 1, filterable=False)
            self.source, self.target = _language(model, 0), _language(model, 1)
        self.text = gr.Textbox(
            label="Text", lines=5, max_lines=12, placeholder="Type or paste text", elem_id="vt-text"
        )
        self.button = gr.Button("Translate", variant="primary", elem_id="vt-translate")
        self.examples = self._examples(model.name, components=[self.text])
        with gr.Accordion("Search settings", open=False, elem_id="vt-settings"):
            self._add_search(model)

    def _add_search(self, model: ServedModel) -> None:
        limits = self.service.limits
        most = min(limits.max_hypotheses, limits.max_beams, MAX_ALTERNATIVES)
        few = min(3, most)
        self.alternatives = gr.Slider(1, most, few, step=1, label="Alternatives")
        self.beams = gr.Slider(
            1,
            limits.max_beams,
            max(few, min(model.num_beams, limits.max_beams)),
            step=1,
            label="Beams",
            info="Partial translations kept at each step; at least as many as alternatives.",
        )
        self.length_penalty = _slider(model, "length_penalty")
        self.sample = gr.Checkbox(
            label="Sample", info="Choose words at random instead of by beam search.", interactive=True
        )
        with gr.Row(visible=False) as self.sampling:
            self.temperature, self.top_p = _slider(model, "temperature"), _slider(model, "top_p")

    def _add_output(self) -> None:
        self.translation = gr.Textbox(
            label="Translation", lines=5, max_lines=12, interactive=False, buttons=["copy"], elem_id="vt-translation"
        )
        self.status = gr.HTML(elem_id="vt-status")
        self.sentence = gr.Dropdown(
            [], label="Sentence", info="Its alternatives and attention are shown.", visible=False, filterable=False
        )
        self.alternative = gr.Radio(
            [],
            label="Alternatives and their scores",
            info="Pick one. A score is a length-normalized log-probability: closer to 0 is likelier.",
            visible=False,
            elem_id="vt-alternatives",
        )

    def _add_details(self) -> None:
        gr.HTML(
            "<h2>What the model attends to</h2><p>Each row is a token of the translation. The stronger the color of a "
            "cell, the more the model attended to that source token, in percent. The strongest in a row is framed.</p>"
        )
        with gr.Row():
            self.layer = gr.Dropdown([], label="Layer", filterable=False, interactive=True)
            self.head = gr.Dropdown([], label="Head", filterable=False, interactive=True)
        self.map = gr.HTML()
        with gr.Row(equal_height=False):
            with gr.Column():
                self.alignment = gr.HTML()
            with gr.Column():
                self.tokens = gr.HTML()

    def _connect(self) -> None:
        looked_at = {self.answer, self.layer, self.head}
        search = {self.alternatives, self.beams, self.length_penalty, self.sample, self.temperature, self.top_p}
        # Components that show a sentence and its picked hypothesis.
        shown = [self.alternative, self.details, self.layer, self.head, self.map, self.alignment, self.tokens]
        outputs = [self.status, self.translation, self.answer, *shown]
        gr.on(
            [self.button.click, self.text.submit],
            self.translate,
            {self.text, self.model, self.source, self.target, *search, *looked_at},
            [*outputs, self.sentence],
            show_progress_on=self.translation,
            **EVENT,
        )
        self.sentence.input(self.show_sentence, {self.sentence, *looked_at}, outputs, **EVENT)
        self.alternative.input(self.pick_alternative, {self.alternative, *looked_at}, outputs, **EVENT)
        gr.on([self.layer.input, self.head.input], self.show_weights, looked_at, outputs, **EVENT)
        outputs = [self.source, self.target, self.examples, self.beams, self.length_penalty]
        self.model.input(self.change_model, self.model, outputs, **EVENT)
        self.examples.click(
            self.pick_example, [self.model, self.examples], [self.text, self.source, self.target], **EVENT
        )
        # Need at least as many beams as alternatives.
        both = [self.alternatives, self.beams]
        self.alternatives.input(lambda alternatives, beams: max(alternatives, beams), both, self.beams, **EVENT)
        self.beams.input(lambda alternatives, beams: min(alternatives, beams), both, self.alternatives, **EVENT)
        self.sample.input(
            lambda sample: (gr.Row(visible=sample), *[gr.Slider(interactive=not sample)] * 2),
            self.sample,
            [self.sampling, self.beams, self.length_penalty],
            **EVENT,
        )

    @_refusing
    async def translate(self, values: dict[Any, Any]) -> dict[Any, Any]:
        """Translate the text and show its first sentence."""
        start = time.perf_counter()
        if not values[self.text].strip():
            raise ValueError("there is no text; type some, or choose an example")
        choice = await self._choose(values)
        (translated,) = await self.service.answer([values[self.text]], choice, self._options(values))
        seconds = time.perf_counter() - start
        answer = await Answer.look(choice, translated, (0,) * len(translated.hypotheses), 0)
        sentences = [
            f"{number}. {sentence}" for number, sentence in enumerate(translated.text.layout.sentences, start=1)
        ]
        choices = list(zip(sentences, range(len(sentences)), strict=True))
        return {
            self.status: _success(answer, seconds, values[self.source] == AUTO),
            self.translation: answer.text,
            self.sentence: gr.Dropdown(choices, value=0, visible=len(choices) > 1),
            **self._show(answer, values),
        }

    async def _choose(self, values: dict[Any, Any]) -> Choice:
        name, source, target = (values[field] for field in (self.model, self.source, self.target))
        if len(self.models[name].pairs) < 2:
            # They may be left over from the previously chosen model.
            source = target = None
        choice, _ = await choose(self.service.engine, source, target, [values[self.text]], name)
        return choice

    def _options(self, values: dict[Any, Any]) -> TranslationOptions:
        number = values[self.alternatives]
        # The browser sends 2.0 as 2.
        length_penalty, temperature, top_p = (
            float(values[field]) for field in (self.length_penalty, self.temperature, self.top_p)
        )
        if values[self.sample]:
            how: dict[str, Any] = {"do_sample": True, "temperature": temperature, "top_p": top_p}
        else:
            how = {"num_beams": max(values[self.beams], number), "length_penalty": length_penalty}
        return TranslationOptions(num_hypotheses=number, with_scores=True, **how)

    @_refusing
    async def show_sentence(self, values: dict[Any, Any]) -> dict[Any, Any]:
        """Show another sentence of the text."""
        return await self._look(values, _unexpired(values[self.answer]).ranks, values[self.sentence])

    @_refusing
    async def pick_alternative(self, values: dict[Any, Any]) -> dict[Any, Any]:
        """Use another hypothesis for the sentence, in the text too."""
        answer = _unexpired(values[self.answer])
        ranks = list(answer.ranks)
        ranks[answer.sentence] = values[self.alternative]
        return await self._look(values, tuple(ranks), answer.sentence)

    async def _look(self, values: dict[Any, Any], ranks: tuple[int, ...], sentence: int) -> dict[Any, Any]:
        before = values[self.answer]
        answer = await Answer.look(before.choice, before.translated, ranks, sentence)
        return {self.translation: answer.text, **self._show(answer, values)}

    @_refusing
    async def show_weights(self, values: dict[Any, Any]) -> dict[Any, Any]:
        """Show another layer or head."""
        return self._show_weights(_unexpired(values[self.answer]).pair, values[self.layer], values[self.head])

    def pick_example(self, name: str, index: int) -> list[Any]:
        """Fill in an example of a model, with its languages."""
        text, *codes = self.card_examples[name][index]
        return [text, *(gr.skip() if code is None else code for code in codes)]

    def change_model(self, name: str) -> list[Any]:
        """Update languages, examples and settings for another model."""
        model = self.models[name]
        return [
            _language(model, 0),
            _language(model, 1),
            self._examples(name),
            gr.Slider(value=max(3, min(model.num_beams, self.service.limits.max_beams))),
            _slider(model, "length_penalty"),
        ]

    def _examples(self, name: str, **options: Any) -> gr.Dataset:
        samples = [[example.text] for example in self.card_examples[name]]
        return gr.Dataset(
            samples=samples, type="index", label="Examples", visible=bool(samples), elem_id="vt-examples", **options
        )

    def _show(self, answer: Answer, values: dict[Any, Any]) -> dict[Any, Any]:
        """Show the sentence of an answer, keeping layer and head unless the model has changed."""
        before, pair, model = values[self.answer], answer.pair, answer.choice.model
        layer, head = values[self.layer], values[self.head]
        if before is None or before.choice.model is not model:
            layer, head = aligning_heads(model.model)
        layers, heads = (0, 0) if pair.weights is None else pair.weights.shape[:2]
        labels = [
            (item.text if item.score is None else f"{item.text}  ({item.score:.3f})", rank)
            for rank, item in enumerate(answer.translated.hypotheses[answer.sentence])
        ]
        return {
            self.answer: answer,
            self.alternative: gr.Radio(labels, value=answer.ranks[answer.sentence], visible=True),
            self.details: gr.Column(visible=True),
            self.layer: _numbered(layers, layer),
            self.head: _numbered(heads, head),
            self.tokens: tokens_html(pair),
            **self._show_weights(pair, layer, head),
        }

    def _show_weights(self, pair: AttendedPair, layer: int, head: int) -> dict[Any, Any]:
        return {self.map: map_html(pair, layer, head), self.alignment: alignment_html(pair, layer, head)}


def _unexpired(answer: Answer | None) -> Answer:
    if answer is None:
        raise ValueError("the answer has expired; translate again")
    return answer


def _heading(models: Iterable[ServedModel]) -> str:
    names = [
        f"{model.name} ({' to '.join(next(iter(model.pairs)))})" if len(model.pairs) == 1 else model.name
        for model in models
    ]
    return f"<h1>{TITLE}</h1><p>{escape(', '.join(names))}</p>"


def _language(model: ServedModel, side: int) -> gr.Dropdown:
    languages = sorted({pair[side] for pair in model.pairs})
    detect = [(DETECT, AUTO)] if side == 0 and detectable(languages) else []
    return gr.Dropdown(
        [*detect, *zip(languages, languages, strict=True)],
        value=next(iter(model.pairs))[side] if languages else None,
        label=("From", "To")[side],
        visible=len(model.pairs) > 1,
        # The engine rejects unknown languages with a clearer message.
        allow_custom_value=True,
    )


def _slider(model: ServedModel, name: str) -> gr.Slider:
    low, high, step, label, info = SLIDERS[name]
    value = getattr(model.model.generation_config, name, None)
    return gr.Slider(low, high, 1.0 if value is None else float(value), step=step, label=label, info=info)


def _numbered(number: int, value: int) -> gr.Dropdown:
    choices = [("mean", MEAN), *((str(i + 1), i) for i in range(number))]
    return gr.Dropdown(choices, value=value if number else MEAN, visible=number > 0)


def _refusal(error: BaseException) -> str:
    message = error.detail if isinstance(error, HTTPException) else one_line(error)
    return f'<p class="vt-error" data-number={next(NUMBERS)}>{escape(message[:1].upper() + message[1:])}.</p>'


def _success(answer: Answer, seconds: float, detected: bool) -> str:
    sentences = len(answer.translated.text.layout.sentences)
    number = f"{sentences} sentences" if sentences > 1 else "1 sentence"
    language = f" from {escape(answer.choice.source)}" if detected and answer.choice.source else ""
    # The status is a live region, but the translation field is not, so repeat it for screen readers.
    spoken = f'<span class="vt-spoken">: {escape(answer.text)}</span>'
    return f"<p data-number={next(NUMBERS)}>Translated {number}{language} in {seconds:.2f} s{spoken}</p>"
