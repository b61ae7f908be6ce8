"""The questions that `penwright inspect` answers, and how it draws the answers."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.text import Text

from penwright.cli import answers
from penwright.cli.answers import MAX_ROWS, Drawn
from penwright.cli.drawing import label, numbers, signed_bar, table_of
from penwright.errors import UsageError
from penwright.inspection import Inspector, pages, view
from penwright.inspection.ablation import HeadImportance
from penwright.inspection.attention_maps import AttentionMaps, Rollout, parse_head
from penwright.inspection.comparison import Comparison, HeadComparison, compare, compare_heads
from penwright.inspection.gradients import Attribution
from penwright.inspection.head_statistics import STATISTICS, HeadStatistics
from penwright.inspection.logit_attribution import LogitAttribution, readable_part
from penwright.inspection.model_map import ModelMap
from penwright.inspection.patching import Patching, parse_kind
from penwright.inspection.paths import Paths
from penwright.inspection.views import compared, compared_heads, one_head
from penwright.views import View

FIRST_HEADS = 5


def _one_view(result: Any) -> list[View]:
    return [view(result)]


class Question(NamedTuple):
    """A question about a model, with functions that find the answer and draw it in a terminal or as views."""

    name: str
    find: Callable[[], Any]
    draw: Callable[[Any, Console], Drawn]
    views: Callable[[Any], list[View]] = _one_view  # the last of the views is the main one


class Questions:
    """The questions that can be asked about one text."""

    def __init__(self, inspector: Inspector, text: str, target: str | None):
        self.inspector, self.text, self.target = inspector, text, target

    def default_questions(self) -> list[Question]:
        """Return the default questions: surprisal (for a classifier: attribution) and the statistics of a few heads."""
        if not self.text.strip() and self.inspector.shape != "classifier":
            raise UsageError("there is nothing to inspect: the text is empty")
        if not self.inspector.outcomes:
            return [self.heads("previous", FIRST_HEADS)]
        first = self.attribution(None) if self.inspector.shape == "classifier" else self.scores(5)
        return [first, self.heads("diagonal" if self.inspector.shape == "translator" else "previous", FIRST_HEADS)]

    def scores(self, k: int) -> Question:
        """Ask for the surprisal of each token and the `k` most likely tokens at its position."""
        return Question("scores", lambda: self.inspector.token_scores(self.text, self.target, k), answers.surprise)

    def likeliest(self, k: int) -> Question:
        """Ask for the `k` most likely tokens at each position."""
        return self.scores(k)._replace(draw=answers.top_tokens)

    def heads(self, statistic: str, shown: int | None = None) -> Question:
        """Ask for the statistics of all heads, sorted by one statistic. `shown` limits the number of rows."""
        if statistic not in STATISTICS:
            raise UsageError(f"there is no head statistic '{statistic}'. Choose one of {', '.join(STATISTICS)}")

        def draw(result: Sequence[HeadStatistics], console: Console) -> Drawn:
            return answers.heads(result, statistic, shown)

        def views(result: Sequence[HeadStatistics]) -> list[View]:
            return [pages.heads(self.inspector, self.text, self.target, statistic)]

        return Question("heads", lambda: self.inspector.head_statistics(self.text, self.target), draw, views)

    def head(self, name: str) -> Question:
        """Ask for the attention of one head."""
        head = parse_head(name, self.inspector.model)

        def find() -> AttentionMaps:
            maps = self.inspector.attention(self.text, self.target, [head.layer])
            return AttentionMaps((maps.part(head.part),), maps.answers)

        def draw(result: AttentionMaps, console: Console) -> Drawn:
            return answers.head(result, head, console)

        return Question(f"head {head}", find, draw, lambda result: [one_head(result, head)])

    def beside(self, other: "Questions", names: tuple[str, str]) -> list[Question]:
        """Ask for a comparison with another text or model: the surprisal of tokens, and the heads that differ most."""

        def tokens() -> Comparison:
            one, two = (side.inspector.surprises(side.text, side.target) for side in (self, other))
            return compare(one, two)

        def heads() -> tuple[HeadComparison, ...]:
            one, two = (side.inspector.head_statistics(side.text, side.target) for side in (self, other))
            return compare_heads(one, two)

        return [
            Question(
                "compared",
                tokens,
                lambda result, _: answers.compared(result, names),
                lambda result: [compared(result, names)],
            ),
            Question(
                "heads compared",
                heads,
                lambda result, _: answers.compared_heads(result, names),
                lambda result: [compared_heads(result, names)],
            ),
        ]

    def arithmetic(self, name: str) -> Question:
        """Ask for the computation of one head, step by step."""
        return Question(
            "arithmetic", lambda: self.inspector.arithmetic(self.text, name, self.target), answers.arithmetic
        )

    def alignment(self) -> Question:
        """Ask which source tokens a translator attends to for each target token."""
        return Question("alignment", lambda: self.inspector.alignment(self.text, self.target), answers.alignment)

    def beams(self, beam_size: int) -> Question:
        """Ask for the search tree of a beam search."""
        return Question("beams", lambda: self.inspector.beams(self.text, beam_size), answers.beams)

    def rollout(self) -> Question:
        """Ask for the attention rollout through all layers."""

        def views(result: Sequence[Rollout]) -> list[View]:
            return [view(part) for part in result]

        return Question("rollout", lambda: self.inspector.rollout(self.text, self.target), answers.rollout, views)

    def lens(self) -> Question:
        """Ask for the prediction after each layer (logit lens)."""
        return Question("lens", lambda: self.inspector.lens(self.text, self.target), answers.lens)

    def attribution(self, position: int | None) -> Question:
        """Ask how much each token contributes to the prediction after a position, or to the label."""

        def find() -> Attribution:
            return self.inspector.attribution(self.text, self.target, position=position)

        return Question("attribution", find, answers.attribution)

    def parts(self, position: int | None) -> Question:
        """Ask what each part of the model adds to the logit of the next token or the label."""

        def find() -> LogitAttribution:
            return self.inspector.logit_attribution(self.text, self.target, position=position)

        return Question("parts", find, draw_parts)

    def paths(self, position: int | None) -> Question:
        """Ask for the strongest paths between parts of the model."""
        find = partial(self.inspector.paths, self.text, self.target, position=position)
        return Question("paths", find, draw_paths)

    def patching(self, other: str, kind: str, position: int | None) -> Question:
        """Ask which activations of the text restore its prediction in a forward pass on a different text."""
        chosen = parse_kind(kind)
        find = partial(self.inspector.patching, self.text, other, self.target, kind=chosen, position=position)
        return Question("patching", find, draw_patching, lambda result: [view(part) for part in result])

    def whole(self, position: int | None) -> Question:
        """Ask for an overview of the whole forward pass."""

        def views(result: ModelMap) -> list[View]:
            return [pages.whole_model(self.inspector, self.text, self.target, position)]

        find = partial(self.inspector.model_map, self.text, self.target, position=position)
        return Question("model", find, draw_whole, views)

    def ablation(self, heads: str) -> Question:
        """Ask what changes without the heads in a comma-separated list, or how much each head matters (`each`)."""
        if heads == "each":
            importance = self.inspector.head_importance
            return Question("importance", lambda: importance(self.text, self.target), answers.importance, _no_view)
        return Question(
            "ablation", lambda: self.inspector.ablate(self.text, heads.split(","), self.target), answers.ablation
        )

    def neighbours(self, word: str) -> Question:
        """Ask for the tokens nearest to a word. This question needs no text."""
        return Question(f"neighbours of {word}", lambda: self.inspector.neighbours(word), answers.neighbours)


def _no_view(result: Sequence[HeadImportance]) -> list[View]:
    raise UsageError("--ablate each cannot be drawn as a view. Name heads, such as --ablate 0.1,2.3, or leave out -o")


def draw_parts(result: LogitAttribution, console: Console) -> Drawn:
    """Draw what the parts with the largest effect add to the logit of the predicted token or label."""
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


def draw_paths(result: Paths, console: Console) -> Drawn:
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
        f"effects on log p, in nats; the {len(result.edges)} strongest of {result.n_edges:,} paths were measured"
    )


def draw_patching(result: Sequence[Patching], console: Console) -> Drawn:
    """Draw a table for each part of the model: the share of the original preference that each patch restores."""
    for part in result:
        yield Text(str(part))
        heads = [f"head {number}" for number in range(part.restored.shape[1])]
        columns = heads if part.kind == "heads" else [label(token.text) for token in part.other_tokens]
        rows = [f"layer {layer}" for layer in part.layers]
        title = f"share restored by the {part.kind.replace('_', '-')} of the {part.part}"
        yield numbers(title, part.restored, rows, columns, console)


def draw_whole(result: ModelMap, console: Console) -> Drawn:
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
