"""The page in a real Chromium, served by the command."""

import re
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
import torch

from hf_vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration
from hf_vanilla_transformer.data.tokenizer_training import train_tokenizer
from hf_vanilla_transformer.export import export_model
from hf_vanilla_transformer.inference.preparation import encode
from hf_vanilla_transformer.inference.translation import translate
from hf_vanilla_transformer.pretrained.teacher_forcing import cross_attentions
from pages import CHROMIUM, serving
from paths import ROOT
from translators import ENGLISH, SHAPE, SPANISH, build

sync_api = pytest.importorskip("playwright.sync_api", reason="the browser is driven by Playwright, of the extra `dev`")
pytest.importorskip("gradio", reason="the page needs the extra `demo`")
Image = pytest.importorskip("PIL.Image", reason="pictures are reduced by Pillow, which Gradio brings along")
if not CHROMIUM:
    pytest.skip("there is no Chromium on the PATH; on Debian: apt-get install chromium", allow_module_level=True)

from page_screenshots import PICTURES, picture, save  # noqa: E402  # needs what is checked above

pytestmark = [pytest.mark.usefixtures("one_thread")]

SENTENCE = "the small cat sleeps"
# Words that would run a script or change the page if inserted as HTML; protection does not treat them as tags.
MARKUP = [
    "<img/src=x/onerror=window.harm=1>", "<b/class=x>bold</b/x>", "</textarea/x><script/x>window.harm=1</script/x>",
]  # fmt: skip  # a list of words
CARD = f"---\nwidget:\n- text: {SENTENCE}\n- text: two dogs run\n---\n"


def saved(folder, model, tokenizer):
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "README.md").write_text(CARD, encoding="utf-8")
    return folder


def translator():
    """Return a model whose outputs end before the length limit, and its tokenizer."""
    model, tokenizer = build("shared")
    with torch.no_grad():
        model.lm_head.bias[model.config.eos_token_id] += 1.5
    return model.eval(), tokenizer


def markup_translator():
    """Return a model whose words are HTML."""
    tokenizer = train_tokenizer([*ENGLISH, *SPANISH, *MARKUP], algorithm="whitespace", min_frequency=1)
    torch.manual_seed(3)
    model = VanillaTransformerForConditionalGeneration(
        VanillaTransformerConfig(**SHAPE, vocab_size=len(tokenizer), lm_head_bias=True, tie_word_embeddings=False)
    )
    with torch.no_grad():
        for word in MARKUP:
            model.lm_head.bias[tokenizer.convert_tokens_to_ids(word)] += 4
    return model.eval(), tokenizer


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("models")
    plain = saved(folder / "plain", *translator())
    markup = saved(folder / "markup", *markup_translator())
    export_model(plain, "ctranslate2", folder / "exported")
    with serving("--page", "--model", f"en-es={plain}", f"exported={folder / 'exported'}", f"markup={markup}") as url:
        yield url


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    with sync_api.sync_playwright() as playwright:
        # Chromium cannot sandbox as root in a container.
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser, address):
    """Open pages in separate sessions; finally check for errors and requests to other hosts."""
    contexts, requests, errors = [], [], []

    def open_one(**options):
        contexts.append(browser.new_context(**options))
        contexts[-1].on("request", lambda request: requests.append(request.url))
        page = contexts[-1].new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.goto(address)
        # The page's script has run.
        page.locator("#vt-status[aria-live]").wait_for(state="attached")
        return page

    yield open_one
    hosts = {urlsplit(url).netloc for url in requests if urlsplit(url).scheme not in ("data", "blob")}
    for context in contexts:
        context.close()
    assert hosts == {urlsplit(address).netloc}
    assert errors == []


def submit(page, text):
    """Translate a text and return the status."""
    page.get_by_label("Text", exact=True).fill(text)
    return click_translate(page)


