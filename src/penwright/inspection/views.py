"""Inspection results as views, in the formats that `views/modules/*.js` read, with one byte per weight.

A row of cross-attention is labelled with the token that the model outputs there, for comparison with the source.
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
from penwright.inspection.forward_pass import Token, TopPredictions
from penwright.inspection.gradients import Attribution
from penwright.inspection.head_statistics import STATISTICS, HeadStatistics, head_statistics
from penwright.inspection.logit_attribution import LONGEST_OUTCOME, Lens, LogitAttribution, readable_part
from penwright.inspection.model_map import ModelMap, PlaceDetail
from penwright.inspection.patching import Patching
from penwright.inspection.paths import Paths
from penwright.inspection.token_scores import LossByPosition, TokenScores
from penwright.views import View
from penwright.views.ink import label
from penwright.views.packing import as_table

WEAKEST = 0.1  # minimum weight for a link to be drawn; the strongest link of each token is always drawn
MODEL = "The whole model"
WITHOUT_TOKENS = ("(label)",)  # shown instead of tokens for a classifier, which has one output for the whole text


@singledispatch
def view(result: object) -> View:
    """Return the view of a result, which a notebook displays and `save` writes as .html, .svg or .png.

    Results in tuples, such as rollouts, are viewed one by one. Raises UsageError for a result without a view.
    """
    if isinstance(result, tuple):
        raise UsageError("this is a tuple of results: view each one separately")
    raise UsageError(f"there is no view of {type(result).__name__}")


@view.register
def _attention(result: AttentionMaps) -> View:
    return every_head(result.parts, [head_statistics(part) for part in result.parts], result.answers)


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
def _alignment(result: Alignment) -> View:
    strongest = result.weights.argmax(-1)
    links = [
        {"source": source, "target": target, "strength": float(weight)}
        for (target, source), weight in np.ndenumerate(result.weights)
        if weight >= WEAKEST or source == strongest[target]
    ]
    data = {"source": result.source_tokens, "target": result.tokens, "links": links}
    return View("alignment", data, {"threshold": 0}, "Where the model attends in the source for each token")


@view.register
def _beams(result: Beams) -> View:
    return View("beam", {"nodes": [node._asdict() for node in result.nodes]}, heading="What beam search tried")


@view.register
def _rollout(result: Rollout) -> View:
    rows = result.answers if result.name == "cross" else result.target_tokens
    data = {
        "name": result.name,
        "weights": pack(result.weights[: len(rows)]),
        "target_tokens": rows,
        "source_tokens": result.source_tokens,
    }
    part = "decoder to encoder" if result.name == "cross" else result.name
    return View("rollout", data, heading=f"Where content comes from, through all layers ({part})")


@view.register
def _lens(result: Lens) -> View:
    data = {**as_table(result), "tokens": result.tokens or WITHOUT_TOKENS}
    return View("lens", data, heading="What the model would predict after each layer")


@view.register
def _text(result: TokenScores) -> View:
    others = result.alternatives
    places = map(_choices, others.texts, others.ids, others.probabilities)
    data = {**as_table(result), "tokens": (*result.unscored, *result.tokens), "alternatives": list(places)}
    del data["next"], data["unscored"]  # a separate view shows what follows the text
    return View("text", data, heading="How likely each token was")


def compared(result: Comparison, names: tuple[str, str]) -> View:
    """Show the surprisals of two texts side by side, under these names."""
    return View("comparison", {**as_table(result), "names": names}, heading="Surprisal, side by side")


def compared_heads(result: Sequence[HeadComparison], names: tuple[str, str]) -> View:
    """Show the statistics of all heads side by side."""
    parts = [as_table(part) for part in result]
    return View("statistics", {"parts": parts, "names": names}, {"sort": "entropy"}, "Which heads differ")


@view.register
def _candidates(result: TopPredictions) -> View:
    data = {"before": _choices(result.texts, result.ids, result.probabilities)}
    return View("candidates", data, heading="Most likely next tokens")


@view.register
def _attribution(result: Attribution) -> View:
    n_seen = result.n_source + result.position + 1  # tokens after the position have no effect
    data = {
        "method": result.method.replace("_", " "),
        "target": result.target,
        "tokens": result.tokens[:n_seen],
        "values": result.values[:n_seen],
        "gap": result.gap,
    }
    return View("attribution", data, heading="Tokens for and against the prediction")


@view.register
def _occlusion(result: Occlusion) -> View:
    data = {"method": "leaving out", "target": result.target, "tokens": result.tokens, "values": result.values}
    return View("attribution", data, heading="What each token adds to the log-probability of the label")


@view.register
def _arithmetic(result: HeadArithmetic) -> View:
    return View("arithmetic", result, heading=f"Head {result.name}.{result.layer}.{result.head}, step by step")


@view.register
def _ablation(result: Ablation) -> View:
    before, after = (_choices(result.next_texts, result.next_ids, p) for p in (result.next_before, result.next_after))
    data = {
        "heads": [[part, int(layer), int(number)] for part, layer, number in (h.split(".") for h in result.heads)],
        "loss": [result.loss_before, result.loss_after],
        "tokens": result.tokens or WITHOUT_TOKENS[: len(result.changes)],
        "changes": result.changes,
        "next": {"before": before, "after": after},
    }
    return View("ablation", data, heading="What changes without these heads")


@view.register
def _neighbours(result: Neighbours) -> View:
    near = [
        {"text": text, "id": token, "similarity": cosine}
        for text, token, cosine in zip(result.texts, result.ids, result.cosines, strict=True)
    ]
    return View("neighbours", {"token": result.word, "neighbours": near}, heading="Nearest tokens by cosine similarity")


@view.register
def _embeddings(result: EmbeddingMap) -> View:
    note = f"Two principal components, which explain {result.explained.sum():.0%} of the variance."
    data = {"xy": result.xy, "ids": result.ids.tolist(), "labels": result.texts, "note": note}
    return View("embeddings", data, heading="Map of token vectors")


@view.register
def _positions(result: PositionalSimilarity) -> View:
    return View("positions", result, heading="How similar positions are")


@view.register
def _losses(result: LossByPosition) -> View:
    known = np.flatnonzero(result.counts)
    run = {"name": "loss", "x": known, "y": result.nats[known]}
    data = {"runs": [run], "x_label": "position", "y_label": "nats per token"}
    return View("curves", data, heading="Loss by position")


@view.register
def _model(result: ModelMap) -> View:
    return View("model", {"map": result, "pieces": {}, "circuit": None}, heading=MODEL)


@view.register
def _place(result: PlaceDetail) -> View:
    return View("place", result, heading=f"{result.place}, position {result.position}")


@view.register
def _parts(result: LogitAttribution) -> View:
    named = [readable_part(name) for name in result.names]
    data = {**as_table(result), "explanation": result.explanation, "labels": named}
    return View("parts", data, heading="What each part adds to the logit")


@view.register
def _patching(result: Patching) -> View:
    kind = result.kind.replace("_", "-")
    heading = f"What restores the prediction: {kind}, {result.part}"
    return View("patching", {**as_table(result), "explanation": result.explanation}, heading=heading)


@view.register
def _paths(result: Paths) -> View:
    sentences = [result.sentence(edge) for edge in result.edges]
    data = {**as_table(result), "explanation": result.explanation, "sentences": sentences}
    return View("circuit", data, heading=f"The strongest paths to “{label(result.target, LONGEST_OUTCOME)}”")


def importance(result: Sequence[HeadImportance]) -> View:
    """Show the increase in loss when each head is ablated, part by part."""
    parts = [{**as_table(part), "n_heads": part.changes.shape[1]} for part in result]
    return View("importance", {"parts": parts}, heading="Increase in loss when each head is removed")


def labels(result: Lens) -> View:
    """Show a classifier's prediction, taken from the last row of its logit lens. The lens must cover all labels."""
    (texts,) = np.array(result.top_tokens[-1], dtype=object)
    data = {"labels": list(texts), "probabilities": result.top_probabilities[-1, 0]}
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
    """Return the statistics that are defined for at least one head."""
    every = {name: getattr(statistics, name) for name in STATISTICS}
    return {name: values for name, values in every.items() if not np.isnan(values).all()}


def _choices(texts: Any, ids: np.ndarray, probabilities: np.ndarray) -> list[dict[str, Any]]:
    return [
        {"text": text, "id": token, "probability": share}
        for text, token, share in zip(texts, ids, probabilities, strict=True)
    ]
