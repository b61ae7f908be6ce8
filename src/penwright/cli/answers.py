"""What `penwright inspect` finds, drawn in a terminal."""

from collections.abc import Iterator, Sequence
from math import isnan
from typing import Any

import numpy as np
from rich.console import Console, RenderableType
from rich.text import Text

from penwright.cli.drawing import ShadedToken, coloured, heat_map, label, numbers, signed_bar, table_of
from penwright.inspection.ablation import Ablation, HeadImportance
from penwright.inspection.arithmetic import HeadArithmetic
from penwright.inspection.attention_maps import Alignment, AttentionMaps, Rollout
from penwright.inspection.beams import Beams
from penwright.inspection.comparison import Comparison, HeadComparison
from penwright.inspection.embeddings import Neighbours
from penwright.inspection.gradients import Attribution
from penwright.inspection.head_statistics import STATISTICS, HeadStatistics
from penwright.inspection.heads import Head
from penwright.inspection.lens import Lens
from penwright.inspection.token_scores import TokenScores
from penwright.inspection.tokens import Token

MOST_SURPRISING = 8  # nats, about one in 3,000: all beyond is drawn alike
LISTED = 20  # tokens or heads of a list that could be long

Drawn = Iterator[RenderableType]


def _texts(tokens: Sequence[Token]) -> list[str]:
    return [token.text for token in tokens]


def surprise(found: TokenScores, console: Console) -> Drawn:
    pieces = [
        ShadedToken(token.text, -log_prob / MOST_SURPRISING)
        for token, log_prob in zip(found.tokens, found.log_probs, strict=True)
    ]
    yield from coloured(pieces, console.width)
    yield Text(
        f"surprise: ▁ below 1 nat, each step one more, █ from {MOST_SURPRISING - 1} nats; "
        f"{found.loss:.3f} nats a token, {len(found.tokens)} tokens"
    )


def likeliest(found: TokenScores, console: Console) -> Drawn:
    alternatives = found.alternatives
    rows = [
        [label(token.text), f"{np.exp(log_prob):.3f}", f"{-log_prob:.2f}", str(rank), _shares(texts, shares)]
        for token, log_prob, rank, texts, shares in zip(
            found.tokens,
            found.log_probs,
            found.ranks,
            _nested(alternatives.texts),
            alternatives.probabilities,
            strict=True,
        )
    ]
    ahead = _shares(_nested([found.next.texts])[0], found.next.probabilities)
    rows.append(["(next)", "", "", "", ahead])
    yield table_of(["token", "probability", "nats", "rank", "likeliest"], rows, last="left")


def heads(found: Sequence[HeadStatistics], statistic: str, shown: int | None) -> Drawn:
    rows = [
        (f"{part.name}.{layer}.{number}", [getattr(part, name)[place, number] for name in STATISTICS])
        for part in found
        for place, layer in enumerate(part.layers)
        for number in range(part.entropy.shape[1])
    ]
    chosen = STATISTICS.index(statistic)
    rows = sorted((row for row in rows if not isnan(row[1][chosen])), key=lambda row: -row[1][chosen])
    if not rows:
        yield Text(f"no head has a '{statistic}' over this text")
        return
    table = [[name, *("" if isnan(value) else f"{value:.2f}" for value in values)] for name, values in rows[:shown]]
    yield Text(f"heads by {statistic}" + (f", the first {shown} of {len(rows)}" if len(table) < len(rows) else ""))
    yield table_of(["head", *STATISTICS], table)


def head(found: AttentionMaps, which: Head, console: Console) -> Drawn:
    (part,) = found.parts
    yield Text(f"attention of head {which}: a row for each token that looks, a column for each it looks at")
    yield from heat_map(part.weights[0, which.number], _texts(part.target_tokens), _texts(part.source_tokens), console)


def compared(found: Comparison, names: tuple[str, str]) -> Drawn:
    one, other = found.sums
    yield Text(f"surprise in nats: {names[0]} {one:.3f}, {names[1]} {other:.3f}, difference {other - one:+.3f}")
    rows = [
        [
            label(texts[0]),
            *map(_nats, numbers[:2]),
            label(texts[1]) if texts[1] != texts[0] else "=",
            _nats(numbers[2], "+"),
        ]
        for texts, numbers in zip(
            zip(found.first_texts, found.second_texts, strict=True),
            zip(found.first, found.second, found.differences, strict=True),
            strict=True,
        )
    ]
    yield table_of([names[0], "nats", "nats", names[1], "difference"], rows)


def compared_heads(found: Sequence[HeadComparison], names: tuple[str, str]) -> Drawn:
    rows = [
        (f"{part.name}.{layer}.{head}", statistic, values[row, head], part.second[statistic][row, head])
        for part in found
        for statistic, values in part.first.items()
        for row, layer in enumerate(part.layers)
        for head in range(values.shape[1])
    ]
    rows = sorted((row for row in rows if not isnan(row[3] - row[2])), key=lambda row: -abs(row[3] - row[2]))
    yield Text(f"heads by how much a statistic differs, the first {min(LISTED, len(rows))} of {len(rows)}")
    yield table_of(
        ["head", "statistic", *names, "difference"],
        [[head, name, f"{one:.2f}", f"{two:.2f}", f"{two - one:+.2f}"] for head, name, one, two in rows[:LISTED]],
    )


def _nats(value: float, sign: str = "") -> str:
    return "" if isnan(value) else f"{value:{sign}.2f}"


