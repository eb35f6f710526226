"""Errors in the form of OpenAI's interface: a status, and one JSON object that says what is wrong."""

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import HTTPException
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.responses import JSONResponse

from clover.validation import describe_problem


class ApiError(HTTPException):
    """An error that is sent to the client; `param` names the field of the body that is wrong."""

    def __init__(
        self,
        status: int,
        message: str,
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ):
        super().__init__(status, message, dict(headers or {}))
        self.message, self.code, self.param = message, code, param

    def to_dict(self) -> dict[str, object]:
        """Return the body of the response."""
        kinds = {401: "authentication_error", 429: "rate_limit_error"}
        kind = (
            "server_error"
            if self.status_code >= 500
            else kinds.get(self.status_code, "invalid_request_error")
        )
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        """Return the whole response."""
        return JSONResponse(self.to_dict(), self.status_code, self.headers)


def no_model(served: str) -> ApiError:
    """Return the error for a request that names another model."""
    message = f"this server has no model of that name; it has {served}"
    return ApiError(404, message, "model_not_found", "model")


def invalid_body(problems: Sequence[Any]) -> ApiError:
    """Return the error for the problems that pydantic found in a body; their places begin with "body"."""
    problem = describe_problem([one | {"loc": one["loc"][1:]} for one in problems])
    if problem.kind == "json_invalid":
        return ApiError(400, problem.message, "invalid_json")
    return ApiError(400, problem.message, "invalid_value", problem.field)


def to_api_error(error: StarletteHTTPException, method: str, path: str) -> ApiError:
    """Convert an error of the framework to ApiError."""
    if isinstance(error, ApiError):
        return error
    message = error.detail
    if error.status_code in (404, 405):
        asked = f"{method} {path}"[:100].encode("utf-8", "replace").decode()
        message = f"there is no {asked} here; the API is at /v1/completions and /v1/chat/completions"
    return ApiError(error.status_code, message, headers=error.headers)
