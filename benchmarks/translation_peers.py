"""Translation peers, each in its own environment: JoeyNMT, eole and Marian.

All use the same SentencePiece model, layers and widths. All other settings are their own defaults.
"""

import json
import os
import sys
from pathlib import Path
from typing import Protocol

import sacrebleu

from benchmarks.parallel_texts import Parts
from benchmarks.peers import Finished, run


class TranslationPeer(Protocol):
    """A toolkit in its own folder, used through its command line."""

    NAME: str

    def __init__(self, python: Path, folder: Path, languages: tuple[str, str], parts: Parts): ...

    def prepare(self, vocab_size: int) -> Finished: ...

    def train_for(self, seconds: float, seed: int) -> Finished:
        """Train with settings for a run of minutes, and stop when the time is up."""

    def bleu(self) -> float:
        """Return BLEU on the test part with five beams, by the best or last checkpoint; 0 if none was saved in time."""


class _Peer:
    """The base of all peers: the files, and the training of the SentencePiece model."""

    PIECES = (
        "import sys, sentencepiece as s; source, target, size = sys.argv[1:]; "
        "s.SentencePieceTrainer.train(input=[source, target], model_prefix='pieces', vocab_size=int(size), "
        "model_type='unigram', character_coverage=1.0, minloglevel=2"
    )

    def __init__(self, python: Path, folder: Path, languages: tuple[str, str], parts: Parts):
        self.python, self.folder, self.languages = python.absolute(), folder, languages
        folder.mkdir(parents=True)
        for part, files in parts.items():
            for language, file in zip(languages, files, strict=True):
                (folder / f"{part}.{language}").write_bytes(file.read_bytes())

    def file(self, part: str, side: int) -> str:
        """Return the file name of one side (0 or 1) of a part."""
        return f"{part}.{self.languages[side]}"

    def _prepare(self, code: str, vocab_size: int) -> Finished:
        return run([self.python, "-c", code, self.file("train", 0), self.file("train", 1), vocab_size], self.folder)

    def _bleu(self, found: str) -> float:
        """Return BLEU of a file of translations of the test part."""
        return sacrebleu.corpus_bleu(self._lines(found), [self._lines(self.file("test", 1))]).score

    def _lines(self, name: str) -> list[str]:
        return (self.folder / name).read_text(encoding="utf-8").rstrip("\n").split("\n")


class JoeyNMT(_Peer):
    """joeynmt 2.3, which also needs importlib_metadata."""

    NAME = "JoeyNMT"
    TOKENS_A_SECOND = r"Tokens per Sec: +([\d.]+)"
    BLEU = r"bleu: +([\d.]+)"
    SHIM = (  # joeynmt 2.3 calls a removed method to restrict pieces to its vocabulary; here both are the same
        "import sys; from sentencepiece import SentencePieceProcessor as P; "
        "P.SetVocabulary = getattr(P, 'SetVocabulary', lambda self, pieces: None); "
        "from joeynmt.__main__ import main; sys.argv = ['joeynmt', *sys.argv[1:]]; main()"
    )
    PREPARE = (
        _Peer.PIECES + ", unk_id=0, pad_id=1, bos_id=2, eos_id=3); "
        "p = s.SentencePieceProcessor(model_file='pieces.model'); "
        "open('vocabulary.txt', 'w', encoding='utf-8').write("
        "''.join(p.id_to_piece(i) + chr(10) for i in range(p.get_piece_size())))"
    )

    def prepare(self, vocab_size: int) -> Finished:
        return self._prepare(self.PREPARE, vocab_size)

    def train_for(self, seconds: float, seed: int) -> Finished:
        """Train with small batches and a short warm-up, which suit few updates; evaluate every 140 updates."""
        few = {"batch_size": 1024, "learning_rate": 0.003, "learning_rate_warmup": 200, "validation_freq": 140}
        return self.train(seconds, random_seed=seed, **few)

    def train(self, limit: float = float("inf"), **training: object) -> Finished:
        """Train up to a limit in seconds; `training` overrides options of its [training] section."""
        (self.folder / "config.yaml").write_text(self._config(training), encoding="utf-8")
        return run([self.python, "-c", self.SHIM, "train", "config.yaml", "--skip-test"], self.folder, limit)

    def bleu(self) -> float:
        if not list(self.folder.glob("model/*best.ckpt")):
            return 0.0
        return run([self.python, "-c", self.SHIM, "test", "config.yaml"], self.folder).found(self.BLEU)[-1][1]

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


