"""Terminal drawings of the results of `penwright inspect`."""

from collections.abc import Iterator, Sequence
from functools import singledispatch
from typing import Any

import numpy as np
from rich.console import Console, RenderableType
from rich.text import Text

from penwright.cli.drawing import ShadedToken, heat_map, label, numbers, shaded_text, signed_bar, table_of
from penwright.inspection.ablation import Ablation
from penwright.inspection.arithmetic import HeadArithmetic
from penwright.inspection.attention_maps import Alignment, Rollout
from penwright.inspection.beams import Beams
from penwright.inspection.embeddings import Neighbours
from penwright.inspection.forward_pass import Token
from penwright.inspection.gradients import Attribution
from penwright.inspection.logit_attribution import Lens, LogitAttribution, readable_part
from penwright.inspection.model_map import ModelMap
from penwright.inspection.patching import Patching
from penwright.inspection.paths import Paths
from penwright.inspection.token_scores import TokenScores
from penwright.text import count

MAX_SURPRISAL = 8  # surprisal in nats at which the shade is darkest (a probability of about 1 in 3,000)
MAX_ROWS = 20  # maximum number of rows in a list of tokens or heads

Drawn = Iterator[RenderableType]


@singledispatch
def draw(result: Any, console: Console) -> Drawn:
    """Draw a result in a terminal. The parts of a tuple are drawn one after another."""
    for part in result:
        yield from draw(part, console)


def texts_of(tokens: Sequence[Token]) -> list[str]:
    """Return the text of each token."""
    return [token.text for token in tokens]


@draw.register
def _token_scores(result: TokenScores, console: Console) -> Drawn:
    """Draw the text, with each token coloured by its surprisal, and a legend."""
    pieces = [ShadedToken(token.text, 0.0) for token in result.unscored]
    pieces += [
        ShadedToken(token.text, -log_prob / MAX_SURPRISAL)
        for token, log_prob in zip(result.tokens, result.log_probs, strict=True)
    ]
    yield from shaded_text(pieces, console.width)
    if result.unscored:
        yield Text(f"“{label(result.unscored[0].text)}” has no surprisal: this model does not predict the first token")
    yield Text(
        f"surprisal (-log p): ▁ below 1 nat, one step higher per nat, █ at {MAX_SURPRISAL - 1} nats or more; "
        f"mean {result.loss:.3f} nats per token over {count(len(result.tokens), 'token')}"
    )


def top_tokens(result: TokenScores, console: Console) -> Drawn:
    """Draw a row for each token: probability, surprisal, rank, and the most likely tokens at its position."""
    alternatives = result.alternatives
    rows = [[label(token.text), "", "", "", ""] for token in result.unscored]
    rows += [
        [label(token.text), f"{np.exp(log_prob):.3f}", f"{-log_prob:.2f}", str(rank), _shares(texts, shares)]
        for token, log_prob, rank, texts, shares in zip(
            result.tokens,
            result.log_probs,
            result.ranks,
            _nested(alternatives.texts),
            alternatives.probabilities,
            strict=True,
        )
    ]
    next_shares = _shares(_nested([result.next.texts])[0], result.next.probabilities)
    rows.append(["(next)", "", "", "", next_shares])
    yield table_of(["token", "probability", "nats", "rank", "most likely"], rows, last="left")


@draw.register
def _arithmetic(result: HeadArithmetic, console: Console) -> Drawn:
    """Draw each step of a head's computation as a table of numbers."""
    targets, sources = texts_of(result.target_tokens), texts_of(result.source_tokens)
    dimensions = [str(number) for number in range(result.queries.shape[1])]
    yield numbers("queries Q", result.queries, targets, dimensions, console)
    yield numbers("keys K", result.keys, sources, dimensions, console)
    yield numbers("scores Q K^T", result.scores, targets, sources, console)
    yield numbers(f"scaled: scores / sqrt({len(dimensions)})", result.scaled, targets, sources, console)
    if not np.isfinite(result.masked).all():
        yield numbers("masked: -inf where attention is not allowed", result.masked, targets, sources, console)
    yield numbers("weights: softmax of each row", result.weights, targets, sources, console)
    yield numbers("values V", result.values, sources, dimensions, console)
    yield numbers("output: weights V", result.output, targets, dimensions, console)


