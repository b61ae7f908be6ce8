"""What `penwright inspect` can be asked about a text: how each answer is found and drawn, here or in a page."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from rich.console import Console

from penwright.cli import answers
from penwright.cli.answers import Drawn
from penwright.errors import UsageError
from penwright.inspection import Inspector, pages, view
from penwright.inspection.ablation import HeadImportance
from penwright.inspection.attention_maps import AttentionMaps, Rollout
from penwright.inspection.comparison import Comparison, HeadComparison, compare, compare_heads
from penwright.inspection.gradients import Attribution
from penwright.inspection.head_statistics import STATISTICS, HeadStatistics
from penwright.inspection.heads import parse_head
from penwright.inspection.views import compared, compared_heads, one_head
from penwright.views import View

FIRST_HEADS = 5


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
        return Question("scores", lambda: self.inspector.token_scores(self.text, self.target, k), answers.surprise)

    def likeliest(self, k: int) -> Question:
        return self.scores(k)._replace(draw=answers.likeliest)

    def heads(self, statistic: str, shown: int | None = None) -> Question:
        if statistic not in STATISTICS:
            raise UsageError(f"heads have no statistic '{statistic}'; they have {', '.join(STATISTICS)}")

        def draw(found: Sequence[HeadStatistics], console: Console) -> Drawn:
            return answers.heads(found, statistic, shown)

        def views(found: Sequence[HeadStatistics]) -> list[View]:
            return [pages.heads(self.inspector, self.text, self.target, statistic)]

        return Question("heads", lambda: self.inspector.head_statistics(self.text, self.target), draw, views)

    def head(self, name: str) -> Question:
        head = parse_head(name, self.inspector.model)

        def find() -> AttentionMaps:
            maps = self.inspector.attention(self.text, self.target, [head.layer])
            return AttentionMaps((maps.part(head.part),), maps.answers)

        def draw(found: AttentionMaps, console: Console) -> Drawn:
            return answers.head(found, head, console)

        return Question(f"head {head}", find, draw, lambda found: [one_head(found, head)])

    def beside(self, other: "Questions", names: tuple[str, str]) -> list[Question]:
        """Surprise token by token, and the heads that differ most, beside those of another text or model."""

        def tokens() -> Comparison:
            one, two = (each.inspector.surprises(each.text, each.target) for each in (self, other))
            return compare(one, two)

        def heads() -> tuple[HeadComparison, ...]:
            one, two = (each.inspector.head_statistics(each.text, each.target) for each in (self, other))
            return compare_heads(one, two)

        return [
            Question(
                "compared",
                tokens,
                lambda found, _: answers.compared(found, names),
                lambda found: [compared(found, names)],
            ),
            Question(
                "heads compared",
                heads,
                lambda found, _: answers.compared_heads(found, names),
                lambda found: [compared_heads(found, names)],
            ),
        ]

    def arithmetic(self, name: str) -> Question:
        return Question(
            "arithmetic", lambda: self.inspector.arithmetic(self.text, name, self.target), answers.arithmetic
        )

    def alignment(self) -> Question:
        return Question("alignment", lambda: self.inspector.alignment(self.text, self.target), answers.alignment)

    def beams(self, beam_size: int) -> Question:
        return Question("beams", lambda: self.inspector.beams(self.text, beam_size), answers.beams)

    def rollout(self) -> Question:
        def views(found: Sequence[Rollout]) -> list[View]:
            return [view(part) for part in found]

        return Question("rollout", lambda: self.inspector.rollout(self.text, self.target), answers.rollout, views)

    def lens(self) -> Question:
        return Question("lens", lambda: self.inspector.lens(self.text, self.target), answers.lens)

    def attribution(self, position: int | None) -> Question:
        def find() -> Attribution:
            return self.inspector.attribution(self.text, self.target, position=position)

        return Question("attribution", find, answers.attribution)

    def ablation(self, heads: str) -> Question:
        """Of these heads together, parted by commas, or of `each` alone."""
        if heads == "each":
            importance = self.inspector.head_importance
            return Question("importance", lambda: importance(self.text, self.target), answers.importance, _no_view)
        return Question(
            "ablation", lambda: self.inspector.ablate(self.text, heads.split(","), self.target), answers.ablation
        )


def neighbours(inspector: Inspector, word: str) -> Question:
    """The one question that needs no text."""
    return Question(f"neighbours of {word}", lambda: inspector.neighbours(word), answers.neighbours)


def _no_view(found: Sequence[HeadImportance]) -> list[View]:
    raise UsageError("there is no picture of --ablate each: name heads, such as --ablate 0.1,2.3, or leave out -o")
