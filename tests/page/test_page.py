"""The page in a real browser: what it shows, what it asks the server, and what it does when things go wrong."""

import threading
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.page.fake import FakeServer, Script, Step, chain

pytestmark = pytest.mark.page

BRANCHED = Step((" sat", " on", " ran", " the"), (-1, 0, -1, 1), (0, 1, 3), " mat")
STEPS = (
    chain(accepted=0, own="The"),
    chain(" cat", " dog", accepted=1, own=" has"),
    BRANCHED,
    chain(" sat", " on", accepted=2, own=".", source="copied"),
)
TEXT = "The cat has sat on the mat sat on."
Visit = Callable[..., Page]


@pytest.fixture
def script(fake: FakeServer) -> Script:
    fake.script = Script(steps=STEPS)
    return fake.script


@pytest.fixture
def page(fake: FakeServer, script: Script, visit: Visit) -> Page:
    page = visit(fake.url)
    expect(page.locator("#send")).to_be_enabled()
    return page


def ask(page: Page, text: str = "Tell me.") -> None:
    page.fill("#prompt", text)
    page.press("#prompt", "Enter")


def answered(page: Page, state: str = "done", count: int = 1) -> None:
    expect(page.locator(f'.answer[data-state="{state}"]')).to_have_count(count)
    # The panel of steps is drawn in the next frame; a hidden slider would not take the focus.
    page.evaluate("() => new Promise(requestAnimationFrame)")


def test_a_conversation_goes_on_over_several_turns(page: Page, script: Script) -> None:
    page.click("#settings-button")
    page.fill("#system", "Be brief.")
    page.fill("#temperature", "0.5")
    page.fill("#max-tokens", "99")
    page.fill("#seed", "7")
    ask(page, "First")
    answered(page)
    ask(page, "Second")
    answered(page, count=2)
    assert page.locator(".answer .text").all_text_contents() == [TEXT, TEXT]
    first, second = script.asked
    assert {"model": "tiny", "temperature": 0.5, "max_tokens": 99, "seed": 7}.items() <= first.items()
    assert first["stream"] and first["stream_options"]["include_speculation"] and "speculation" not in first
    assert [message["content"] for message in second["messages"]] == ["Be brief.", "First", TEXT, "Second"]
    page.click("#new")
    ask(page, "Third")
    answered(page)
    assert [message["role"] for message in script.asked[-1]["messages"]] == ["system", "user"]


def test_shift_enter_begins_a_line_and_a_suggestion_is_sent(page: Page, script: Script) -> None:
    page.fill("#prompt", "one")
    page.press("#prompt", "Shift+Enter")
    page.locator("#prompt").press_sequentially("two")
    assert page.input_value("#prompt") == "one\ntwo"
    page.locator("#suggestions button").first.click()
    answered(page)
    assert script.asked[0]["messages"][0]["content"] in str(page.locator(".said").text_content())


def test_each_token_shows_how_it_came_and_not_by_colour_alone(page: Page) -> None:
    ask(page)
    answered(page)
    tokens = page.locator(".answer .token")
    shown = tokens.evaluate_all(
        "all => all.map(e => [e.textContent, e.title, getComputedStyle(e).textDecorationLine + ' ' "
        "+ getComputedStyle(e).textDecorationStyle, getComputedStyle(e).backgroundColor])"
    )
    by_text = {text: (title, line, colour) for text, title, line, colour in shown}
    assert by_text["The"][:2] == ("the model's own, step 1", "none solid")
    assert by_text[" cat"][:2] == ("drafted, accepted at depth 1, step 2", "underline solid")
    assert by_text[" the"][0] == "drafted, accepted at depth 3, step 3"
    assert by_text[" on"][:2] == ("copied, accepted at depth 2, step 4", "underline dashed")
    assert len({by_text[text][2] for text in ("The", " cat", " the", " on")}) == 4
    page.check("#depths")
    depth = page.locator(".answer .token", has_text="cat").evaluate(
        "e => getComputedStyle(e, '::after').content"
    )
    assert depth == '"1"'


