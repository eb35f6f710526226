"""The bodies of requests. Pydantic parses them strictly: a field that would be ignored is an error.

Field names are OpenAI's, with some of vLLM's: `top_k`, `min_p`, `repetition_penalty`, `ignore_eos`, `min_tokens`,
`reasoning_content`, `chat_template_kwargs` and `stream_options.continuous_usage_stats`. Only Clover has `speculation`
and `stream_options.include_speculation`.
"""

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from pydantic_core import InitErrorDetails
from typing_extensions import Self

_EMPTY = [None, [], {}]  # values that ask for nothing, in any field
_NOTHING = (*_EMPTY, False, "none", "auto", "default")
# Values that ask for what this server does anyway, by field; other values of these fields are refused. False is not
# harmless in general: `skip_special_tokens` and `enable_thinking` are true by default.
_HARMLESS = {
    "add_generation_prompt": True,
    "background": False,
    "continue_final_message": False,
    "early_stopping": False,
    "include_reasoning": True,
    "include_stop_str_in_output": False,
    "return_token_ids": False,
    "return_tokens_as_token_ids": False,
    "separate_reasoning": True,
    "skip_special_tokens": True,
    "use_beam_search": False,
}
# Hints for fields that other servers read, or that client libraries unpack.
_OF_TEMPLATE = "chat templates read it: put it into chat_template_kwargs of a chat"
_GRAMMAR = "give response_format with a JSON schema, or start the server with --grammar"
_INSTEAD = {
    **dict.fromkeys(("enable_thinking", "thinking", "thinking_budget", "reasoning_effort"), _OF_TEMPLATE),
    **dict.fromkeys(("guided_json", "guided_regex", "guided_choice", "guided_grammar"), _GRAMMAR),
    **dict.fromkeys(("structured_outputs", "json_schema", "grammar", "regex", "ebnf"), _GRAMMAR),
    **dict.fromkeys(("extra_body", "sampling_params"), "put its fields among the other fields of the body"),
    **dict.fromkeys(("max_new_tokens", "max_length", "num_predict", "n_predict"), "it is max_tokens here"),
    "system": "make it the first of the messages, with the role system",
}


def _is_one_of(values: Iterable[Any], value: Any) -> bool:
    """Return True if a value equals one of its own type: 0 is not False."""
    return any(type(value) is type(one) and value == one for one in values)


def _refused(what: str, *also: Any) -> Any:
    """Declare a field that clients may name but not use; `also` are more values that ask for nothing."""
    nothing = (*_NOTHING, *also)

    def refuse(value: Any) -> None:
        if not _is_one_of(nothing, value):
            raise ValueError(f"this server does not support {what}; leave it out")

    return Annotated[None, BeforeValidator(refuse), WithJsonSchema({"enum": list(nothing)})]


def _is_as(other: str) -> AfterValidator:
    """Refuse a value that is not that of another name of the same field, which stands before it."""

    def check(value: Any, info: ValidationInfo) -> Any:
        if None not in (value, first := info.data.get(other)) and value != first:
            raise ValueError(f"it differs from {other}, which is another name of it; give one of them")
        return value

    return AfterValidator(check)


_Unknown = Annotated[Any, WithJsonSchema({"enum": _EMPTY})]


class _Body(BaseModel):
    # `_knows_all` checks the extra fields.
    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)
    __pydantic_extra__: dict[str, _Unknown]  # pyright: ignore[reportIncompatibleVariableOverride]

    @model_validator(mode="after")
    def _knows_all(self) -> Self:
        """Refuse only the first unknown field: there may be half a million, and an error for each takes seconds."""
        for name, value in (self.model_extra or {}).items():
            if not _is_one_of((*_EMPTY, _HARMLESS.get(name)), value):
                problem = InitErrorDetails(type="extra_forbidden", loc=(name,), input=None)
                if (hint := _INSTEAD.get(name)) is not None:
                    error = {"error": ValueError(hint)}
                    problem = InitErrorDetails(type="value_error", loc=(name,), input=None, ctx=error)
                raise ValidationError.from_exception_data("body", [problem])
        return self


