"""Compare translations of a sentence alone, in batches, without a cache, and in lower precision.

Figures are the share of sentences with exactly the same tokens. "Same as float32" uses batches of similar length, as
`translate` does.

Run: python -m benchmarks.exactness RUN SOURCES REFERENCES [SENTENCES]
"""

import random
import sys
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.report import Result, write_result
from penwright.config import Precision
from penwright.decoding.batches import Branching, TargetBatch, batches_by_length, right_padded
from penwright.decoding.beam_search import beam_search
from penwright.decoding.hypotheses import BeamSettings
from penwright.decoding.sampling.topk import TokenSelector
from penwright.decoding.sampling.utf8 import Utf8Rules
from penwright.evaluation.translation import translation_scores
from penwright.model.quantized import to_precision
from penwright.model.transformer import EncoderDecoder
from penwright.tokenizers import Tokenizer
from penwright.workflows.load import load_translator

NAME = "exactness"
BATCH_TOKENS = 1024
Tokens = tuple[int, ...]
Rows = Callable[[Sequence[Tokens], int], Branching]


class Uncached:
    """A reference that runs the model on the whole target for every token."""

    def __init__(self, model: EncoderDecoder, sources: Sequence[Tokens], start_id: int):
        self._model = model
        self._encoded = model.encode(*right_padded(sources, torch.device("cpu")))
        self._targets = torch.full((len(sources), 1), start_id)

    def first(self) -> Tensor:
        """Return the logits after the start token."""
        return self._model.output(self._model.hidden(self._targets, self._encoded)[:, -1]).float()

    def step(self, tokens: Tensor) -> Tensor:
        """Append a token to each row; return the logits of the next one."""
        self._targets = torch.cat([self._targets, tokens[:, None]], dim=1)
        return self.first()

    def select(self, rows: Tensor) -> None:
        """Keep only these rows."""
        self._encoded, self._targets = self._encoded.select(rows), self._targets[rows]

    def branch(self, n: int) -> None:
        """Repeat each source n times."""
        self.select(torch.arange(len(self._targets)).repeat_interleave(n))

    def reorder(self, rows: Tensor) -> None:
        """Reorder the targets; the sources stay in place."""
        self._targets = self._targets[rows]


class Translations:
    """Translations of all sentences by one model and beam size, in any batches."""

    def __init__(self, model: EncoderDecoder, tokenizer: Tokenizer, sources: Sequence[Tokens], beam_size: int):
        self.model, self.tokenizer, self.sources = model.eval(), tokenizer, sources
        self.settings = BeamSettings(beam_size)

    @torch.inference_mode()
    def in_batches(self, batches: Iterator[Sequence[int]], *, cached: bool = True) -> list[Tokens]:
        """Return the best translation of each source, in order."""
        found: dict[int, Tokens] = {}
        for batch in batches:
            sources = [self.sources[number] for number in batch]
            limits = [min(2 * len(source) + 20, self.model.settings.context_length) for source in sources]
            rows = self._rows(sources, max(limits)) if cached else self._uncached(sources)
            selector = TokenSelector(Utf8Rules.free(self.tokenizer.vocab_size))
            results = beam_search(rows, limits, self.settings, end_id=self.tokenizer.end_id, selector=selector)
            found |= {number: best.tokens for number, (best, *_) in zip(batch, results, strict=True)}
        return [found[number] for number in range(len(self.sources))]

    def _rows(self, sources: Sequence[Tokens], longest: int) -> Branching:
        return TargetBatch(self.model, sources, start_id=self.tokenizer.start_id, max_new_tokens=longest)

    def _uncached(self, sources: Sequence[Tokens]) -> Branching:
        return Uncached(self.model, sources, self.tokenizer.start_id)

    def together(self) -> list[Tokens]:
        """Translate in batches of similar length."""
        return self.in_batches(self.by_length())

    def by_length(self) -> Iterator[Sequence[int]]:
        """Yield batches of similar length, as indices of sources."""
        lengths = [len(source) for source in self.sources]
        return iter(batches_by_length(lengths, BATCH_TOKENS // self.settings.beam_size))


def main(run: Path, sources: Path, references: Path, n: int = 1000) -> None:
    """Measure every precision, greedy and with five beams."""
    translator = load_translator(run, precision="float32")
    tokenizer = translator.tokenizer
    texts, wanted = (path.read_text(encoding="utf-8").splitlines()[:n] for path in (sources, references))
    tokens = [(*tokenizer.encode(text), tokenizer.end_id) for text in texts]
    results: dict[str, dict[str, list[float]]] = {}
    exact: dict[int, list[Tokens]] = {}
    precisions: tuple[Precision, ...] = ("float32", "bfloat16", "int8")
    for precision in precisions:
        model = deepcopy(translator.model)
        to_precision(model, precision)
        for beam_size in (1, 5):
            trial = Translations(model, tokenizer, tokens, beam_size)
            found = trial.together()
            exact.setdefault(beam_size, found)
            bleu = translation_scores([tokenizer.decode(each) for each in found], wanted)[0].value
            figures = {
                "same as float32, %": [_same(found, exact[beam_size])],
                "alone, %": [_same(found, trial.in_batches([number] for number in range(len(tokens))))],
                "in shuffled batches of seven, %": [_same(found, trial.in_batches(_shuffled(len(tokens))))],
                "without a cache, %": [_same(found, trial.in_batches(trial.by_length(), cached=False))],
                "BLEU": [bleu],
            }
            name = f"{precision}, {'greedy' if beam_size == 1 else f'{beam_size} beams'}"
            results[name] = figures
            print(name, {what: round(values[0], 2) for what, values in figures.items()}, flush=True)
    about = f"{len(texts)} sentences of {sources.name}. " + (__doc__ or "").split("\n\n")[1]
    command = f"python -m benchmarks.{NAME} RUN {sources.name} {references.name} {n}"
    write_result(NAME, command, [Result(name, figures) for name, figures in results.items()], about)


def _shuffled(n: int) -> Iterator[Sequence[int]]:
    order = random.Random(1).sample(range(n), n)
    return iter([order[begin : begin + 7] for begin in range(0, n, 7)])


def _same(found: Sequence[Tokens], others: Sequence[Tokens]) -> float:
    return 100 * sum(a == b for a, b in zip(found, others, strict=True)) / len(found)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), *map(int, sys.argv[4:]))
