"""What search is asked to translate, and what it finds."""

from collections.abc import Sequence
from typing import NamedTuple

from penwright.decoding.constraints.term_automaton import ConstraintAutomaton
from penwright.decoding.hypotheses import Hypothesis
from penwright.tokenizers import Tokenizer
from penwright.translation.constraints.requirements import (
    NO_DRAFT,
    Constraint,
    ConstraintResult,
    Constraints,
    DraftReport,
)


class Segment(NamedTuple):
    """What is translated in one go."""

    source: str
    demands: Constraints
    prefix: str = ""  # that the translation begins with; white space at its end ends a word


class SegmentResult(NamedTuple):
    """A translation of a part."""

    text: str
    hypothesis: Hypothesis
    wishes: Sequence[Constraint] = ()
    outcomes: Sequence[ConstraintResult] = ()

    @property
    def missed(self) -> list[Constraint]:
        """The words of a glossary that are not there."""
        pairs = zip(self.wishes, self.outcomes, strict=True)
        return [wish for wish, outcome in pairs if outcome.state == "missed" and not wish.protected]


class ConstrainedSegment(NamedTuple):
    """A job with what is asked of it, and a guide to some of it."""

    job: Segment
    wishes: Sequence[Constraint]
    guide: ConstraintAutomaton | None
    draft: DraftReport = NO_DRAFT


def source_tokens(tokenizer: Tokenizer, job: Segment) -> list[int]:
    """As the model reads them, with the end token."""
    return [*tokenizer.encode(job.source), tokenizer.end_id]
