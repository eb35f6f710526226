"""All chat templates of trl: what is learnt is what the model is given and writes in use, or it is refused by name."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from clover.data.chat import encode_prompt, encode_records
from clover.data.formats import Message, parse_record
from clover.templates import TemplateRefused
from tests.data.tokenizers import make_tokenizer

pytestmark = pytest.mark.long
FOUND = importlib.util.find_spec("trl")
FOLDER = (
    Path(FOUND.submodule_search_locations[0]) if FOUND and FOUND.submodule_search_locations else Path("none")
)
TEMPLATES = {path.stem: path for path in sorted(FOLDER.glob("chat_templates/*.jinja"))}

SYSTEM = {"role": "system", "content": "Be brief."}
ASK, SAY = {"role": "user", "content": "Where is Quito?"}, {"role": "assistant", "content": "In Ecuador."}
AGAIN, LAST = {"role": "user", "content": "And Lima?"}, {"role": "assistant", "content": "In Peru."}
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string", "description": "A city."}}}
TOOL = {
    "type": "function",
    "function": {"name": "weather", "description": "Says it.", "parameters": PARAMETERS},
}
FUNCTION = {"name": "weather", "arguments": '{"city": "Paris"}'}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "abcdefghi", "type": "function", "function": FUNCTION}],
}
RESULT = {"role": "tool", "name": "weather", "tool_call_id": "abcdefghi", "content": "sunny"}
SUNNY = {"role": "assistant", "content": "It is sunny."}
INSIDE = {"role": "assistant", "content": "<think>\nHmm so.\n</think>\n\nIn Ecuador."}
APART = {"role": "assistant", "reasoning_content": "Hmm so.", "content": "In Ecuador."}
CASES: dict[str, tuple[list[Message], list[Any]]] = {
    "chat": ([ASK, SAY], []),
    "system": ([SYSTEM, ASK, SAY], []),
    "two turns": ([ASK, SAY, AGAIN, LAST], []),
    "tools": ([ASK, SAY], [TOOL]),
    "call": ([ASK, CALL], [TOOL]),
    "result": ([ASK, CALL, RESULT, SUNNY], [TOOL]),
    "thinking": ([ASK, INSIDE, AGAIN, LAST], []),
    "thinking apart": ([ASK, APART], []),
}
NO_SYSTEM = {"gemma", "gemma_training"}  # they raise where a system speaks


def as_parts(message: Message) -> Message:
    content = message["content"]
    return message if content is None else message | {"content": [{"type": "text", "text": content}]}


def words_of(message: Message) -> list[str]:
    """What a rendering of a message must show; an answer's thinking only where it is learnt."""
    calls = [one["function"] for one in message.get("tool_calls", [])]
    called = [word for one in calls for word in (one["name"], "city", "Paris")]
    return [*called, str(message["content"] or "").split("</think>")[-1].strip()]


def native(template: str, messages: list[Message], tools: list[Any]) -> list[str]:
    """What transformers makes of the conversation and the opening of an answer, in the forms that it accepts."""
    found = []
    for form in (list, lambda all_of: list(map(as_parts, all_of))):
        try:
            options: Any = {"tools": tools or None, "add_generation_prompt": True, "tokenize": False}
            found.append(str(make_tokenizer(template).apply_chat_template(form(messages), **options)))
        except Exception:  # noqa: BLE001
            continue
    return found


@pytest.mark.skipif(not TEMPLATES, reason="trl is not installed")
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", TEMPLATES or ["none"])
def test_what_is_learnt_is_what_is_used(name: str, case: str) -> None:
    (messages, tools), template = CASES[case], TEMPLATES[name].read_text()
    tokenizer = make_tokenizer(template)
    forms = [
        parse_record({"messages": form, "tools": tools}, "x")
        for form in (messages, list(map(as_parts, messages)))
    ]
    assert forms[0] == forms[1]
    record = forms[0]
    refused: list[Any] = []
    samples = encode_records(tokenizer, [record], refused=lambda *given: refused.append(given))
    if refused:
        assert isinstance(refused[0][1], TemplateRefused)
        assert case not in ("chat", "two turns") and (case != "system" or name in NO_SYSTEM)
        assert case != "tools" or not any("weather" in text for text in native(template, [ASK], tools))
        return
    for place, answer in enumerate(record.messages):
        if answer["role"] != "assistant":
            continue
        prompt = encode_prompt(tokenizer, record.messages[:place], record.tools)
        runs = [
            sample.tokens.tolist()
            for sample in samples
            if sample.tokens[: len(prompt)].tolist() == prompt
            and sample.loss_mask[len(prompt) - 1 : len(prompt) + 1].tolist() == [False, True]
        ]
        assert runs, f"no sample has the prompt of turn {place}"
        written = tokenizer.decode(runs[0][len(prompt) :])
        given = tokenizer.decode(prompt)
        thinking = ["Hmm so."] if case.startswith("thinking") and place == 1 else []
        assert all(word in written for word in [*words_of(answer), *thinking]), written
        assert all(word in given for said in record.messages[:place] for word in words_of(said)), given
        if not any("tool_calls" in said for said in record.messages[:place]):
            assert given in native(template, list(record.messages[:place]), tools)
