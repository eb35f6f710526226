"""The real client of OpenAI against a live server: what it asks for it gets, streamed and whole."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from clover.api import Clover
from tests.serve.live import NAME, Live

TEXTS, CHATS = "/v1/completions", "/v1/chat/completions"
TEXT = {"model": NAME, "prompt": "abc abc abc", "max_tokens": 10, "temperature": 0}
CHAT = {
    "model": NAME,
    "messages": [{"role": "user", "content": "abc abc"}],
    "max_tokens": 10,
    "temperature": 0,
}
SAMPLED = {"temperature": 1.0, "seed": 7, "top_p": 0.9}


def streamed(client: openai.OpenAI, **options: Any) -> tuple[str, list[Any]]:
    chunks = list(client.completions.create(**TEXT | options, stream=True))
    return "".join(chunk.choices[0].text for chunk in chunks if chunk.choices), chunks


def test_models(client: openai.OpenAI) -> None:
    [model] = client.models.list().data
    assert (model.id, model.owned_by) == (NAME, "clover")
    assert client.models.retrieve(NAME).to_dict() == model.to_dict()
    assert model.to_dict()["max_model_len"] == 128 and model.to_dict()["draft"] == "recall"


def test_a_completion_and_its_stream_are_the_same_text(client: openai.OpenAI) -> None:
    whole = client.completions.create(**TEXT)
    text, chunks = streamed(client, stream_options={"include_usage": True})
    assert text == whole.choices[0].text != ""
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 2) + [
        "length"
    ]
    assert chunks[-1].usage == whole.usage
    assert whole.usage is not None and whole.usage.completion_tokens == 10
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + 10


def test_a_chat_and_its_stream_are_the_same_text(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(**CHAT)
    chunks = list(client.chat.completions.create(**CHAT, stream=True))
    assert chunks[0].choices[0].delta.role == whole.choices[0].message.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == whole.choices[0].message.content != ""


def test_a_prompt_is_text_or_tokens_or_several_of_them(client: openai.OpenAI, live: Live) -> None:
    tokens = live.service.tokenizer(TEXT["prompt"])["input_ids"]
    found = [
        [choice.text for choice in client.completions.create(**TEXT | {"prompt": prompt}).choices]
        for prompt in (TEXT["prompt"], tokens, [TEXT["prompt"], "xyz"], [tokens, [9, 8]])
    ]
    assert found[0] == found[1] == found[2][:1] == found[3][:1]
    assert len(found[2]) == len(found[3]) == 2


def test_messages_may_be_parts_and_the_developer_is_the_system(client: openai.OpenAI) -> None:
    plain = [{"role": "system", "content": "s"}, {"role": "user", "content": "a\nb"}]
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    divided = [{"role": "developer", "content": "s"}, {"role": "user", "content": parts}]
    answers = [client.chat.completions.create(**CHAT | {"messages": said}) for said in (plain, divided)]
    assert answers[0].choices[0].message.content == answers[1].choices[0].message.content
    lengths = [answer.usage.prompt_tokens for answer in answers if answer.usage is not None]
    assert lengths[0] == lengths[1] > 0


def test_n_choices_are_those_of_consecutive_seeds(client: openai.OpenAI) -> None:
    several = client.completions.create(**TEXT | SAMPLED, n=3)
    texts = [choice.text for choice in several.choices]
    alone = [client.completions.create(**TEXT | SAMPLED | {"seed": 7 + i}).choices[0].text for i in range(3)]
    assert texts == alone and len(set(texts)) == 3
    assert several.usage is not None and several.usage.completion_tokens <= 30
    chunks = list(client.completions.create(**TEXT | SAMPLED, n=3, stream=True))
    for number, text in enumerate(texts):
        pieces = [choice.text for chunk in chunks for choice in chunk.choices if choice.index == number]
        assert "".join(pieces) == text


def test_a_seed_reproduces_and_none_does_not(client: openai.OpenAI) -> None:
    def texts(**seed: int) -> set[str]:
        options = TEXT | {"temperature": 1.5, "max_tokens": 30} | seed
        return {client.completions.create(**options).choices[0].text for _ in range(3)}

    assert len(texts(seed=-5)) == 1
    assert len(texts()) == 3


def test_equal_prompts_of_a_request_get_different_texts_unless_there_is_a_seed(client: openai.OpenAI) -> None:
    options = TEXT | {"prompt": [TEXT["prompt"]] * 3, "temperature": 1.5, "max_tokens": 30}
    assert len({choice.text for choice in client.completions.create(**options).choices}) == 3
    assert len({choice.text for choice in client.completions.create(**options, seed=7).choices}) == 1


@pytest.mark.parametrize("count", [0, 3])
def test_logprobs_of_a_chat(client: openai.OpenAI, count: int) -> None:
    options = CHAT | {"logprobs": True, "top_logprobs": count}
    whole = client.chat.completions.create(**options).choices[0]
    assert whole.logprobs is not None and whole.logprobs.content is not None
    assert len(whole.logprobs.content) == 10
    for entry in whole.logprobs.content:
        assert len(entry.top_logprobs) == count
        best = max([entry.logprob, *(top.logprob for top in entry.top_logprobs)])
        assert entry.logprob == pytest.approx(best)  # greedy
        assert entry.bytes is None or bytes(entry.bytes).decode() == entry.token
    chunks = list(client.chat.completions.create(**options, stream=True))
    told = [
        e for chunk in chunks if chunk.choices[0].logprobs for e in chunk.choices[0].logprobs.content or []
    ]
    assert [(e.token, e.logprob) for e in told] == [
        (e.token, pytest.approx(e.logprob, abs=1e-5)) for e in whole.logprobs.content
    ]


def test_half_a_character_has_no_bytes_that_clients_could_join(client: openai.OpenAI, live: Live) -> None:
    whole, half = (live.service.tokenizer(text)["input_ids"][-1] for text in ("q", "é"))
    for token, expected in ((whole, [ord("q")]), (half, None)):
        options = CHAT | {"max_tokens": 1, "logprobs": True, "logit_bias": {str(token): 100}}
        told = client.chat.completions.create(**options).choices[0].logprobs
        assert told is not None and told.content is not None and told.content[0].bytes == expected


def test_logprobs_of_a_completion(client: openai.OpenAI) -> None:
    choice = client.completions.create(**TEXT, logprobs=2).choices[0]
    told = choice.logprobs
    assert told is not None and told.tokens and told.token_logprobs and told.top_logprobs and told.text_offset
    assert "".join(told.tokens) == choice.text
    assert told.text_offset == [len("".join(told.tokens[:at])) for at in range(10)]
    for token, logprob, top in zip(told.tokens, told.token_logprobs, told.top_logprobs, strict=True):
        assert top[token] == pytest.approx(logprob) == max(top.values())


def test_stop_strings_end_the_text_before_them(client: openai.OpenAI) -> None:
    whole = client.completions.create(**TEXT).choices[0].text
    end = whole[4:6]
    for stop in (end, ["never said", end]):
        choice = client.completions.create(**TEXT, stop=stop).choices[0]
        assert (choice.text, choice.finish_reason) == (whole[: whole.index(end)], "stop")
        assert streamed(client, stop=stop)[0] == choice.text


@pytest.mark.parametrize("characters", [1, 2, 5])
def test_logprobs_are_those_of_the_text_before_a_stop_string(client: openai.OpenAI, characters: int) -> None:
    """Streamed, too, where they are held back as long as the text; the tokens of the string are counted, not told."""
    whole = client.completions.create(**TEXT).choices[0].text
    options = {"stop": whole[4 : 4 + characters], "logprobs": 1}
    found = client.completions.create(**TEXT, **options)
    choice = found.choices[0]
    assert choice.logprobs is not None and choice.logprobs.tokens is not None
    assert "".join(choice.logprobs.tokens) == choice.text == whole[: whole.index(options["stop"])]
    assert found.usage is not None and found.usage.completion_tokens > len(choice.logprobs.tokens)
    _, chunks = streamed(client, **options)
    for chunk in chunks:
        told = chunk.choices[0].logprobs
        assert "".join(told.tokens if told else []) == chunk.choices[0].text
    told = [t for c in chunks if c.choices[0].logprobs for t in c.choices[0].logprobs.tokens]
    assert told == choice.logprobs.tokens
    empty = client.completions.create(**TEXT, logprobs=1, stop=whole[0]).choices[0]
    assert empty.text == "" and empty.logprobs is not None and empty.logprobs.tokens == []
    chat = client.chat.completions.create(**CHAT, logprobs=True, stop=options["stop"]).choices[0]
    assert chat.logprobs is not None and chat.logprobs.content is not None
    assert "".join(entry.token for entry in chat.logprobs.content) == chat.message.content


def test_logit_bias_and_penalties_change_the_text(client: openai.OpenAI, live: Live) -> None:
    token = live.service.tokenizer("q")["input_ids"][-1]
    biased = client.completions.create(**TEXT, logit_bias={str(token): 100}).choices[0].text
    assert biased == "q" * 10
    both = client.completions.create(
        **TEXT, logit_bias={str(token): 5}, presence_penalty=2, frequency_penalty=2
    )
    assert 0 <= both.choices[0].text.count("q") < 10


def test_acceptance_is_told_by_the_names_of_vllm(client: openai.OpenAI) -> None:
    whole = client.completions.create(**TEXT).to_dict()["speculative_decoding"]
    assert set(whole) == {"mean_acceptance_length", "draft_acceptance_rate", "acceptance_histogram"}
    steps = sum(whole["acceptance_histogram"])
    accepted = sum(n * count for n, count in enumerate(whole["acceptance_histogram"]))
    assert whole["mean_acceptance_length"] == pytest.approx(1 + accepted / steps)
    assert 0 <= whole["draft_acceptance_rate"] <= 1
    _, chunks = streamed(client)
    assert [("speculative_decoding" in chunk.to_dict()) for chunk in chunks] == [False] * (
        len(chunks) - 1
    ) + [True]
    plain = client.completions.create(**TEXT, extra_body={"speculation": False})
    assert plain.to_dict()["speculative_decoding"]["acceptance_histogram"] == [10]
    assert plain.choices[0].text == client.completions.create(**TEXT).choices[0].text


def test_limits_of_new_tokens(client: openai.OpenAI) -> None:
    messages = CHAT["messages"]
    ignoring = {"extra_body": {"ignore_eos": True}}
    unsaid = client.completions.create(model=NAME, prompt="abc", **ignoring)
    assert unsaid.usage is not None and unsaid.usage.completion_tokens == 16
    open_end = client.chat.completions.create(model=NAME, messages=messages, **ignoring)
    assert open_end.usage is not None and open_end.usage.total_tokens == 128
    assert open_end.choices[0].finish_reason == "length"
    almost_full = client.completions.create(model=NAME, prompt=[5] * 120, **ignoring)
    assert almost_full.usage is not None and almost_full.usage.completion_tokens == 8
    short = client.chat.completions.create(**CHAT | {"max_tokens": None, "max_completion_tokens": 3})
    assert short.usage is not None and short.usage.completion_tokens == 3


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "images",
        ),
        ({"audio": {"voice": "x", "format": "wav"}}, "audio"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"max_tokens": 1000}, "the context is 128"),
        ({"messages": []}, "messages"),
        ({"top_logprobs": 2}, "logprobs"),
        ({"n": 1000}, "n is"),
        ({"temperature": 3}, "temperature"),
        ({"logit_bias": {"99999": 1}}, "vocabulary"),
        ({"extra_body": {"best_friend": 1}}, "best_friend is unknown"),
    ],
)
def test_what_cannot_be_done_is_refused_clearly(client: openai.OpenAI, options: Any, said: str) -> None:
    with pytest.raises(openai.BadRequestError, match=said):
        client.chat.completions.create(**CHAT | options)


SHORT, FULL = {"role": "user", "content": "a"}, [5] * 128


@pytest.mark.parametrize(
    ("path", "body", "code", "param", "said"),
    [
        (
            TEXTS,
            {"prompt": FULL},
            "context_length_exceeded",
            "prompt",
            "the 128 tokens of the prompt do not fit",
        ),
        (TEXTS, {"prompt": FULL, "max_tokens": 1}, "context_length_exceeded", "prompt", "the 128 tokens"),
        (
            CHATS,
            {"messages": [SHORT] * 30},
            "context_length_exceeded",
            "messages",
            "tokens of the prompt do not",
        ),
        (TEXTS, {"prompt": "a", "max_tokens": 999}, "context_length_exceeded", "max_tokens", "999 new ones"),
        (
            CHATS,
            {"messages": [SHORT], "max_completion_tokens": 999, "max_tokens": 999},
            "context_length_exceeded",
            "max_completion_tokens",
            "999 new ones",
        ),
        (TEXTS, {"prompt": "a", "logit_bias": {"99999": 1}}, "invalid_value", "logit_bias", "vocabulary"),
        (TEXTS, {"prompt": "a", "temperature": 1e-9}, "invalid_value", "temperature", "at least 1e-5"),
        (TEXTS, {"prompt": [99999]}, "invalid_value", "prompt", "outside the vocabulary"),
        (TEXTS, {"prompt": []}, "invalid_value", "prompt", "prompt must not be empty"),
        (TEXTS, {"prompt": "a", "stop": ""}, "invalid_value", "stop", "stop must not be empty"),
        (TEXTS, {"prompt": 5}, "invalid_value", "prompt", "it must be a valid string"),
        (TEXTS, {"prompt": "a", "best_of": 2}, "invalid_value", "best_of", "than n, which is 1"),
        (TEXTS, {"prompt": "a", "n": 2, "best_of": 1}, "invalid_value", "best_of", "than n, which is 2"),
        (TEXTS, {"prompt": "a", "stream_options": {}}, "invalid_value", "stream_options", "needs stream"),
        (
            CHATS,
            {"messages": [SHORT], "stream": False, "stream_options": {"include_usage": True}},
            "invalid_value",
            "stream_options",
            "needs stream",
        ),
    ],
)
def test_errors_name_the_field(
    live: Live, path: str, body: dict[str, Any], code: str, param: str, said: str
) -> None:
    status, answer = live.post(path, body)
    error = answer["error"]
    assert (status, error["code"], error["param"]) == (400, code, param) and said in error["message"]


@pytest.mark.parametrize("path", [TEXTS, CHATS])
@pytest.mark.parametrize(("more", "status"), [(2, 400), (3, 200)])
def test_two_names_of_one_field_do_not_contradict_each_other(
    live: Live, path: str, more: int, status: int
) -> None:
    body = {"prompt": "a"} if path == TEXTS else {"messages": [SHORT]}
    found, answer = live.post(path, body | {"max_tokens": 3, "max_completion_tokens": more})
    assert found == status, answer
    if status == 400:
        error = answer["error"]
        assert error["param"] == "max_completion_tokens" and "differs from max_tokens" in error["message"]
    else:
        assert answer["usage"]["completion_tokens"] <= 3
    messages = [SHORT, SHORT | {"role": "assistant", "reasoning": "a", "reasoning_content": "b"}, SHORT]
    answer = live.post(CHATS, {"messages": messages})[1]
    assert "messages.1.reasoning: it differs from reasoning_content" in answer["error"]["message"]


def test_an_empty_prompt_is_named_too(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Clover, "encode", lambda *_: [])  # as tokenizers do that put nothing before a text
    status, answer = live.post(TEXTS, {"prompt": ""})
    assert (status, answer["error"]["param"]) == (400, "prompt") and "is empty" in answer["error"]["message"]


def test_what_asks_for_nothing_is_accepted(live: Live) -> None:
    body = {"prompt": "a", "max_tokens": 1, "n": 2, "best_of": 2, "suffix": "", "stream_options": None}
    assert live.post(TEXTS, body | {"user": "x", "metadata": {"a": "b"}, "service_tier": "auto"})[0] == 200
    chat = {"messages": [SHORT | {"name": "x"}], "max_tokens": 1, "parallel_tool_calls": True}
    chat |= {"modalities": ["text"], "safety_identifier": "x", "prompt_cache_key": "x"}
    assert live.post(CHATS, chat)[0] == 200


@pytest.mark.parametrize(
    ("field", "value", "status"),
    [
        ("moderation", None, 200),
        ("moderation", False, 400),
        ("add_special_tokens", False, 400),
        ("skip_special_tokens", False, 400),
        ("skip_special_tokens", True, 200),
        ("enable_thinking", False, 400),
        ("include_reasoning", False, 400),
        ("add_generation_prompt", False, 400),
        ("chat_template_kwargs", {"enable_thinking": False}, 400),
        ("chat_template_kwargs", {}, 200),
        ("use_beam_search", False, 200),
        ("use_beam_search", True, 400),
        ("use_beam_search", 0, 400),
        ("return_token_ids", False, 200),
    ],
)
def test_unknown_fields_pass_only_with_what_the_server_does_anyway(
    live: Live, field: str, value: Any, status: int
) -> None:
    for path, body in ((TEXTS, {"prompt": "a"}), (CHATS, {"messages": [SHORT]})):
        found, answer = live.post(path, {"max_tokens": 1, field: value} | body)
        assert found == status, answer
        assert status == 200 or answer["error"]["param"] == field


@pytest.mark.parametrize(
    ("field", "value", "hint"),
    [
        ("enable_thinking", False, "chat_template_kwargs"),
        ("reasoning_effort", "none", "chat_template_kwargs"),
        ("guided_json", {"type": "object"}, "response_format"),
        ("extra_body", {"top_k": 1}, "among the other fields"),
        ("max_new_tokens", 5, "max_tokens"),
        ("system", "Be brief.", "messages"),
    ],
)
def test_fields_of_other_servers_say_what_is_read_here(live: Live, field: str, value: Any, hint: str) -> None:
    status, answer = live.post(CHATS, {"messages": [SHORT], "max_tokens": 1, field: value})
    assert (status, answer["error"]["param"]) == (400, field)
    assert answer["error"]["message"].startswith(f"{field}: ") and hint in answer["error"]["message"]


def test_unknown_fields_may_ask_for_nothing_at_any_depth(live: Live) -> None:
    part = {"type": "text", "text": "a"}
    for value, status in ((None, 200), ("x", 400), (False, 400)):
        for message in (SHORT | {"cache": value}, SHORT | {"content": [part | {"cache_control": value}]}):
            found, answer = live.post(CHATS, {"messages": [message], "max_tokens": 1})
            assert found == status, answer


def test_another_model_is_not_found(client: openai.OpenAI) -> None:
    another = CHAT | {"model": "another"}
    for ask in (
        lambda: client.chat.completions.create(**another),
        lambda: client.models.retrieve("another"),
    ):
        with pytest.raises(openai.NotFoundError, match="no model of that name") as found:
            ask()
        assert (found.value.code, found.value.param) == ("model_not_found", "model")