@draw.register
def _alignment(result: Alignment, console: Console) -> Drawn:
    """Draw a translator's attention to the source as a heat map."""
    yield Text("attention to the source tokens (columns) while each target token (row) is predicted")
    yield from heat_map(result.weights, texts_of(result.tokens), texts_of(result.source_tokens), console)


@draw.register
def _beams(result: Beams, console: Console) -> Drawn:
    """Draw the search tree: a row for each node, with the text so far. Only the end of a long text is shown."""
    yield Text("hypotheses at each step of the search, with their log-probability in nats")
    limit = max(8, console.width - 30)
    rows = []
    for node in result.nodes:
        whole = label(node.text)
        state = "ended" if node.final else "kept" if node.kept else ""
        rows.append(
            [str(node.step), f"{node.log_prob:.2f}", state, whole if len(whole) <= limit else f"…{whole[-limit:]}"]
        )
    yield table_of(["step", "nats", "", "so far"], rows, last="left")


@draw.register
def _rollout(result: Rollout, console: Console) -> Drawn:
    """Draw the attention rollout of a part of the model, such as the encoder, as a heat map."""
    yield Text(
        f"attention rollout of the {result.name}: the share of each row's token that comes from each column's token"
    )
    yield from heat_map(result.weights, texts_of(result.target_tokens), texts_of(result.source_tokens), console)


@draw.register
def _lens(result: Lens, console: Console) -> Drawn:
    """Draw the prediction after each layer: a row for each position, a column for each layer."""
    n_layers, n_places = result.top_probabilities.shape[:2]
    names = texts_of(result.tokens) or ["(label)"]
    texts = [_nested(layer) for layer in _nested(result.top_tokens)]
    rows = [
        [
            label(names[place]),
            *(_share(texts[layer][place][0], result.top_probabilities[layer, place, 0]) for layer in range(n_layers)),
        ]
        for place in range(n_places)
    ]
    yield Text(
        "logit lens: the most likely prediction if the model ended after the embedding (0) or after layer 1, 2, ..."
    )
    yield table_of(["after", *map(str, range(n_layers))], rows)


@draw.register
def _attribution(result: Attribution, console: Console) -> Drawn:
    """Draw the tokens that contribute most to a prediction, with their contributions."""
    # tokens after this position cannot affect the prediction
    values = result.values[: result.n_source + result.position + 1]
    strongest = max(np.abs(values).max(initial=0), 1e-12)
    order = np.argsort(-np.abs(values), kind="stable")[:MAX_ROWS]
    rows = [
        [label(result.tokens[place].text), f"{values[place]:+.3f}", signed_bar(values[place] / strongest)]
        for place in sorted(order)
    ]
    whole = result.log_prob - result.baseline_log_prob
    yield Text(
        f"attribution: tokens that raise (█) or lower (▒) the log-probability of {label(result.target)}, in nats; "
        f"sum {result.values.sum():+.3f} of {whole:+.3f} (completeness gap {abs(result.gap):.3f})"
    )
    yield table_of(["token", "nats", ""], rows, last="left")


@draw.register
def _ablation(result: Ablation, console: Console) -> Drawn:
    """Draw how removing attention heads changes the next prediction, and the loss (in total and at each token)."""
    yield Text(
        f"without {', '.join(result.heads)}: loss {result.loss_before:.3f} before, "
        f"{result.loss_after:.3f} after, in nats"
    )
    order = np.argsort(-np.abs(result.changes), kind="stable")[:MAX_ROWS]
    if result.tokens:
        yield table_of(
            ["token", "change"],
            [[label(result.tokens[place].text), f"{result.changes[place]:+.3f}"] for place in sorted(order)],
        )
    yield table_of(
        ["next", "before", "after"],
        [
            [label(text), f"{before:.3f}", f"{after:.3f}"]
            for text, before, after in zip(result.next_texts, result.next_before, result.next_after, strict=True)
        ],
    )


