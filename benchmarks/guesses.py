"""One completion at a time, with guesses at what comes and without: tokens a second, and tokens a step.

Passages of the held-out text are continued. "Repetitions" are guesses by what followed the same tokens in the text so
far, "n-grams" by what usually follows in the text that the model learned from as well (`penwright quicken`). The same
text: up to the first difference, which comes where two tokens are as likely within the rounding of the precision.

Run: python -m benchmarks.guesses RUN [ROUNDS] [TOKENS]
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
from penwright.data.corpora import Document
from penwright.decoding import Generator
from penwright.decoding.foresight import Foresight
from penwright.using import QUICKENED, load_generator, opened

NAME = "guesses"
N_PROMPTS, PROMPT_CHARACTERS = 8, 60
TEMPERATURES = (0.0, 0.8)


class Written(NamedTuple):
    texts: list[str]
    pace: float  # tokens a second
    tokens_a_step: float


def main(run: Path, rounds: int = 3, n_tokens: int = 128) -> None:
    """Every way in turn, so many times."""
    generator, prompts = load_generator(run), passages(run)
    cost = opened(run).run.read_json(QUICKENED)["cost_of_a_guess"]
    ways = {"no guesses": None, "repetitions": Foresight(None, cost), "n-grams": generator._stepper.foresight}
    for foresight in ways.values():
        write(generator, prompts[:2], foresight, DecodingSettings(max_new_tokens=n_tokens, temperature=0))
    found: dict[tuple[str, float], list[Written]] = {}
    for _ in range(rounds):
        for temperature in TEMPERATURES:
            settings = DecodingSettings(max_new_tokens=n_tokens, temperature=temperature)
            for name, foresight in ways.items():
                written = write(generator, prompts, foresight, settings)
                found.setdefault((name, temperature), []).append(written)
                print(f"{name}, temperature {temperature}: {written.pace:,.0f} tokens/s", flush=True)
    results = []
    for name in ways:
        figures: dict[str, list[float]] = {}
        for temperature in TEMPERATURES:
            each, plain = found[name, temperature], found["no guesses", temperature][0].texts
            figures[f"temperature {temperature}: tokens/s"] = [one.pace for one in each]
            figures["tokens a step" + " " * (temperature > 0)] = [mean(one.tokens_a_step for one in each)]
            figures["% same text" + " " * (temperature > 0)] = [mean(in_common(one.texts, plain) for one in each)]
        results.append(Result(name, figures))
    settings_of = generator.model.settings
    about = f"{settings_of.n_layers} layers, d {settings_of.d_model}, {generator.tokenizer.kind}, "
    about += f"{len(prompts)} completions of {n_tokens} tokens, {rounds} rounds. "
    about += (__doc__ or "").split("\n\n")[1].replace("\n", " ")
    write_result(f"{NAME}-{run.name}", f"python -m benchmarks.{NAME} {run.name} {rounds} {n_tokens}", results, about)


def passages(run: Path) -> list[str]:
    """Of the held-out text."""
    it = opened(run)
    documents = [document for document in it.corpus().held_out if isinstance(document, Document)]
    text = "".join(chunk for document in documents for chunk in document.chunks)
    apart = max(PROMPT_CHARACTERS, len(text) // N_PROMPTS)
    return [text[start : start + PROMPT_CHARACTERS] for start in range(0, len(text), apart)][:N_PROMPTS]


def write(
    generator: Generator, prompts: Sequence[str], foresight: Foresight | None, settings: DecodingSettings
) -> Written:
    """One after the other."""
    stepper, steps = generator._stepper, list[None]()
    stepper.foresight = foresight
    begin = perf_counter()
    with stepper.watched(lambda: steps.append(None)):
        completions = [generator.generate(prompt, settings)[0] for prompt in prompts]
    seconds, n_tokens = perf_counter() - begin, sum(len(each.tokens) for each in completions)
    return Written([each.text for each in completions], n_tokens / seconds, n_tokens / len(steps))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