def click_translate(page):
    """Click the button and return the status once the alternatives, which Gradio renders late, are there."""
    page.locator("#vt-status p").evaluate_all("all => all.forEach(element => element.className += ' old')")
    page.get_by_role("button", name="Translate").click()
    status = page.locator("#vt-status p:not(.old)")
    status.wait_for()
    if status.inner_text().startswith("Translated"):
        page.get_by_role("radio").first.wait_for()
    return status.inner_text()


def repeat(act, check, undo=lambda: None):
    """Repeat an action until a check passes: Gradio may not be listening yet, or may re-render the component."""
    for _ in range(20):
        act()
        try:
            return check()
        except AssertionError:
            undo()
    raise AssertionError("the page does not answer")


def take_example(page, text):
    field = page.get_by_label("Text", exact=True)
    repeat(
        page.get_by_role("button", name=text).click, lambda: sync_api.expect(field).to_have_value(text, timeout=1000)
    )


def translation(page):
    return page.get_by_label("Translation", exact=True).input_value()


def shows(page, text):
    """Wait until the page shows this translation."""
    sync_api.expect(page.get_by_label("Translation", exact=True)).to_have_value(text)


def alternatives(page):
    return page.locator("#vt-alternatives label").all_inner_texts()


def rows(page):
    """Return the tokens of the map's rows."""
    return page.locator(".vt-map tbody th").all_inner_texts()


def choose(page, label, option):
    """Choose an option and wait until the list has closed."""
    field = page.get_by_label(label, exact=True)

    def act():
        field.click()
        page.get_by_role("option", name=option, exact=True).click()

    def check():
        sync_api.expect(page.get_by_role("option")).to_have_count(0, timeout=1000)
        sync_api.expect(field).to_have_value(option, timeout=1000)

    repeat(act, check, undo=lambda: page.keyboard.press("Escape"))


def percents(page):
    style = page.locator(".vt-map tbody td").evaluate_all(
        "cells => cells.map(cell => cell.style.getPropertyValue('--w'))"
    )
    return [int(value.removesuffix("%")) for value in style]


def expected_percents(source, target, layer, head):
    model, tokenizer = translator()
    ids = encode(tokenizer, [source])[0], tokenizer(text_target=target)["input_ids"]
    weights = cross_attentions(model, [ids])[0][layer]
    return (weights.mean(0) if head is None else weights[head]).mul(100).round().flatten().int().tolist()


def near(found, expected):
    """Whether percentages are equal up to rounding."""
    return len(found) == len(expected) and all(abs(a - b) <= 1 for a, b in zip(found, expected, strict=True))


@pytest.mark.slow
def test_an_example_is_translated_as_offline(open_page):
    page = open_page()
    take_example(page, SENTENCE)
    status = click_translate(page)
    page.locator(".vt-map").wait_for()
    (expected,) = translate(*translator(), [SENTENCE], num_beams=3, num_hypotheses=3, with_scores=True)
    shows(page, expected[0].text)
    assert alternatives(page) == [f"{each.text} ({each.score:.3f})" for each in expected]
    assert re.match(r"Translated 1 sentence in \d+\.\d\d s", status)
    assert rows(page) == [*expected[0].text.split(), "</s>"]
    assert near(percents(page), expected_percents(SENTENCE, expected[0].text, 0, None))
    choose(page, "Layer", "2")
    choose(page, "Head", "1")
    expected_weights = expected_percents(SENTENCE, expected[0].text, 1, 0)
    page.wait_for_function(
        "([row, value]) => document.querySelector('.vt-map td.vt-best')?.style.getPropertyValue('--w') === value",
        arg=[0, f"{max(expected_weights[: len(SENTENCE.split()) + 1])}%"],
    )
    assert near(percents(page), expected_weights)
    tokens = page.get_by_role("list", name="Tokens of the text").locator("li")
    sync_api.expect(tokens).to_have_text([*SENTENCE.split(), "</s>"])


