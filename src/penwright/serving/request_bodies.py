"""Parsers of request bodies: JSON and HTML forms."""

import json
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser

FORM, PARTS = "application/x-www-form-urlencoded", "multipart/form-data"
MAX_FIELDS = 1000  # maximum number of fields of a form
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")  # JSON escape of a surrogate, which is half of a character


def kind_of(content_type: str, body: bytes) -> str:
    """Return the media type of a body: a form type, or else JSON. An object is JSON even if the header names a form.

    `curl -d '{"text": ""}'` sends JSON with the content type of a form.
    """
    kind = content_type.partition(";")[0].strip().lower()
    is_object = kind == FORM and body.lstrip()[:1] == b"{"
    return kind if kind in (FORM, PARTS) and not is_object else "application/json"


def problem_of_json(body: bytes) -> str | None:
    """Return why a JSON body is not valid Unicode, or None if it is valid. Syntax errors are detected later."""
    try:
        body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return f"the body is not UTF-8: byte {error.start} is invalid"
    if _SURROGATE.search(body) is None:
        return None
    try:
        json.dumps(json.loads(body), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return "the body contains half of a surrogate pair (\\ud800 to \\udfff alone), which is not valid Unicode"
    except (ValueError, RecursionError):
        return None
    return None


async def read_fields(content_type: str, body: bytes) -> Mapping[str, Any]:
    """Return the fields of a JSON object or a form. A form field that occurs several times becomes a list.

    Raises ValueError or RecursionError for any other body.
    """
    kind = kind_of(content_type, body)
    if kind == "application/json":
        found = json.loads(body)
        if not isinstance(found, dict):
            raise ValueError("the body is not a JSON object")
        return found
    fields: Mapping[str, list[Any]]
    if kind == FORM:
        fields = parse_qs(body.decode(), keep_blank_values=True, max_num_fields=MAX_FIELDS)
    else:
        fields = await _parts(content_type, body)
    return {name: values if len(values) > 1 else values[0] for name, values in fields.items()}


async def _parts(content_type: str, body: bytes) -> Mapping[str, list[Any]]:
    async def stream() -> Any:
        yield body

    try:
        parser = MultiPartParser(Headers({"content-type": content_type}), stream(), max_fields=MAX_FIELDS, max_files=0)
        form = await parser.parse()
    except (MultiPartException, HTTPException, KeyError, LookupError, AttributeError) as error:
        raise ValueError(f"the form cannot be read: {error}") from None
    return {name: form.getlist(name) for name in form}
