"""Constraints on translations (glossary terms, protected spans), and the automata that enforce them in search."""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import fsum, inf, log
from typing import Literal, NamedTuple

from penwright.decoding.constraints.term_automaton import Borders, ConstraintAutomaton, RequiredTerm, Tokens
from penwright.decoding.hypotheses import Hypothesis
from penwright.errors import UsageError
from penwright.text import CHINESE_OR_JAPANESE, is_in_word
from penwright.tokenizers import Tokenizer
from penwright.tokenizers.tokenizer import CONTROLS, controls, never_generated
from penwright.translation.constraints.glossary import Glossary, capitalize, inflected, overlapping
from penwright.translation.constraints.protection import Protection

NO_TERMS, USUAL_PROTECTION = Glossary(), Protection()
UNLIKELY = log(0.01)  # in nats; words with a lower log-probability count as forced by a constraint


@dataclass(frozen=True, eq=False)
class Constraints:
    """The requirements for a translation: glossary words and protected spans."""

    glossary: Glossary = NO_TERMS
    bias: float = inf  # nats to add to the log-probability of each token of a glossary word; inf: required
    protection: Protection = USUAL_PROTECTION
    hints: bool = False  # whether hints replace the terms in the source; for models trained with hints
    new_terms: Glossary = NO_TERMS  # terms stored with the model; `glossary` takes precedence

    @property
    def is_hard(self) -> bool:
        """Whether glossary words are required, rather than only made more likely."""
        return self.bias == inf


DEFAULT_CONSTRAINTS = Constraints()  # no glossary, default protected spans
NO_CONSTRAINTS = Constraints(protection=Protection(patterns=()))  # no glossary, no protected spans
Range = tuple[int, int]  # character offsets, end excluded


class Constraint(NamedTuple):
    """A requirement for a translation: words that it must contain, because of a span of the source."""

    start: int
    end: int
    forms: tuple[str, ...]
    protected: bool  # whether the words are a protected span, to be copied exactly
    follows_case: bool = False  # whether the words are capitalized at the beginning of a text
    inflects: bool = False  # whether inflected forms of the words are accepted


class TargetWord(NamedTuple):
    """A word of a target sentence, and its tokens."""

    text: str
    first: int  # index of the word's first token
    length: int


class DraftReport(NamedTuple):
    """A report on an unconstrained draft: the glossary words that it lacks, and the words that it has instead."""

    spots: Sequence[tuple[Constraint, TargetWord]]  # each required word, and the draft's word that it should replace
    unwanted: Sequence[str]  # words of the draft that the search must avoid, because required words replace them
    missed: frozenset[tuple[str, ...]]  # forms of the required words that are missing
    n_tokens: int | None = None  # length of the draft in tokens, end token included


NO_DRAFT: DraftReport = DraftReport((), (), frozenset())


class ConstraintResult(NamedTuple):
    """The outcome of a constraint in a translation: whether and where it was satisfied."""

    source: str
    start: int  # character offset of the span in the source
    end: int
    protected: bool  # whether the words are a protected span, not a glossary term
    # found: generated freely; forced: generated because required; inserted: added after the search; missed: absent
    state: Literal["found", "forced", "inserted", "missed"]
    target: str = ""
    target_start: int = -1  # character offset in the translation, or -1 if the words are missing
    target_end: int = -1

    def moved(self, in_source: int, in_target: int) -> "ConstraintResult":
        """Return the result with its offsets shifted by `in_source` and `in_target` characters."""
        offset = in_target if self.target_start >= 0 else 0
        return self._replace(
            start=self.start + in_source,
            end=self.end + in_source,
            target_start=self.target_start + offset,
            target_end=self.target_end + offset,
        )

    def warnings(self) -> list[str]:
        """Return warnings about results that a person should check."""
        if self.state == "inserted":
            return [f"inserted after translation; check its position: {self.source}"]
        return [f"the glossary's translation is missing: {self.source}"] if self.state == "missed" else []


def constraints_of(text: str, constraints: Constraints) -> list[Constraint]:
    """Return the constraints of a source, in order.

    A term outranks shorter protected spans inside it; all other spans outrank terms that overlap them.
    """
    spans, required = constraints.protection.spans(text), list[Constraint]()
    for glossary in (constraints.glossary, constraints.new_terms):
        for start, end, entry in glossary.find(text, spans, required):
            forms, follows = entry.required_forms(text[start:end]), entry.case != "exact"
            required.append(Constraint(start, end, forms, False, follows, constraints.hints and len(forms) == 1))
        required.sort()
    copied = [span for span in spans if not overlapping(required, span)]
    return sorted(required + [Constraint(*span, (text[span.start : span.end],), True) for span in copied])


