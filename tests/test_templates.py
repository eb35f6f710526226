"""Chat templates are given what they render, in every form that templates of the field read."""

from typing import Any

import pytest

from clover.data import Record, encode_records
from clover.errors import UserError
from clover.templates import TemplateRefused, encode_rendered, encode_text, render, template_name
from tests.data import tokenizers
from tests.data.tokenizers import make_tokenizer

PARTS = (  # as LLaVA's and SmolVLM's
    "{% for m in messages %}{{ m.role }}: {% for part in m.content %}"
    "{% if part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
EITHER = (
    "{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}{{ part.text }}{% endfor %}{% endif %}{% endfor %}"
)
SYSTEM_ALONE = (  # parts, but for the system's text
    "{% for m in messages %}{% if m.role == 'system' %}[{{ m.content + ']' }}"
    "{% else %}{% for part in m.content %}{{ part.text }}{% endfor %}{% endif %}{% endfor %}"
)
OBJECTS = (
    "{{ tools | tojson if tools }}{% for m in messages %}<{{ m.role }}>{{ m.content }}"
    "{% for call in m.tool_calls or [] %}{{ call.function.name }}{{ call.function.arguments | tojson }}{% endfor %}"
    "{% endfor %}"
)
STRINGS = OBJECTS.replace("call.function.arguments | tojson", "'json ' + call.function.arguments")
ITEMS = OBJECTS.replace(
    "{{ call.function.arguments | tojson }}",
    "({% for key, value in call.function.arguments.items() %}{{ key }}='{{ value }}'{% endfor %})",
)
NULL_CONTENT = (  # as DeepSeek's: calls are shown where there is no content
    "{% for m in messages %}{% if m.content is not defined %}{% for call in m.tool_calls %}{{ call.function.name }}"
    "{{ call.function.arguments }}{% endfor %}{% else %}{{ m.content }}{% endif %}{% endfor %}"
)
QUESTION = {"role": "user", "content": "What is it?"}


def call(arguments: Any, **more: Any) -> dict[str, Any]:
    function = {"name": "look", "arguments": arguments}
    return {"role": "assistant", "tool_calls": [{"type": "function", "function": function}], **more}


def shown(template: str | None, *messages: dict[str, Any], **options: Any) -> str:
    return render(make_tokenizer(template), messages, **options)


@pytest.mark.parametrize(
    ("template", "one", "two"),
    [
        (PARTS, "user: What is it?assistant:", "user: abassistant:"),
        (EITHER, "<user>What is it?", "<user>ab"),
        ("{% for m in messages %}<{{ m.content }}>{% endfor %}", "<What is it?>", "<a\nb>"),
    ],
)
def test_content_comes_in_the_form_that_the_template_reads(template: str, one: str, two: str) -> None:
    parts = [{"type": "text", "text": text} for text in "ab"]
    assert shown(template, QUESTION, answer=True) == one
    assert shown(template, QUESTION | {"content": parts}, answer=True) == two


@pytest.mark.parametrize(
    "message", [{"content": "a"}, {"role": None, "content": "a"}, {"role": 1, "content": "a"}]
)
def test_a_message_without_a_role_is_refused(message: Any) -> None:
    with pytest.raises(UserError, match="a message needs a role"):
        shown(EITHER, message)


def test_each_role_is_tried_out() -> None:
    system = {"role": "system", "content": "Be brief."}
    assert shown(SYSTEM_ALONE, system, QUESTION) == "[Be brief.]What is it?"


@pytest.mark.parametrize(
    "template", ["{% for m in messages %}{{ m.role }}{% endfor %}", "{{ messages[0].content[0].words }}"]
)
def test_words_that_no_form_shows_are_an_error(template: str) -> None:
    with pytest.raises(TemplateRefused, match="content of user messages neither as a string nor as parts"):
        shown(template, QUESTION)


@pytest.mark.parametrize("content", [None, 5, [{"type": "image"}], [5]])
def test_content_that_is_no_text_is_an_error(content: Any) -> None:
    with pytest.raises(UserError, match="must be a string, or a list of parts of type text"):
        shown(EITHER, {"role": "user", "content": content})


@pytest.mark.parametrize("arguments", ['{"city": "Paris"}', {"city": "Paris"}])
@pytest.mark.parametrize(
    ("template", "text"),
    [
        (OBJECTS, '<user>What is it?<assistant>look{"city": "Paris"}'),
        (STRINGS, '<user>What is it?<assistant>lookjson {"city": "Paris"}'),
        (ITEMS, "<user>What is it?<assistant>look(city='Paris')"),
        (NULL_CONTENT, 'What is it?look{"city": "Paris"}'),
    ],
)
def test_arguments_are_shown_once_encoded(template: str, text: str, arguments: Any) -> None:
    assert shown(template, QUESTION, call(arguments)) == text
    assert shown(template, QUESTION, call(arguments, content=None)) == text


def test_tools_are_shown_with_calls_or_it_is_an_error() -> None:
    tool = {"type": "function", "function": {"name": "look"}}
    assert '"name": "look"' in shown(OBJECTS, QUESTION, tools=[tool])
    with pytest.raises(TemplateRefused, match="does not show tool calls"):
        shown(tokenizers.CHATML, QUESTION, call({}))
    with pytest.raises(TemplateRefused, match="does not show the tool 'look'"):
        shown(NULL_CONTENT, QUESTION, call({}, content="I call."))
    with pytest.raises(TemplateRefused, match="does not show the tool 'other'"):
        shown(NULL_CONTENT, QUESTION, call({}), tools=[{"name": "other"}])
    for arguments in ("[1", "[1]"):
        with pytest.raises(UserError, match="arguments of the tool call 'look' are not a JSON object"):
            shown(OBJECTS, QUESTION, call(arguments))
    for wrong in ("look", {"function": "look"}, {"function": {}}, 5):
        with pytest.raises(UserError, match="must be an object with the name of a function"):
            shown(OBJECTS, QUESTION, {"role": "assistant", "tool_calls": [wrong]})
        with pytest.raises(
            UserError, match="an object with the name of a function|should either be a JSON schema"
        ):
            shown(OBJECTS, QUESTION, call({}), tools=[wrong])


FIRST_SYSTEM = (  # as many: a system message is read in the first place alone
    "{% if messages[0].role == 'system' %}[{{ messages[0].content }}]{% set rest = messages[1:] %}"
    "{% else %}{% set rest = messages %}{% endif %}{% for m in rest %}{% if m.role != 'system' %}"
    "<{{ m.role }}>{{ m.content.split('</think>')[-1] | trim }}{% endif %}{% endfor %}"
)
FIRST_CALL = (
    "{% for m in messages %}<{{ m.role }}>{% if m.tool_calls %}{% set f = m.tool_calls[0].function %}"
    "{{ f.name }}{{ f.arguments | tojson }}{% else %}{{ m.content }}{% endif %}{% endfor %}"
)


def said(*turns: str) -> list[dict[str, Any]]:
    return [{"role": turn.partition(" ")[0], "content": turn.partition(" ")[2]} for turn in turns]


@pytest.mark.parametrize(
    ("turns", "lost"),
    [
        (["system A a.", "system B b.", "user C c?"], "message 2, which has the role system"),
        (["user C c?", "assistant D.", "system B b.", "user E e?"], "message 3, which has the role system"),
        (["system I say: C c?", "system C c?", "user C c?"], "message 2, which has the role system"),
    ],
)
def test_words_that_a_template_leaves_out_are_an_error(turns: list[str], lost: str) -> None:
    with pytest.raises(TemplateRefused, match=f"leaves out a part of {lost}"):
        shown(FIRST_SYSTEM, *said(*turns))


@pytest.mark.parametrize("role", ["user", "assistant"])
def test_a_template_that_refuses_other_words_still_must_show_each_other_message(role: str) -> None:
    refusing = f"{{% if m.role == '{role}' and 'C' not in m.content %}}{{{{ raise_exception('no C') }}}}{{% endif %}}"
    template = refusing.join(("{% for m in messages %}", "{% endfor %}")) + FIRST_SYSTEM
    turns = said("user 1 C", "assistant 1 C", "user 2 C")
    assert shown(template, *said("system A a."), *turns) == "[A a.]<user>1 C<assistant>1 C<user>2 C"
    with pytest.raises(TemplateRefused, match="leaves out a part of message 2, which has the role system"):
        shown(template, *said("system A a.", "system B b."), *turns)


@pytest.mark.parametrize(
    ("read", "words"),
    [
        ("m.content | truncate(30)", "one two three " * 5),
        ("m.content.split('\\n')[0]", "first\nsecond"),
        ("m.content.split()[-1]", "first second"),
        ("m.content[-9:]", "the last nine are shown"),
    ],
)
def test_words_that_a_template_cuts_off_are_an_error(read: str, words: str) -> None:
    template = "{% for m in messages %}{{ m.role }}: {{ " + read + " }}{% endfor %}"
    assert shown(template, {"role": "user", "content": "short"}) == "user: short"
    with pytest.raises(TemplateRefused, match="leaves out a part of message 1, which has the role user"):
        shown(template, {"role": "user", "content": words})


def test_words_that_a_template_writes_in_its_own_way_are_none() -> None:
    turns = said("system A a.", "user  C c? ", "assistant <think>hm</think>D.", "user ")
    assert shown(FIRST_SYSTEM, *turns) == "[A a.]<user>C c?<assistant>D.<user>"
    quoting = "{% for m in messages %}{{ m.content | tojson }}{% endfor %}"
    assert shown(quoting, *said('user say "hi"')) == '"say \\"hi\\""'
    assert shown(FIRST_CALL, QUESTION, call({}, content="I look.")) == "<user>What is it?<assistant>look{}"


def test_every_call_of_an_answer_is_shown_or_it_is_an_error() -> None:
    twice = call({"city": "Paris"})
    twice["tool_calls"] *= 2
    with pytest.raises(TemplateRefused, match="leaves out a part of message 2"):
        shown(FIRST_CALL, QUESTION, twice)
    assert shown(OBJECTS, QUESTION, twice).endswith('look{"city": "Paris"}look{"city": "Paris"}')


@pytest.mark.parametrize(
    "flat", [{"name": "look", "parameters": {}}, {"type": "function", "name": "look", "parameters": {}}]
)
def test_tools_and_calls_get_their_wrappers(flat: dict[str, Any]) -> None:
    tool = {"type": "function", "function": {"name": "look", "parameters": {}}}
    template = OBJECTS.replace("tools | tojson if tools", "tools[0].function | tojson if tools")
    assert shown(template, QUESTION, tools=[flat]) == shown(template, QUESTION, tools=[tool])
    bare = {"role": "assistant", "tool_calls": [{"id": "a", "name": "look", "arguments": ""}]}
    for form in (OBJECTS, STRINGS):
        assert shown(form, QUESTION, bare, tools=[flat]) == shown(form, QUESTION, call({}), tools=[tool])


def test_tools_that_a_template_does_not_show_are_an_error() -> None:
    with pytest.raises(TemplateRefused, match="does not show the tool 'look'"):
        shown(tokenizers.CHATML, QUESTION, tools=[{"name": "look"}])


def test_a_template_gets_the_options_that_it_reads() -> None:
    template = (
        "{% for m in messages %}{{ m.content }}{% endfor %}{% if enable_thinking is defined and not enable_thinking %}"
        "<no think>{% endif %}{% generation %}{{ mood }}{{ bos_token }}{% endgeneration %}"
    )
    assert shown(template, QUESTION, options={"enable_thinking": False}) == "What is it?<no think><s>"
    assert shown(template, QUESTION, options={"mood": "!"}) == "What is it?!<s>"
    for name in ("thinking", "bos_token", "messages", "tools", "m"):
        with pytest.raises(UserError, match=f"does not read '{name}'; it reads enable_thinking, mood"):
            shown(template, QUESTION, options={name: False})
    with pytest.raises(UserError, match="it reads none"):
        shown(tokenizers.CHATML, QUESTION, options={"enable_thinking": False})


def test_without_a_template_only_training_and_measuring_go_on() -> None:
    assert shown(None, QUESTION, answer=True, plain=True) == "<s>User: What is it?\n\nAssistant:"
    with pytest.raises(UserError, match="no chat template; give plain text"):
        shown(None, QUESTION)
    assert "the model has none, so this plain one is used" in template_name(make_tokenizer())


@pytest.mark.parametrize("adds_bos", [True, False])
def test_a_text_has_one_bos(adds_bos: bool) -> None:
    tokenizer = make_tokenizer(tokenizers.MARKED, adds_bos)
    for text, count in (
        ("<s>the cat", 1),
        ("<s><s>the cat", 1),
        ("the cat", int(adds_bos)),
    ):
        tokens = encode_text(tokenizer, text)
        assert tokens.count(tokenizer.bos_token_id) == count
        assert tokenizer.decode(tokens) == "<s>" * count + "the cat"
    assert encode_rendered(tokenizer, "<s>the cat").count(tokenizer.bos_token_id) == 1


def test_a_prompt_does_not_end_on_the_end_of_a_sequence() -> None:
    """A tokenizer with `add_eos_token` puts it there, and a model would begin something else after it."""
    tokenizer = make_tokenizer(tokenizers.MARKED, adds_eos=True)
    assert tokenizer("the cat")["input_ids"][-1] == tokenizer.eos_token_id
    assert tokenizer.decode(encode_text(tokenizer, "the cat")) == "<s>the cat"
    assert tokenizer.decode(encode_text(tokenizer, "the cat</s>")).count("</s>") >= 1  # as it was asked for
    records = [
        Record("x", prompt="the cat"),
        Record("x", prompt="the cat", completion=" sat"),
        Record("x", completion="a"),
    ]
    texts = [tokenizer.decode(sample.tokens) for sample in encode_records(tokenizer, records)]
    assert texts == ["<s>the cat", "<s>the cat sat</s>", "<s>a</s>"]


@pytest.mark.parametrize(
    "message",
    [
        QUESTION | {"images": ["x.png"]},
        QUESTION | {"content": [{"type": "text", "text": "What is it?", "image_url": {"url": "x"}}]},
        QUESTION
        | {"content": [{"type": "image", "image": "x.png"}, {"type": "text", "text": "What is it?"}]},
        QUESTION | {"content": [{"type": "image", "text": "a cat"}]},
    ],
)
@pytest.mark.parametrize("template", [PARTS, EITHER])
def test_what_shows_more_than_text_is_refused(template: str, message: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="reads only text|parts of type text"):
        shown(template, message)
    assert "What is it?" in shown(template, QUESTION | {"images": [], "audio": None})
