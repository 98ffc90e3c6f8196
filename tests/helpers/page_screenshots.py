"""Take the documentation's screenshots of the page, light, dark and on a phone, with the model of `make demo`.

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
# Palette size.
COLORS = 128


def main() -> None:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="As for `vanilla-transformer serve`.")
    parser.add_argument("--text", default=TEXT, help="Text to translate.")
    parser.add_argument(
        "--output_dir", default=ROOT / "docs" / "images", type=Path, help="Folder for the screenshots."
    )
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
    """Return a screenshot of the page with a translation and its attention map."""
    page = browser.new_page(**options)
    page.goto(url)
    page.locator("#vt-status[aria-live]").wait_for(state="attached")
    page.get_by_label("Text", exact=True).fill(text)
    page.get_by_role("button", name="Translate").click()
    page.locator(".vt-map").wait_for()
    # Remove pointer and focus from the button.
    page.mouse.move(0, 0)
    page.evaluate("document.activeElement.blur()")
    page.wait_for_timeout(500)
    if options.get("is_mobile"):
        # Only one screen is taken.
        page.locator("#vt-details").evaluate("element => element.scrollIntoView()")
    taken = page.screenshot(full_page=not options.get("is_mobile"))
    page.close()
    return taken


def save(picture: bytes, path: Path) -> None:
    """Save a picture with a small palette."""
    Image.open(io.BytesIO(picture)).convert("RGB").quantize(COLORS).save(path, optimize=True)


if __name__ == "__main__":
    main()