class AutomatonBuilder:
    """A builder of constraint automata for a tokenizer."""

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer, self._borders = tokenizer, Borders(tokenizer)
        self._never = {*never_generated(tokenizer), *controls(tokenizer), tokenizer.unknown_id}

    def guide(
        self, source: str, constraints: Sequence[Constraint], bias: float, draft: DraftReport = NO_DRAFT
    ) -> ConstraintAutomaton | None:
        """Build the automaton of these constraints; return None without constraints.

        The expected number of target tokens before a protected span is the number of source tokens before it.
        """
        terms, positions = [], {constraint.forms: word.first for constraint, word in draft.spots}
        for constraint, count in grouped(constraints):
            position = (
                tokens_before(self._tokenizer, source, constraint.start)
                if constraint.protected
                else positions.get(constraint.forms)
            )
            position = position if count == 1 else None
            terms.append(self._term(constraint, count, inf if constraint.protected else bias, position))
        terms += [self._term(Constraint(0, 0, (word,), False, True), 0, inf, None) for word in draft.unwanted]
        known = [term for term in terms if term.forms]
        return ConstraintAutomaton(known, self._borders) if known else None

    def nothing(self) -> ConstraintAutomaton:
        """Return an automaton without required terms."""
        return ConstraintAutomaton((), self._borders)

    def beginning(self, prefix: str, guide: ConstraintAutomaton | None) -> ConstraintAutomaton | None:
        """Return the automaton, extended so that all targets must begin with a prefix.

        Raises UsageError for a prefix with unknown characters, line breaks or control characters.
        """
        if not prefix.strip():
            return guide
        tokens = tuple(self._tokenizer.target.encode(prefix.strip()))
        if self._never.intersection(tokens):
            unknown = self._tokenizer.target.unknown_characters(prefix.strip())
            refused = dict.fromkeys([*unknown, *(letter for letter in prefix.strip() if letter in CONTROLS)])
            raise UsageError(
                f"the prefix has characters that the model cannot write: {' '.join(map(repr, refused))}. Leave them out"
            )
        whole = prefix[-1].isspace()
        return replace(guide or self.nothing(), prefix=tokens, whole_prefix=whole)

    def _term(self, constraint: Constraint, count: int, bias: float, position: int | None) -> RequiredTerm:
        """Convert a constraint to a term, leaving out forms with characters that the model cannot write."""
        capitalized = tuple(map(capitalize, constraint.forms)) if constraint.follows_case else constraint.forms
        spaced = self._tokens(f" {form}" for form in constraint.forms)
        return RequiredTerm(
            spaced,
            self._tokens(constraint.forms),
            self._tokens(capitalized),
            count,
            bias,
            position,
            verbatim=constraint.protected,
        )

    def _tokens(self, forms: Iterable[str]) -> tuple[Tokens, ...]:
        encoded = [tuple(self._tokenizer.target.encode(form)) for form in forms]
        return tuple(tokens for tokens in encoded if not self._never.intersection(tokens))


def tokens_before(tokenizer: Tokenizer, text: str, offset: int) -> int:
    """Return the number of source tokens before a character offset of the text."""
    return tokenizer.n_before_source + len(tokenizer.encode(text[:offset].rstrip()))


def grouped(constraints: Iterable[Constraint]) -> list[tuple[Constraint, int]]:
    """Group constraints that require the same words; return the first of each group and the group's size."""
    same: dict[tuple[str, ...], list[Constraint]] = {}
    for constraint in constraints:
        same.setdefault(constraint.forms, []).append(constraint)
    return [(group[0], len(group)) for group in same.values()]


def constraint_results(
    source: str,
    constraints: Sequence[Constraint],
    hypothesis: Hypothesis,
    tokenizer: Tokenizer,
    draft: DraftReport,
    prefix: str = "",
) -> tuple[str, list[ConstraintResult]]:
    """Return the translation, with missing protected spans inserted after its prefix, and each constraint's result."""
    decoded = tokenizer.decode(hypothesis.tokens)
    text = decoded.lstrip(" ") if constraints else decoded  # drop the leading space of a required term
    spans, n_cut = find_spans(text, constraints), len(decoded) - len(text)
    results = []
    for constraint, span in zip(constraints, spans, strict=True):
        in_source = (source[constraint.start : constraint.end], constraint.start, constraint.end, constraint.protected)
        if span is None:
            results.append(ConstraintResult(*in_source, "missed"))
            continue
        forced = constraint.forms in draft.missed or (
            constraint.protected and _is_unlikely(hypothesis, tokenizer, (span[0] + n_cut, span[1] + n_cut))
        )
        results.append(ConstraintResult(*in_source, "forced" if forced else "found", text[slice(*span)], *span))
    return _with_insertions(source, text, constraints, results, len(prefix.strip()))