def arithmetic(found: HeadArithmetic, console: Console) -> Drawn:
    targets, sources = _texts(found.target_tokens), _texts(found.source_tokens)
    dimensions = [str(number) for number in range(found.queries.shape[1])]
    yield numbers("queries Q", found.queries, targets, dimensions, console)
    yield numbers("keys K", found.keys, sources, dimensions, console)
    yield numbers("scores Q K^T", found.scores, targets, sources, console)
    yield numbers(f"scaled: scores / sqrt({len(dimensions)})", found.scaled, targets, sources, console)
    if not np.isfinite(found.masked).all():
        yield numbers("masked: -inf where a token may not look", found.masked, targets, sources, console)
    yield numbers("weights: softmax of each row", found.weights, targets, sources, console)
    yield numbers("values V", found.values, sources, dimensions, console)
    yield numbers("output: weights V", found.output, targets, dimensions, console)


def alignment(found: Alignment, console: Console) -> Drawn:
    yield Text("where the model looks in the source while it chooses each token")
    yield from heat_map(found.weights, _texts(found.tokens), _texts(found.source_tokens), console)


def beams(found: Beams, console: Console) -> Drawn:
    """A row for each node, with the text up to it, whose end is shown where it is long."""
    yield Text("what the search tried at each step, with nats of all so far")
    room, texts = max(8, console.width - 30), [""] * len(found.nodes)
    rows = []
    for node in found.nodes:
        texts[node.id] = (texts[node.parent] if node.parent is not None else "") + node.token
        whole = label(texts[node.id])
        state = "ended" if node.final else "went on" if node.kept else ""
        rows.append(
            [str(node.step), f"{node.log_prob:.2f}", state, whole if len(whole) <= room else f"…{whole[-room:]}"]
        )
    yield table_of(["step", "nats", "", "so far"], rows, last="left")


def rollout(found: Sequence[Rollout], console: Console) -> Drawn:
    for part in found:
        yield Text(f"rollout of the {part.name}: where the content of each token comes from")
        yield from heat_map(part.weights, _texts(part.target_tokens), _texts(part.source_tokens), console)


def lens(found: Lens, console: Console) -> Drawn:
    n_layers, n_places = found.top_probabilities.shape[:2]
    names = _texts(found.tokens) or ["(label)"]
    texts = [_nested(layer) for layer in _nested(found.top_tokens)]
    rows = [
        [
            label(names[place]),
            *(_share(texts[layer][place][0], found.top_probabilities[layer, place, 0]) for layer in range(n_layers)),
        ]
        for place in range(n_places)
    ]
    yield Text("the likeliest next token, if the model stopped after the embedding (0) or after so many layers")
    yield table_of(["after", *map(str, range(n_layers))], rows)


def attribution(found: Attribution, console: Console) -> Drawn:
    values = found.values[: found.n_source + found.position + 1]  # what comes later has no say
    strongest = max(np.abs(values).max(initial=0), 1e-12)
    order = np.argsort(-np.abs(values), kind="stable")[:LISTED]
    rows = [
        [label(found.tokens[place].text), f"{values[place]:+.3f}", signed_bar(values[place] / strongest)]
        for place in sorted(order)
    ]
    whole = found.log_prob - found.baseline_log_prob
    yield Text(
        f"what speaks for (█) and against (▒) {label(found.target)}, in nats; "
        f"together {found.values.sum():+.3f} of {whole:+.3f} (gap {abs(found.gap):.3f})"
    )
    yield table_of(["token", "nats", ""], rows, last="left")


def ablation(found: Ablation, console: Console) -> Drawn:
    yield Text(
        f"without {', '.join(found.heads)}: loss {found.loss_before:.3f} before, {found.loss_after:.3f} after, in nats"
    )
    order = np.argsort(-np.abs(found.changes), kind="stable")[:LISTED]
    if found.tokens:
        yield table_of(
            ["token", "change"],
            [[label(found.tokens[place].text), f"{found.changes[place]:+.3f}"] for place in sorted(order)],
        )
    yield table_of(
        ["next", "before", "after"],
        [
            [label(text), f"{before:.3f}", f"{after:.3f}"]
            for text, before, after in zip(found.next_texts, found.next_before, found.next_after, strict=True)
        ],
    )


def importance(found: Sequence[HeadImportance], console: Console) -> Drawn:
    rows = [
        (f"{part.name}.{layer}.{number}", change)
        for part in found
        for layer, changes in zip(part.layers, part.changes, strict=True)
        for number, change in enumerate(changes)
    ]
    yield Text("by how much the loss grows without each head, in nats")
    yield table_of(
        ["head", "change"], [[name, f"{change:+.4f}"] for name, change in sorted(rows, key=lambda row: -row[1])]
    )


def neighbours(found: Neighbours, console: Console) -> Drawn:
    yield Text(f"nearest to {' + '.join(map(label, found.pieces))}, by cosine")
    rows = [[label(text), f"{cosine:.3f}"] for text, cosine in zip(found.texts, found.cosines, strict=True)]
    yield table_of(["token", "cosine"], rows)


def _nested(found: Sequence[object]) -> list[list[Any]]:
    return [list(inner) for inner in found if isinstance(inner, list)]


def _share(text: str, probability: float) -> str:
    return f"{label(text)} {100 * probability:.0f}%"


def _shares(texts: Sequence[str], probabilities: np.ndarray) -> str:
    return "  ".join(_share(text, probability) for text, probability in zip(texts, probabilities, strict=True))
