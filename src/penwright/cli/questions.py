"""The questions that `penwright inspect` answers about a text."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import isnan
from typing import Any, NamedTuple

from rich.console import Console
from rich.text import Text

from penwright.cli import answers
from penwright.cli.answers import MAX_ROWS, Drawn, texts_of
from penwright.cli.drawing import heat_map, label, table_of
from penwright.errors import UsageError
from penwright.inspection import Inspector, pages, view
from penwright.inspection.ablation import HeadImportance
from penwright.inspection.attention_maps import AttentionMaps, Head, parse_head
from penwright.inspection.comparison import Comparison, HeadComparison, compare, compare_heads
from penwright.inspection.head_statistics import STATISTICS, HeadStatistics
from penwright.inspection.patching import parse_kind
from penwright.inspection.views import compared, compared_heads, one_head
from penwright.views import View

FIRST_HEADS = 5


def _views(result: Any) -> list[View]:
    return [view(part) for part in result] if isinstance(result, tuple) else [view(result)]


class Question(NamedTuple):
    """A question about a model, with functions that find the answer and draw it in a terminal or as views."""

    name: str
    find: Callable[[], Any]
    draw: Callable[[Any, Console], Drawn] = answers.draw
    views: Callable[[Any], list[View]] = _views  # the last of the views is the main one


class Questions:
    """The questions that can be asked about one text."""

    def __init__(self, inspector: Inspector, text: str, target: str | None):
        self.inspector, self.text, self.target = inspector, text, target

    def default_questions(self) -> list[Question]:
        """Return the default questions: surprisal (for a classifier: attribution) and the statistics of a few heads."""
        inspector, text, target = self.inspector, self.text, self.target
        if not text.strip() and inspector.kind != "classifier":
            raise UsageError("there is nothing to inspect: the text is empty")
        heads = self.heads("diagonal" if inspector.kind == "translator" else "previous", FIRST_HEADS)
        if not inspector.outcome.are_explained:
            return [heads]
        if inspector.kind == "classifier":
            return [Question("attribution", partial(inspector.attribution, text, target)), heads]
        return [Question("scores", partial(inspector.token_scores, text, target)), heads]

    def asked(self, options: Mapping[str, Any], position: int | None, patch_kind: str | None) -> list[Question]:
        """Return the questions that the command-line options ask: for an option with a list, one question per item."""
        inspector, about = self.inspector, (self.text, self.target)

        def patching(other: str) -> Question:
            kind = parse_kind(patch_kind or "residual")
            find = partial(inspector.patching, self.text, other, self.target, kind=kind, position=position)
            return Question("patching", find)

        question_about: Mapping[str, Callable[[Any], Question]] = {
            "top": lambda k: Question("scores", partial(inspector.token_scores, *about, k), answers.top_tokens),
            "sort": self.heads,
            "head": self.head,
            "arithmetic": lambda head: Question(
                "arithmetic", partial(inspector.arithmetic, self.text, head, self.target)
            ),
            "alignment": lambda _: Question("alignment", partial(inspector.alignment, *about)),
            "beams": lambda beam_size: Question("beams", partial(inspector.beams, self.text, beam_size)),
            "rollout": lambda _: Question("rollout", partial(inspector.rollout, *about)),
            "lens": lambda _: Question("lens", partial(inspector.lens, *about)),
            "attribute": lambda _: Question("attribution", partial(inspector.attribution, *about, position=position)),
            "ablate": self.ablation,
            "parts": lambda _: Question("parts", partial(inspector.logit_attribution, *about, position=position)),
            "paths": lambda _: Question("paths", partial(inspector.paths, *about, position=position)),
            "patch": patching,
            "whole": lambda _: self.whole(position),
        }
        several = {
            name: value if isinstance(value, list) else [value]
            for name, value in options.items()
            if value or value == ""
        }
        return [question_about[name](value) for name, values in several.items() for value in values]

    def heads(self, statistic: str, shown: int | None = None) -> Question:
        """Return a question about all heads: their statistics, sorted by one of them, in at most `shown` rows."""
        if statistic not in STATISTICS:
            raise UsageError(f"there is no head statistic '{statistic}'. Choose one of {', '.join(STATISTICS)}")
        inspector, text, target = self.inspector, self.text, self.target
        return Question(
            "heads",
            partial(inspector.head_statistics, text, target),
            lambda result, _: draw_heads(result, statistic, shown),
            lambda _: [pages.heads(inspector, text, target, statistic)],
        )

    def head(self, name: str) -> Question:
        """Return a question about the attention of one head."""
        head = parse_head(name, self.inspector.model)

        def find() -> AttentionMaps:
            maps = self.inspector.attention(self.text, self.target, [head.layer])
            return AttentionMaps((maps.part(head.part),), maps.answers)

        def draw(result: AttentionMaps, console: Console) -> Drawn:
            return draw_head(result, head, console)

        return Question(f"head {head}", find, draw, lambda result: [one_head(result, head)])

    def beside(self, other: "Questions", names: tuple[str, str]) -> list[Question]:
        """Return questions that compare two texts or models: surprisals, if any, and the heads that differ most."""

        def tokens() -> Comparison:
            one, two = (side.inspector.token_nlls(side.text, side.target) for side in (self, other))
            return compare(one, two)

        def heads() -> tuple[HeadComparison, ...]:
            one, two = (side.inspector.head_statistics(side.text, side.target) for side in (self, other))
            return compare_heads(one, two)

        questions = [
            Question(
                "compared",
                tokens,
                lambda result, _: draw_compared(result, names),
                lambda result: [compared(result, names)],
            ),
            Question(
                "heads compared",
                heads,
                lambda result, _: draw_compared_heads(result, names),
                lambda result: [compared_heads(result, names)],
            ),
        ]
        have_surprisals = self.inspector.outcome.are_explained and other.inspector.outcome.are_explained
        return questions if have_surprisals else questions[1:]

    def whole(self, position: int | None) -> Question:
        """Return a question about the whole forward pass."""
        inspector, text, target = self.inspector, self.text, self.target
        find = partial(inspector.model_map, text, target, position=position)
        return Question("model", find, views=lambda _: [pages.whole_model(inspector, text, target, position)])

    def ablation(self, heads: str) -> Question:
        """Return a question about ablating the heads in a comma-separated list or, for `each`, every head in turn."""
        inspector, text, target = self.inspector, self.text, self.target
        if heads == "each":
            find = partial(inspector.head_importance, text, target)
            return Question("importance", find, draw_importance, _no_view)
        return Question("ablation", partial(inspector.ablate, text, heads.split(","), target))

    def neighbours(self, word: str) -> Question:
        """Return a question about the tokens nearest to a word. It needs no text."""
        return Question(f"neighbours of {word}", partial(self.inspector.neighbours, word))


def _no_view(result: Sequence[HeadImportance]) -> list[View]:
    raise UsageError("--ablate each cannot be drawn as a view. Name heads, such as --ablate 0.1,2.3, or leave out -o")


def draw_heads(result: Sequence[HeadStatistics], statistic: str, shown: int | None) -> Drawn:
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


def draw_head(result: AttentionMaps, head: Head, console: Console) -> Drawn:
    """Draw the attention weights of one head as a heat map."""
    (part,) = result.parts
    yield Text(f"attention of head {head}: each row is a token, the columns are the tokens it attends to")
    yield from heat_map(
        part.weights[0, head.number], texts_of(part.target_tokens), texts_of(part.source_tokens), console
    )


def draw_compared(result: Comparison, names: tuple[str, str]) -> Drawn:
    """Draw a table that compares two texts or models: the surprisal of each token in both, and the difference."""
    one, other = result.sums
    total = "" if isnan(one) else f": {names[0]} {one:.3f}, {names[1]} {other:.3f}, difference {other - one:+.3f}"
    yield Text(f"surprisal in nats{total}")
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


def draw_compared_heads(result: Sequence[HeadComparison], names: tuple[str, str]) -> Drawn:
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


def draw_importance(result: Sequence[HeadImportance], console: Console) -> Drawn:
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
