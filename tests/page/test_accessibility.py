"""axe-core finds nothing at WCAG 2 A and AA, light and dark, on desk and phone; the keyboard reaches everything."""

import importlib.util
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.page.fake import FakeServer, Script
from tests.page.test_page import STEPS, answered, ask

pytestmark = pytest.mark.page

RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
LOOKS = [(size, scheme) for size in ("desktop", "phone") for scheme in ("light", "dark")]
Visit = Callable[..., Page]


def findings(page: Page) -> list[str]:
    """What axe-core says of the page as it is now."""
    spec = importlib.util.find_spec("axe_playwright_python")
    assert spec and spec.origin
    if not page.evaluate("'axe' in window"):
        page.evaluate((Path(spec.origin).parent / "axe.min.js").read_text(encoding="utf-8"))
    found = page.evaluate("rules => axe.run(document, {runOnly: rules})", RULES)
    assert len(found["passes"]) > 10
    return [f"{v['id']}: {node['html']}" for v in found["violations"] for node in v["nodes"]]


@pytest.fixture
def script(fake: FakeServer) -> Script:
    fake.script = Script(steps=STEPS)
    return fake.script


@pytest.mark.parametrize(("size", "scheme"), LOOKS)
def test_axe_finds_nothing(fake: FakeServer, script: Script, visit: Visit, size: str, scheme: str) -> None:
    script.key = "key"
    page = visit(fake.url, size, scheme)
    expect(page.locator("#key-dialog")).to_be_visible()
    assert findings(page) == []
    page.fill("#key", "key")
    page.press("#key", "Enter")
    expect(page.locator("#send")).to_be_enabled()
    page.click("#settings-button")
    assert findings(page) == []
    page.check("#compare")
    ask(page)
    answered(page, count=2)
    page.locator(".answer .step").nth(2).click()
    page.check("#depths")
    assert findings(page) == []
    if size == "phone":
        page.click("#view")
        assert findings(page) == []
    script.break_after = 2
    ask(page)
    answered(page, "lost")
    assert findings(page) == []


def test_axe_would_find_something(fake: FakeServer, script: Script, visit: Visit) -> None:
    page = visit(fake.url)
    expect(page.locator("#send")).to_be_enabled()
    page.evaluate(
        "document.querySelector('#prompt-label').remove(); document.querySelector('#prompt').placeholder = ''"
    )
    assert any(line.startswith("label") for line in findings(page))


def test_the_keyboard_reaches_every_control(fake: FakeServer, script: Script, visit: Visit) -> None:
    page = visit(fake.url)
    expect(page.locator("#send")).to_be_enabled()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator("#prompt")).to_be_focused()
    ask(page)
    answered(page)
    page.evaluate("document.activeElement.blur()")
    reached = set()
    for _ in range(20):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id"))
        # Between the last control and the first, the focus is nowhere in the page.
        assert page.evaluate(
            "!document.querySelector(':focus') || getComputedStyle(document.activeElement).outlineStyle != 'none'"
        )
    assert {
        "new",
        "prompt",
        "send",
        "compare",
        "settings-button",
        "slider",
        "play",
        "tree",
        "depths",
    } <= reached


def test_only_beginning_and_end_are_read_out(fake: FakeServer, script: Script, visit: Visit) -> None:
    script.hold = threading.Event()
    page = visit(fake.url)
    ask(page)
    expect(page.locator(".answer .text")).to_contain_text("mat")
    expect(page.locator("#status")).to_have_text("The model is answering.")
    assert (
        page.locator("[aria-live], [role=status], [role=alert], [role=log]").evaluate_all(
            "all => all.filter(e => e.querySelector('.token')).length"
        )
        == 0
    )
    script.hold.set()
    expect(page.locator("#status")).to_contain_text("Answer finished")


@pytest.mark.parametrize(("motion", "animation"), [("reduce", "none"), ("no-preference", "breathe")])
def test_the_cursor_moves_only_where_motion_is_welcome(
    fake: FakeServer, script: Script, visit: Visit, motion: str, animation: str
) -> None:
    script.hold = threading.Event()
    page = visit(fake.url, motion=motion)
    ask(page)
    text = page.locator(".answer .text")
    expect(text).to_contain_text("mat")
    assert text.evaluate("e => getComputedStyle(e, '::after').animationName") == animation
    script.hold.set()
    answered(page)
