"""Segments: the texts to translate in one pass, their constraints and their results."""

from collections.abc import Sequence
from typing import NamedTuple

from penwright.decoding.constraints.term_automaton import ConstraintAutomaton
from penwright.decoding.hypotheses import Hypothesis
from penwright.tokenizers import Tokenizer
from penwright.translation.constraints.hints import with_hints
from penwright.translation.constraints.requirements import (
    NO_DRAFT,
    Constraint,
    ConstraintResult,
    Constraints,
    DraftReport,
    constraints_of,
)


class Segment(NamedTuple):
    """A text that is translated in one pass."""

    source: str
    constraints: Constraints
    prefix: str = ""  # required beginning of the translation; white space at its end completes the last word


class SegmentResult(NamedTuple):
    """One translation of a segment."""

    text: str
    hypothesis: Hypothesis
    constraints: Sequence[Constraint] = ()
    outcomes: Sequence[ConstraintResult] = ()

    @property
    def missed(self) -> list[Constraint]:
        """The glossary constraints that are not satisfied."""
        pairs = zip(self.constraints, self.outcomes, strict=True)
        return [wish for wish, outcome in pairs if outcome.state == "missed" and not wish.protected]


class ConstrainedSegment(NamedTuple):
    """A segment with all its constraints, and an automaton of those that its search enforces or favours."""

    segment: Segment
    constraints: Sequence[Constraint]
    guide: ConstraintAutomaton | None
    draft: DraftReport = NO_DRAFT


def source_tokens(tokenizer: Tokenizer, job: Segment) -> list[int]:
    """Return the source tokens of a segment, including the end token, and hints if the model uses them."""
    source = job.source
    if job.constraints.hints:
        terms = [each for each in constraints_of(source, job.constraints) if not each.protected]
        source = with_hints(source, [(each.end, each.forms[0]) for each in terms])
    return tokenizer.source(tokenizer.encode(source))
