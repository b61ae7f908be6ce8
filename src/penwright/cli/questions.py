"""What `penwright inspect` can be asked about a text: how each answer is found and drawn, here or in a page."""

from collections.abc import Callable, Iterator, Sequence
from math import isnan
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console, RenderableType
from rich.text import Text

from penwright.cli.drawing import Piece, coloured, heat_map, label, numbers, signed_bar, table_of
from penwright.errors import UsageError
from penwright.inspection import Inspector, pages, view
from penwright.inspection.ablation import Ablation, HeadImportance
from penwright.inspection.arithmetic import HeadArithmetic
from penwright.inspection.attention_maps import Alignment, AttentionMaps
from penwright.inspection.drawn import one_head
from penwright.inspection.embeddings import Neighbours
from penwright.inspection.gradients import Attribution
from penwright.inspection.head_statistics import STATISTICS, HeadStatistics
from penwright.inspection.heads import parse_head
from penwright.inspection.lens import Lens
from penwright.inspection.rollout import Rollout
from penwright.inspection.token_scores import TokenScores
from penwright.inspection.tokens import Token
from penwright.views import View

MOST_SURPRISING = 8  # nats, about one in 3,000: all beyond is drawn alike
LISTED = 20  # tokens or heads of a list that could be long
FIRST_HEADS = 5

Drawn = Iterator[RenderableType]


def _one_view(found: Any) -> list[View]:
    return [view(found)]


class Question(NamedTuple):
    """One thing to be found out, and how the answer is drawn: in the terminal, and as views."""

    name: str
    find: Callable[[], Any]
    draw: Callable[[Any, Console], Drawn]
    views: Callable[[Any], list[View]] = _one_view  # where several, the last says most


class Questions:
    """All that can be asked about one text."""

    def __init__(self, inspector: Inspector, text: str, target: str | None):
        self.inspector, self.text, self.target = inspector, text, target

    def usual(self) -> list[Question]:
        """Without anything asked: surprise, or a classifier's attribution, and a few heads."""
        if not self.text.strip() and self.inspector.shape != "classifier":
            raise UsageError("there is nothing to look at: the text is empty")
        first = self.attribution(None) if self.inspector.shape == "classifier" else self.scores(5)
        return [first, self.heads("diagonal" if self.inspector.shape == "translator" else "previous", FIRST_HEADS)]

    def scores(self, k: int) -> Question:
        return Question("scores", lambda: self.inspector.token_scores(self.text, self.target, k), _surprise)

    def likeliest(self, k: int) -> Question:
        return self.scores(k)._replace(draw=_likeliest)

    def heads(self, statistic: str, shown: int | None = None) -> Question:
        if statistic not in STATISTICS:
            raise UsageError(f"heads have no statistic '{statistic}'; they have {', '.join(STATISTICS)}")

        def draw(found: Sequence[HeadStatistics], console: Console) -> Drawn:
            return _heads(found, statistic, shown)

        def views(found: Sequence[HeadStatistics]) -> list[View]:
            return [pages.heads(self.inspector, self.text, self.target, statistic)]

        return Question("heads", lambda: self.inspector.head_statistics(self.text, self.target), draw, views)

    def head(self, name: str) -> Question:
        head = parse_head(name, self.inspector.model)

        def find() -> AttentionMaps:
            maps = self.inspector.attention(self.text, self.target, [head.layer])
            return AttentionMaps((maps.part(head.part),), maps.answers)

        def draw(found: AttentionMaps, console: Console) -> Drawn:
            (part,) = found.parts
            yield Text(f"attention of head {head}: a row for each token that looks, a column for each it looks at")
            yield from heat_map(
                part.weights[0, head.number], _texts(part.target_tokens), _texts(part.source_tokens), console
            )

        return Question(f"head {head}", find, draw, lambda found: [one_head(found, head)])

    def arithmetic(self, name: str) -> Question:
        return Question("arithmetic", lambda: self.inspector.arithmetic(self.text, name, self.target), _arithmetic)

    def alignment(self) -> Question:
        return Question("alignment", lambda: self.inspector.alignment(self.text, self.target), _alignment)

    def rollout(self) -> Question:
        def views(found: Sequence[Rollout]) -> list[View]:
            return [view(part) for part in found]

        return Question("rollout", lambda: self.inspector.rollout(self.text, self.target), _rollout, views)

    def lens(self) -> Question:
        return Question("lens", lambda: self.inspector.lens(self.text, self.target), _lens)

    def attribution(self, position: int | None) -> Question:
        def find() -> Attribution:
            return self.inspector.attribution(self.text, self.target, position=position)

        return Question("attribution", find, _attribution)

    def ablation(self, heads: str) -> Question:
        """Of these heads together, parted by commas, or of `each` alone."""
        if heads == "each":
            importance = self.inspector.head_importance
            return Question("importance", lambda: importance(self.text, self.target), _importance, _no_view)
        return Question("ablation", lambda: self.inspector.ablate(self.text, heads.split(","), self.target), _ablation)


