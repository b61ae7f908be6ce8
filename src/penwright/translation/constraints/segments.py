"""What search is asked to translate, and what it finds."""

from collections.abc import Sequence
from typing import NamedTuple

from penwright.decoding.constraints.term_automaton import Guide
from penwright.decoding.hypotheses import Hypothesis
from penwright.tokenizers import Tokenizer
from penwright.translation.constraints.requirements import NO_DRAFT, Demands, Draft, Outcome, Wish


class Job(NamedTuple):
    """What is translated in one go."""

    source: str
    demands: Demands
    prefix: str = ""  # that the translation begins with; white space at its end ends a word


class Found(NamedTuple):
    """A translation of a part."""

    text: str
    hypothesis: Hypothesis
    wishes: Sequence[Wish] = ()
    outcomes: Sequence[Outcome] = ()

    @property
    def missed(self) -> list[Wish]:
        """The words of a glossary that are not there."""
        pairs = zip(self.wishes, self.outcomes, strict=True)
        return [wish for wish, outcome in pairs if outcome.state == "missed" and not wish.protected]


class Asked(NamedTuple):
    """A job with what is asked of it, and a guide to some of it."""

    job: Job
    wishes: Sequence[Wish]
    guide: Guide | None
    draft: Draft = NO_DRAFT


def source_tokens(tokenizer: Tokenizer, job: Job) -> list[int]:
    """As the model reads them, with the end token."""
    return [*tokenizer.encode(job.source), tokenizer.end_id]
