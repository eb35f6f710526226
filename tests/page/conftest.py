"""A real browser, a server that says what a test wants, and a page that fails its test where it breaks its policy."""

import importlib.util
import shutil
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from tests.page.fake import FakeServer

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

if importlib.util.find_spec("playwright") is None:
    collect_ignore_glob = ["screenshots.py", "test_*.py"]  # `make test-page` installs it

SIZES = {"desktop": (1280, 900), "phone": (390, 844)}
WATCH = (
    "addEventListener('securitypolicyviolation', e => violated(`${e.effectiveDirective} ${e.blockedURI}`))"
)


def find_chromium() -> str | None:
    """The browser's executable."""
    found = [shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome")]
    return next((path for path in found if path), None)


@pytest.fixture(scope="session")
def browser() -> Iterator["Browser"]:
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=20_000)  # milliseconds; the machine may have other work
    executable = find_chromium()
    if executable is None:
        pytest.exit("these tests need Chromium; install it, on Debian by `apt-get install chromium`", 2)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def fake() -> Iterator[FakeServer]:
    server = FakeServer()
    yield server
    server.close()


@pytest.fixture
def violations() -> list[str]:
    """What the content-security policy forbade, and what went wrong in the page's own code."""
    return []


@pytest.fixture
def visit(browser: "Browser", violations: list[str]) -> Iterator[Callable[..., "Page"]]:
    """Return a function that opens an address in a fresh profile; in the end nothing may have been violated."""
    contexts = []

    def open_page(url: str, size: str = "desktop", scheme: str = "light", motion: str = "reduce") -> "Page":
        width, height = SIZES[size]
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, reduced_motion=motion
        )
        contexts.append(context)
        context.set_default_timeout(20_000)
        page = context.new_page()
        page.on("pageerror", lambda error: violations.append(str(error)))
        page.expose_function("violated", lambda words: violations.append(words))
        page.add_init_script(WATCH)
        page.goto(url)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert violations == []