def _separator(letter: str, space: str) -> str:
    """Return `space` if it must separate inserted words from this adjacent letter, otherwise ""."""
    return space if letter and not CHINESE_OR_JAPANESE.match(letter) else ""


def _is_unlikely(hypothesis: Hypothesis, tokenizer: Tokenizer, span: tuple[int, int]) -> bool:
    """Return whether the text in this range is too unlikely for the model to have generated it freely."""
    ends = [len(tokenizer.decode(hypothesis.tokens[:n])) for n in range(len(hypothesis.tokens) + 1)]
    inside = [n for n, (start, end) in enumerate(pairwise(ends)) if span[0] < end and start < span[1]]
    return fsum(hypothesis.log_probs[n] for n in inside) < UNLIKELY


def find_spans(text: str, constraints: Sequence[Constraint]) -> list[Range | None]:
    """Return the range of each constraint's words in a translation, without overlaps; None for missing words.

    Longer words are located first, since they may contain shorter ones.
    """
    spans: dict[int, Range | None] = {}
    taken: list[Range] = []
    for number in sorted(range(len(constraints)), key=lambda n: -max(map(len, constraints[n].forms), default=0)):
        span = spans[number] = find_span(text, constraints[number], taken)
        taken += [span] if span else []
    return [spans[number] for number in range(len(constraints))]


def find_span(text: str, constraint: Constraint, taken: Collection[Range]) -> Range | None:
    """Return the range of the first occurrence of the required words as whole words, outside of the `taken` ranges."""
    forms = {*constraint.forms, *(map(capitalize, constraint.forms) if constraint.follows_case else ())}
    pattern = "|".join(re.escape(form) for form in sorted(forms, key=len, reverse=True))
    spans = [match.span() for match in re.finditer(pattern, text)] if pattern else []
    spans += [match.span() for form in forms if constraint.inflects for match in re.finditer(inflected(form), text)]
    whole = [span for span in spans if _is_whole(text, *span, spans=constraint.protected)]
    return next((span for span in whole if all(span[1] <= begin or end <= span[0] for begin, end in taken)), None)


def _is_whole(text: str, start: int, end: int, *, spans: bool) -> bool:
    """Return whether no letter, digit or combining mark adjoins the words at either end.

    A protected span that begins or ends with a symbol may adjoin letters there. "1 kg" does not match inside "11 kg".
    """
    sides = (text[start - 1 : start] if start else "", text[start]), (text[end : end + 1], text[end - 1])
    neighbors = [outside for outside, inside in sides if inside.isalnum() or not spans]
    return not any(is_in_word(letter) and letter != "_" for letter in neighbors)


def _with_insertions(
    source: str, text: str, constraints: Sequence[Constraint], results: list[ConstraintResult], n_fixed: int
) -> tuple[str, list[ConstraintResult]]:
    """Insert missing protected spans at word boundaries, at their relative positions in the source.

    The first `n_fixed` characters of the text stay in place.
    """
    for number, constraint in enumerate(constraints):
        if results[number].state != "missed" or not constraint.protected:
            continue
        words, ideal = constraint.forms[0], round(len(text) * constraint.start / max(1, len(source)))
        borders = [0, *(match.start() for match in re.finditer(r"\s|(?<=[、，：；])", text)), len(text)]
        occupied = [
            (-1, min(n_fixed, len(text))),
            *((r.target_start, r.target_end) for r in results if r.target_start >= 0),
        ]
        free = [b for b in borders if all(not start < b < end for start, end in occupied)]
        border = min(free, key=lambda b: abs(b - ideal))
        added = _separator(text[:border][-1:], " ") + words + ("" if border else _separator(text[:1].strip(), " "))
        text = text[:border] + added + text[border:]
        results = [r if r.target_start < border else r.moved(0, len(added)) for r in results]
        start = border + added.index(words)
        results[number] = results[number]._replace(
            state="inserted", target=words, target_start=start, target_end=start + len(words)
        )
    return text, results
