"""What the page is told of each step: it adds up to the text, whatever is held back."""

from __future__ import annotations

from typing import Any

import pytest

from tests.serve.live import Live

ASKED = {"prompt": "def area(self):", "max_tokens": 40, "temperature": 0}


def told(live: Live, **options: Any) -> list[dict[str, Any]]:
    body = ASKED | {"stream_options": {"include_speculation": True}} | options
    return live.events("/v1/completions", body)


@pytest.mark.parametrize("server", ["live", "embedded"])
@pytest.mark.parametrize("stop", [None, ["_get", " self.ge", "\n\n"]])
def test_tokens_add_up_to_the_text(server: str, stop: Any, request: pytest.FixtureRequest) -> None:
    live: Live = request.getfixturevalue(server)
    chunks = told(live, stop=stop)
    _, whole = live.post("/v1/completions", ASKED | {"stop": stop})
    text = "".join(chunk["choices"][0]["text"] for chunk in chunks)
    assert text == whole["choices"][0]["text"]
    assert [chunk["speculation"]["step"] for chunk in chunks] == list(range(1, len(chunks) + 1))
    for chunk in chunks:
        tokens = chunk["speculation"]["tokens"]
        assert "".join(token["text"] for token in tokens) == chunk["choices"][0]["text"]
        assert all((token["source"] == "target") == (token["depth"] == 0) for token in tokens)


def test_accepted_nodes_are_a_path_of_the_tree(embedded: Live) -> None:
    accepted = 0
    for chunk in told(embedded):
        step = chunk["speculation"]
        parents, path = step["tree"]["parents"], step["accepted"]
        assert step["seconds"] > 0
        assert step["drafted"] == len(parents) == len(step["tree"]["tokens"])
        assert [parents[node] for node in path] == [-1, *path][: len(path)]
        drafted = [token for token in step["tokens"] if token["source"] != "target"]
        assert [token["depth"] for token in drafted] == list(range(1, len(path) + 1))
        assert [token["text"] for token in drafted] == [step["tree"]["tokens"][node] for node in path]
        accepted += len(path)
    assert accepted > 0


def test_without_speculation_every_step_is_one_token_and_the_text_is_the_same(embedded: Live) -> None:
    plain, drafted = told(embedded, speculation=False), told(embedded)
    assert len(plain) == ASKED["max_tokens"] > len(drafted)
    for chunk in plain:
        assert chunk["speculation"]["drafted"] == 0
        assert [token["source"] for token in chunk["speculation"]["tokens"]] == ["target"]
    text = ["".join(chunk["choices"][0]["text"] for chunk in chunks) for chunks in (plain, drafted)]
    assert text[0] == text[1]


def test_a_chat_is_told_too(live: Live) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 12, "temperature": 0}
    options = {"stream_options": {"include_speculation": True}}
    first, *chunks = live.events("/v1/chat/completions", body | options)
    assert "speculation" not in first
    for chunk in chunks:
        tokens = chunk["speculation"]["tokens"]
        assert "".join(token["text"] for token in tokens) == chunk["choices"][0]["delta"]["content"]