def neighbours(inspector: Inspector, word: str) -> Question:
    """The one question that needs no text."""
    return Question(f"neighbours of {word}", lambda: inspector.neighbours(word), _neighbours)


def _texts(tokens: Sequence[Token]) -> list[str]:
    return [token.text for token in tokens]


def _surprise(found: TokenScores, console: Console) -> Drawn:
    pieces = [
        Piece(token.text, -log_prob / MOST_SURPRISING)
        for token, log_prob in zip(found.tokens, found.log_probs, strict=True)
    ]
    yield from coloured(pieces, console.width)
    yield Text(
        f"surprise: ▁ below 1 nat, each step one more, █ from {MOST_SURPRISING - 1} nats; "
        f"{found.loss:.3f} nats a token, {len(found.tokens)} tokens"
    )


def _likeliest(found: TokenScores, console: Console) -> Drawn:
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


def _heads(found: Sequence[HeadStatistics], statistic: str, shown: int | None) -> Drawn:
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


def _arithmetic(found: HeadArithmetic, console: Console) -> Drawn:
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


def _alignment(found: Alignment, console: Console) -> Drawn:
    yield Text("where the model looks in the source while it chooses each token")
    yield from heat_map(found.weights, _texts(found.tokens), _texts(found.source_tokens), console)


def _rollout(found: Sequence[Rollout], console: Console) -> Drawn:
    for part in found:
        yield Text(f"rollout of the {part.name}: where the content of each token comes from")
        yield from heat_map(part.weights, _texts(part.target_tokens), _texts(part.source_tokens), console)


def _lens(found: Lens, console: Console) -> Drawn:
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


def _attribution(found: Attribution, console: Console) -> Drawn:
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


def _ablation(found: Ablation, console: Console) -> Drawn:
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


def _no_view(found: Sequence[HeadImportance]) -> list[View]:
    raise UsageError("there is no picture of --ablate each: name heads, such as --ablate 0.1,2.3, or leave out -o")


def _importance(found: Sequence[HeadImportance], console: Console) -> Drawn:
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


def _neighbours(found: Neighbours, console: Console) -> Drawn:
    yield Text(f"nearest to {' + '.join(map(label, found.pieces))}, by cosine")
    rows = [[label(text), f"{cosine:.3f}"] for text, cosine in zip(found.texts, found.cosines, strict=True)]
    yield table_of(["token", "cosine"], rows)


def _nested(found: Sequence[object]) -> list[list[Any]]:
    return [list(inner) for inner in found if isinstance(inner, list)]


def _share(text: str, probability: float) -> str:
    return f"{label(text)} {100 * probability:.0f}%"


def _shares(texts: Sequence[str], probabilities: np.ndarray) -> str:
    return "  ".join(_share(text, probability) for text, probability in zip(texts, probabilities, strict=True))