@pytest.mark.slow
def test_beams_and_alternatives_keep_together(open_page):
    page = open_page()
    page.get_by_role("button", name="Search settings").click()
    beams, number = page.get_by_label("number input for Beams"), page.get_by_label("number input for Alternatives")
    before = number.input_value()
    answered = sync_api.expect(beams).to_have_value
    repeat(lambda: number.fill("6"), lambda: answered("6", timeout=2000), undo=lambda: number.fill(before))
    submit(page, SENTENCE)
    sync_api.expect(page.get_by_role("radio")).to_have_count(6)
    (expected,) = translate(*translator(), [SENTENCE], num_beams=6, num_hypotheses=6, with_scores=True)
    assert [text.rpartition(" (")[0] for text in alternatives(page)] == [each.text for each in expected]
    beams.fill("1")
    sync_api.expect(number).to_have_value("1")
    submit(page, SENTENCE)
    sync_api.expect(page.get_by_role("radio")).to_have_count(1)
    shows(page, translate(*translator(), [SENTENCE], num_beams=1)[0][0].text)


@pytest.mark.slow
def test_sampling(open_page):
    page = open_page()
    page.get_by_role("button", name="Search settings").click()
    page.get_by_label("Sample").check()
    page.get_by_label("number input for Temperature").fill("2")
    page.get_by_label("number input for Top-p").fill("0.9")
    assert submit(page, SENTENCE).startswith("Translated")
    sync_api.expect(page.get_by_role("radio")).to_have_count(3)
    assert all(re.search(r"\(-\d+\.\d{3}\)$", text) for text in alternatives(page))


@pytest.mark.slow
def test_another_alternative_is_shown_everywhere(open_page):
    page = open_page()
    submit(page, SENTENCE)
    (expected,) = translate(*translator(), [SENTENCE], num_beams=3, num_hypotheses=3)
    page.get_by_role("radio").nth(2).check()
    shows(page, expected[2].text)
    sync_api.expect(page.locator(".vt-map tbody th")).to_have_text([*expected[2].text.split(), "</s>"])
    assert near(percents(page), expected_percents(SENTENCE, expected[2].text, 0, None))


@pytest.mark.slow
def test_a_text_of_several_sentences(open_page):
    page = open_page()
    assert submit(page, "a red house\n\nwe see a cat").startswith("Translated 2 sentences")
    best = translate(*translator(), ["a red house", "we see a cat"], num_beams=3, num_hypotheses=3)
    shows(page, f"{best[0][0].text}\n\n{best[1][0].text}")
    choose(page, "Sentence", "2. we see a cat")
    sync_api.expect(page.locator(".vt-map thead th")).to_have_text(["we", "see", "a", "cat", "</s>"])
    page.get_by_role("radio").nth(1).check()
    shows(page, f"{best[0][0].text}\n\n{best[1][1].text}")


@pytest.mark.slow
def test_what_is_refused_says_why_and_loses_nothing(open_page):
    page = open_page()
    submit(page, SENTENCE)
    page.locator(".vt-map").wait_for()
    shown = translation(page), rows(page), alternatives(page)
    long = "a cat " * 4000
    message = submit(page, long)
    assert message == "The text has 24000 characters, the limit is 20000; send less at a time."
    assert page.get_by_label("Text", exact=True).input_value() == long
    assert (translation(page), rows(page), alternatives(page)) == shown
    assert submit(page, " \n ") == "There is no text; type some, or choose an example."
    assert (translation(page), rows(page), alternatives(page)) == shown


@pytest.mark.slow
def test_two_users_at_once_see_what_is_theirs(open_page):
    users = {sentence: open_page() for sentence in (SENTENCE, "two dogs run")}
    for sentence, page in users.items():
        page.get_by_label("Text", exact=True).fill(sentence)
    for page in users.values():
        page.get_by_role("button", name="Translate").click()
    best = {}
    for sentence, page in users.items():
        page.locator(".vt-map").wait_for()
        (best[sentence],) = translate(*translator(), [sentence], num_beams=3, num_hypotheses=3)
        shows(page, best[sentence][0].text)
    first, second = users.values()
    first.get_by_role("radio").nth(1).check()
    shows(first, best[SENTENCE][1].text)
    shows(second, best["two dogs run"][0].text)
    assert second.locator(".vt-map thead th").all_inner_texts() == ["two", "dogs", "run", "</s>"]


