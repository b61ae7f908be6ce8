"""Tiny Shakespeare: a tutorial's plain script and Penwright, to the same validation loss, in whole processes.

The tutorial has characters, d 64, 4 heads, 4 layers, context 32, batches of 16, 5,000 steps of Adam at 1e-3 and dropout
0.1. The first 80 % of the text are for training. Every 100 steps it evaluates 200 batches of each part.

Run: python -m benchmarks.shakespeare_article path/to/input.txt [ROUNDS]
"""

import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.report import Result, write_result

NAME = "benchmarks.shakespeare_article"
D_MODEL, HEADS, LAYERS, CONTEXT, BATCH, STEPS, DROPOUT = 64, 4, 4, 32, 16, 5000, 0.1


class Head(nn.Module):
    """One attention head, with the mask in a buffer, as tutorials write it."""

    def __init__(self) -> None:
        super().__init__()
        self.key, self.query, self.value = (nn.Linear(D_MODEL, D_MODEL // HEADS, bias=False) for _ in range(3))
        self.register_buffer("mask", torch.tril(torch.ones(CONTEXT, CONTEXT)))
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, x: Tensor) -> Tensor:
        keys, queries, length = self.key(x), self.query(x), x.shape[1]
        scores = queries @ keys.transpose(-2, -1) * keys.shape[-1] ** -0.5
        scores = scores.masked_fill(self.get_buffer("mask")[:length, :length] == 0, float("-inf"))
        return self.dropout(F.softmax(scores, dim=-1)) @ self.value(x)


class TutorialBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleList(Head() for _ in range(HEADS))
        self.projection, self.dropout = nn.Linear(D_MODEL, D_MODEL), nn.Dropout(DROPOUT)
        self.feed_forward = nn.Sequential(
            nn.Linear(D_MODEL, 4 * D_MODEL), nn.ReLU(), nn.Linear(4 * D_MODEL, D_MODEL), nn.Dropout(DROPOUT)
        )
        self.norm1, self.norm2 = nn.LayerNorm(D_MODEL), nn.LayerNorm(D_MODEL)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        x = x + self.dropout(self.projection(torch.cat([head(y) for head in self.heads], dim=-1)))
        return x + self.feed_forward(self.norm2(x))


class TutorialModel(nn.Module):
    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab_size, D_MODEL), nn.Embedding(CONTEXT, D_MODEL)
        self.blocks = nn.Sequential(*[TutorialBlock() for _ in range(LAYERS)])
        self.norm, self.output = nn.LayerNorm(D_MODEL), nn.Linear(D_MODEL, vocab_size)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        logits = self.output(self.norm(self.blocks(x)))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def tutorial(path: Path) -> None:
    """Train as the tutorial does; print the loss on the whole validation part in windows of the context."""
    torch.manual_seed(1)
    text = path.read_text(encoding="utf-8")
    number = {character: place for place, character in enumerate(sorted(set(text)))}
    data = torch.tensor([number[character] for character in text])
    border = int(0.8 * len(data))
    training, held_out = data[:border], data[border:]
    model = TutorialModel(len(number))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def batch(part: Tensor) -> tuple[Tensor, Tensor]:
        starts = torch.randint(len(part) - CONTEXT, (BATCH,)).tolist()
        windows = torch.stack([part[start : start + CONTEXT + 1] for start in starts])
        return windows[:, :-1], windows[:, 1:]

    for step in range(STEPS):
        if step % 100 == 0:
            model.eval()
            with torch.no_grad():
                for part in (training, held_out):
                    sum(model(*batch(part)).item() for _ in range(200))
            model.train()
        loss = model(*batch(training))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    model.eval()
    windows = held_out[: (len(held_out) - 1) // CONTEXT * CONTEXT]
    targets = held_out[1 : len(windows) + 1]
    with torch.no_grad():
        print(model(windows.view(-1, CONTEXT), targets.view(-1, CONTEXT)).item())


def main(path: Path, rounds: int = 3) -> None:
    """Run in turn the tutorial, then ours with its settings, with its model and our training, and with our sizes."""
    times: dict[str, list[tuple[float, float]]] = {}
    for number in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            runs = {
                "the tutorial's script": [
                    sys.executable,
                    "-m",
                    "benchmarks.shakespeare_article",
                    str(path),
                    "tutorial",
                ],
                "penwright, the tutorial's sizes": _ours(path, Path(folder) / "s2", "shakespeare-char-s2", number),
                "penwright, the tutorial's model, our training": _ours(
                    path, Path(folder) / "s2-fast", "shakespeare-char-s2-fast", number
                ),
                "penwright, our sizes": _ours(path, Path(folder) / "fast", "shakespeare-char-fast", number),
            }
            for name, command in runs.items():
                begin = perf_counter()
                output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                seconds = perf_counter() - begin
                loss = float(output) if "tutorial" in command else _loss_of(Path(command[command.index("--run") + 1]))
                times.setdefault(name, []).append((seconds, loss))
                print(f"{name}: {seconds:.1f} s, {loss:.4f} nats per character", flush=True)
    results = [
        Result(name, {"seconds": [s for s, _ in found], "nats": [n for _, n in found]}) for name, found in times.items()
    ]
    write_result("shakespeare_article", f"python -m benchmarks.shakespeare_article {path.name}", results)


def _ours(path: Path, run: Path, recipe: str, seed: int) -> list[str]:
    options = ["--recipe", f"recipes/{recipe}.toml", "--run", str(run), "--seed", str(seed + 1)]
    return [sys.executable, "-m", "penwright", "train", str(path), *options]


def _loss_of(run: Path) -> float:
    from penwright.run.folder import Run

    return float(Run.open(run).records("metrics.jsonl")[-1]["nats per token"])


if __name__ == "__main__":
    if sys.argv[2:] == ["tutorial"]:
        tutorial(Path(sys.argv[1]))
    else:
        main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
