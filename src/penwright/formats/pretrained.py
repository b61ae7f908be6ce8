"""Models imported from other projects: settings, renamed weights, tokenizer, chat template and origin."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from penwright.config import ChatSettings, DecodingSettings, ModelSettings, Table, Task, validate
from penwright.devices import available_memory
from penwright.errors import PenwrightError
from penwright.languages import Languages
from penwright.model import Model, make_model
from penwright.model.weights import VOCABULARY, shapes_only
from penwright.tokenizers import Tokenizer
from penwright.tokenizers.chat_template import ChatTemplate, template_of
from penwright.tokenizers.foreign import ForeignTokenizer

Tensors = dict[str, Tensor]
MOST_POSITIONS, MOST_BEAMS = 1 << 24, 64  # the largest context and beam size that an imported model may ask for
SPECIAL, PART_OF_ANSWER = re.compile(r"<.+>|\[.+\]"), re.compile(r"[<\[]/?\W?(think|thought|reason|tool)", re.I)
LEAST_NAMED = 0.9  # minimum size of the tokenizer's vocabulary, as a fraction of the number of embeddings


class Outline(NamedTuple):
    """The arguments of `make_model` that describe an imported model."""

    task: Task
    vocab_size: int
    settings: ModelSettings
    n_labels: int = 0


@dataclass(frozen=True)
class Pretrained:
    """A model from another project, with its weights renamed for Penwright."""

    outline: Outline
    weights: Tensors
    tokenizer: Tokenizer
    files: Sequence[Path]  # the files that the model was read from
    architecture: str
    licence: str | None = None
    labels: tuple[str, ...] = ()
    languages: Languages | None = None
    chat: ChatSettings | None = None  # the chat template, if the model is a chat model
    decoding: Table = field(default_factory=dict)  # settings of [decoding] that the model recommends
    notes: list[str] = field(default_factory=list)


def outlined(outline: Outline, n_tensors: int) -> Model:
    """Build the model on the meta device, without allocating memory for its weights.

    Raises PenwrightError if the weights do not fit in the memory that this process may use, or have impossible sizes.
    """
    task, vocab_size, settings, n_labels = outline
    if settings.context_length > MOST_POSITIONS:
        raise PenwrightError(
            f"the model has a context of {settings.context_length:,} tokens. Penwright supports at most "
            f"{MOST_POSITIONS:,}"
        )
    layers = settings.n_layers + (settings.n_decoder_layers or 0)
    if layers > n_tensors:  # this many layers would take a long time to build, even on the meta device
        raise PenwrightError(f"the model has {layers:,} layers, but its files have only {n_tensors:,} tensors")
    try:
        with shapes_only():
            model = make_model(task, vocab_size, settings, n_labels)
    except (RuntimeError, OverflowError, TypeError, ValueError):
        raise PenwrightError("the model cannot be built: one of its tensors would have an impossible size") from None
    require_memory(4 * sum(parameter.numel() for parameter in model.parameters()))
    return model


def require_memory(n_bytes: int) -> None:
    """Raise PenwrightError if weights of this size do not fit in the memory that this process may use."""
    available = available_memory()
    if n_bytes > available:
        raise PenwrightError(
            f"the model needs {n_bytes / 2**30:,.1f} GiB of memory, and this process may use "
            f"{available / 2**30:,.1f} GiB. Import a smaller model"
        )


def fit_vocabulary(outline: Outline, weights: Tensors, tokenizer: Tokenizer) -> Outline:
    """Remove embeddings that belong to no token; they exist because many models round up the vocabulary size.

    Raises PenwrightError if the tokenizer belongs to a different model.
    """
    n_tokens, n_embeddings = tokenizer.vocab_size, outline.vocab_size
    if n_embeddings < n_tokens <= n_embeddings / LEAST_NAMED:
        raise PenwrightError(
            f"the model has {n_embeddings:,} embeddings, and the tokenizer has {n_tokens:,} tokens: "
            f"{listed(tokenizer.pieces[n_embeddings:])} have none. Delete these tokens from the tokenizer's files, or "
            f"add embeddings with transformers: model.resize_token_embeddings({n_tokens})"
        )
    if n_tokens > n_embeddings or n_tokens < LEAST_NAMED * n_embeddings:
        raise PenwrightError(
            f"the tokenizer has {n_tokens:,} tokens, and the model has {n_embeddings:,} embeddings. "
            "They do not belong together. Use the tokenizer that was published with the model"
        )
    names = {f"{module}.weight" for module in VOCABULARY}
    names |= {"output.weight", "output.bias"} if outline.task != "classify" else set()
    for name in names & weights.keys():
        weights[name] = weights[name][:n_tokens].contiguous()
    return outline._replace(vocab_size=n_tokens)


def require_all(weights: Mapping[str, object], names: Iterable[str], known: Iterable[str], where: str) -> None:
    """Raise PenwrightError unless the files have all tensors in `names`, and no others except those in `known`."""
    missing, other = sorted(set(names) - weights.keys()), sorted(weights.keys() - set(names) - set(known))
    problems = [
        f"{kind} tensors: {listed(each)}" for kind, each in (("missing", missing), ("superfluous", other)) if each
    ]
    if problems:
        raise PenwrightError(f"{where}{'; '.join(problems)}")


def listed(names: Iterable[object]) -> str:
    """Join at most eight names with commas, and say how many more there are."""
    words = [str(name) for name in names]
    shown = ", ".join(words[:8])
    return shown if len(words) <= 8 else f"{shown} and {len(words) - 8} more"


def read_chat(
    template: Any, special: Mapping[str, str], tokenizer: Tokenizer, notes: list[str]
) -> tuple[ChatSettings | None, Tokenizer]:
    """Return the settings of a model's chat template or None, and the tokenizer, whose tokens it may make special.

    The template is tried on one message, in a sandbox. If it is too long, fails, or changes the message, append the
    reason to `notes` and return None. `special` has the special tokens by role, such as bos.
    """
    if template is None:
        return None, tokenizer
    roles = ["bos", "eos", *(role for role in ("unk", "pad") if f"{role}_token" in str(template))]
    given = {"template": template, **{f"{role}_token": special.get(role, "") for role in roles}}
    try:
        settings = validate(ChatSettings, given, "the chat template")
        template_of(settings).check()
        marked = _with_special_names(settings, tokenizer)
        end = _end_of_turn(template_of(settings), marked)
    except PenwrightError as error:
        notes.append(f"the chat template is left out, so the model cannot chat: {error}")
        return None, tokenizer
    return settings if end in ("", settings.eos_token) else settings.model_copy(update={"end_of_turn": end}), marked


def _with_special_names(settings: ChatSettings, tokenizer: Tokenizer) -> Tokenizer:
    """Return the tokenizer with the added tokens that a chat template names as special tokens.

    Otherwise, messages could contain them. Tokens that may be part of an answer, such as <think>, remain text.
    """
    named = {
        piece
        for piece in (tokenizer.pieces[token] for token in tokenizer.user_defined)
        if SPECIAL.fullmatch(piece) and not PART_OF_ANSWER.match(piece) and piece in settings.template
    }
    if not named or not isinstance(tokenizer, ForeignTokenizer):
        return tokenizer
    file = json.loads(tokenizer.content)
    for token in file["added_tokens"]:
        token["special"] |= token["content"] in named
    return ForeignTokenizer(file)


def read_decoding(settings: Table, notes: list[str]) -> Table:
    """Return the [decoding] settings of a model. If one of them is invalid, append a note and return none."""
    beams = settings.get("beam_size")
    if isinstance(beams, int) and beams > MOST_BEAMS:
        notes.append(f"num_beams = {beams} in generation_config.json is left out: at most {MOST_BEAMS} are read")
        settings = {name: value for name, value in settings.items() if name != "beam_size"}
    if not settings:
        return {}
    try:
        validate(DecodingSettings, settings, "generation_config.json")
    except PenwrightError as error:
        notes.append(f"the decoding settings of the model are left out: {error}")
        return {}
    shown = ", ".join(f"{name} = {value}" for name, value in settings.items())
    notes.append(f"decoding settings of the model: {shown}")
    return settings


def _end_of_turn(template: ChatTemplate, tokenizer: Tokenizer) -> str:
    """Return the special token that the template writes after an answer; "" if it writes none.

    It is often not the end token of the tokenizer: many base models end a document and a turn with different tokens.
    """
    try:
        after = template.after_answer().lstrip(" ")
    except PenwrightError:  # the template rejects conversations of more than one message
        return ""
    return max((name for name in tokenizer.special_ids if after.startswith(name)), key=len, default="")
