"""The page before the server has named its model."""

from collections.abc import Callable

import pytest
from playwright.sync_api import Route, expect

from tests.page.fake import FakeServer
from tests.page.test_page import Script, Visit, answered, ask, script

pytestmark = pytest.mark.page
_ = script  # the fixture


def test_a_question_that_comes_early_is_asked_when_the_model_is_known(
    fake: FakeServer, script: Script, visit: Visit
) -> None:
    held: list[Callable[[], None]] = []

    def hold(route: Route) -> None:
        held.append(route.continue_)

    page = visit("about:blank")
    page.route("**/v1/models", hold)
    with page.expect_request("**/v1/models"):
        page.goto(fake.url)
    ask(page)
    expect(page.locator("#send")).to_be_disabled()
    assert held and page.locator(".answer").count() == 0
    held[0]()
    answered(page)