def _only_text(value: Any) -> Any:
    if isinstance(value, dict) and value.get("type") not in (None, "text"):
        raise ValueError("this server reads plain text only; images and audio are refused")
    return value


class JsonSchema(_Body):
    """A JSON schema; it is enforced whether `strict` is true or not."""

    name: str | None = None
    description: str | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None


class ResponseFormat(_Body):
    """The required form of an answer: any text, any JSON object, or JSON that follows a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _has_a_schema(self) -> Self:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("json_schema belongs to the type json_schema")
        return self

    @property
    def grammar(self) -> str | dict[str, Any] | None:
        """Return the grammar of answers, in the form that `clover.grammar.read_grammar` reads; None for any text."""
        schema = self.json_schema and self.json_schema.schema_
        return None if self.type == "text" else schema or "json"


class TextPart(_Body):
    """A part of a message."""

    type: Literal["text"]
    text: str


class CalledFunction(_Body):
    """The function of a call, and its arguments as the text of a JSON object."""

    name: str
    arguments: str


class Call(_Body):
    """A call in an earlier answer."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction


class Message(_Body):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: (
        str
        | Annotated[
            list[Annotated[TextPart, BeforeValidator(_only_text)]], Field(min_length=1, fail_fast=True)
        ]
        | None
    ) = None
    name: str | None = None
    tool_calls: Annotated[list[Call], Field(max_length=1024, fail_fast=True)] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: Annotated[str | None, _is_as("reasoning_content")] = None  # in newer vLLM
    refusal: str | None = None
    annotations: Any = None
    function_call: _refused("function calls") = None  # type: ignore[valid-type]
    audio: _refused("audio") = None  # type: ignore[valid-type]

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.content is None and not (self.role == "assistant" and self.tool_calls):
            raise ValueError("content is missing")
        if self.tool_calls and self.role != "assistant":
            raise ValueError("tool_calls belong to the role assistant")
        if self.tool_call_id and self.role != "tool":
            raise ValueError("tool_call_id belongs to the role tool")
        if (self.reasoning_content or self.reasoning) and self.role != "assistant":
            raise ValueError("reasoning_content belongs to the role assistant")
        return self

    @property
    def said(self) -> str | list[dict[str, str]] | None:
        """Return the content for chat templates; several parts stay separate."""
        if self.content is None or isinstance(self.content, str):
            return self.content
        parts = [{"type": "text", "text": part.text} for part in self.content]
        return parts if len(parts) > 1 else parts[0]["text"]

    def for_template(self) -> dict[str, Any]:
        """Return the message for `clover.templates.render`, where the role developer is system."""
        calls = self.tool_calls and [
            call.model_dump(include={"id", "type", "function"}) for call in self.tool_calls
        ]
        role = "system" if self.role == "developer" else self.role
        said = {"role": role, "content": self.said, "tool_calls": calls, "tool_call_id": self.tool_call_id}
        return said | {"name": self.name, "reasoning_content": self.reasoning_content or self.reasoning}


