"""Translation with an encoder-decoder and its tokenizer: each line of input gives one line of output."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from itertools import accumulate
from typing import Any, Literal, TypeVar
from warnings import warn

from penwright.config import BEAM_SETTINGS, DecodingSettings, GivenSettings, decoding_settings
from penwright.decoding.engine import DecodeEngine
from penwright.decoding.hypotheses import BeamSettings, Wanted, Watch
from penwright.decoding.requests import sampling_of
from penwright.errors import PenwrightWarning, UsageError
from penwright.model.size import described
from penwright.model.transformer import EncoderDecoder
from penwright.text import next_word
from penwright.tokenizers import Tokenizer
from penwright.tokenizers.tokenizer import controls, never_generated, well_formed
from penwright.translation.alternatives import AlternativeSearch
from penwright.translation.constraints.glossary import Entry, Glossary
from penwright.translation.constraints.requirements import DEFAULT_CONSTRAINTS, Constraints, constraints_of
from penwright.translation.constraints.search import Searcher
from penwright.translation.documents import Form, keep_spans_whole, segments, translated
from penwright.translation.results import (
    Alternative,
    Segment,
    SplitText,
    TextPart,
    Translation,
    assemble,
    distinct_segments,
    longest_target,
    still_wanted,
)

SHORTEST_REACH = 5  # minimum source limit, in tokens: one character can take four, plus the end token
USED_BY_BEAMS = (*BEAM_SETTINGS, "max_new_tokens")
UNUSED_BY_SAMPLING = {*BEAM_SETTINGS, "min_new_tokens", "banned_words", "required_words", "pattern", "stop"}
USED_BY_SAMPLING = tuple(name for name in DecodingSettings.model_fields if name not in UNUSED_BY_SAMPLING)
Given = TypeVar("Given", Constraints, Constraints | Sequence[Constraints])


def _with_old_name(constraints: Given, demands: Given | None) -> Given:
    """Return the constraints. Warn if they were passed under their deprecated name, `demands`."""
    if demands is None:
        return constraints
    warn("`demands` is now `constraints`: use the new name", PenwrightWarning, stacklevel=3)
    return demands


class Translator:
    """A translator for texts of any length, which batches texts of similar length."""

    kind: Literal["translator"] = "translator"

    def __init__(
        self,
        model: EncoderDecoder,
        tokenizer: Tokenizer,
        defaults: DecodingSettings | None = None,
        *,
        source_language: str | None = None,
        max_source_tokens: int | None = None,
        hints: bool = False,
        new_terms: Iterable[tuple[str, tuple[str, ...]]] = (),
    ):
        """Create a translator.

        `max_source_tokens` is the length of the longest source to translate whole, end token included (None: the
        context). Longer sources are translated in parts. The length of the longest training source is a good choice,
        since longer sources translate poorly. `source_language` is a code like "de" for splitting sentences; with
        None, they are split as in English. `hints` says whether the model was trained to use translations in place of
        glossary terms in the source. `new_terms` are terms that no training sentence contains, with their translations;
        they are part of every glossary.
        """
        self.model, self.tokenizer, self.source_language = model, tokenizer, source_language
        self.defaults = defaults or DecodingSettings()
        # hints lengthen the source, possibly beyond the last learned position
        self.hints = hints and model.settings.positions.type != "learned"
        self._new_terms = Glossary(tuple(Entry(*term) for term in new_terms))
        self.engine = DecodeEngine(model)
        self._wanted: Wanted | None = None
        self.context_length = model.settings.context_length
        self.reach = min(self.context_length, max(max_source_tokens or self.context_length, SHORTEST_REACH))

    def __repr__(self) -> str:
        source = f", from {self.source_language}" if self.source_language else ""
        return described("Translator", self.model, self.tokenizer, source)

    @contextmanager
    def watched(self, watch: Callable[[], None], wanted: Wanted | None = None) -> Iterator[None]:
        """Call `watch` before each search step inside the `with` block; an exception in `watch` ends the search.

        `wanted` takes the index of a text among those passed to `translate`, and returns whether the text is still
        needed. The search drops texts that are no longer needed; their results are incomplete. Other texts are not
        affected.
        """
        self._wanted = wanted
        try:
            with self.engine.watched(watch):
                yield
        finally:
            self._wanted = None

    def use_processes(self, n_processes: int | None = None) -> None:
        """Do nothing: a translator works in a single process. Deprecated."""
        warn("Translator.use_processes has no effect: remove the call", PenwrightWarning, stacklevel=2)

    def share_out(self, n_processes: int | None = None) -> None:
        """Do nothing: a translator works in a single process. Deprecated."""
        warn("Translator.share_out has no effect: remove the call", PenwrightWarning, stacklevel=2)

    def translate(
        self,
        texts: str | Sequence[str],
        settings: GivenSettings = None,
        *,
        n_best: int = 1,
        constraints: Constraints | Sequence[Constraints] = DEFAULT_CONSTRAINTS,
        prefixes: str | Sequence[str] = "",
        watch: Watch | None = None,
        demands: Constraints | Sequence[Constraints] | None = None,
        **options: Any,
    ) -> list[Translation]:
        """Translate each text and return the translations in order: `translate(["Ein Hund."], beam_size=4, n_best=2)`.

        Options are the [decoding] settings of beam search: beam_size, length_penalty, coverage_penalty, beam_patience
        and max_new_tokens. The defaults come from the run's recipe.

        Line breaks and blank lines are kept. `constraints` and `prefixes` hold one value for all texts, or one per
        text. A translation begins with its prefix; white space at the end of the prefix completes the last word.
        `watch` is called with the steps of the search, and may raise an exception to end the search. Raises UsageError
        unless n_best is between 1 and beam_size.
        """
        constraints = _with_old_name(constraints, demands)
        chosen = decoding_settings(self.defaults, settings, options, USED_BY_BEAMS)
        search = replace(self._search(chosen), n_best=n_best)
        if not 1 <= n_best <= search.beam_size:
            raise UsageError(f"n_best ({n_best}) must be between 1 and beam_size ({search.beam_size})")
        parts = self._prepared(texts, constraints, prefixes)
        results = self._searcher.find(
            distinct_segments(parts), search, chosen.max_new_tokens, watch, still_wanted(parts, self._wanted)
        )
        return [assemble(self.tokenizer, text, results, self.reach) for text in parts]

    def sample(
        self,
        texts: str | Sequence[str],
        n: int = 1,
        settings: GivenSettings = None,
        constraints: Constraints = DEFAULT_CONSTRAINTS,
        demands: Constraints | None = None,
        **options: Any,
    ) -> list[Translation]:
        """Sample `n` translations of each text. The options are decoding settings, such as temperature and seed."""
        constraints = _with_old_name(constraints, demands)
        settings = decoding_settings(self.defaults, settings, options, USED_BY_SAMPLING)
        sampling = sampling_of(self.tokenizer.target, settings, self._banned)
        parts = self._prepared(texts, constraints, "")
        results = self._alternatives.sample(distinct_segments(parts), sampling, settings, n)
        return [assemble(self.tokenizer, text, results, self.reach) for text in parts]

    def diverse(
        self,
        texts: str | Sequence[str],
        n: int,
        strength: float = 1.0,
        constraints: Constraints = DEFAULT_CONSTRAINTS,
        demands: Constraints | None = None,
        **options: Any,
    ) -> list[Translation]:
        """Return up to `n` different translations of each text. The options are those of `translate`.

        A token is penalized by `strength` nats for each earlier translation that has it at the same step.
        """
        constraints = _with_old_name(constraints, demands)
        parts = self._prepared(texts, constraints, "")
        chosen = decoding_settings(self.defaults, None, options, USED_BY_BEAMS)
        search, longest = self._search(chosen), chosen.max_new_tokens
        results = self._alternatives.diverse(distinct_segments(parts), n, strength, search, longest)
        return [assemble(self.tokenizer, text, results, self.reach) for text in parts]

    def alternatives(
        self,
        source: str,
        prefix: str,
        n: int = 5,
        constraints: Constraints = DEFAULT_CONSTRAINTS,
        demands: Constraints | None = None,
        **options: Any,
    ) -> list[Alternative]:
        """Return the `n` most likely next words after a prefix, each with the best translation that contains it.

        Options are the settings of beam search, as in `translate`. White space at the end of the prefix completes the
        last word; otherwise, the word may continue. Raises UsageError for a source of several lines, or a source that
        does not fit the model.
        """
        constraints = _with_old_name(constraints, demands)
        parts = [part for _, lines in self._prepared([source], constraints, prefix) for line in lines for part in line]
        if len(parts) != 1:
            raise UsageError("alternatives need a single sentence: give one line that fits the model's context")
        search = self._search(decoding_settings(self.defaults, None, options, BEAM_SETTINGS))
        results = self._alternatives.complete_prefix(parts[0].segment, 2 * n, search)
        alternatives: dict[str, Alternative] = {}
        for result in results:
            n_given = len(self.tokenizer.target.encode(prefix.strip()))
            piece = self.tokenizer.token_text(result.hypothesis.tokens[n_given])
            word = next_word(result.text[len(prefix.strip()) :], piece)
            log_prob = result.hypothesis.log_probs[n_given]
            alternatives.setdefault(word, Alternative(word, log_prob, result.text, result.hypothesis.score))
        return [alternative for word, alternative in alternatives.items() if word][:n]

    def translate_document(
        self,
        document: str,
        constraints: Constraints = DEFAULT_CONSTRAINTS,
        demands: Constraints | None = None,
        form: Form = "text",
        **options: Any,
    ) -> str:
        """Translate a document sentence by sentence. The options are those of `translate`.

        Blank lines, indentation, bullets, tags and times are kept. Wrapped paragraphs are wrapped to the same width.
        """
        constraints = _with_old_name(constraints, demands)

        def translate(sentences: Sequence[str]) -> list[str]:
            found = self.translate(sentences, constraints=constraints, **options)
            for warning in dict.fromkeys(text for translation in found for text in translation.warnings):
                warn(warning, PenwrightWarning, stacklevel=4)
            return [translation.text for translation in found]

        return translated(document, self.source_language, translate, form)

    def _search(self, settings: DecodingSettings) -> BeamSettings:
        penalties = settings.length_penalty, self._banned, settings.coverage_penalty
        return BeamSettings(settings.beam_size, 1, *penalties, settings.beam_patience)

    @cached_property
    def _banned(self) -> tuple[int, ...]:
        return never_generated(self.tokenizer) + controls(self.tokenizer)

    @cached_property
    def _searcher(self) -> Searcher:
        return Searcher(self.model, self.tokenizer, self.engine)

    @cached_property
    def _alternatives(self) -> AlternativeSearch:
        return AlternativeSearch(self.model, self.tokenizer, self.engine)

    def _prepared(
        self,
        texts: str | Sequence[str],
        constraints: Constraints | Sequence[Constraints],
        prefixes: str | Sequence[str],
    ) -> list[SplitText]:
        """Split each text into lines, and lines into parts that fit the model; attach prefixes and constraints."""
        texts = [texts] if isinstance(texts, str) else texts
        prefixes = [prefixes] * len(texts) if isinstance(prefixes, str) else prefixes
        constraints = [constraints] * len(texts) if isinstance(constraints, Constraints) else constraints
        if self.hints or self._new_terms.entries:
            constraints = [replace(each, hints=self.hints, new_terms=self._new_terms) for each in constraints]
        longest = max((len(self.tokenizer.target.encode(prefix.strip())) for prefix in {*prefixes} - {""}), default=0)
        if longest >= (room := longest_target(self.model, self.tokenizer)):
            raise UsageError(f"the prefix has {longest:,} tokens, but must have fewer than {room:,}: shorten it")
        items = zip(texts, prefixes, constraints, strict=True)
        return [SplitText(text, self._lines(text, prefix, constraint)) for text, prefix, constraint in items]

    def _lines(self, text: str, prefix: str, constraints: Constraints) -> list[list[TextPart]]:
        """Split each line of a text into parts. The first part of the text gets the prefix."""
        lines, start = [], 0
        for line in well_formed(text).split("\n"):
            lines.append(self._parts(line, start, constraints))
            start += len(line) + 1
        first = next((line for line in lines if line), None)
        if first is not None:
            first[0] = first[0]._replace(segment=first[0].segment._replace(prefix=well_formed(prefix)))
        return lines

    def _parts(self, line: str, start: int, constraints: Constraints) -> list[TextPart]:
        stripped = line.strip()
        start += line.find(stripped)
        cut = segments(stripped, self._fits, self.source_language) if stripped else []
        if len(cut) > 1:
            cut = keep_spans_whole([required[:2] for required in constraints_of(stripped, constraints)], cut)
        starts = accumulate(map(len, cut), initial=start)
        return [
            TextPart(
                Segment(part.strip(), constraints), place + len(part) - len(part.lstrip()), part[len(part.rstrip()) :]
            )
            for part, place in zip(cut, starts, strict=False)
            if part.strip()
        ]

    def _fits(self, text: str) -> bool:
        return len(self.tokenizer.source(self.tokenizer.encode(text.strip()))) <= self.reach
