"""The views of a page about a text: what the model makes of it first, then how it comes to that."""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from math import isfinite

import numpy as np

from penwright.inspection.inspector import Inspector
from penwright.inspection.views import every_head, labels, view
from penwright.views import View


def as_record(found: object) -> object:
    """Dataclasses become tables, arrays nested lists, and numbers that JSON lacks (NaN, infinite) None."""
    if isinstance(found, np.ndarray | np.generic):
        found = _without_infinite(np.asarray(found)).tolist()  # its numbers are now Python's
    elif isinstance(found, Mapping):
        found = {str(key): as_record(value) for key, value in found.items()}
    elif is_dataclass(found) and not isinstance(found, type):
        found = {field.name: as_record(getattr(found, field.name)) for field in fields(found)}
    elif isinstance(found, list | tuple):
        found = [as_record(value) for value in found]
    return None if isinstance(found, float) and not isfinite(found) else found


def _without_infinite(array: np.ndarray) -> np.ndarray:
    if array.dtype.kind != "f" or np.isfinite(array).all():
        return array
    holed = array.astype(object)
    holed[~np.isfinite(array)] = None
    return holed


def overview(look: Inspector, text: str, target: str | None = None) -> Iterator[View]:
    """All that can be seen without asking for a place or a head; `views.html` makes a page of it."""
    yield from _outcome(look, text, target)
    yield view(look.attribution(text, target))
    yield heads(look, text, target)
    yield view(look.lens(text, target))
    yield from map(view, look.rollout(text, target))
    yield view(look.arithmetic(text, _clearest_head(look, text, target), target))


def heads(look: Inspector, text: str, target: str | None = None, sort: str = "layer") -> View:
    """Every head, never with more than one layer in full in memory."""
    answers = look.read(text, target).answers
    return every_head(look.packed_attention(text, target), look.head_statistics(text, target), answers, sort)


def _outcome(look: Inspector, text: str, target: str | None) -> Iterator[View]:
    if look.shape == "classifier":
        yield labels(look.lens(text, target, k=len(look.outcomes)))
        return
    if look.shape == "translator":
        yield view(look.alignment(text, target))
    scores = look.token_scores(text, target)
    yield view(scores)
    if look.shape == "writer":
        yield view(scores.next)


def _clearest_head(look: Inspector, text: str, target: str | None) -> str:
    """The most confident one of the last part, a translator's cross-attention."""
    part = look.head_statistics(text, target)[-1]
    row, number = divmod(int(part.confidence.argmax()), part.confidence.shape[1])
    return f"{part.name}.{part.layers[row]}.{number}"
