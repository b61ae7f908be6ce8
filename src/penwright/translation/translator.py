"""Translation with an encoder-decoder and its tokenizer: each line of input gives one line of output."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial
from itertools import accumulate
from typing import Any, Literal, NamedTuple
from warnings import warn

import torch

from penwright.config import DecodingSettings, GivenSettings, decoding_settings
from penwright.decoding.brief import described
from penwright.decoding.engine import DecodeEngine
from penwright.decoding.hypotheses import BeamSettings, Wanted, Watch
from penwright.decoding.sampling.sampler import Sampling
from penwright.errors import PenwrightWarning, UsageError
from penwright.model.encoder_decoder import EncoderDecoder
from penwright.text import next_word
from penwright.tokenizers import Tokenizer
from penwright.tokenizers.tokenizer import controls, never_generated, well_formed
from penwright.translation.alternatives import AlternativeSearch
from penwright.translation.constraints.requirements import DEFAULT_CONSTRAINTS, Constraints
from penwright.translation.constraints.search import Searcher, WantedJob
from penwright.translation.constraints.segments import Segment, SegmentResult
from penwright.translation.documents import translated
from penwright.translation.results import (
    Alternative,
    SplitText,
    TextPart,
    Translation,
    assemble,
    distinct_segments,
    still_wanted,
)
from penwright.translation.segments import keep_spans_whole, segments
from penwright.translation.worker_processes import WorkerPool

SHORTEST_REACH = 5  # up to four bytes for a character, and the end token
USED_BY_BEAMS = ("beam_size", "length_penalty", "coverage_penalty", "beam_patience", "max_new_tokens")  # settings
WORTH_SHARING = 4  # segments per process, at least


class TranslationTask(NamedTuple):
    """The segments that one of several processes translates, and the settings."""

    jobs: Sequence[Segment]
    settings: BeamSettings
    limit: int | None


def _run_task(searcher: Searcher, task: TranslationTask) -> list[list[SegmentResult]]:
    """Return the results of each segment of the task."""
    found = searcher.find(*task)
    return [found[job] for job in task.jobs]


class Translator:
    """A translator of texts of any length, which it batches by length."""

    kind: Literal["translator"] = "translator"

    def __init__(
        self,
        model: EncoderDecoder,
        tokenizer: Tokenizer,
        defaults: DecodingSettings | None = None,
        *,
        source_language: str | None = None,
        max_source_tokens: int | None = None,
    ):
        """Create a translator.

        `max_source_tokens` is the longest source that is translated whole, end token included (None: the context).
        Longer sources are translated in parts. Set it to the longest source in training: longer ones translate poorly.
        `source_language` is a code such as "de", for splitting sentences; None splits as in English.
        """
        self.model, self.tokenizer, self.source_language = model, tokenizer, source_language
        self.defaults = defaults or DecodingSettings()
        self._stepper = DecodeEngine(model)
        self._team: WorkerPool[TranslationTask, list[list[SegmentResult]]] | None = None
        self._wanted: Wanted | None = None
        self.context_length = model.settings.context_length
        self.reach = min(self.context_length, max(max_source_tokens or self.context_length, SHORTEST_REACH))

    def __repr__(self) -> str:
        source = f", from {self.source_language}" if self.source_language else ""
        return described("Translator", self.model, self.tokenizer, source)

    @contextmanager
    def watched(self, watch: Callable[[], None], wanted: Wanted | None = None) -> Iterator[None]:
        """Call `watch` before each search step inside the block; an exception that it raises ends the search.

        `wanted` tells whether a text of translate(), by its number, is still needed. The search drops the other texts,
        and their results are useless. The texts still needed are not affected.
        """
        self._wanted = wanted
        try:
            with self._stepper.watched(watch):
                yield
        finally:
            self._wanted = None

    def use_processes(self, n_processes: int | None = None) -> None:
        """Translate several texts in `n_processes` processes from now on (None: one per thread of torch).

        This is for models that are fastest on one thread; other models use several threads anyway. The processes start
        when they are first needed. Later changes of the weights affect only this process.
        """
        wanted = torch.get_num_threads() if n_processes is None else n_processes
        on_cpu = next(self.model.parameters()).device.type == "cpu"
        size = wanted if on_cpu and self._stepper.n_threads == 1 else 1
        self._team = (
            WorkerPool(partial(_run_task, self._searcher), size) if size > 1 else None
        )  # holds no reference to self

    def share_out(self, n_processes: int | None = None) -> None:
        """Call `use_processes` by its old, deprecated name."""
        warn("Translator.share_out is deprecated: use use_processes", PenwrightWarning, stacklevel=2)
        self.use_processes(n_processes)

    def translate(
        self,
        texts: str | Sequence[str],
        settings: GivenSettings = None,
        *,
        n_best: int = 1,
        demands: Constraints | Sequence[Constraints] = DEFAULT_CONSTRAINTS,
        prefixes: str | Sequence[str] = "",
        watch: Watch | None = None,
        **options: Any,
    ) -> list[Translation]:
        """Translate each text and return the translations in order: `translate(["Ein Hund."], beam_size=4, n_best=2)`.

        Options are the [decoding] settings of beam search: beam_size, length_penalty, coverage_penalty, beam_patience
        and max_new_tokens. The defaults come from the run's recipe.

        Line breaks stay, and a blank line gives a blank line. `demands` and `prefixes` are for all texts, or one for
        each text. A translation begins with its prefix; white space at the end of the prefix completes its last word.
        `watch` sees the steps of the search, and may raise to end it. Raises UsageError unless n_best is between 1 and
        beam_size.
        """
        chosen = decoding_settings(self.defaults, settings, options, USED_BY_BEAMS)
        search = replace(self._search(chosen), n_best=n_best)
        if not 1 <= n_best <= search.beam_size:
            raise UsageError(f"n_best ({n_best}) must be between 1 and beam_size ({search.beam_size})")
        parts = self._prepared(texts, demands, prefixes)
        found = self._found(
            distinct_segments(parts), search, chosen.max_new_tokens, watch, still_wanted(parts, self._wanted)
        )
        return [assemble(self.tokenizer, each, found, self.reach) for each in parts]

    def sample(
        self,
        texts: str | Sequence[str],
        n: int = 1,
        settings: GivenSettings = None,
        demands: Constraints = DEFAULT_CONSTRAINTS,
        **options: Any,
    ) -> list[Translation]:
        """Sample `n` translations of each text; options are [decoding] settings such as temperature and seed."""
        settings = decoding_settings(self.defaults, settings, options)
        sampling = Sampling(self._banned, settings)
        parts = self._prepared(texts, demands, "")
        found = self._variety.sample(distinct_segments(parts), sampling, settings.seed, n)
        return [assemble(self.tokenizer, each, found, self.reach) for each in parts]

    def diverse(
        self,
        texts: str | Sequence[str],
        n: int,
        strength: float = 1.0,
        demands: Constraints = DEFAULT_CONSTRAINTS,
        **options: Any,
    ) -> list[Translation]:
        """Return up to `n` different translations of each text; options as in `translate`.

        A token costs `strength` nats for each earlier translation that has it in the same place.
        """
        parts = self._prepared(texts, demands, "")
        search = self._search(decoding_settings(self.defaults, None, options, USED_BY_BEAMS))
        found = self._variety.diverse(distinct_segments(parts), n, strength, search)
        return [assemble(self.tokenizer, each, found, self.reach) for each in parts]

    def alternatives(
        self, source: str, prefix: str, n: int = 5, demands: Constraints = DEFAULT_CONSTRAINTS
    ) -> list[Alternative]:
        """Return the `n` most likely next words after a prefix, each with the best translation that continues it.

        White space at the end of the prefix completes its last word; otherwise, the word may continue. Raises
        UsageError for a source of several lines, or one longer than the model reads at once.
        """
        parts = [part for _, lines in self._prepared([source], demands, prefix) for line in lines for part in line]
        if len(parts) != 1:
            raise UsageError("alternatives need a single sentence: give one line that fits the model")
        found = self._variety.go_on(parts[0].segment, 2 * n, self._search(self.defaults))
        alternatives: dict[str, Alternative] = {}
        for each in found:
            n_given = len(self.tokenizer.target.encode(prefix.strip()))
            piece = self.tokenizer.token_text(each.hypothesis.tokens[n_given])
            word = next_word(each.text[len(prefix.strip()) :], piece)
            log_prob = each.hypothesis.log_probs[n_given]
            alternatives.setdefault(word, Alternative(word, log_prob, each.text, each.hypothesis.score))
        return [alternative for word, alternative in alternatives.items() if word][:n]

    def translate_document(self, document: str, demands: Constraints = DEFAULT_CONSTRAINTS) -> str:
        """Translate a document sentence by sentence.

        Blank lines, indentation and bullets stay. Wrapped paragraphs are wrapped again.
        """

        def translate(sentences: Sequence[str]) -> list[str]:
            return [translation.text for translation in self.translate(sentences, demands=demands)]

        return translated(document, self.source_language, translate)

    def _found(
        self,
        jobs: Sequence[Segment],
        settings: BeamSettings,
        limit: int | None,
        watch: Watch | None,
        wanted: WantedJob | None,
    ) -> dict[Segment, list[SegmentResult]]:
        """Return the results of each segment, from worker processes if there are any and nobody watches."""
        if self._team is None or watch or wanted or len(jobs) < WORTH_SHARING * self._team.size:
            return self._searcher.find(jobs, settings, limit, watch, wanted)
        self._stepper.load()  # before the workers are forked
        jobs = sorted(jobs, key=lambda job: len(job.source))  # so that all processes have a similar load
        tasks = [TranslationTask(jobs[first :: self._team.size], settings, limit) for first in range(self._team.size)]
        shares = zip(tasks, self._team(tasks), strict=True)
        return {job: found for task, share in shares for job, found in zip(task.jobs, share, strict=True)}

    def _search(self, settings: DecodingSettings) -> BeamSettings:
        penalties = settings.length_penalty, self._banned, settings.coverage_penalty
        return BeamSettings(settings.beam_size, 1, *penalties, settings.beam_patience)

    @cached_property
    def _banned(self) -> tuple[int, ...]:
        return never_generated(self.tokenizer) + controls(self.tokenizer)

    @cached_property
    def _searcher(self) -> Searcher:
        return Searcher(self.model, self.tokenizer, self._stepper)

    @cached_property
    def _variety(self) -> AlternativeSearch:
        return AlternativeSearch(self.model, self.tokenizer, self._stepper)

    def _prepared(
        self, texts: str | Sequence[str], demands: Constraints | Sequence[Constraints], prefixes: str | Sequence[str]
    ) -> list[SplitText]:
        """Split each text into the parts of its lines, with its prefix and constraints."""
        texts = [texts] if isinstance(texts, str) else texts
        prefixes = [prefixes] * len(texts) if isinstance(prefixes, str) else prefixes
        demands = [demands] * len(texts) if isinstance(demands, Constraints) else demands
        longest = max((len(self.tokenizer.target.encode(prefix.strip())) for prefix in {*prefixes} - {""}), default=0)
        if longest >= self.context_length:
            raise UsageError(f"the prefix has {longest:,} tokens, but the model writes at most {self.context_length:,}")
        each = zip(texts, prefixes, demands, strict=True)
        return [SplitText(text, self._lines(text, prefix, demanded)) for text, prefix, demanded in each]

    def _lines(self, text: str, prefix: str, demands: Constraints) -> list[list[TextPart]]:
        """Split a text into the parts of each line; the very first part gets the prefix."""
        lines, start = [], 0
        for line in well_formed(text).split("\n"):
            lines.append(self._parts(line, start, demands))
            start += len(line) + 1
        first = next((line for line in lines if line), None)
        if first is not None:
            first[0] = first[0]._replace(segment=first[0].segment._replace(prefix=well_formed(prefix)))
        return lines

    def _parts(self, line: str, start: int, demands: Constraints) -> list[TextPart]:
        stripped = line.strip()
        start += line.find(stripped)
        cut = segments(stripped, self._fits, self.source_language) if stripped else []
        if len(cut) > 1:
            cut = keep_spans_whole(demands.protection.spans(stripped), cut)
        starts = accumulate(map(len, cut), initial=start)
        return [
            TextPart(Segment(part.strip(), demands), place + len(part) - len(part.lstrip()), part[len(part.rstrip()) :])
            for part, place in zip(cut, starts, strict=False)
            if part.strip()
        ]

    def _fits(self, text: str) -> bool:
        return len(self.tokenizer.encode(text.strip())) < self.reach  # leaves room for the end token
