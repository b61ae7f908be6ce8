"""Speed of one completion at a time by compiled steps: one token per call, or several tokens per call.

Passages of the held-out text are continued. "Same text" is the share up to the first difference, which occurs where two
tokens are equally likely within rounding.

Run: python -m benchmarks.several RUN [ROUNDS] [TOKENS]      (an optimized writer)
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from time import perf_counter
from typing import NamedTuple

from benchmarks.engines import in_common
from benchmarks.report import Result, write_result
from penwright.config import DecodingSettings
from penwright.data.corpus import Document
from penwright.generation.generator import Generator
from penwright.workflows.evaluate import open_corpus_of
from penwright.workflows.load import load_generator, open_run

NAME = "several"
N_PROMPTS, PROMPT_CHARACTERS = 8, 60
TEMPERATURES = (0.0, 0.8)
WAYS = ("one token per call", "several tokens per call")


class Written(NamedTuple):
    """Texts, and the speed at which they were generated."""

    texts: list[str]
    pace: float  # tokens per second


def main(run: Path, rounds: int = 3, n_tokens: int = 128) -> None:
    """Run both ways in turn, `rounds` times after a warm-up."""
    generator, prompts = load_generator(run), passages(run)
    several = generator._stepper._compiled("several", generator.model.embedding.tokens.weight.device)
    if several is None:
        raise SystemExit(f"{run} has no compiled step for several tokens. Run `penwright optimize {run}` first")
    found: dict[tuple[str, float], list[Written]] = {}
    for turn in range(rounds + 1):  # the first one is a warm-up
        for temperature in TEMPERATURES:
            settings = DecodingSettings(max_new_tokens=n_tokens, temperature=temperature)
            for way, compiled in zip(WAYS, (None, several), strict=True):
                generator._stepper._loaded["several"] = compiled
                written = write(generator, prompts, settings)
                found.setdefault((way, temperature), []).extend([written] if turn else [])
                print(f"{way}, temperature {temperature}: {written.pace:,.0f} tokens/s", flush=True)
    results = []
    for way in WAYS:
        figures: dict[str, list[float]] = {}
        for temperature in TEMPERATURES:
            each, plain = found[way, temperature], found[WAYS[0], temperature][0].texts
            figures[f"temperature {temperature}: tokens/s"] = [one.pace for one in each]
            figures["% same text" + " " * (temperature > 0)] = [mean(in_common(one.texts, plain) for one in each)]
        results.append(Result(way, figures))
    settings_of = generator.model.settings
    about = f"{settings_of.n_layers} layers, d {settings_of.d_model}, {generator.tokenizer.kind}, "
    about += f"{len(prompts)} completions of {n_tokens} tokens, {rounds} rounds. "
    about += (__doc__ or "").split("\n\n")[1].replace("\n", " ")
    write_result(f"{NAME}-{run.name}", f"python -m benchmarks.{NAME} {run.name} {rounds} {n_tokens}", results, about)


def passages(run: Path) -> list[str]:
    """Return prompts from the held-out text."""
    it = open_run(run)
    documents = [document for document in open_corpus_of(it).held_out if isinstance(document, Document)]
    text = "".join(chunk for document in documents for chunk in document.chunks)
    apart = max(PROMPT_CHARACTERS, len(text) // N_PROMPTS)
    return [text[start : start + PROMPT_CHARACTERS] for start in range(0, len(text), apart)][:N_PROMPTS]


def write(generator: Generator, prompts: Sequence[str], settings: DecodingSettings) -> Written:
    """Continue the prompts one after the other."""
    begin = perf_counter()
    done = [generator.generate(prompt, settings)[0] for prompt in prompts]
    seconds = perf_counter() - begin
    return Written([each.text for each in done], sum(len(each.tokens) for each in done) / seconds)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
