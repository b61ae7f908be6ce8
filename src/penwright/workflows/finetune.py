"""Fine-tuning: a run starts from the tokenizer and the weights of another run, which is called its base."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from torch import Tensor

from penwright.config import BUDGETS, Recipe, Table, merge
from penwright.data.corpus import LabelKind
from penwright.data.encoding import decode
from penwright.errors import PenwrightError, Say, UsageError
from penwright.formats.pretrained import listed
from penwright.languages import Languages, languages_between, same_languages
from penwright.model import HEAD, Model
from penwright.model.transformer import EncoderOnly
from penwright.model.weights import start_from, weights_for
from penwright.run.checkpoints import Tensors
from penwright.run.folder import Run
from penwright.run.provenance import MAY_CHANGE, corpus_record
from penwright.tasks import TASKS, AnyCorpus, kept_training_tokens, token_store
from penwright.text import words
from penwright.tokenizers import Tokenizer
from penwright.tokenizers.vocabulary import can_change, extended, trimmed
from penwright.training.auto.planner import FEW_LABELS
from penwright.workflows.leaks import texts_known_to_base
from penwright.workflows.load import HEAD_SETTINGS, OpenedRun, base_weights, open_base, open_run
from penwright.workflows.old_text import old_texts, require_old_text

SAMPLE = 1_000_000  # number of characters of the new text to check against the base model's tokenizer
FEW_HELD_OUT = 0.05  # fraction of texts to hold out if there are few: with 16 texts per label, about one of them
SMALL_SAMPLE = 100_000  # number of bytes of the new text whose tokens are counted
FINELY_SPLIT = 1.25  # advise --add-tokens if the new text has this many times as many tokens per byte
MOST_UNKNOWN = 0.2  # maximum share of characters that the tokenizer of the base model does not know


def with_base(settings: Table) -> Table:
    """Return the settings of a new run with the tokenizer, the model and the decoding settings of its base, if any.

    Raises UsageError for a setting that would change the model.
    """
    match settings.get("finetuning"):
        case {"base": str(folder)}:
            base = open_run(folder)
        case _:
            return settings
    if settings.get("lora") and settings["finetuning"].get("add_tokens"):
        raise UsageError("--add-tokens cannot be combined with --lora: adapters do not train token embeddings")
    weights_for(settings["task"], base.recipe.task, {})  # raises PenwrightError if the weights do not fit the task
    chosen = {"ngrams", "balanced", "problem_type", "text_pairs"}
    if not base.recipe.tokenizer.is_pretrained:
        chosen |= {"dropout"}  # a pretrained model keeps its own dropout, which is 0 for most language models
    elif settings["task"] == "classify" and base.recipe.task in ("classify", "encode"):
        chosen |= {"dropout", "attention_dropout"}  # the plan chooses the dropout rates by the number of epochs
    if settings["task"] != base.recipe.task:
        chosen |= {"token_dropout", "n_decoder_layers"}
    model = base.recipe.model.model_dump(mode="json", exclude_none=True, exclude=chosen)
    free = MAY_CHANGE - {"size"} | chosen | (HEAD_SETTINGS if settings["task"] == "classify" else set())
    for name, value in settings.get("model", {}).items():
        if name not in free and model.get(name) != value:
            raise UsageError(f"model.{name} cannot be set: the model of {folder} keeps its size and architecture")
    tokenizer = base.recipe.tokenizer.model_dump() | {"vocab_size": base.tokenizer.vocab_size}
    is_changed = any(settings["finetuning"].get(name) for name in ("add_tokens", "trim_vocabulary"))
    changed = {"vocab_size"} if is_changed else set()
    if any(
        tokenizer.get(name) != value for name, value in settings.get("tokenizer", {}).items() if name not in changed
    ):
        raise UsageError(f"[tokenizer] cannot be set: the model of {folder} keeps its tokenizer")
    chat = {"chat": base.recipe.chat.model_dump()} if base.recipe.chat else {}
    own = {"base_sha256": base.best.weights_sha256}
    kept = {"tokenizer": tokenizer, "model": model, "decoding": base.recipe.decoding.model_dump(exclude_defaults=True)}
    return merge(kept, chat, settings, {"finetuning": own})


def has_few_labels(recipe: Recipe, settings: Table, corpus: AnyCorpus) -> bool:
    """Return whether a pretrained encoder has few texts for each label, and a budget in minutes."""
    is_tuned = recipe.finetuning is not None and recipe.tokenizer.is_pretrained
    has_one_label = recipe.task == "classify" and corpus.label_kind in (None, LabelKind())
    others = settings.get("training", {}).keys() & {*BUDGETS} - {"minutes"}
    n_texts = len(corpus.training) + (0 if recipe.data.validation else len(corpus.held_out))
    return is_tuned and has_one_label and not others and n_texts <= FEW_LABELS * len(corpus.labels)


def share_of_few(recipe: Recipe, settings: Table) -> float | None:
    """Return the share of few texts to hold out for contrastive fine-tuning; None if the settings decide otherwise.

    Cross-validation is then more reliable than a few held-out texts, which are more useful for training.
    """
    is_chosen = settings["finetuning"].get("contrastive", True)
    is_own = recipe.data.validation or recipe.data.held_out or recipe.data.group is not None
    return FEW_HELD_OUT if is_chosen and not is_own else None


def require_suitable(recipe: Recipe, corpus: AnyCorpus, tokenizer: Tokenizer | None, say: Say) -> None:
    """Raise PenwrightError if the base model or tokenizer does not suit this corpus, or rules out --keep-old."""
    base = open_base(recipe) if recipe.finetuning else None
    for existing in filter(None, [tokenizer or (base and base.tokenizer)]):
        can_grow = recipe.lora is None and can_change(existing)
        for note in _unknown_text(existing, TASKS[recipe.task].texts(corpus), can_grow):
            say(note)
    if recipe.finetuning is None or base is None:
        return
    if tokenizer is None and recipe.lora is None and not recipe.finetuning.freeze_embeddings:
        for note in _finely_split_text(base, TASKS[recipe.task].texts(corpus)):
            say(note)
    for note in texts_known_to_base(recipe, base, corpus, say):
        say(note)
    languages, known = languages_between(corpus.names), base.card.languages
    turned = known and Languages(known.target, known.source)
    if languages and known and turned and same_languages(languages, turned) and not same_languages(turned, known):
        raise PenwrightError(
            f"{recipe.finetuning.base} translates {known.source} to {known.target}, but these pairs go from "
            f"{languages.source} to {languages.target}. Name the files or the columns in the other order"
        )
    if recipe.finetuning.keep_old:
        require_old_text(recipe, base, corpus, say)


def _unknown_text(tokenizer: Tokenizer, texts: Iterable[str], can_grow: bool) -> Iterator[str]:
    """Yield a notice if some characters are unknown to an existing tokenizer. Raise PenwrightError if many are.

    With `can_grow`, the error also advises adding tokens.
    WordPiece replaces a whole word by <unk> if one of its characters is unknown, so all of its characters count.
    """
    if tokenizer.unknown_id is None:
        return
    n_read, counts, is_by_word = 0, Counter[str](), tokenizer.kind == "wordpiece"
    for text in texts:
        counts.update(words(text) if is_by_word else text)
        n_read += len(text)
        if n_read >= SAMPLE:
            break
    unknown = tokenizer.unknown_characters(" ".join(dict.fromkeys("".join(counts))))
    share = sum(len(part) * n for part, n in counts.items() if not {*part}.isdisjoint(unknown)) / max(1, n_read)
    shown = " ".join(character for character in unknown[:10] if character.isprintable())
    by_word = "words that the tokenizer does not know, because of these characters"
    is_unknown = f"is in {by_word if is_by_word else 'characters that the tokenizer does not know'}: {shown}"
    if share > MOST_UNKNOWN:
        advice = ", or add more tokens to a base with subwords (--add-tokens)" if can_grow else ""
        raise PenwrightError(
            f"{100 * share:.0f} % of this text {is_unknown}. Train a new run on this text, without --from and "
            f"--tokenizer{advice}"
        )
    if unknown:
        yield f"{100 * share:.2g} % of this text becomes <unk>, since it {is_unknown}"


def _finely_split_text(base: OpenedRun, texts: Iterable[str]) -> Iterator[str]:
    """Yield advice if the tokenizer, which was trained on the text of the base, splits this text into many tokens."""
    store = kept_training_tokens(corpus_record(base.run).fingerprint, base.tokenizer, base.card.labels)
    if base.recipe.tokenizer.type not in ("bpe", "unigram") or store is None:
        return
    n_bytes = n_tokens = 0
    for text in texts:
        sample = text[:SMALL_SAMPLE]
        n_bytes, n_tokens = n_bytes + len(sample.encode()), n_tokens + len(base.tokenizer.encode(sample))
        if n_bytes >= SMALL_SAMPLE:
            break
    bytes_per_token = sum(map(store.n_bytes, store.columns)) / max(1, sum(map(store.n_tokens, store.columns)))
    ratio = bytes_per_token * n_tokens / max(1, n_bytes)
    if ratio >= FINELY_SPLIT:
        yield (
            f"the tokenizer of {base.run.folder} needs {ratio:.1f} times as many tokens per byte for this text as for "
            "the text it was trained on. Add frequent words of this text to the vocabulary with "
            f"--add-tokens {base.tokenizer.vocab_size // 5}"
        )


def changed_tokenizer(recipe: Recipe, corpus: AnyCorpus, say: Say) -> Tokenizer | None:
    """Return the tokenizer of the base model with the changes that the recipe asks for, or None if there are none.

    Raises PenwrightError if the tokenizer cannot be changed.
    """
    settings = recipe.finetuning
    if settings is None or not (settings.trim_vocabulary or settings.add_tokens):
        return None
    before = tokenizer = open_base(recipe).tokenizer
    new = _words_in(Path(settings.add_tokens)) if isinstance(settings.add_tokens, str) else settings.add_tokens
    try:
        if settings.trim_vocabulary:
            used = _used_tokens(recipe, corpus, tokenizer)
            tokenizer = trimmed(tokenizer, used)
            say(f"vocabulary: {tokenizer.vocab_size:,} of {before.vocab_size:,} tokens are kept")
        if new:
            size = tokenizer.vocab_size
            tokenizer = extended(tokenizer, new, TASKS[recipe.task].texts(corpus))
            examples = ", ".join(tokenizer.token_text(token) for token in range(size, tokenizer.vocab_size)[-5:])
            say(f"vocabulary: tokens added: {tokenizer.vocab_size - size:,}, for example {examples}")
        if isinstance(new, list) and (split := _split_words(new, tokenizer)):
            say(
                "vocabulary: words that are still several tokens, because the tokenizer splits texts at spaces or "
                f"punctuation: {listed(split)}"
            )
    except PenwrightError as error:
        given = {"--trim-vocabulary": settings.trim_vocabulary, "--add-tokens": settings.add_tokens}
        options = " and ".join(option for option, value in given.items() if value)
        raise PenwrightError(f"{options}: {settings.base}: {error}") from None
    return tokenizer


def _used_tokens(recipe: Recipe, corpus: AnyCorpus, tokenizer: Tokenizer) -> set[int]:
    """Return the ids of all tokens in the new corpus and, with `keep_old`, in the old texts."""
    assert recipe.finetuning is not None
    used = set[int]()
    for task, each in [(recipe.task, corpus), *((old.recipe.task, old.corpus) for old in old_texts(recipe))]:
        for held_out in (False, True):
            store = token_store(task, each, tokenizer, each.labels, held_out=held_out)
            used.update(*(np.unique(store.column(name).tokens).tolist() for name in store.columns))
    return used


def _words_in(path: Path) -> list[str]:
    """Read a file of words, one on each line, and return the words."""
    try:
        text, _ = decode(path.read_bytes())
    except OSError as error:
        raise PenwrightError(
            f"--add-tokens: {path} cannot be read: {error.strerror}. Give a number or a file"
        ) from None
    if not (words := [line.strip() for line in text.splitlines() if line.strip()]):
        raise PenwrightError(f"--add-tokens: {path} has no words. Write one word on each line")
    return words


def _split_words(words: Iterable[str], tokenizer: Tokenizer) -> list[str]:
    """Return the words that are several tokens, both at the start of a text and after a space."""
    return [word for word in words if min(len(tokenizer.encode(form)) for form in (word, f" {word}")) > 1]


def start_from_base(
    model: Model, recipe: Recipe, tokenizer: Tokenizer, labels: Sequence[str], run: Run | None = None
) -> bool:
    """Load the weights of the base model, if there is one, into the model. Return whether the model has a new head.

    A regression model must know the scale of its scores. `run` is the run that is resumed, if any.
    """
    if recipe.finetuning is None:
        return False
    base = open_base(recipe, run)
    weights = base_weights(recipe, base, tokenizer)
    if base.card.labels != tuple(labels) or base.recipe.model.problem_type != recipe.model.problem_type:
        weights = {name: tensor for name, tensor in weights.items() if not name.startswith("output.")}
    elif isinstance(model, EncoderOnly) and recipe.model.problem_type == "regression" and "output.weight" in weights:
        weights = _with_scale(weights, base.weights()["scale"], model.scale)
    return start_from(model, weights, recipe.finetuning.base, HEAD if recipe.task == "classify" else ())


def _with_scale(weights: Tensors, before: Tensor, now: Tensor) -> Tensors:
    """Return the weights that predict the same scores if these are standardized with `now` instead of `before`."""
    (old_mean, old_deviation), (mean, deviation) = before.double(), now.double()
    bias = (weights["output.bias"] * old_deviation + old_mean - mean) / deviation
    head = {"output.weight": weights["output.weight"] * old_deviation / deviation, "output.bias": bias}
    return {**weights, **{name: tensor.float() for name, tensor in head.items()}}


def origin_of_base(recipe: Recipe) -> dict[str, object]:
    """Return the entry of corpus.json that records the origin of an imported base; empty for any other base."""
    origin = corpus_record(open_base(recipe).run).imported if recipe.finetuning else None
    return {} if origin is None else {"imported": origin.model_dump()}
