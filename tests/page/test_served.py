"""The page on the real server with the embedded pair: what the server streams is what the page shows."""

import re
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Page, expect

import clover
from tests.page.test_page import answered, ask
from tests.serve.live import Live, serving

pytestmark = pytest.mark.page

Visit = Callable[..., Page]
PROMPT = "def area(self):"


@pytest.fixture(scope="module")
def embedded() -> Iterator[Live]:
    with serving(clover.load()) as server:
        yield server


@pytest.mark.parametrize("temperature", ["0", "0.8"])
def test_both_ways_write_the_same_text(embedded: Live, visit: Visit, temperature: str) -> None:
    page = visit(embedded.url)
    expect(page.locator("#mode")).to_have_value("text")  # its template does not tell roles apart
    page.check("#compare")
    page.click("#settings-button")
    page.fill("#temperature", temperature)
    page.fill("#seed", "1")
    page.fill("#max-tokens", "48")
    ask(page, PROMPT)
    expect(page.locator(".verdict strong")).to_contain_text("and the same text", timeout=60_000)
    body = {"prompt": PROMPT, "temperature": float(temperature), "seed": 1, "max_tokens": 48}
    status, answer = embedded.post("/v1/completions", body)
    assert status == 200
    assert page.locator(".answer .text").first.text_content() == PROMPT + answer["choices"][0]["text"]
    picture = str(page.locator(".histogram").get_attribute("aria-label"))
    counts = [int(count) for count in re.findall(r"accepted: (\d+)", picture)]
    tokens, steps = sum((n + 1) * count for n, count in enumerate(counts)), sum(counts)
    assert tokens == answer["usage"]["completion_tokens"]
    assert page.locator("#tau").text_content() == f"{tokens / steps:.2f}"
    expect(page.locator("#step-name")).to_contain_text(f"of {steps}")
    assert page.locator(".answer .draft").count() > 0


def test_the_conversation_goes_through_the_chat_template(embedded: Live, visit: Visit) -> None:
    page = visit(embedded.url)
    page.click("#settings-button")
    page.select_option("#mode", "chat")
    page.fill("#max-tokens", "12")
    ask(page, "import json")
    answered(page)
    ask(page, "import os")
    answered(page, count=2)
    texts = page.locator(".answer .text").all_text_contents()
    messages = [("user", "import json"), ("assistant", texts[0]), ("user", "import os")]
    body = {"messages": [{"role": role, "content": text} for role, text in messages]}
    status, answer = embedded.post("/v1/chat/completions", body | {"temperature": 0, "max_tokens": 12})
    assert status == 200 and answer["choices"][0]["message"]["content"] == texts[1]


def test_what_the_server_refuses_is_told(embedded: Live, visit: Visit) -> None:
    page = visit(embedded.url)
    expect(page.locator("#send")).to_be_enabled()
    page.click("#settings-button")
    page.fill("#max-tokens", "1024")
    ask(page, PROMPT)
    expect(page.locator(".note.failed")).to_contain_text("the context is 1024 tokens")