def test_numbers_and_histogram_follow_from_the_steps(page: Page) -> None:
    ask(page)
    answered(page)
    expect(page.locator("#speed")).to_have_text("250")  # 10 tokens in 4 steps of 10 ms
    expect(page.locator("#tau")).to_have_text("2.50")
    expect(page.locator("#accepted")).to_have_text("86 %")  # 6 of 7 depths
    picture = page.locator(".histogram")
    expect(picture).to_have_attribute(
        "aria-label", "Of 4 steps, 0 accepted: 1, 1 accepted: 1, 2 accepted: 1, 3 accepted: 1"
    )
    expect(page.locator("#status")).to_have_text("Answer finished: 10 tokens, 2.5 per step.")


def test_what_is_accepted_means_the_same_before_the_end(page: Page, script: Script) -> None:
    script.hold = threading.Event()
    ask(page)
    expect(page.locator("#step-name")).to_contain_text("step 3 of 3")
    expect(page.locator("#accepted")).to_have_text("80 %")  # 4 of 5 depths, of which one has two candidates
    expect(page.locator("#tau")).to_have_text("2.33")
    script.hold.set()
    answered(page)


def test_the_slider_goes_back_through_the_steps_by_keyboard(page: Page) -> None:
    ask(page)
    answered(page)
    page.focus("#slider")
    page.keyboard.press("ArrowLeft")
    expect(page.locator("#step-name")).to_contain_text("step 3 of 4")
    expect(page.locator("#slider")).to_have_attribute("aria-valuetext", "3 of 4, 3 of 4 accepted")
    expect(page.locator("#tree-text")).to_have_text(
        "3 of 4 accepted: “·sat” “·on” “·the”; then its own “·mat”."
    )
    assert page.locator(".tree .node.taken.draft text").all_text_contents() == ["·sat", "·on", "·the"]
    assert page.locator(".tree .node.offered text").all_text_contents() == ["·ran"]
    assert page.locator(".tree .root text, .tree .node.target text").all_text_contents() == ["·has", "·mat"]
    expect(page.locator(".answer .now")).to_have_text(" sat on the mat")
    expect(page.locator("#excerpt mark")).to_have_text(" sat on the mat")
    assert page.locator("#excerpt").text_content() == TEXT
    expect(page.locator(".histogram .shown text").first).to_have_text("3")
    page.keyboard.press("Home")
    expect(page.locator("#tree-text")).to_have_text("Nothing drafted; the model's own “The”.")
    expect(page.locator("#previous")).to_be_disabled()
    page.click("#next")
    expect(page.locator(".answer .now")).to_have_text(" cat has")


def test_children_of_a_node_stand_one_below_the_other(page: Page) -> None:
    ask(page)
    answered(page)
    page.locator(".answer .step").nth(2).click()
    boxes = {
        str(node.locator("text").text_content()): node.locator("rect").evaluate(
            "e => [e.x.baseVal.value, e.y.baseVal.value]"
        )
        for node in page.locator(".tree .node").all()
    }
    (sat_x, sat_y), (ran_x, ran_y), (on_x, on_y) = boxes["·sat"], boxes["·ran"], boxes["·on"]
    assert sat_x == ran_x < on_x
    assert sat_y == on_y < ran_y


def test_the_steps_play_from_the_start(page: Page) -> None:
    ask(page)
    answered(page)
    page.click("#play")
    expect(page.locator("#step-name")).to_contain_text("step 1 of 4")
    expect(page.locator("#step-name")).to_contain_text("step 4 of 4")
    expect(page.locator("#play")).to_have_text("Play")


def test_the_same_prompt_runs_without_speculation_beside_it(page: Page, script: Script) -> None:
    page.check("#compare")
    ask(page)
    answered(page, count=2)
    fast, plain = script.asked
    assert plain.pop("speculation") is False
    assert fast == plain
    assert page.locator(".answer .text").all_text_contents() == [TEXT, TEXT]
    expect(page.locator(".verdict strong")).to_have_text(
        "2.50 times as fast as plain decoding, and the same text, character by character."
    )
    expect(page.locator("#ratio")).to_have_text("2.50×")
    boxes = [box.bounding_box() for box in page.locator(".answer").all()]
    assert boxes[0] and boxes[1] and boxes[0]["y"] == boxes[1]["y"]


def test_a_difference_is_told_with_its_place(page: Page, script: Script) -> None:
    script.plain_text = "The cow"
    page.check("#compare")
    ask(page)
    expect(page.locator(".verdict")).to_contain_text("but the texts differ from character 6 on.")


