"""Error responses: a plain message in the format that the clients of each route expect."""

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from penwright.errors import PenwrightError
from penwright.serving.checks import ClientsDisconnected
from penwright.serving.model_registry import UnknownModel
from penwright.serving.model_worker import Busy, Stopping

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
AGAIN_SECONDS = {429: "1", 503: "5"}  # values of the Retry-After header, in seconds
Problem = Mapping[str, Any]  # one error of a pydantic ValidationError
KINDS = {  # pydantic's types, described for users of JSON
    "string": "a string",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "list": "a list",
    "tuple": "a list",
    "dict": "an object",
    "model": "an object",
    "model_attributes": "an object",
}
PROBLEMS = {  # plain descriptions of pydantic's errors
    "missing": "is missing",
    "extra_forbidden": "is not a known field",
    "json_invalid": "the body is not valid JSON: {error}",
    "int_from_float": "must be a whole number",
    "int_parsing_size": "is too large",
    "finite_number": "must be a finite number",
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "too_long": "must have at most {max_length} entries",
    "too_short": "must not be empty",
    "string_too_long": "must have at most {max_length} characters",
    "string_too_short": "must have at least {min_length} characters",
    "literal_error": "must be {expected}",
    "enum": "must be {expected}",
    "string_unicode": "must be a Unicode string",
}


class RequestTooLarge(PenwrightError):
    """A request exceeds a limit of the server."""


class ContextExceeded(PenwrightError):
    """The messages of a request do not fit in the context of the model."""


class NotTraining(PenwrightError):
    """The run that a client asks to stop is not being trained."""


class ErrorDetail(BaseModel):
    """The description of an error."""

    message: str
    type: str
    param: str | None = None  # name of the invalid field
    code: str | None = None


class ErrorResponse(BaseModel):
    """The error response of all routes except LibreTranslate's."""

    error: ErrorDetail


class PlainErrorResponse(BaseModel):
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
CONTEXT_EXCEEDED = "context_length_exceeded"  # OpenAI's code, which clients know
Answers = dict[int | str, dict[str, Any]]
ERROR_RESPONSES: Answers = {
    status: {"model": ErrorResponse, "description": reason} for status, reason in REASONS.items()
}
PLAIN_ERROR_RESPONSES: Answers = {
    status: {"model": PlainErrorResponse, "description": reason} for status, reason in REASONS.items()
}
STATUS: Mapping[type[Exception], int] = {
    UnknownModel: 404,
    RequestTooLarge: 413,
    NotTraining: 409,
    Busy: 429,
    Stopping: 503,
    ClientsDisconnected: 503,
    TimeoutError: 504,
}


def error_response(
    path: str, status: int, message: str, param: str | None = None, code: str | None = None
) -> JSONResponse:
    """Return an error response in the format that clients of this path expect."""
    message = message.encode("utf-8", "backslashreplace").decode()
    kind = TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    if path in LIBRETRANSLATE:
        content = PlainErrorResponse(error=message).model_dump()
    else:
        content = ErrorResponse(error=ErrorDetail(message=message, type=kind, param=param, code=code)).model_dump()
    headers = {"Retry-After": AGAIN_SECONDS[status]} if status in AGAIN_SECONDS else {}
    if status == 401:
        headers["WWW-Authenticate"] = 'Basic realm="penwright", charset="UTF-8"'  # makes browsers ask for the key
    return JSONResponse(content, status, headers)


def status_and_message(error: Exception) -> tuple[int, str]:
    """Return the HTTP status and the message for an error."""
    status = next((status for kind, status in STATUS.items() if isinstance(error, kind)), None)
    if isinstance(error, TimeoutError):
        return 504, "the request took longer than the server allows (deadline_seconds). Send a smaller request"
    if isinstance(error, PenwrightError):
        return status or 400, str(error)
    return 500, "internal server error. See the server's log"


def add_error_handlers(app: FastAPI) -> None:
    """Register the handlers that turn errors into error responses."""
    app.add_exception_handler(PenwrightError, _handle_error)
    app.add_exception_handler(TimeoutError, _handle_error)
    app.add_exception_handler(RequestValidationError, _invalid_fields)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _handle_error)


