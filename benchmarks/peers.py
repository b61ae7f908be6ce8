"""The peers, each run as its own authors run it: nanoGPT from a checkout, JoeyNMT from an environment of its own."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import NamedTuple

Line = tuple[float, str]  # seconds since the command began, and what it wrote then


class Finished(NamedTuple):
    """A process that ended well: how long it took as a whole, and what it wrote when."""

    seconds: float
    lines: list[Line]

    def found(self, pattern: str) -> list[tuple[float, float]]:
        """The seconds and the number of each line that has the pattern, whose only group is the number."""
        matches = ((second, re.search(pattern, line)) for second, line in self.lines)
        return [(second, float(match[1].replace(",", ""))) for second, match in matches if match]


def run(command: Sequence[object], folder: Path | None = None, limit: float = float("inf")) -> Finished:
    """Run to the end, or up to a limit in seconds, and note when each line came.

    Caches are empty at the start of each, so that what one run compiles or stores does not help the next.
    """
    caches = TemporaryDirectory()
    kept = {"PENWRIGHT_CACHE": caches.name, "TORCHINDUCTOR_CACHE_DIR": f"{caches.name}/compiled"}
    begin = perf_counter()
    process = subprocess.Popen(
        [str(part) for part in command],
        cwd=folder,
        env={**os.environ, **kept, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    lines: list[Line] = []
    assert process.stdout is not None
    for line in process.stdout:
        lines.append((perf_counter() - begin, line.rstrip("\n")))
        if perf_counter() - begin > limit:
            process.kill()
            break
    if process.wait() and perf_counter() - begin <= limit:
        raise SystemExit("\n".join([f"{command} failed:", *(line for _, line in lines[-30:])]))
    return Finished(perf_counter() - begin, lines)


class NanoGPT:
    """karpathy/nanoGPT: characters, prepared and trained with its own scripts in a copy of the checkout."""

    NAME = "nanoGPT"
    VALIDATION = r"val loss ([\d.]+)"
    MILLISECONDS = r"time ([\d.]+)ms"
    PREPARE = (  # it imports requests for a download that is not needed here
        "import runpy, sys, types; sys.modules['requests'] = types.ModuleType('requests'); "
        "runpy.run_path('data/shakespeare_char/prepare.py', run_name='__main__')"
    )

    def __init__(self, checkout: Path, text: Path, folder: Path):
        self.folder = folder
        shutil.copytree(checkout, folder, ignore=shutil.ignore_patterns(".git", "assets"))
        shutil.copy(text, folder / "data" / "shakespeare_char" / "input.txt")

    def prepare(self) -> Finished:
        return run([sys.executable, "-c", self.PREPARE], self.folder)

    def train(self, **options: object) -> Finished:
        """The options are those of its train.py."""
        flags = [f"--{name}={value}" for name, value in {"device": "cpu", **options}.items()]
        return run([sys.executable, "train.py", "config/train_shakespeare_char.py", *flags], self.folder)


class JoeyNMT:
    """joeynmt 2.3: a SentencePiece model of both sides, then its own trainer; `python` is that of its environment."""

    NAME = "JoeyNMT"
    TOKENS_A_SECOND = r"Tokens per Sec: +([\d.]+)"
    BLEU = r"bleu: +([\d.]+)"
    SHIM = (  # joeynmt 2.3 restricts pieces to its vocabulary by a method that has gone; here they are the same anyway
        "import sys; from sentencepiece import SentencePieceProcessor as P; "
        "P.SetVocabulary = getattr(P, 'SetVocabulary', lambda self, pieces: None); "
        "from joeynmt.__main__ import main; sys.argv = ['joeynmt', *sys.argv[1:]]; main()"
    )
    PREPARE = (
        "import sys, sentencepiece as s; source, target, size = sys.argv[1:]; "
        "s.SentencePieceTrainer.train(input=[source, target], model_prefix='pieces', vocab_size=int(size), "
        "model_type='unigram', character_coverage=1.0, unk_id=0, pad_id=1, bos_id=2, eos_id=3, minloglevel=2); "
        "p = s.SentencePieceProcessor(model_file='pieces.model'); "
        "open('vocabulary.txt', 'w', encoding='utf-8').write("
        "''.join(p.id_to_piece(i) + chr(10) for i in range(p.get_piece_size())))"
    )

    def __init__(self, python: Path, folder: Path, languages: tuple[str, str], parts: dict[str, tuple[Path, Path]]):
        """`parts` are train, dev and test, each the source and the target file, as plain text."""
        self.python, self.folder, self.languages = python.absolute(), folder, languages
        folder.mkdir(parents=True)
        for part, files in parts.items():
            for language, file in zip(languages, files, strict=True):
                (folder / f"{part}.{language}").write_bytes(file.read_bytes())

    def prepare(self, vocab_size: int) -> Finished:
        source, target = self.languages
        return run([self.python, "-c", self.PREPARE, f"train.{source}", f"train.{target}", vocab_size], self.folder)

    def train(self, limit: float = float("inf"), **training: object) -> Finished:
        """Up to a limit in seconds; the options are those of its [training] section."""
        (self.folder / "config.yaml").write_text(self._config(training), encoding="utf-8")
        return run([self.python, "-c", self.SHIM, "train", "config.yaml", "--skip-test"], self.folder, limit)

    def test(self) -> Finished:
        """Translate the test part with the best checkpoint, beam 5."""
        return run([self.python, "-c", self.SHIM, "test", "config.yaml"], self.folder)

    def _config(self, training: dict[str, object]) -> str:
        source, target = self.languages
        side = (
            "{{lang: {0}, level: bpe, lowercase: false, max_length: 120, voc_file: vocabulary.txt, "
            "tokenizer_type: sentencepiece, tokenizer_cfg: {{model_file: pieces.model}}}}"
        )
        layers = (
            "{type: transformer, num_layers: 4, num_heads: 4, embeddings: {embedding_dim: 128, scale: true, "
            "dropout: 0.0}, hidden_size: 128, ff_size: 256, dropout: 0.3, layer_norm: pre}"
        )
        chosen = {
            "optimizer": "adamw",
            "normalization": "tokens",
            "adam_betas": "[0.9, 0.98]",
            "label_smoothing": 0.1,
            "learning_rate": 0.005,
            "scheduling": "warmupinversesquareroot",
            "learning_rate_warmup": 2000,
            "clip_grad_norm": 1.0,
            "batch_size": 4096,
            "batch_type": "token",
            "early_stopping_metric": "bleu",
            "epochs": 1000,
            "validation_freq": 500,
            "logging_freq": 10,
            "overwrite": "true",
            "print_valid_sents": "[0]",
            "keep_best_ckpts": 1,
            **training,
        }
        lines = [
            "name: peer",
            "model_dir: model",
            "use_cuda: false",
            "data:",
            "  train: train",
            "  dev: dev",
            "  test: test",
            "  dataset_type: plain",
            f"  src: {side.format(source)}",
            f"  trg: {side.format(target)}",
            "testing:",
            "  {beam_size: 5, beam_alpha: 1.0, batch_size: 100, batch_type: sentence, max_output_length: 80, "
            "eval_metrics: [bleu], sacrebleu_cfg: {tokenize: 13a}}",
            "training:",
            *[f"  {name}: {value}" for name, value in chosen.items()],
            "model:",
            "  tied_embeddings: true",
            "  tied_softmax: true",
            "  initializer: xavier_uniform",
            "  embed_initializer: xavier_uniform",
            f"  encoder: {layers}",
            f"  decoder: {layers}",
        ]
        return "\n".join(lines) + "\n"