def test_sampled_answers_are_compared_with_one_seed(page: Page, script: Script) -> None:
    page.check("#compare")
    page.click("#settings-button")
    page.fill("#temperature", "0.8")
    ask(page)
    answered(page, count=2)
    assert isinstance(script.asked[0]["seed"], int)
    assert script.asked[0]["seed"] == script.asked[1]["seed"]


def test_stop_keeps_what_came(page: Page, script: Script) -> None:
    script.hold = threading.Event()
    ask(page)
    expect(page.locator(".answer .text")).to_have_text("The cat has sat on the mat")
    expect(page.locator("#send")).to_be_hidden()
    page.click("#stop")
    answered(page, "stopped")
    script.hold.set()
    expect(page.locator(".note")).to_have_text("Stopped.")
    assert page.locator(".answer .text").text_content() == "The cat has sat on the mat"
    expect(page.locator("#prompt")).to_be_focused()


def test_a_lost_connection_keeps_what_came_and_can_be_tried_again(page: Page, script: Script) -> None:
    script.break_after, script.hold = 2, threading.Event()
    ask(page)
    expect(page.locator(".answer .text")).to_have_text("The cat has")
    script.hold.set()
    answered(page, "lost")
    assert page.locator(".answer .text").text_content() == "The cat has"
    expect(page.locator(".note")).to_contain_text("The connection was lost. What came is kept.")
    expect(page.locator("#status")).to_have_text("The connection was lost.")
    script.refuse = (503, "the server is starting")
    page.click(".retry")
    expect(page.locator(".note")).to_contain_text("the server is starting")
    assert page.locator(".answer .text").text_content() == "The cat has"
    page.click(".retry")
    answered(page)
    assert page.locator(".answer .text").text_content() == TEXT
    assert script.asked[0] == script.asked[1]
    expect(page.locator("#prompt")).to_be_focused()


def test_a_comparison_that_broke_off_is_taken_up_again(page: Page, script: Script) -> None:
    page.check("#compare")
    script.hold = threading.Event()
    ask(page)
    expect(page.locator(".answer .text").first).to_have_text("The cat has sat on the mat")
    script.break_after = 3  # of the second answer: the first has begun
    script.hold.set()
    answered(page, "lost")
    page.click(".retry")
    expect(page.locator(".verdict strong")).to_contain_text("the same text")
    assert [body.get("speculation", True) for body in script.asked] == [True, False, False]


def test_a_server_out_of_reach_is_told(page: Page) -> None:
    page.context.set_offline(True)
    ask(page)
    answered(page, "lost")
    expect(page.locator(".note")).to_contain_text("The server cannot be reached.")
    page.context.set_offline(False)
    page.click(".retry")
    answered(page)


def test_a_server_that_starts_late_is_asked_again(fake: FakeServer, script: Script, visit: Visit) -> None:
    script.refuse = (503, "the model is being loaded")
    page = visit(fake.url)
    expect(page.locator("#banner")).to_contain_text("the model is being loaded")
    page.click("#banner .retry")
    expect(page.locator("#send")).to_be_enabled()
    expect(page.locator("#banner")).to_be_hidden()


def test_a_refusal_is_shown_and_can_be_tried_again(page: Page, script: Script) -> None:
    script.refuse = (429, "too many requests wait; try again later")
    ask(page)
    expect(page.locator(".note")).to_contain_text("too many requests wait; try again later")
    page.click(".retry")
    answered(page)


def test_a_model_that_cannot_chat_goes_on_from_the_text(page: Page, script: Script) -> None:
    script.refuse = (400, "this model has no chat template")
    ask(page, "The text")
    answered(page)
    assert script.asked[0]["prompt"] == "The text"
    assert page.locator(".answer .text").text_content() == "The text" + TEXT
    ask(page, "Another")
    answered(page, count=2)
    assert script.asked[1]["prompt"] == "Another"


HOSTILE = (
    "<script>window.hacked = 1</script>",
    "<img src=x onerror='window.hacked = 1'>",
    "</span><style>*{display:none}</style>",
    "\u202e<svg onload=window.hacked=1>&lt;b&gt;",
    "javascript:alert(1)\x00😀",
)


