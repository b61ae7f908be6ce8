"""Inspection results as views, in the formats that `views/modules/*.js` read, with one byte per weight.

A row of cross-attention is labelled with the token that is chosen at its position, for comparison with the source.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import singledispatch
from typing import Any

import numpy as np

from penwright.errors import UsageError
from penwright.inspection.ablation import Ablation, HeadImportance, Occlusion
from penwright.inspection.arithmetic import HeadArithmetic
from penwright.inspection.attention_maps import Alignment, AttentionMaps, AttentionPart, Head, PackedPart, Rollout, pack
from penwright.inspection.beams import Beams
from penwright.inspection.comparison import Comparison, HeadComparison
from penwright.inspection.embeddings import EmbeddingMap, Neighbours, PositionalSimilarity
from penwright.inspection.forward_pass import TopPredictions
from penwright.inspection.gradients import Attribution
from penwright.inspection.head_statistics import STATISTICS, HeadStatistics, head_statistics
from penwright.inspection.lens import Lens
from penwright.inspection.logit_attribution import LogitAttribution, readable_part
from penwright.inspection.model_map import ModelMap, PlaceDetail
from penwright.inspection.patching import Patching
from penwright.inspection.paths import Paths
from penwright.inspection.token_scores import LossByPosition, TokenScores
from penwright.inspection.tokens import Token
from penwright.views import View
from penwright.views.packing import as_table

WEAKEST = 0.1  # minimum weight for a link to be drawn; the strongest link of each token is always drawn
MODEL = "The whole model"
WITHOUT_TOKENS = ("(label)",)  # shown instead of tokens for a classifier, which has one position


@singledispatch
def view(found: object) -> View:
    """Return the view of a result, which a notebook displays and `save` writes as .html, .svg or .png.

    Results in tuples, such as rollouts, are viewed one by one. Raises UsageError for a result without a view.
    """
    if isinstance(found, tuple):
        raise UsageError("this is a tuple of results: view each one separately")
    raise UsageError(f"there is no view of {type(found).__name__}")


@view.register
def _attention(found: AttentionMaps) -> View:
    return every_head(found.parts, [head_statistics(part) for part in found.parts], found.answers)


def every_head(
    parts: Iterable[AttentionPart | PackedPart],
    statistics: Iterable[HeadStatistics],
    answers: Sequence[Token],
    sort: str = "layer",
) -> View:
    """Show all heads side by side, sorted by a statistic; a translator's cross-attention comes first."""
    pairs = sorted(zip(parts, statistics, strict=True), key=lambda pair: pair[0].name != "cross")
    data = {
        "parts": [_with_answers(_packed(part), answers) for part, _ in pairs],
        "statistics": [_known(numbers) for _, numbers in pairs],
    }
    return View("attention", data, {"sort": sort}, "Where each head attends")


def one_head(maps: AttentionMaps, head: Head) -> View:
    """Show a head as a matrix; `maps` must include its layer."""
    part = _with_answers(_packed(maps.part(head.part)), maps.answers)
    return View(
        "head",
        {**_sides(part), "layer": head.layer, "head": head.number, "weights": _head_weights(part, head)},
        heading=f"Where head {head} attends",
    )


@view.register
def _alignment(found: Alignment) -> View:
    strongest = found.weights.argmax(-1)
    links = [
        {"source": source, "target": target, "strength": float(weight)}
        for (target, source), weight in np.ndenumerate(found.weights)
        if weight >= WEAKEST or source == strongest[target]
    ]
    data = {"source": found.source_tokens, "target": found.tokens, "links": links}
    return View("alignment", data, {"threshold": 0}, "Where the model attends in the source for each token")


@view.register
def _beams(found: Beams) -> View:
    return View("beam", {"nodes": [node._asdict() for node in found.nodes]}, heading="What beam search tried")


@view.register
def _rollout(found: Rollout) -> View:
    rows = found.answers if found.name == "cross" else found.target_tokens
    data = {
        "name": found.name,
        "weights": pack(found.weights[: len(rows)]),
        "target_tokens": rows,
        "source_tokens": found.source_tokens,
    }
    which = "decoder to encoder" if found.name == "cross" else found.name
    return View("rollout", data, heading=f"Where content comes from, through all layers ({which})")


@view.register
def _lens(found: Lens) -> View:
    data = {**as_table(found), "tokens": found.tokens or WITHOUT_TOKENS}
    return View("lens", data, heading="What the model would predict after each layer")


@view.register
def _text(found: TokenScores) -> View:
    others = found.alternatives
    places = map(_choices, others.texts, others.ids, others.probabilities)
    data = {**as_table(found), "alternatives": list(places)}
    del data["next"]  # a separate view shows what follows the text
    return View("text", data, heading="How likely each token was")


def compared(found: Comparison, names: tuple[str, str]) -> View:
    """Show the surprisals of two texts side by side, under these names."""
    return View("comparison", {**as_table(found), "names": names}, heading="Surprisal, side by side")


def compared_heads(found: Sequence[HeadComparison], names: tuple[str, str], sort: str = "entropy") -> View:
    """Show the statistics of all heads side by side."""
    parts = [as_table(part) for part in found]
    return View("statistics", {"parts": parts, "names": names}, {"sort": sort}, "Which heads differ")


@view.register
def _candidates(found: TopPredictions) -> View:
    data = {"before": _choices(found.texts, found.ids, found.probabilities)}
    return View("candidates", data, heading="Most likely next tokens")