async def _handle_error(request: Request, error: Exception) -> JSONResponse:
    code = CONTEXT_EXCEEDED if isinstance(error, ContextExceeded) else None
    return error_response(request.url.path, *status_and_message(error), code=code)


async def _invalid_fields(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    path, problems = request.url.path, error.errors()
    source = str(problems[0]["loc"][0])  # part of the request with the problem: body, query or path
    inside = [{**each, "loc": each["loc"][1:]} for each in problems if str(each["loc"][0]) == source]
    given = error.body if source == "body" else dict(request.query_params) | request.path_params
    if problems[0]["type"] == "json_invalid":
        inside = [{**inside[0], "loc": ()}]
    place, reason = first_problem(inside, given)
    if not place and problems[0]["type"] == "missing":
        reason = "the request has no body. Send JSON"
    clients_know_400 = path in LIBRETRANSLATE or path.startswith("/v1/")
    message = f"{place}: {reason}" if place else reason
    return error_response(path, 400 if clients_know_400 else 422, message[:500], place[:200] or None)


async def _http_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    path, method = request.url.path, request.method
    message = {
        404: f"no route matches {method} {path[:200]}. {_alternative(path)}All routes are listed in /openapi.json",
        405: f"{path[:200]} does not accept {method}. All routes are listed in /openapi.json",
        400: "the body cannot be read. Send JSON",
    }.get(error.status_code, str(error.detail))
    answer = error_response(path, error.status_code, message)
    answer.headers.update(error.headers or {})
    return answer


def _alternative(path: str) -> str:
    """Return a hint about routes to use instead, if this is an OpenAI route that the server lacks; otherwise ""."""
    if not path.startswith("/v1/"):
        return ""
    return "To generate text, use POST /v1/completions or /v1/chat/completions. "


def first_problem(problems: Sequence[Problem], given: object) -> tuple[str, str]:
    """Return the location of the most relevant problem (in the form `field.1`) and its description.

    If a field allows several types, pydantic reports a problem for each type. A list of the wrong length, or else the
    problem with the deepest location, concerns the type that the client meant.
    """
    places = [_place(problem, given) for problem in problems]
    first = places[0][:1]
    same_field = [number for number, place in enumerate(places) if place[:1] == first]
    lengths = [number for number in same_field if problems[number]["type"] in ("too_long", "too_short")]
    same_field = lengths or same_field
    deepest = max((places[number] for number in same_field), key=len)
    likeliest = [problems[number] for number in same_field if places[number] == deepest]
    expected = list(dict.fromkeys(_kind(problem) for problem in likeliest))
    reason = _reason(likeliest[0]) if None in expected else f"must be {' or '.join(map(str, expected))}"
    return ".".join(map(str, deepest)), reason


def _place(problem: Problem, given: object) -> tuple[int | str, ...]:
    """Return the keys and indices that lead to a value, without the type names that pydantic inserts."""
    location: Sequence[int | str] = problem["loc"]
    kept: list[int | str] = []
    for number, step in enumerate(location):
        is_absent = number == len(location) - 1 and problem["type"] == "missing"
        if isinstance(given, dict) and (step in given or is_absent) and isinstance(step, str):
            kept, given = [*kept, step], given.get(step)
        elif isinstance(given, list | tuple) and isinstance(step, int) and step < len(given):
            kept, given = [*kept, step], given[step]
    return tuple(kept)


def _kind(problem: Problem) -> str | None:
    """Return the expected type of a value, or None if the problem is not about its type."""
    name = str(problem["type"])
    for ending in ("_type", "_parsing"):
        if name.endswith(ending):
            return KINDS.get(name.removesuffix(ending))
    return "a whole number" if name == "int_from_float" else None


def _reason(problem: Problem) -> str:
    kind, name, details = _kind(problem), str(problem["type"]), problem.get("ctx") or {}
    if kind is not None:
        return f"must be {kind}"
    if name == "value_error":
        return str(problem["msg"]).removeprefix("Value error, ")
    return PROBLEMS.get(name, "has an invalid value").format_map(_Known(details))


class _Known(dict[str, Any]):
    """The details of a problem. Missing details are formatted as an ellipsis."""

    def __missing__(self, key: str) -> str:
        return "…"
