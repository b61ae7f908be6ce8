"""Effect of lower precision on a writer: nats per token of held-out text, token by token as in generation.

Each token is computed by a decoding step, compiled if `penwright optimize` kept one, with the cache in the precision of
generation, so that every rounding counts. "At once" is the same text in one forward pass.

Run: python -m benchmarks.precision RUN [WINDOWS]
"""

import sys
from copy import deepcopy
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.report import Result, write_result
from penwright.decoding.batches import PromptBatch
from penwright.decoding.engine import DecodeEngine, are_steps_compiled
from penwright.model.quantized import to_precision
from penwright.model.transformer import DecoderOnly
from penwright.workflows.evaluate import evaluation_context, open_corpus_of
from penwright.workflows.load import open_run
from penwright.workflows.optimize import fastest_first

NAME = "precision"
ROWS = 32  # windows at a time


def main(run: Path, n_windows: int = 256) -> None:
    """Measure every precision that this machine supports."""
    it = open_run(run)
    model = it.model("float32")
    assert isinstance(model, DecoderOnly), "this benchmark needs a writer"
    bench = evaluation_context(it, open_corpus_of(it), model)
    length = model.settings.context_length
    tokens = torch.from_numpy(bench.held_out.column("text").tokens.astype("int64"))
    windows = torch.stack(list(islice(tokens.split(length), min(n_windows, len(tokens) // length))))
    exact, results = at_once(model, windows), []
    for precision in reversed(fastest_first()):
        rounded = deepcopy(model)
        to_precision(rounded, precision)
        kept = "compiled" if are_steps_compiled(rounded) else "not compiled"
        nats = {"by steps": stepped(rounded, windows), "at once": at_once(rounded, windows)}
        figures = {"nats per token by steps": [nats["by steps"]]}
        figures |= {f"{how}, thousandths of a nat above float32": [1000 * (n - exact)] for how, n in nats.items()}
        results.append(Result(f"{precision}, steps {kept}", figures))
        print(results[-1], flush=True)
    about = f"{len(windows)} windows of {length} tokens. " + (__doc__ or "").split("\n\n")[1].replace("\n", " ")
    write_result(NAME, f"python -m benchmarks.{NAME} RUN {n_windows}", results, about)


@torch.inference_mode()
def stepped(model: DecoderOnly, windows: Tensor) -> float:
    """Return the nats per token by decoding steps; the first token of each window is the prompt."""
    engine, nats = DecodeEngine(model), 0.0
    for rows in windows.split(ROWS):
        written = PromptBatch(model, rows[:, :1].tolist(), rows.shape[1], engine)
        logits = written.first()
        for place in range(1, rows.shape[1]):
            nats += float(torch.nn.functional.cross_entropy(logits.float(), rows[:, place], reduction="sum"))
            if place + 1 < rows.shape[1]:
                logits = written.step(rows[:, place])
    return nats / windows[:, 1:].numel()


@torch.inference_mode()
def at_once(model: DecoderOnly, windows: Tensor) -> float:
    """Return the nats per token by forward passes over whole windows."""
    nats = 0.0
    for rows in windows.split(ROWS):
        logits = model(rows[:, :-1]).float().flatten(0, 1)
        nats += float(torch.nn.functional.cross_entropy(logits, rows[:, 1:].flatten(), reduction="sum"))
    return nats / windows[:, 1:].numel()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