@view.register
def _attribution(found: Attribution) -> View:
    n_seen = found.n_source + found.position + 1  # tokens after the position have no effect
    data = {
        "method": found.method.replace("_", " "),
        "target": found.target,
        "tokens": found.tokens[:n_seen],
        "values": found.values[:n_seen],
        "gap": found.gap,
    }
    return View("attribution", data, heading="Tokens for and against the prediction")


@view.register
def _occlusion(found: Occlusion) -> View:
    data = {"method": "leaving out", "target": found.target, "tokens": found.tokens, "values": found.values}
    return View("attribution", data, heading="What each token adds to the log-probability of the label")


@view.register
def _arithmetic(found: HeadArithmetic) -> View:
    return View("arithmetic", found, heading=f"Head {found.name}.{found.layer}.{found.head}, step by step")


@view.register
def _ablation(found: Ablation) -> View:
    before, after = (_choices(found.next_texts, found.next_ids, p) for p in (found.next_before, found.next_after))
    data = {
        "heads": [[part, int(layer), int(number)] for part, layer, number in (h.split(".") for h in found.heads)],
        "loss": [found.loss_before, found.loss_after],
        "tokens": found.tokens or WITHOUT_TOKENS[: len(found.changes)],
        "changes": found.changes,
        "next": {"before": before, "after": after},
    }
    return View("ablation", data, heading="What changes without these heads")


@view.register
def _neighbours(found: Neighbours) -> View:
    near = [
        {"text": text, "id": token, "similarity": cosine}
        for text, token, cosine in zip(found.texts, found.ids, found.cosines, strict=True)
    ]
    return View("neighbours", {"token": found.word, "neighbours": near}, heading="The nearest tokens, by cosine")


@view.register
def _embeddings(found: EmbeddingMap) -> View:
    note = f"Two principal components, which explain {found.explained.sum():.0%} of the variance."
    data = {"xy": found.xy, "ids": found.ids.tolist(), "labels": found.texts, "note": note}
    return View("embeddings", data, heading="Map of token vectors")


@view.register
def _positions(found: PositionalSimilarity) -> View:
    return View("positions", found, heading="How similar positions are")


@view.register
def _losses(found: LossByPosition) -> View:
    known = np.flatnonzero(found.counts)
    run = {"name": "loss", "x": known, "y": found.nats[known]}
    data = {"runs": [run], "x_label": "position", "y_label": "nats per token"}
    return View("curves", data, heading="Loss by position")


@view.register
def _model(found: ModelMap) -> View:
    return View("model", {"map": found, "pieces": {}, "circuit": None}, heading=MODEL)


@view.register
def _place(found: PlaceDetail) -> View:
    return View("place", found, heading=f"{found.place}, position {found.position}")


@view.register
def _parts(found: LogitAttribution) -> View:
    named = [readable_part(name) for name in found.names]
    data = {**as_table(found), "explanation": found.explanation, "labels": named}
    return View("parts", data, heading="What each part adds to the logit")


@view.register
def _patching(found: Patching) -> View:
    kind = found.kind.replace("_", "-")
    heading = f"What restores the prediction: {kind}, {found.part}"
    return View("patching", {**as_table(found), "explanation": found.explanation}, heading=heading)


@view.register
def _paths(found: Paths) -> View:
    sentences = [found.sentence(edge) for edge in found.edges]
    data = {**as_table(found), "explanation": found.explanation, "sentences": sentences}
    return View("circuit", data, heading=f"The strongest paths to “{found.target}”")


def importance(found: Sequence[HeadImportance]) -> View:
    """Show the increase in loss when each head is ablated, part by part."""
    parts = [{**as_table(part), "n_heads": part.changes.shape[1]} for part in found]
    return View("importance", {"parts": parts}, heading="Increase in loss when each head is removed")


def labels(found: Lens) -> View:
    """Show a classifier's prediction, taken from the last row of its logit lens. The lens must cover all labels."""
    (texts,) = np.array(found.top_tokens[-1], dtype=object)
    data = {"labels": list(texts), "probabilities": found.top_probabilities[-1, 0]}
    return View("labels", data, heading="Predicted label")


def _packed(part: AttentionPart | PackedPart) -> PackedPart:
    return part if isinstance(part, PackedPart) else PackedPart(**{**as_table(part), "weights": pack(part.weights)})


def _with_answers(part: PackedPart, answers: Sequence[Token]) -> PackedPart:
    if part.name != "cross":
        return part
    return replace(part, weights=part.weights[:, :, : len(answers)], target_tokens=tuple(answers))


def _sides(part: PackedPart) -> dict[str, Any]:
    return {"name": part.name, "target_tokens": part.target_tokens, "source_tokens": part.source_tokens}


def _head_weights(part: PackedPart, head: Head) -> np.ndarray:
    weights: np.ndarray = part.weights[part.layers.index(head.layer), head.number]
    return weights


def _known(statistics: HeadStatistics) -> dict[str, np.ndarray]:
    """Return the statistics that are defined for this text and part."""
    every = {name: getattr(statistics, name) for name in STATISTICS}
    return {name: values for name, values in every.items() if not np.isnan(values).all()}


def _choices(texts: Any, ids: np.ndarray, probabilities: np.ndarray) -> list[dict[str, Any]]:
    return [
        {"text": text, "id": token, "probability": share}
        for text, token, share in zip(texts, ids, probabilities, strict=True)
    ]