class Function(_Body):
    """The function of a tool; `parameters` is a JSON schema. `strict` is accepted but not enforced, as in vLLM."""

    name: Annotated[str, Field(pattern=r"^[\w.-]{1,64}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(_Body):
    """A function that the model may call."""

    type: Literal["function"]
    function: Function

    def for_template(self) -> dict[str, Any]:
        """Return the tool for chat templates."""
        known = {"name", "description", "parameters"}
        return {"type": "function", "function": self.function.model_dump(include=known, exclude_none=True)}


class FunctionName(_Body):
    """The function that `tool_choice` names."""

    name: str


class NamedTool(_Body):
    """The tool that an answer must call."""

    type: Literal["function"]
    function: FunctionName


class StreamOptions(_Body):
    """The parts of a stream besides its text."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_speculation: bool | None = None
    include_obfuscation: bool | None = None


class GenerationBody(_Body):
    """The fields of both kinds of requests."""

    model: str | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[Annotated[int, Field(ge=1)] | None, _is_as("max_tokens")] = None
    min_tokens: Annotated[int, Field(ge=0)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, lt=2**31), AfterValidator(lambda k: max(k, 0))] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(ge=1e-3, le=1e3)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    logit_bias: (
        Annotated[
            dict[Annotated[int, Field(ge=0, strict=False)], Annotated[float, Field(ge=-100, le=100)]],
            Field(max_length=1024),
        ]
        | None
    ) = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: (
        Annotated[str, Field(min_length=1, max_length=1024)]
        | Annotated[list[Annotated[str, Field(min_length=1, max_length=1024)]], Field(max_length=16)]
        | None
    ) = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    ignore_eos: bool | None = None
    speculation: bool | None = None
    # Clients send these fields; they change nothing.
    user: str | None = None
    metadata: Annotated[dict[str, str], Field(max_length=16)] | None = None
    service_tier: str | None = None
    store: _refused("stored completions") = None  # type: ignore[valid-type]

    @field_validator("stream_options")
    @classmethod
    def _needs_stream(cls, options: StreamOptions | None, info: ValidationInfo) -> StreamOptions | None:
        if options is not None and not info.data.get("stream", True):  # absent if `stream` itself is invalid
            raise ValueError("it needs stream to be true")
        return options


# A list may have a million items, so only the first wrong one is reported.
_Tokens = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1, fail_fast=True)]


class CompletionBody(GenerationBody):
    """The body of POST /v1/completions."""

    prompt: Annotated[
        str
        | _Tokens
        | Annotated[list[str], Field(min_length=1, max_length=128, fail_fast=True)]
        | Annotated[list[_Tokens], Field(min_length=1, max_length=128, fail_fast=True)],
        Field(union_mode="left_to_right"),
    ]
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    echo: _refused("echo") = None  # type: ignore[valid-type]
    suffix: _refused("suffix", "") = None  # type: ignore[valid-type]
    best_of: int | None = None

    @field_validator("best_of")
    @classmethod
    def _is_n(cls, best: int | None, info: ValidationInfo) -> int | None:
        if "n" in info.data and best not in (None, texts := info.data["n"] or 1):
            raise ValueError(
                f"this server does not support another best_of than n, which is {texts}; leave it out"
            )
        return best


class ChatBody(GenerationBody):
    """The body of POST /v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)]
    tools: Annotated[list[Tool], Field(max_length=128, fail_fast=True)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    response_format: ResponseFormat | None = None
    chat_template_kwargs: Annotated[dict[str, Any], Field(max_length=64)] | None = None
    modalities: Annotated[list[Literal["text"]], Field(fail_fast=True)] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    functions: _refused("functions") = None  # type: ignore[valid-type]
    function_call: _refused("functions") = None  # type: ignore[valid-type]
    audio: _refused("audio") = None  # type: ignore[valid-type]
    prediction: _refused("predicted outputs") = None  # type: ignore[valid-type]
    verbosity: _refused("verbosity") = None  # type: ignore[valid-type]
    web_search_options: _refused("web search") = None  # type: ignore[valid-type]

    @field_validator("tool_choice")
    @classmethod
    def _is_offered(cls, choice: str | NamedTool | None, info: ValidationInfo) -> str | NamedTool | None:
        if "tools" not in info.data:  # absent if `tools` itself is invalid
            return choice
        names = [tool.function.name for tool in info.data["tools"] or []]
        if isinstance(choice, NamedTool) and choice.function.name not in names:
            raise ValueError(f"there is no tool {choice.function.name!r}")
        if choice == "required" and not names:
            raise ValueError("required needs tools")
        return choice

    @property
    def forced(self) -> list[Tool]:
        """Return the tools of which the answer must call one; [] if it need not."""
        if isinstance(self.tool_choice, NamedTool):
            return [tool for tool in self.tools or [] if tool.function.name == self.tool_choice.function.name]
        return self.tools or [] if self.tool_choice == "required" else []

    @property
    def offered(self) -> list[Tool]:
        """Return the tools that the model may call."""
        return [] if self.tool_choice == "none" else self.tools or []


Body = CompletionBody | ChatBody
