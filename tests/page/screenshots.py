"""Makes the pictures of docs/serving.md: the page on the real server with the embedded pair.

python -m tests.page.screenshots
"""

import re
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.page.conftest import find_chromium

DOCS = Path(__file__).parents[2] / "docs"
PROMPT = "def read_config(path):"


def take(browser: Browser, url: str, path: Path, *, dark: bool, width: int, height: int) -> None:
    """One picture of an answer beside the same without speculation, a step with branches shown."""
    page = browser.new_page(
        viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light"
    )
    page.goto(url)
    expect(page.locator("#send")).to_be_enabled()
    page.check("#compare")
    page.click("#settings-button")
    for name, value in {"temperature": "0.8", "seed": "3", "max-tokens": "96"}.items():
        page.fill(f"#{name}", value)
    page.click("#settings-button")
    page.fill("#prompt", PROMPT)
    page.click("#send")
    expect(page.locator(".verdict strong")).to_be_visible(timeout=120_000)
    page.locator(".answer .step").nth(_most_branches(page)).click()
    page.wait_for_timeout(300)
    page.screenshot(path=path)
    page.close()


def _most_branches(page: Page) -> int:
    """The step that accepted at least two tokens and left most of its tree."""
    found = []
    for index in range(int(page.get_attribute("#slider", "max") or 1)):
        page.locator(".answer").first.locator(".step").nth(index).click()
        page.wait_for_timeout(50)
        taken = page.locator(".tree .taken.draft.node").count()
        found.append(page.locator(".tree .node.offered").count() if 2 <= taken <= 6 else -1)
    return found.index(max(found))


def main() -> None:
    """Serve the embedded pair and take both pictures."""
    command = [sys.executable, "-m", "clover", "serve", "--port", "0", "--tree", "eagle2:12"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            url = next(found[1] for line in server.stderr if (found := re.search(r"page at (\S+)", line)))
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox"])
                take(browser, url, DOCS / "page.png", dark=False, width=1360, height=1000)
                take(browser, url, DOCS / "page-dark.png", dark=True, width=1360, height=1000)
                browser.close()
        finally:
            server.terminate()


if __name__ == "__main__":
    main()
