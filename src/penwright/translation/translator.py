"""Text in, translation out: an encoder-decoder with its tokenizer. One line in is one line out."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial
from itertools import accumulate
from typing import Any, Literal, NamedTuple

import torch

from penwright.config import DecodingSettings, GivenSettings, decoding_settings
from penwright.decoding.brief import described
from penwright.decoding.engine import DecodeEngine
from penwright.decoding.hypotheses import BeamSettings, Wanted, Watch
from penwright.decoding.sampling.sampler import Sampling
from penwright.decoding.unknown_tokens import controls, never_written
from penwright.errors import UsageError
from penwright.model.encoder_decoder import EncoderDecoder
from penwright.text import next_word
from penwright.tokenizers import Tokenizer
from penwright.tokenizers.tokenizer import well_formed
from penwright.translation.alternatives import Variety
from penwright.translation.constraints.requirements import USUAL_DEMANDS, Constraints
from penwright.translation.constraints.search import Searcher, WantedJob
from penwright.translation.constraints.segments import Segment, SegmentResult
from penwright.translation.documents import translated
from penwright.translation.results import (
    Alternative,
    SplitText,
    TextPart,
    Translation,
    jobs_of,
    put_together,
    wanted_job,
)
from penwright.translation.segments import around, segments
from penwright.translation.worker_processes import Team

SHORTEST_REACH = 5  # a character can be four bytes, and there is the end token
USED_BY_BEAMS = ("beam_size", "length_penalty", "coverage_penalty", "outlook", "max_new_tokens")  # of the settings
WORTH_SHARING = 4  # texts for each process


class Task(NamedTuple):
    """What one of several processes searches for."""

    jobs: Sequence[Segment]
    settings: BeamSettings
    limit: int | None


def _done(searcher: Searcher, task: Task) -> list[list[SegmentResult]]:
    """What is found for each job of the task."""
    found = searcher.find(*task)
    return [found[job] for job in task.jobs]


class Translator:
    """Translates texts of any length, in batches of similar ones."""

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
        """Sources longer than max_source_tokens (end token included; None: the context) are translated in parts.

        What a model makes of sources longer than any in its training is poor, so give the longest one there.
        source_language is a code such as "de", for what is known of its sentences; None: they end as in English.
        """
        self.model, self.tokenizer, self.source_language = model, tokenizer, source_language
        self.defaults = defaults or DecodingSettings()
        self._stepper = DecodeEngine(model)
        self._team: Team[Task, list[list[SegmentResult]]] | None = None
        self._wanted: Wanted | None = None
        self.context_length = model.settings.context_length
        self.reach = min(self.context_length, max(max_source_tokens or self.context_length, SHORTEST_REACH))

    def __repr__(self) -> str:
        source = f", from {self.source_language}" if self.source_language else ""
        return described("Translator", self.model, self.tokenizer, source)

    @contextmanager
    def watched(self, watch: Callable[[], None], wanted: Wanted | None = None) -> Iterator[None]:
        """Have `watch` called before each step of search inside; what it raises ends the search.

        A text of translate() that is not `wanted` any more, by its number, is searched no further, and what comes of it
        is of no use; the others do not notice.
        """
        self._wanted = wanted
        try:
            with self._stepper.watched(watch):
                yield
        finally:
            self._wanted = None

    def share_out(self, n_processes: int | None = None) -> None:
        """From now on, several texts are translated by so many processes, or one for each thread of torch.

        That is for models that are quickest on one thread; others use several threads as it is. The processes begin
        when they are first needed: weights that change from then on change here alone.
        """
        wanted = torch.get_num_threads() if n_processes is None else n_processes
        on_cpu = next(self.model.parameters()).device.type == "cpu"
        size = wanted if on_cpu and self._stepper.n_threads == 1 else 1
        self._team = Team(partial(_done, self._searcher), size) if size > 1 else None  # not of self: it ends with self

    def translate(
        self,
        texts: str | Sequence[str],
        settings: GivenSettings = None,
        *,
        n_best: int = 1,
        demands: Constraints | Sequence[Constraints] = USUAL_DEMANDS,
        prefixes: str | Sequence[str] = "",
        watch: Watch | None = None,
        **options: Any,
    ) -> list[Translation]:
        """Translate each text, in their order: `translate(["Ein Hund."], beam_size=4, n_best=2)`.

        Options are the settings of [decoding] that beam search uses: beam_size, length_penalty, coverage_penalty,
        outlook and max_new_tokens. What is not given is as in the run's recipe.

        Line breaks stay where they are, and a blank line gives an empty one. Demands and prefixes are for
        all texts, or one for each. A translation begins with its prefix; one that ends in white space ends a word.
        `watch` sees the steps of search, and ends it by raising.
        """
        chosen = decoding_settings(self.defaults, settings, options, USED_BY_BEAMS)
        search = replace(self._search(chosen), n_best=n_best)
        if not 1 <= n_best <= search.beam_size:
            raise UsageError(f"n_best ({n_best}) must be between 1 and beam_size ({search.beam_size})")
        parts = self._prepared(texts, demands, prefixes)
        found = self._found(jobs_of(parts), search, chosen.max_new_tokens, watch, wanted_job(parts, self._wanted))
        return [put_together(self.tokenizer, each, found, self.reach) for each in parts]

    def sample(
        self,
        texts: str | Sequence[str],
        n: int = 1,
        settings: GivenSettings = None,
        demands: Constraints = USUAL_DEMANDS,
        **options: Any,
    ) -> list[Translation]:
        """Sample n translations of each text; options are settings of [decoding], such as temperature and seed."""
        settings = decoding_settings(self.defaults, settings, options)
        sampling = Sampling(self._banned, settings)
        parts = self._prepared(texts, demands, "")
        found = self._variety.sample(jobs_of(parts), sampling, settings.seed, n)
        return [put_together(self.tokenizer, each, found, self.reach) for each in parts]

    def diverse(
        self,
        texts: str | Sequence[str],
        n: int,
        strength: float = 1.0,
        demands: Constraints = USUAL_DEMANDS,
        **options: Any,
    ) -> list[Translation]:
        """Find up to n translations of each text that differ; options as in `translate`.

        Each token of one translation costs the next `strength` nats in the same place.
        """
        parts = self._prepared(texts, demands, "")
        search = self._search(decoding_settings(self.defaults, None, options, USED_BY_BEAMS))
        found = self._variety.diverse(jobs_of(parts), n, strength, search)
        return [put_together(self.tokenizer, each, found, self.reach) for each in parts]

    def alternatives(
        self, source: str, prefix: str, n: int = 5, demands: Constraints = USUAL_DEMANDS
    ) -> list[Alternative]:
        """The n likeliest next words after the beginning of a translation, each with the best way to go on.

        A prefix that ends in white space ends a word; else its last word may go on. Raises UsageError for a source of
        several lines, or longer than the model reads at once.
        """
        parts = [part for _, lines in self._prepared([source], demands, prefix) for line in lines for part in line]
        if len(parts) != 1:
            raise UsageError("alternatives are for one sentence: give a single line that is not too long")
        found = self._variety.go_on(parts[0].job, 2 * n, self._search(self.defaults))
        alternatives: dict[str, Alternative] = {}
        for each in found:
            n_given = len(self.tokenizer.encode(prefix.strip()))
            piece = self.tokenizer.token_text(each.hypothesis.tokens[n_given])
            word = next_word(each.text[len(prefix.strip()) :], piece)
            log_prob = each.hypothesis.log_probs[n_given]
            alternatives.setdefault(word, Alternative(word, log_prob, each.text, each.hypothesis.score))
        return [alternative for word, alternative in alternatives.items() if word][:n]

    def translate_document(self, document: str, demands: Constraints = USUAL_DEMANDS) -> str:
        """Sentence by sentence; blank lines, indentation and bullets stay, and wrapped paragraphs are wrapped again."""

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
        """What is found for each, by the processes that share the work, where nobody looks on."""
        if self._team is None or watch or wanted or len(jobs) < WORTH_SHARING * self._team.size:
            return self._searcher.find(jobs, settings, limit, watch, wanted)
        self._stepper.load()  # before there are copies
        jobs = sorted(jobs, key=lambda job: len(job.source))  # so that all have as much to do
        tasks = [Task(jobs[first :: self._team.size], settings, limit) for first in range(self._team.size)]
        shares = zip(tasks, self._team(tasks), strict=True)
        return {job: found for task, share in shares for job, found in zip(task.jobs, share, strict=True)}

    def _search(self, settings: DecodingSettings) -> BeamSettings:
        penalties = settings.length_penalty, self._banned, settings.coverage_penalty
        return BeamSettings(settings.beam_size, 1, *penalties, settings.outlook)

    @cached_property
    def _banned(self) -> tuple[int, ...]:
        return never_written(self.tokenizer) + controls(self.tokenizer)

    @cached_property
    def _searcher(self) -> Searcher:
        return Searcher(self.model, self.tokenizer, self._stepper)

    @cached_property
    def _variety(self) -> Variety:
        return Variety(self.model, self.tokenizer, self._stepper)

    def _prepared(
        self, texts: str | Sequence[str], demands: Constraints | Sequence[Constraints], prefixes: str | Sequence[str]
    ) -> list[SplitText]:
        """Each text with the parts of its lines."""
        texts = [texts] if isinstance(texts, str) else texts
        prefixes = [prefixes] * len(texts) if isinstance(prefixes, str) else prefixes
        demands = [demands] * len(texts) if isinstance(demands, Constraints) else demands
        longest = max((len(self.tokenizer.encode(prefix.strip())) for prefix in {*prefixes} - {""}), default=0)
        if longest >= self.context_length:
            raise UsageError(f"a prefix of {longest:,} tokens: this model writes {self.context_length:,} at most")
        each = zip(texts, prefixes, demands, strict=True)
        return [SplitText(text, self._lines(text, prefix, demanded)) for text, prefix, demanded in each]

    def _lines(self, text: str, prefix: str, demands: Constraints) -> list[list[TextPart]]:
        """The parts of each line; the first part of all has the prefix."""
        lines, start = [], 0
        for line in well_formed(text).split("\n"):
            lines.append(self._parts(line, start, demands))
            start += len(line) + 1
        first = next((line for line in lines if line), None)
        if first is not None:
            first[0] = first[0]._replace(job=first[0].job._replace(prefix=well_formed(prefix)))
        return lines

    def _parts(self, line: str, start: int, demands: Constraints) -> list[TextPart]:
        stripped = line.strip()
        start += line.find(stripped)
        cut = segments(stripped, self._fits, self.source_language) if stripped else []
        if len(cut) > 1:
            cut = around(demands.protection.spans(stripped), cut)
        starts = accumulate(map(len, cut), initial=start)
        return [
            TextPart(Segment(part.strip(), demands), place + len(part) - len(part.lstrip()), part[len(part.rstrip()) :])
            for part, place in zip(cut, starts, strict=False)
            if part.strip()
        ]

    def _fits(self, text: str) -> bool:
        return len(self.tokenizer.encode(text.strip())) < self.reach  # one is left for the end token
