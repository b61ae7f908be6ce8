"""The tokens of a corpus on disk: made once, and found again by a key of everything that they depend on."""

from collections.abc import Sequence
from pathlib import Path

from penwright.config import Task, cache_folder
from penwright.data.store import TokenStore, cached_store, open_store, store_key
from penwright.data.store_writer import write_store
from penwright.errors import PenwrightError
from penwright.tasks import TASKS, AnyCorpus
from penwright.tokenizers import Tokenizer


def token_store(
    task: Task, corpus: AnyCorpus, tokenizer: Tokenizer, labels: Sequence[str], *, held_out: bool
) -> TokenStore:
    """Return the tokens of one part of the corpus, from the cache if they were made before."""
    parts, part = TASKS[task], corpus.held_out if held_out else corpus.training
    key = _key(corpus.fingerprint, tokenizer, labels, held_out=held_out)

    def build(folder: Path) -> None:
        write_store(folder, parts.columns, parts.rows(part, labels), tokenizer, key, parts.labels)

    return cached_store(cache_folder("tokens"), key, build)


def kept_training_tokens(fingerprint: str, tokenizer: Tokenizer, labels: Sequence[str]) -> TokenStore | None:
    """Return the cached training tokens of the corpus with this fingerprint, or None. The corpus is not read."""
    try:
        return open_store(cache_folder("tokens") / _key(fingerprint, tokenizer, labels, held_out=False))
    except PenwrightError:
        return None


def _key(fingerprint: str, tokenizer: Tokenizer, labels: Sequence[str], *, held_out: bool) -> str:
    return store_key(fingerprint, tokenizer.fingerprint, "held out" if held_out else "training", *labels)