def test_nothing_from_the_model_is_read_as_html(fake: FakeServer, script: Script, visit: Visit) -> None:
    script.steps = (chain(*HOSTILE[:-1], accepted=3, own=HOSTILE[-1]),)
    script.model = {"id": HOSTILE[1], "draft": HOSTILE[0], "max_model_len": 64}
    page = visit(fake.url)
    expect(page.locator("#model")).to_contain_text(HOSTILE[1])
    page.check("#compare")
    ask(page, HOSTILE[0])
    answered(page, count=2)
    given = "".join([*HOSTILE[:3], HOSTILE[-1]])
    assert page.locator(".answer .text").all_text_contents() == [given, given]
    script.refuse = (400, HOSTILE[1])
    ask(page, HOSTILE[1])
    expect(page.locator(".note.failed")).to_contain_text(HOSTILE[1])
    page.locator(".answer .step").first.click()
    assert "U+202E" in str(page.locator(".tree").text_content())
    assert page.locator("main img, main script, main style, #turns svg[onload]").count() == 0
    assert page.evaluate("window.hacked") is None


def test_the_key_is_asked_for_and_lives_as_long_as_the_tab(
    fake: FakeServer, script: Script, visit: Visit
) -> None:
    script.key = "schlüssel-ключ"
    page = visit(fake.url)
    expect(page.locator("#key")).to_be_focused()
    page.press("#key", "Escape")
    page.click("#banner .retry")
    page.fill("#key", "wrong")
    page.press("#key", "Enter")
    expect(page.locator("#key-error")).to_have_text("The server refuses this key.")
    page.fill("#key", "schlüssel-ключ")
    page.press("#key", "Enter")
    expect(page.locator("#key-dialog")).to_be_hidden()
    expect(page.locator("#send")).to_be_enabled()  # once the server has named its model
    ask(page)
    answered(page)
    assert page.evaluate("Object.values(sessionStorage)") == ["schlüssel-ключ"]
    assert page.evaluate("localStorage.length") == 0 and page.context.cookies() == []
    script.key = "changed"
    ask(page)
    page.fill("#key", "changed")
    page.press("#key", "Enter")
    answered(page, count=2)
    page.click("#settings-button")
    page.click("#forget")
    expect(page.locator("#key-dialog")).to_be_visible()
    assert page.evaluate("sessionStorage.length") == 0


def test_on_a_phone_text_and_steps_take_turns(fake: FakeServer, script: Script, visit: Visit) -> None:
    page = visit(fake.url, "phone")
    ask(page)
    answered(page)
    expect(page.locator("#slider")).to_be_hidden()
    page.click("#view")
    expect(page.locator("#slider")).to_be_visible()
    expect(page.locator("#turns")).to_be_hidden()
    page.click("#view")
    page.locator(".answer .step").nth(1).click()
    expect(page.locator("#step-name")).to_contain_text("step 2 of 4")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_the_page_loads_nothing_from_elsewhere(page: Page, violations: list[str]) -> None:
    page.evaluate(
        "document.body.insertAdjacentHTML('beforeend', '<img src=\"http://elsewhere.invalid/a.png\">')"
    )
    for _ in range(300):
        if not violations:
            page.wait_for_timeout(100)
    assert [line.split()[0] for line in violations] == ["img-src"]
    violations.clear()


def test_reasoning_and_calls_are_shown_and_go_back_with_their_results(page: Page, script: Script) -> None:
    call = {
        "id": "abc",
        "type": "function",
        "function": {"name": "weather", "arguments": '{"city": "Paris"}'},
    }
    script.deltas = ({"reasoning_content": "Think."}, {"tool_calls": [{"index": 0} | call]})
    page.click("#settings-button")
    page.fill("#tools", '[{"type": "function"')
    ask(page, "First")
    assert script.asked == []
    page.fill("#tools", '[{"type": "function", "function": {"name": "weather"}}]')
    page.press("#prompt", "Enter")
    answered(page)
    expect(page.locator(".step.reasoning")).to_have_text("Think.")
    expect(page.locator(".step.call")).to_have_text('→ weather({"city": "Paris"})')
    script.deltas = ()
    ask(page, "20 degrees")
    answered(page, count=2)
    first, second = script.asked
    assert first["tools"] == second["tools"] == [{"type": "function", "function": {"name": "weather"}}]
    said = {"role": "assistant", "content": TEXT, "reasoning_content": "Think.", "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "abc", "content": "20 degrees"}
    assert second["messages"] == [{"role": "user", "content": "First"}, said, result]