@draw.register
def _neighbours(result: Neighbours, console: Console) -> Drawn:
    """Draw a table of the tokens nearest to a word, by the cosine similarity of their embeddings."""
    yield Text(f"nearest to {' + '.join(map(label, result.pieces))}, by cosine similarity")
    rows = [[label(text), f"{cosine:.3f}"] for text, cosine in zip(result.texts, result.cosines, strict=True)]
    yield table_of(["token", "cosine"], rows)


@draw.register
def _parts(result: LogitAttribution, console: Console) -> Drawn:
    """Draw the largest contributions of parts of the model to the logit of the predicted token or label."""
    order = np.argsort(-np.abs(result.values), kind="stable")[:MAX_ROWS]
    largest = float(np.abs(result.values).max()) or 1.0
    yield Text(str(result))
    rows = [
        [readable_part(result.names[at]), f"{result.values[at]:+.2f}", signed_bar(result.values[at] / largest)]
        for at in order
    ]
    yield table_of(["part", "logit", ""], rows, last="left")
    rest = result.values.sum() - result.values[order].sum()
    if len(order) < len(result.values):
        yield Text(f"all other parts ({len(result.values) - len(order)}) together add {rest:+.2f}")


@draw.register
def _paths(result: Paths, console: Console) -> Drawn:
    """Draw the strongest paths through the model, with a sentence about the strongest one."""
    yield Text(str(result))
    rows = [
        [
            readable_part(edge.source),
            edge.via,
            "the output" if edge.destination == "output" else readable_part(edge.destination),
            f"{edge.effect:+.3f}",
            f"{edge.estimate:+.3f}",
        ]
        for edge in result.edges
    ]
    yield table_of(["from", "to the", "of", "effect", "estimate"], rows)
    yield Text(
        f"effects on log p, in nats, measured for the {len(result.edges)} of {result.n_edges:,} paths "
        "with the largest estimates"
    )


@draw.register
def _patching(result: Patching, console: Console) -> Drawn:
    """Draw a table for a part of the model: the share of the original preference that each patch restores."""
    yield Text(str(result))
    heads = [f"head {number}" for number in range(result.restored.shape[1])]
    columns = heads if result.kind == "heads" else [label(token.text) for token in result.other_tokens]
    rows = [f"layer {layer}" for layer in result.layers]
    title = f"share restored by the {result.kind.replace('_', '-')} of the {result.part}"
    yield numbers(title, result.restored, rows, columns, console)


@draw.register
def _model(result: ModelMap, console: Console) -> Drawn:
    """Draw each sublayer at one position: what it adds, and what it attends to."""
    for stack in result.stacks:
        token = label(stack.tokens[stack.position].text)
        yield Text(
            f"{stack.name}, position {stack.position} ({token}): vector of length {stack.embedded[stack.position]:.3g}"
        )
        rows = []
        for each in stack.sublayers:
            sources = result.stacks[0].tokens if each.part == "cross" else stack.tokens
            mean = each.weights.mean(0) if each.kind == "attention" else np.zeros(0)
            most = [f"{label(sources[at].text)} {mean[at]:.0%}" for at in np.argsort(-mean, kind="stable")[:3]]
            lengths = [f"{vector[stack.position]:.3g}" for vector in (each.added, each.after)]
            rows.append([f"{each.part} {each.layer} {each.kind.replace('_', '-')}", *lengths, ", ".join(most)])
        yield table_of(["sublayer", "adds", "stream", "attends most to"], rows, last="left")
    shares = zip(result.outcomes.texts, result.outcomes.probabilities, strict=True)
    yield Text("predicts " + ", ".join(f"{label(str(text))} {share:.0%}" for text, share in shares))


def _nested(result: Sequence[object]) -> list[list[Any]]:
    return [list(inner) for inner in result if isinstance(inner, list)]


def _share(text: str, probability: float) -> str:
    return f"{label(text)} {100 * probability:.0f}%"


def _shares(texts: Sequence[str], probabilities: np.ndarray) -> str:
    return "  ".join(_share(text, probability) for text, probability in zip(texts, probabilities, strict=True))
