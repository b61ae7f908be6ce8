"""Terminal drawings of the results of `penwright inspect`."""

from collections.abc import Iterator, Sequence
from math import isnan
from typing import Any

import numpy as np
from rich.console import Console, RenderableType
from rich.text import Text

from penwright.cli.drawing import ShadedToken, heat_map, label, numbers, shaded_text, signed_bar, table_of
from penwright.cli.options import counted
from penwright.inspection.ablation import Ablation, HeadImportance
from penwright.inspection.arithmetic import HeadArithmetic
from penwright.inspection.attention_maps import Alignment, AttentionMaps, Head, Rollout
from penwright.inspection.beams import Beams
from penwright.inspection.comparison import Comparison, HeadComparison
from penwright.inspection.embeddings import Neighbours
from penwright.inspection.gradients import Attribution
from penwright.inspection.head_statistics import STATISTICS, HeadStatistics
from penwright.inspection.lens import Lens
from penwright.inspection.token_scores import TokenScores
from penwright.inspection.tokens import Token

MAX_SURPRISE = 8  # surprisal in nats at which the shade is darkest (a probability of about 1 in 3,000)
MAX_ROWS = 20  # maximum number of rows in a list of tokens or heads

Drawn = Iterator[RenderableType]


def _texts(tokens: Sequence[Token]) -> list[str]:
    return [token.text for token in tokens]


def surprise(result: TokenScores, console: Console) -> Drawn:
    """Draw the text, with each token coloured by its surprisal, and a legend."""
    pieces = [
        ShadedToken(token.text, -log_prob / MAX_SURPRISE)
        for token, log_prob in zip(result.tokens, result.log_probs, strict=True)
    ]
    yield from shaded_text(pieces, console.width)
    yield Text(
        f"surprisal (-log p): ▁ below 1 nat, one step higher per nat, █ at {MAX_SURPRISE - 1} nats or more; "
        f"mean {result.loss:.3f} nats per token over {counted(len(result.tokens), 'token')}"
    )


