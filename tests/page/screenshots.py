"""Makes the pictures of docs/serving.md: the page on the real server with the embedded pair.

python -m tests.page.screenshots
"""

import re
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import Browser, expect, sync_playwright

from tests.page.conftest import find_chromium

DOCS = Path(__file__).parents[2] / "docs"
PROMPT = "class Store:\n    def __init__(self, path):"


def take(browser: Browser, url: str, path: Path, *, dark: bool, width: int, height: int) -> None:
    """One picture of an answer beside the same without speculation, a step with branches shown."""
    page = browser.new_page(
        viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light"
    )
    page.goto(url)
    expect(page.locator("#send")).to_be_enabled()
    page.check("#compare")
    page.click("#settings-button")
    for name, value in {"temperature": "0.8", "seed": "5", "max-tokens": "160"}.items():
        page.fill(f"#{name}", value)
    page.click("#settings-button")
    page.fill("#prompt", PROMPT)
    page.click("#send")
    expect(page.locator(".verdict strong")).to_be_visible(timeout=120_000)
    steps = page.locator(".answer").first.locator(".step:has(.depth-4)")
    steps.nth(steps.count() // 2).click()
    page.wait_for_timeout(300)
    page.screenshot(path=path)
    page.close()


def main() -> None:
    """Serve the embedded pair and take both pictures."""
    command = [sys.executable, "-m", "clover", "serve", "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            url = next(found[1] for line in server.stderr if (found := re.search(r"page at (\S+)", line)))
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox"])
                take(browser, url, DOCS / "page.png", dark=False, width=1360, height=900)
                take(browser, url, DOCS / "page-dark.png", dark=True, width=1360, height=900)
                browser.close()
        finally:
            server.terminate()


if __name__ == "__main__":
    main()
