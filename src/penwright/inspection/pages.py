"""The views of a page about a text: first the results of the model, then the steps of the computation."""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from math import isfinite

import numpy as np

from penwright.inspection.inspector import Inspector
from penwright.inspection.views import every_head, labels, view
from penwright.views import View


def as_record(found: object) -> object:
    """Convert dataclasses to dicts and arrays to lists; NaN and infinity, which JSON lacks, become None."""
    if isinstance(found, np.ndarray | np.generic):
        found = _without_infinite(np.asarray(found)).tolist()  # converts to Python numbers
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
    with_none = array.astype(object)
    with_none[~np.isfinite(array)] = None
    return with_none


def overview(look: Inspector, text: str, target: str | None = None) -> Iterator[View]:
    """Yield all views that do not depend on a chosen position or head; `views.html` makes a page of them."""
    if not look.outcomes:  # an encoder without labels has no outcomes
        yield heads(look, text, target)
        yield from map(view, look.rollout(text, target))
        return
    yield from _outcome(look, text, target)
    yield view(look.attribution(text, target))
    yield heads(look, text, target)
    yield view(look.lens(text, target))
    yield from map(view, look.rollout(text, target))
    yield view(look.arithmetic(text, _clearest_head(look, text, target), target))


def heads(look: Inspector, text: str, target: str | None = None, sort: str = "layer") -> View:
    """Return the view of all heads; at most one layer at a time is unpacked in memory."""
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
    """Return the most confident head of the last part (in a translator, the cross-attention)."""
    part = look.head_statistics(text, target)[-1]
    row, number = divmod(int(part.confidence.argmax()), part.confidence.shape[1])
    return f"{part.name}.{part.layers[row]}.{number}"