class Eole(_Peer):
    """eole 0.6, which also needs aiohttp."""

    NAME = "eole"
    EOLE = "import sys; from eole.bin.main import main; sys.argv = ['eole', *sys.argv[1:]]; main()"
    VOCABULARY = (  # made by its spm_to_vocab, from the file that SentencePiece writes beside the model
        "; from eole.bin.tools.spm_to_vocab import SpmtoVocab as v; "
        "rows = v.convert(open('pieces.vocab', encoding='utf-8')); "
        "open('vocabulary.txt', 'w', encoding='utf-8').write(''.join(f'{piece}\\t{count}\\n' for piece, count in rows))"
    )

    def prepare(self, vocab_size: int) -> Finished:
        return self._prepare(_Peer.PIECES + ")" + self.VOCABULARY, vocab_size)

    def train_for(self, seconds: float, seed: int) -> Finished:
        """Train by its recipe for WMT17 with smaller batches, sizes and warm-up; save every 25 updates."""
        (self.folder / "config.yaml").write_text(json.dumps(self._config(seed), indent=1), encoding="utf-8")
        return run([self.python, "-c", self.EOLE, "train", "-config", "config.yaml"], self.folder, seconds)

    def bleu(self) -> float:
        if not list(self.folder.glob("model/*.safetensors")):
            return 0.0
        asked = ["-model_path", "model", "-src", self.file("test", 0), "-output", "found.txt", "-beam_size", 5]
        run([self.python, "-c", self.EOLE, "predict", *asked, "-gpu_ranks", -1], self.folder)
        return self._bleu("found.txt")

    def _config(self, seed: int) -> dict[str, object]:
        pieces = {"src_subword_model": "pieces.model", "tgt_subword_model": "pieces.model"}
        return {
            "save_data": "data",
            "overwrite": True,
            "seed": seed,
            "report_every": 5,
            "src_vocab": "vocabulary.txt",
            "tgt_vocab": "vocabulary.txt",
            "share_vocab": True,
            "n_sample": 0,
            "data": {
                "train": {"path_src": self.file("train", 0), "path_tgt": self.file("train", 1)},
                "valid": {"path_src": self.file("dev", 0), "path_tgt": self.file("dev", 1)},
            },
            "transforms": ["sentencepiece", "filtertoolong"],
            "transforms_configs": {
                "sentencepiece": pieces,
                "filtertoolong": {"src_seq_length": 120, "tgt_seq_length": 120},
            },
            "training": {
                "model_path": "model",
                "world_size": 1,
                "gpu_ranks": [],
                "keep_checkpoint": 2,
                "save_checkpoint_steps": 25,
                "train_steps": 1_000_000,
                "valid_steps": 200,
                "batch_type": "tokens",
                "batch_size": 1024,
                "valid_batch_size": 4096,
                "accum_count": [1],
                "accum_steps": [0],
                "compute_dtype": "fp32",
                "optim": "adamw",
                "adam_beta2": 0.98,
                "learning_rate": 1.0,
                "warmup_steps": 200,
                "decay_method": "noam",
                "bucket_size": 30_000,
                "num_workers": 0,
                "dropout_steps": [0],
                "dropout": [0.1],
                "attention_dropout": [0.1],
                "max_grad_norm": 0,
                "label_smoothing": 0.1,
                "param_init_method": "xavier_uniform",
                "normalization": "tokens",
            },
            "model": {
                "architecture": "transformer",
                "hidden_size": 128,
                "share_decoder_embeddings": True,
                "share_embeddings": True,
                "layers": 4,
                "heads": 4,
                "transformer_ff": 256,
                "embeddings": {"word_vec_size": 128, "position_encoding_type": "SinusoidalInterleaved"},
            },
        }


class Marian(_Peer):
    """Marian 1.12: `build/marian` of a checkout takes the place of Python, or `bin/pymarian` of an environment."""

    NAME = "Marian"
    PREPARE = (  # Marian knows a SentencePiece model by its suffix
        _Peer.PIECES + ", eos_id=0, unk_id=1, bos_id=-1, pad_id=-1); import os; os.rename('pieces.model', 'pieces.spm')"
    )
    VOCABULARY = ("--vocabs", "pieces.spm", "pieces.spm")
    OPTIONS = (
        "--type transformer --enc-depth 4 --dec-depth 4 --dim-emb 128 --transformer-heads 4 --transformer-dim-ffn 256 "
        "--tied-embeddings-all --transformer-dropout 0.1 --label-smoothing 0.1 --mini-batch-words 1024 --sync-sgd "
        "--max-length 120 --learn-rate 0.003 --lr-warmup 200 --lr-decay-inv-sqrt 200 --optimizer-params 0.9 0.98 1e-9 "
        "--exponential-smoothing 1e-4 --disp-freq 5 --save-freq 25 --overwrite --tempdir ."
    )

    def prepare(self, vocab_size: int) -> Finished:
        files = (self.file("train", 0), self.file("train", 1))
        return run([sys.executable, "-c", self.PREPARE, *files, vocab_size], self.folder)

    def train_for(self, seconds: float, seed: int) -> Finished:
        """Train with small batches and a short warm-up, which suit few updates; save every 25 updates."""
        files = ["--train-sets", self.file("train", 0), self.file("train", 1), *self.VOCABULARY]
        chosen = [*self.OPTIONS.split(), "--seed", seed, "--cpu-threads", _cores()]
        return run([self.python, "train", *files, *chosen], self.folder, seconds)

    def bleu(self) -> float:
        if not (self.folder / "model.npz").exists():
            return 0.0
        files = ["--models", "model.npz", "--input", self.file("test", 0), "--output", "found.txt", *self.VOCABULARY]
        chosen = ["--beam-size", 5, "--normalize", 1, "--cpu-threads", _cores()]
        run([self.python, "decode", *files, *chosen], self.folder)
        return self._bleu("found.txt")


def _cores() -> int:
    return len(os.sched_getaffinity(0))


PEERS: dict[str, type[TranslationPeer]] = {peer.NAME: peer for peer in (JoeyNMT, Eole, Marian)}
