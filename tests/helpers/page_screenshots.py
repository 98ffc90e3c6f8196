"""Takes the documentation's pictures of the page, light, dark and on a phone: run with the model of `make demo`.

python tests/helpers/page_screenshots.py --model en-es=runs/demo
"""

import io
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

from pages import CHROMIUM, serving
from paths import ROOT

TEXT = "Why is the farmer going to bring my grandmother's new novel to John?"
PHONE = {"device_scale_factor": 2, "is_mobile": True, "has_touch": True}
PICTURES: dict[str, dict[str, Any]] = {
    "page-light": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "light"},
    "page-dark": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "dark"},
    "page-phone": {"viewport": {"width": 390, "height": 844}, "color_scheme": "light", **PHONE},
}
# Enough for a page of few colours.
COLORS = 128


def main() -> None:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="As `vanilla-transformer serve` takes it.")
    parser.add_argument("--text", default=TEXT, help="What to translate.")
    parser.add_argument("--output_dir", default=ROOT / "docs" / "images", type=Path, help="For the pictures.")
    arguments = parser.parse_args()
    arguments.output_dir.mkdir(parents=True, exist_ok=True)
    with serving("--page", "--model", arguments.model) as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for name, options in PICTURES.items():
            path = arguments.output_dir / f"{name}.png"
            save(picture(browser, url, arguments.text, options), path)
            print(f"{path}: {path.stat().st_size / 1000:.0f} kB")
        browser.close()


def picture(browser: Browser, url: str, text: str, options: dict[str, Any]) -> bytes:
    """Return a picture of the page with a translation and its map."""
    page = browser.new_page(**options)
    page.goto(url)
    page.locator("#vt-status[aria-live]").wait_for(state="attached")
    page.get_by_label("Text", exact=True).fill(text)
    page.get_by_role("button", name="Translate").click()
    page.locator(".vt-map").wait_for()
    # The pointer and the focus leave the button.
    page.mouse.move(0, 0)
    page.evaluate("document.activeElement.blur()")
    page.wait_for_timeout(500)
    if options.get("is_mobile"):
        # As much as fits its screen.
        page.locator("#vt-details").evaluate("element => element.scrollIntoView()")
    taken = page.screenshot(full_page=not options.get("is_mobile"))
    page.close()
    return taken


def save(picture: bytes, path: Path) -> None:
    """Save a picture with few colours."""
    Image.open(io.BytesIO(picture)).convert("RGB").quantize(COLORS).save(path, optimize=True)


if __name__ == "__main__":
    main()