@pytest.mark.slow
def test_a_phone_scrolls_the_map_within_itself(open_page):
    page = open_page(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    submit(page, "the small cat sleeps two dogs run in the street we see a cat a red house")
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    overflows = page.locator(".vt-map").evaluate("map => map.scrollWidth > map.clientWidth")
    assert overflows
    # Row tokens stay visible.
    page.locator(".vt-map").evaluate("map => map.scrollTo(9999, 0)")
    box = page.locator(".vt-map tbody th").first.bounding_box()
    assert box["x"] >= 0
    for button in page.get_by_role("button").all():
        if button.is_visible() and (button_box := button.bounding_box()):
            assert button_box["height"] >= 24


@pytest.mark.slow
def test_keyboard_only(open_page):
    page = open_page()
    press = page.keyboard.press

    def tab_to(selector):
        for _ in range(40):
            press("Tab")
            if page.evaluate("selector => document.activeElement.matches(selector)", selector):
                return
        raise AssertionError(f"the tab key does not lead to {selector}")

    tab_to("#vt-text textarea")
    page.keyboard.type(SENTENCE)
    press("Shift+Enter")
    page.locator(".vt-map").wait_for()
    first = translation(page)
    tab_to("#vt-alternatives input")
    press("ArrowDown")
    field = page.get_by_label("Translation", exact=True)
    sync_api.expect(field).not_to_have_value(first)
    tab_to(".vt-map td")
    reading = page.locator(".vt-frame output")
    place = re.compile(r".+ → .+: \d+ %")
    sync_api.expect(reading).to_have_text(place)
    press("Home")
    sync_api.expect(reading).to_have_text(re.compile(r" → the: "))
    press("ArrowRight")
    press("ArrowDown")
    token = rows(page)[1]
    sync_api.expect(reading).to_have_text(re.compile(rf"^{re.escape(token)} → small: \d+ %$"))
    # At the edge, arrow keys do nothing.
    press("End")
    press("ArrowRight")
    sync_api.expect(reading).to_have_text(re.compile(r" → </s>: "))


@pytest.mark.slow
def test_the_pointer_reads_a_cell(open_page):
    page = open_page()
    submit(page, SENTENCE)
    page.locator(".vt-map tbody tr").first.locator("td").nth(2).hover()
    weight = percents(page)[2]
    sync_api.expect(page.locator(".vt-frame output")).to_have_text(
        f"{rows(page)[0]} → sleeps: {weight} %".replace("sleeps", "cat")
    )


@pytest.mark.slow
def test_html_is_text(open_page):
    page = open_page()
    choose(page, "Model", "markup")
    text = " ".join(MARKUP)
    submit(page, f"{text}\n{text}")
    page.locator(".vt-map").wait_for()
    assert any(word in translation(page) for word in MARKUP)
    assert any(word in text for word in MARKUP for text in alternatives(page))
    assert set(rows(page)) & set(MARKUP)
    assert page.locator(".vt-map thead th").all_inner_texts() == [*MARKUP, "</s>"]
    page.get_by_label("Sentence", exact=True).click()
    page.get_by_role("option", name=re.compile("2. <img")).click()
    page.locator(".vt-map tbody td").last.hover()
    assert page.evaluate("window.harm") is None
    assert (
        page.locator("img[src=x], #vt-status b, .vt-map b, #vt-alternatives b, .vt-tokens b, .vt-alignment b").count()
        == 0
    )


@pytest.mark.slow
def test_a_model_without_attention_weights_says_why_there_is_no_map(open_page):
    page = open_page()
    choose(page, "Model", "exported")
    submit(page, SENTENCE)
    sync_api.expect(page.get_by_text("CTranslate2, which does not expose attention weights")).to_be_visible()
    shows(page, translate(*translator(), [SENTENCE], num_beams=3)[0][0].text)
    sync_api.expect(page.get_by_role("list", name="Tokens of the text").locator("li")).to_have_count(5)
    assert page.locator(".vt-map").count() == 0 and not page.get_by_label("Layer", exact=True).is_visible()
    # A model with attention weights brings the map back.
    choose(page, "Model", "en-es")
    submit(page, SENTENCE)
    page.locator(".vt-map").wait_for()


CONTRAST = """cells => cells.map(cell => {
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const luminance = (color) => {
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    const [red, green, blue] = [...canvas.getImageData(0, 0, 1, 1).data].map(value => {
      const part = value / 255;
      return part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const style = getComputedStyle(cell);
  const [low, high] = [luminance(style.color), luminance(style.backgroundColor)].sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
})"""


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_both_themes_have_contrast(open_page, scheme):
    page = open_page(color_scheme=scheme)
    submit(page, SENTENCE)
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    brightness = sum(map(int, re.findall(r"\d+", background)[:3])) / 3
    assert brightness > 200 if scheme == "light" else brightness < 60
    # Add a cell for every possible weight.
    page.locator(".vt-map tbody").evaluate(
        """body => {
          for (let weight = 0; weight <= 100; weight++) {
            const names = [50, 72].filter(limit => weight > limit).map(limit => `vt-over-${limit}`);
            const cell = `<td style="--w:${weight}%" class="${names.join(" ")}">1</td>`;
            body.rows[0].insertAdjacentHTML("beforeend", cell);
          }
        }"""
    )
    for selector in (".vt-map td", ".vt-map tbody th", ".vt-tokens li", "#vt-translate"):
        page.locator(selector).first.wait_for()
        assert min(page.locator(selector).evaluate_all(CONTRAST)) >= 4.5


CONTROLS = {
    "textbox", "button", "radio", "radiogroup", "slider", "spinbutton", "checkbox", "listbox", "combobox", "grid",
}  # fmt: skip  # a list of words


@pytest.mark.slow
def test_everything_has_a_name(open_page):
    page = open_page()
    page.get_by_role("button", name="Search settings").click()
    page.get_by_label("Sample").check()
    submit(page, SENTENCE)
    sync_api.expect(page.get_by_role("radio")).to_have_count(3)
    tree = page.locator("body").aria_snapshot()
    nodes = re.findall(r"^ *- '?(\w+)(.*)$", tree, re.MULTILINE)
    controls = [node for node in nodes if node[0] in CONTROLS]
    assert {role for role, _ in controls} >= {"textbox", "button", "radio", "slider", "spinbutton", "checkbox", "grid"}
    assert [node for node in controls if not node[1].lstrip().startswith('"')] == []
    assert sum(role == "heading" and "[level=1]" in rest for role, rest in nodes) == 1
    assert page.locator("html").get_attribute("lang") == "en"
    assert page.locator("#vt-status").get_attribute("aria-live") == "polite"
    assert translation(page) in page.locator("#vt-status").text_content()
    identifiers = page.evaluate("[...document.querySelectorAll('[id]')].map(element => element.id).filter(Boolean)")
    assert len(identifiers) == len(set(identifiers))


@pytest.mark.slow
def test_the_pictures_of_the_docs_can_be_taken_again(browser, address, tmp_path):
    for name in ("page-dark", "page-phone"):
        path = tmp_path / f"{name}.png"
        save(picture(browser, address, SENTENCE, PICTURES[name]), path)
        with Image.open(path) as taken, Image.open(ROOT / "docs" / "images" / path.name) as shown:
            assert taken.width == shown.width and path.stat().st_size < 150_000
