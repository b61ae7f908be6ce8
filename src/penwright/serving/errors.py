"""Error responses, in the format that clients of each route expect."""

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from penwright.errors import PenwrightError
from penwright.serving.dynamic_batching import ClientsDisconnected
from penwright.serving.field_errors import first_problem
from penwright.serving.model_worker import Busy, Stopping, UnknownModel

LIBRETRANSLATE = frozenset({"/translate", "/detect", "/languages", "/frontend/settings"})
TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    429: "rate_limit_error",
    503: "unavailable_error",
    504: "timeout_error",
}
AGAIN_SECONDS = {429: "1", 503: "5"}  # values of the Retry-After header


class RequestTooLarge(PenwrightError):
    """A request exceeds a limit of the server."""


class NotTraining(PenwrightError):
    """The run to stop is not being trained."""


class Explanation(BaseModel):
    """The description of an error."""

    message: str
    type: str
    param: str | None = None  # the invalid field
    code: str | None = None


class Refusal(BaseModel):
    """The error response of all routes except LibreTranslate's."""

    error: Explanation


class PlainRefusal(BaseModel):
    """The error response of LibreTranslate's routes."""

    error: str


REASONS = {
    400: "The request cannot be fulfilled",
    401: "The key is missing or wrong",
    403: "The request comes from another site",
    404: "The model, run or route does not exist",
    408: "The request did not arrive in time",
    409: "The run is not being trained",
    413: "The request is too large",
    422: "A field is missing, unknown or invalid",
    429: "Too many requests are waiting",
    500: "Internal server error",
    503: "The server is shutting down",
    504: "The request took too long",
}
Answers = dict[int | str, dict[str, Any]]
REFUSALS: Answers = {status: {"model": Refusal, "description": reason} for status, reason in REASONS.items()}
PLAIN_REFUSALS: Answers = {status: {"model": PlainRefusal, "description": reason} for status, reason in REASONS.items()}
STATUS: Mapping[type[Exception], int] = {
    UnknownModel: 404,
    RequestTooLarge: 413,
    NotTraining: 409,
    Busy: 429,
    Stopping: 503,
    ClientsDisconnected: 503,
    TimeoutError: 504,
}


def refusal(path: str, status: int, message: str, param: str | None = None) -> JSONResponse:
    """Return an error response in the format that clients of this path expect."""
    message = message.encode("utf-8", "backslashreplace").decode()
    kind = TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    if path in LIBRETRANSLATE:
        content = PlainRefusal(error=message).model_dump()
    else:
        content = Refusal(error=Explanation(message=message, type=kind, param=param)).model_dump()
    headers = {"Retry-After": AGAIN_SECONDS[status]} if status in AGAIN_SECONDS else {}
    if status == 401:
        headers["WWW-Authenticate"] = 'Basic realm="penwright", charset="UTF-8"'  # makes browsers ask for the key
    return JSONResponse(content, status, headers)


def error_response_of(error: Exception) -> tuple[int, str]:
    """Return the HTTP status and the message for an error."""
    status = next((status for kind, status in STATUS.items() if isinstance(error, kind)), None)
    if isinstance(error, TimeoutError):
        return 504, "the request took longer than the server allows (deadline_seconds). Ask for less"
    if isinstance(error, PenwrightError):
        return status or 400, str(error)
    return 500, "internal server error. See the server's log"


def explain_errors(app: FastAPI) -> None:
    """Register the handlers that turn errors into error responses."""
    app.add_exception_handler(PenwrightError, _error_response)
    app.add_exception_handler(TimeoutError, _error_response)
    app.add_exception_handler(RequestValidationError, _invalid_fields)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _error_response)


async def _error_response(request: Request, error: Exception) -> JSONResponse:
    return refusal(request.url.path, *error_response_of(error))


async def _invalid_fields(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    path, problems = request.url.path, error.errors()
    source = str(problems[0]["loc"][0])  # body, query or path
    inside = [{**each, "loc": each["loc"][1:]} for each in problems if str(each["loc"][0]) == source]
    given = error.body if source == "body" else dict(request.query_params) | request.path_params
    if problems[0]["type"] == "json_invalid":
        inside = [{**inside[0], "loc": ()}]
    place, reason = first_problem(inside, given)
    if not place and problems[0]["type"] == "missing":
        reason = "the request has no body. Send JSON"
    clients_know_400 = path in LIBRETRANSLATE or path.startswith("/v1/")
    message = f"{place}: {reason}" if place else reason
    return refusal(path, 400 if clients_know_400 else 422, message[:500], place[:200] or None)


async def _http_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    path, method = request.url.path, request.method
    message = {
        404: f"no route matches {method} {path[:200]}. {_alternative(path)}All routes are listed in /openapi.json",
        405: f"{path[:200]} does not accept {method}. All routes are listed in /openapi.json",
        400: "the body cannot be read. Send JSON",
    }.get(error.status_code, str(error.detail))
    answer = refusal(path, error.status_code, message)
    answer.headers.update(error.headers or {})
    return answer


def _alternative(path: str) -> str:
    """Return what to use instead of a route that OpenAI's servers have and this one lacks."""
    if not path.startswith("/v1/"):
        return ""
    return "To generate text, use POST /v1/completions or /v1/chat/completions. "
