"""Training speed of a tutorial's translator and ours, same sizes and pairs, in target tokens per second (no padding).

The tutorial has d 512, 6 + 6 layers, 4 heads, hidden layers of 1,024, GELU, learned positions, post-norm, AdamW and
float32. It pads every sentence to 128 tokens; here it is written with torch's Transformer. Ours is
recipes/wmt14-de-en.toml, uncompiled in float32, and with the precision and compilation of a long run. All have a
vocabulary of 16,000 and steps of 4,096 target tokens, padding included.

Run: python -m benchmarks.translation_article SOURCE TARGET [ROUNDS]
"""

import subprocess
import sys
from pathlib import Path
from statistics import median
from time import perf_counter

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.ours import pace_in_new_process
from benchmarks.report import Result, write_result
from penwright.config import Table, merge, read_toml
from penwright.tokenizers.training import train_tokenizer

NAME = "translation_article"
D_MODEL, HEADS, LAYERS, D_FF, DROPOUT, LENGTH, VOCABULARY = 512, 4, 6, 1024, 0.1, 128, 16_000
ROWS, STEPS = 32, 8
OURS_STEPS = 20  # more than STEPS, since lengths vary
OURS: dict[str, Table] = {
    "penwright, float32, not compiled": {"precision": "float32", "compile": "off"},
    "penwright, automatic settings": {"compile": "on"},
}
RECIPE = Path("recipes/wmt14-de-en.toml")


class TutorialModel(nn.Module):
    """Embeddings with learned positions, torch's Transformer, and an untied output layer."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(vocab_size, D_MODEL), nn.Embedding(vocab_size, D_MODEL)
        self.positions = nn.Embedding(LENGTH, D_MODEL)
        self.transformer = nn.Transformer(
            D_MODEL, HEADS, LAYERS, LAYERS, D_FF, DROPOUT, activation="gelu", batch_first=True
        )
        self.output = nn.Linear(D_MODEL, vocab_size)

    def forward(self, source: Tensor, target: Tensor, pad: int) -> Tensor:
        positions = self.positions(torch.arange(LENGTH))
        hidden = self.transformer(
            self.source(source) + positions,
            self.target(target) + positions,
            tgt_mask=torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1),
            src_key_padding_mask=source == pad,
            tgt_key_padding_mask=target == pad,
            memory_key_padding_mask=source == pad,
        )
        logits: Tensor = self.output(hidden)
        return logits


def tutorial(source: Path, target: Path) -> None:
    """Train for some steps; print the median of target tokens per second, padding excluded."""
    torch.manual_seed(1)
    lines = [_lines(path)[: ROWS * STEPS] for path in (source, target)]
    tokenizer = train_tokenizer("bpe", [*_lines(source), *_lines(target)], VOCABULARY)
    pad, start, end = tokenizer.pad_id, tokenizer.start_id, tokenizer.end_id

    def padded(texts: list[str], before: list[int], after: list[int]) -> Tensor:
        rows = [(before + tokenizer.encode(text) + after)[:LENGTH] for text in texts]
        return torch.tensor([row + [pad] * (LENGTH - len(row)) for row in rows])

    model = TutorialModel(tokenizer.vocab_size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2.5e-4, betas=(0.9, 0.98))
    rates = []
    for first in range(0, ROWS * STEPS, ROWS):
        sources, targets = (texts[first : first + ROWS] for texts in lines)
        read, aims = (padded(sources, [], [end]), padded(targets, [start], [])), padded(targets, [], [end])
        begin = perf_counter()
        logits = model(*read, pad)
        loss = F.cross_entropy(logits.flatten(0, 1), aims.flatten(), ignore_index=pad)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        rates.append(int((aims != pad).sum()) / (perf_counter() - begin))
    print(median(rates[1:]))  # the first step warms up


def main(source: Path, target: Path, rounds: int = 3) -> None:
    """Run each in turn. The speed is the median over the steps after the first."""
    found: dict[str, list[float]] = {}
    for number in range(rounds):
        command = [sys.executable, "-m", "benchmarks.translation_article", "tutorial", str(source), str(target)]
        paces = {"the tutorial's step": float(subprocess.run(command, check=True, capture_output=True).stdout)}
        for name, training in OURS.items():
            paces[name] = pace_in_new_process(_ours(source, target, training, number))
        for name, pace in paces.items():
            found.setdefault(name, []).append(pace)
            print(f"{name}: {pace:,.0f} target tokens/s", flush=True)
    results = [Result(name, {"target tokens/s": paces}) for name, paces in found.items()]
    command_line = f"python -m benchmarks.{NAME} {source.name} {target.name} {rounds}"
    write_result(NAME, command_line, results, (__doc__ or "").split("\n\n")[1])


def _ours(source: Path, target: Path, training: Table, seed: int) -> Table:
    """Return the recipe for a few steps, with few held-out pairs, since evaluation is not measured."""
    recipe = read_toml(RECIPE)
    del recipe["training"]["epochs"]
    steps: Table = {"steps": OURS_STEPS, "evaluate_every": OURS_STEPS, "batch_tokens": ROWS * LENGTH, **training}
    files: Table = {"train": [str(source), str(target)], "held_out": 0.001}
    return merge(recipe, {"seed": seed, "data": files, "training": steps, "decoding": {"max_new_tokens": 8}})


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").removesuffix("\n").split("\n")


if __name__ == "__main__":
    if sys.argv[1] == "tutorial":
        tutorial(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        main(Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:]))
