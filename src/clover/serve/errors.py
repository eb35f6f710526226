"""Errors as clients of OpenAI's interface know them: a status, and one JSON object that says what is wrong."""

import re
from collections.abc import Mapping

from pydantic import ValidationError
from pydantic_core import ErrorDetails
from starlette.responses import JSONResponse

from clover.errors import one_line

_BRANCH = re.compile(r"str|constrained-str|.*\[.*")  # how pydantic names what a field may be
_MOST = 1000  # problems of one body that are looked at: to list half a million takes seconds


class ApiError(Exception):
    """What a client is told; `param` names the field of the body that is wrong."""

    def __init__(
        self,
        status: int,
        message: str,
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ):
        super().__init__(message)
        self.status, self.message, self.code, self.param = status, message, code, param
        self.headers = dict(headers or {})

    def to_dict(self) -> dict[str, object]:
        """The body of the response."""
        kind = {401: "authentication_error", 429: "rate_limit_error"}.get(
            self.status, "invalid_request_error"
        )
        kind = "server_error" if self.status >= 500 else kind
        said = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return {"error": said}

    def response(self) -> JSONResponse:
        """The whole response."""
        return JSONResponse(self.to_dict(), self.status, self.headers)


def no_model(served: str) -> ApiError:
    """The error for another model than the one that is served."""
    message = f"there is no model of that name here; this server has {served}"
    return ApiError(404, message, "model_not_found", "model")


def unreadable(error: ValidationError) -> ApiError:
    """What is wrong with a body: a refusal if there is one, else of a field that may be several things the closest."""
    if error.error_count() > _MOST:
        return ApiError(400, f"the body is wrong in {error.error_count()} places", "invalid_value")
    found = error.errors(include_url=False, include_input=False)
    first = max(found, key=_closeness)
    place = ".".join(str(part) for part in first["loc"] if not _BRANCH.fullmatch(str(part)))
    problem = first["msg"].removeprefix("Value error, ").replace("Input should be", "it must be")
    if first["type"] == "extra_forbidden":
        problem = "this server does not know the field; leave it out"
    if first["type"] in ("too_short", "string_too_short"):
        problem = "it must not be empty"
    if first["type"] == "json_invalid":
        return ApiError(400, one_line(ValueError(problem)), "invalid_json")
    param = str(first["loc"][0]) if first["loc"] else None
    message = one_line(ValueError(f"{place}: {problem}" if place else problem))
    return ApiError(400, printable(message), "invalid_value", None if param is None else printable(param))


def _closeness(error: ErrorDetails) -> tuple[bool, int, bool]:
    """Higher is nearer to what was meant: a refusal, then what was read furthest, then a value of the right type."""
    wrong_type = error["type"] in ("string_type", "list_type")
    return error["type"] == "value_error", len(error["loc"]), not wrong_type


def printable(text: str, most: int = 300) -> str:
    """What can be sent of what the client itself said, which may be long, or half a character."""
    return text[:most].encode("utf-8", "replace").decode()
