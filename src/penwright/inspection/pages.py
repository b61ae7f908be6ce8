"""The views on a text's inspection page: first the model's results, then the steps of the computation."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from math import isfinite

import numpy as np

from penwright.inspection.inspector import Inspector
from penwright.inspection.model_map import StackMap
from penwright.inspection.views import MODEL, every_head, labels, view
from penwright.views import View


def as_record(found: object) -> object:
    """Convert dataclasses to dicts and arrays to lists; NaN and infinity, which JSON lacks, become None."""
    if isinstance(found, np.ndarray | np.generic):
        found = _without_infinite(np.asarray(found)).tolist()  # `tolist` converts NumPy scalars to Python numbers
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


def overview(inspector: Inspector, text: str, target: str | None = None) -> Iterator[View]:
    """Yield all views that do not depend on a chosen position or head; `views.html` turns them into a page."""
    if not inspector.outcome.are_explained:
        yield heads(inspector, text, target)
        yield from map(view, inspector.rollout(text, target))
        return
    yield from _outcome(inspector, text, target)
    yield view(inspector.attribution(text, target))
    yield heads(inspector, text, target)
    yield view(inspector.lens(text, target))
    yield from map(view, inspector.rollout(text, target))
    yield view(inspector.arithmetic(text, _clearest_head(inspector, text, target), target))


def heads(inspector: Inspector, text: str, target: str | None = None, sort: str = "layer") -> View:
    """Return the view of all heads; at most one layer at a time is unpacked in memory."""
    answers = inspector.read(text, target).answers
    return every_head(inspector.packed_attention(text, target), inspector.head_statistics(text, target), answers, sort)


MOST_PIECES = 3_000_000  # maximum number of values in a picture of a whole model


def whole_model(inspector: Inspector, text: str, target: str | None = None, position: int | None = None) -> View:
    """Return the picture of a whole model, with details for as many positions as fit in a file of moderate size."""
    found = inspector.model_map(text, target, position=position)
    last, start = found.stacks[-1], found.position
    pieces, room = dict[str, object](), MOST_PIECES
    details: list[tuple[str, Callable[[], object]]] = []
    for here in [start, *(each for each in range(len(last.tokens)) if each != start)]:
        # the encoder is the same for all decoder positions, so it is included only once
        stacks = found.stacks if here == start else found.stacks[-1:]
        spots = [
            (stack, where) for stack in stacks for where in ([here] if stack is last else range(len(stack.tokens)))
        ]
        details.append((f"model {here}", partial(inspector.model_map, text, target, position=here)))
        details += [
            (f"place {place} {where}", partial(inspector.place_detail, text, place, target, position=where))
            for each, where in spots
            for place in _places(each, last=each is last)
        ]
        if here == start:
            details += [
                (f"arithmetic {head}", partial(inspector.arithmetic, text, head, target)) for head in inspector.heads
            ]
    for name, find in details:
        pieces[name] = find()
        room -= _size(pieces[name])
        if room < 0:
            break
    return View(
        "model", {"map": found, "pieces": pieces, "circuit": circuit(inspector, text, target, start)}, heading=MODEL
    )


def circuit(
    inspector: Inspector, text: str, target: str | None = None, position: int | None = None, n_edges: int = 16
) -> dict[str, object]:
    """Return the strongest paths to an outcome, a sentence about each, and each part's contribution to the logit."""
    at = 0 if inspector.kind == "classifier" else position
    strongest = inspector.paths(text, target, position=at, n_edges=n_edges)
    parts = inspector.logit_attribution(text, target, position=at)
    sentences = [strongest.sentence(edge) for edge in strongest.edges]
    record = {"target": strongest.target, "position": position, "edges": strongest.edges, "sentences": sentences}
    return {**record, "explanation": strongest.explanation, "names": parts.names, "values": parts.values}


def _places(stack: StackMap, *, last: bool) -> list[str]:
    layers = dict.fromkeys(each.layer for each in stack.sublayers)
    return [f"{stack.name}.{each}" for each in ("embedding", *layers)] + (["output"] if last else [])


def _size(record: object) -> int:
    """Return the number of values in a result."""
    if isinstance(record, np.ndarray):
        return record.size
    if is_dataclass(record):
        return sum(_size(getattr(record, field.name)) for field in fields(record))
    return sum(map(_size, record)) if isinstance(record, tuple) else 1


def _outcome(inspector: Inspector, text: str, target: str | None) -> Iterator[View]:
    if inspector.kind == "classifier":
        yield labels(inspector.lens(text, target, k=len(inspector.outcomes)))
        return
    if inspector.kind == "translator":
        yield view(inspector.alignment(text, target))
    scores = inspector.token_scores(text, target)
    yield view(scores)
    if inspector.kind == "writer":
        yield view(scores.next)


def _clearest_head(inspector: Inspector, text: str, target: str | None) -> str:
    """Return the most confident head of the last part (in a translator, the cross-attention)."""
    part = inspector.head_statistics(text, target)[-1]
    row, number = divmod(int(part.confidence.argmax()), part.confidence.shape[1])
    return f"{part.name}.{part.layers[row]}.{number}"