def top_tokens(result: TokenScores, console: Console) -> Drawn:
    """Draw a row for each token: probability, surprisal, rank, and the most likely tokens at its position."""
    alternatives = result.alternatives
    rows = [
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
    yield table_of(["token", "probability", "nats", "rank", "top_tokens"], rows, last="left")


def heads(result: Sequence[HeadStatistics], statistic: str, shown: int | None) -> Drawn:
    """Draw the statistics of the heads, sorted by one statistic in descending order."""
    rows = [
        (f"{part.name}.{layer}.{number}", [getattr(part, name)[place, number] for name in STATISTICS])
        for part in result
        for place, layer in enumerate(part.layers)
        for number in range(part.entropy.shape[1])
    ]
    chosen = STATISTICS.index(statistic)
    rows = sorted((row for row in rows if not isnan(row[1][chosen])), key=lambda row: -row[1][chosen])
    if not rows:
        yield Text(f"the statistic '{statistic}' is undefined for all heads on this text")
        return
    table = [[name, *("" if isnan(value) else f"{value:.2f}" for value in values)] for name, values in rows[:shown]]
    yield Text(f"heads by {statistic}" + (f", top {shown} of {len(rows)}" if len(table) < len(rows) else ""))
    yield table_of(["head", *STATISTICS], table)


def head(result: AttentionMaps, which: Head, console: Console) -> Drawn:
    """Draw the attention weights of one head as a heat map."""
    (part,) = result.parts
    yield Text(f"attention of head {which}: each row is a token, the columns are the tokens it attends to")
    yield from heat_map(part.weights[0, which.number], _texts(part.target_tokens), _texts(part.source_tokens), console)


def compared(result: Comparison, names: tuple[str, str]) -> Drawn:
    """Draw a table that compares two texts or models: the surprisal of each token in both, and the difference."""
    one, other = result.sums
    yield Text(f"surprisal in nats: {names[0]} {one:.3f}, {names[1]} {other:.3f}, difference {other - one:+.3f}")
    rows = [
        [
            label(texts[0]),
            *map(_nats, numbers[:2]),
            label(texts[1]) if texts[1] != texts[0] else "=",
            _nats(numbers[2], "+"),
        ]
        for texts, numbers in zip(
            zip(result.first_texts, result.second_texts, strict=True),
            zip(result.first, result.second, result.differences, strict=True),
            strict=True,
        )
    ]
    yield table_of([names[0], "nats", "nats", names[1], "difference"], rows)


def compared_heads(result: Sequence[HeadComparison], names: tuple[str, str]) -> Drawn:
    """Draw the statistics of the heads that differ most between two texts or models."""
    rows = [
        (f"{part.name}.{layer}.{head}", statistic, values[row, head], part.second[statistic][row, head])
        for part in result
        for statistic, values in part.first.items()
        for row, layer in enumerate(part.layers)
        for head in range(values.shape[1])
    ]
    rows = sorted((row for row in rows if not isnan(row[3] - row[2])), key=lambda row: -abs(row[3] - row[2]))
    yield Text(f"largest differences in head statistics, top {min(MAX_ROWS, len(rows))} of {len(rows)}")
    yield table_of(
        ["head", "statistic", *names, "difference"],
        [[head, name, f"{one:.2f}", f"{two:.2f}", f"{two - one:+.2f}"] for head, name, one, two in rows[:MAX_ROWS]],
    )


def _nats(value: float, sign: str = "") -> str:
    return "" if isnan(value) else f"{value:{sign}.2f}"


def arithmetic(result: HeadArithmetic, console: Console) -> Drawn:
    """Draw each step of a head's computation as a table of numbers."""
    targets, sources = _texts(result.target_tokens), _texts(result.source_tokens)
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


def alignment(result: Alignment, console: Console) -> Drawn:
    """Draw a translator's attention to the source as a heat map."""
    yield Text("attention to the source tokens (columns) while each target token (row) is predicted")
    yield from heat_map(result.weights, _texts(result.tokens), _texts(result.source_tokens), console)


def beams(result: Beams, console: Console) -> Drawn:
    """Draw the search tree: a row for each node, with the text so far. Only the end of a long text is shown."""
    yield Text("hypotheses at each step of the search, with their log-probability in nats")
    limit, texts = max(8, console.width - 30), [""] * len(result.nodes)
    rows = []
    for node in result.nodes:
        texts[node.id] = (texts[node.parent] if node.parent is not None else "") + node.token
        whole = label(texts[node.id])
        state = "ended" if node.final else "kept" if node.kept else ""
        rows.append(
            [str(node.step), f"{node.log_prob:.2f}", state, whole if len(whole) <= limit else f"…{whole[-limit:]}"]
        )
    yield table_of(["step", "nats", "", "so far"], rows, last="left")


def rollout(result: Sequence[Rollout], console: Console) -> Drawn:
    """Draw the attention rollout of each part of the model, such as the encoder, as a heat map."""
    for part in result:
        yield Text(
            f"attention rollout of the {part.name}: the share of each row's token that comes from each column's token"
        )
        yield from heat_map(part.weights, _texts(part.target_tokens), _texts(part.source_tokens), console)


def lens(result: Lens, console: Console) -> Drawn:
    """Draw the prediction after each layer: a row for each position, a column for each layer."""
    n_layers, n_places = result.top_probabilities.shape[:2]
    names = _texts(result.tokens) or ["(label)"]
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


def attribution(result: Attribution, console: Console) -> Drawn:
    """Draw the tokens that contribute most to a prediction, with their contributions."""
    values = result.values[
        : result.n_source + result.position + 1
    ]  # tokens after this position cannot affect the prediction
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


def ablation(result: Ablation, console: Console) -> Drawn:
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


def importance(result: Sequence[HeadImportance], console: Console) -> Drawn:
    """Draw the increase in loss when each head is removed, most important head first."""
    rows = [
        (f"{part.name}.{layer}.{number}", change)
        for part in result
        for layer, changes in zip(part.layers, part.changes, strict=True)
        for number, change in enumerate(changes)
    ]
    yield Text("increase in loss when each head is removed, in nats")
    yield table_of(
        ["head", "change"], [[name, f"{change:+.4f}"] for name, change in sorted(rows, key=lambda row: -row[1])]
    )


def neighbours(result: Neighbours, console: Console) -> Drawn:
    """Draw a table of the tokens nearest to a word, by the cosine similarity of their embeddings."""
    yield Text(f"nearest to {' + '.join(map(label, result.pieces))}, by cosine similarity")
    rows = [[label(text), f"{cosine:.3f}"] for text, cosine in zip(result.texts, result.cosines, strict=True)]
    yield table_of(["token", "cosine"], rows)


def _nested(result: Sequence[object]) -> list[list[Any]]:
    return [list(inner) for inner in result if isinstance(inner, list)]


def _share(text: str, probability: float) -> str:
    return f"{label(text)} {100 * probability:.0f}%"


def _shares(texts: Sequence[str], probabilities: np.ndarray) -> str:
    return "  ".join(_share(text, probability) for text, probability in zip(texts, probabilities, strict=True))
