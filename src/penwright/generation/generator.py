"""Text generation with a decoder-only model and its tokenizer."""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Generator as Stream
from dataclasses import dataclass, replace
from itertools import count
from math import log
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from penwright.config import WRITER_SETTINGS, DecodingSettings, GivenSettings, decoding_settings
from penwright.decoding.batches import Padded, PromptBatch, newest_half
from penwright.decoding.continuous_batching import ContinuousBatch
from penwright.decoding.engine import DecodeEngine
from penwright.decoding.requests import MAX_NEW_TOKENS, DecodingPlan, Finish, Request, plan_of
from penwright.decoding.windows import mean_vectors, read_windows, split
from penwright.errors import UsageError, do_nothing
from penwright.model import evaluating
from penwright.model.size import described
from penwright.model.transformer import DecoderOnly, mean_pooled
from penwright.text import brief, noted
from penwright.tokenizers import Tokenizer
from penwright.tokenizers.chat_template import PLAIN_TEMPLATE, ChatTemplate, Message, encode_pieces
from penwright.tokenizers.tokenizer import unknown_warnings

BATCH_ROWS = 32  # maximum number of completions that are generated together


@dataclass(frozen=True)
class Completion:
    """The text that a model generated after a prompt, and the reason why it ended."""

    prompt: str
    text: str  # the text, without the stop string
    tokens: tuple[int, ...]  # all generated tokens, including an end token
    log_probs: tuple[float, ...]  # log-probability of each token in nats, before sampling settings are applied
    finish: Finish
    warnings: tuple[str, ...] = ()

    def __repr__(self) -> str:
        ended = f"{len(self.tokens)} tokens, finish={self.finish!r}"
        return f"<Completion {brief(self.prompt)} + {brief(self.text)} ({ended}{noted(self.warnings)})>"

    @property
    def mean_log_prob(self) -> float:
        """The mean log-probability of a token, in nats."""
        return sum(self.log_probs) / len(self.log_probs)


class Generator:
    """A language model with its tokenizer, for generating text that continues a prompt.

    The same prompt, settings and seed give the same text, whether a prompt is alone or in a batch.
    """

    kind: Literal["writer"] = "writer"

    def __init__(
        self,
        model: DecoderOnly,
        tokenizer: Tokenizer,
        defaults: DecodingSettings | None = None,
        template: ChatTemplate | None = None,
    ):
        """Create a generator. `template` is the chat template of a model that was trained to answer messages."""
        self.model, self.tokenizer, self.template = model, tokenizer, template
        self.defaults = defaults or DecodingSettings()
        self.engine = DecodeEngine(model)

    def __repr__(self) -> str:
        return described("Generator", self.model, self.tokenizer)

    def generate(
        self, prompts: str | Sequence[str], settings: GivenSettings = None, *, n: int = 1, **options: Any
    ) -> list[Completion]:
        """Generate `n` completions of each prompt: `generate("It was", temperature=0.7, max_new_tokens=50)`.

        Options are the [decoding] settings, except those of beam search; the defaults come from the run's recipe.
        `settings` is a DecodingSettings or a table. A repeated prompt gets different completions, unless the
        temperature is 0. Raises UsageError unless n is at least 1.
        """
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise UsageError(f"n is {n!r}; it must be a whole number of at least 1")
        prompts = [prompts] if isinstance(prompts, str) else prompts
        return list(self.each([prompt for prompt in prompts for _ in range(n)], settings, **options))

    def each(self, prompts: Sequence[str], settings: GivenSettings = None, **options: Any) -> Iterator[Completion]:
        """Yield the completion of each prompt, in order, once it is finished. The options are those of `generate`.

        Raises UsageError before generation starts if no completion of a prompt can satisfy the settings.
        """
        settings = decoding_settings(self.defaults, settings, options, WRITER_SETTINGS)
        plan, numbers = self._plan(settings, prompts), {prompt: count() for prompt in prompts}
        requests = [Request(prompt, self._encode(prompt), plan, next(numbers[prompt])) for prompt in prompts]
        batch = self.pool(BATCH_ROWS)
        for request in requests:
            batch.join(request)
        for request in requests:
            while not request.is_finished:
                batch.step()
            yield self._completion(request)

    def stream(self, prompt: str, settings: GivenSettings = None, **options: Any) -> Stream[str, None, Completion]:
        """Yield the text as it is generated, in whole characters. The options are those of `generate`.

        Returns the completion (`done = yield from ...`).
        """
        settings = decoding_settings(self.defaults, settings, options, WRITER_SETTINGS)
        return self._stream(Request(prompt, self._encode(prompt), self._plan(settings, [prompt])))

    def _stream(self, request: Request) -> Stream[str, None, Completion]:
        batch = self.pool(1)
        batch.join(request)
        while not request.is_finished:
            yield from (piece.text for _, piece in batch.step() if piece.text)
        return self._completion(request)

    def stream_answer(
        self, messages: Sequence[Message], settings: GivenSettings = None, **options: Any
    ) -> Stream[str, None, Completion]:
        """Yield the answer to a conversation as it is generated; return the completion. Options as in `generate`.

        Raises UsageError for a model that was not trained to answer.
        """
        settings = decoding_settings(self.defaults, settings, options, WRITER_SETTINGS)
        tokens = self.chat_tokens(messages, settings.max_new_tokens or MAX_NEW_TOKENS)
        prompt = self._text(tokens)
        return _from_first_word(self._stream(Request(prompt, tokens, self._plan(settings, [prompt]))))

    def answer(self, messages: Sequence[Message], settings: GivenSettings = None, **options: Any) -> Completion:
        """Return the answer to a conversation. The options are those of `generate`."""
        pieces = self.stream_answer(messages, settings, **options)
        while True:
            try:
                next(pieces)
            except StopIteration as end:
                completion: Completion = end.value
                return completion

    def chat_tokens(
        self, messages: Sequence[Message], n_new: int = 0, check: Callable[[], None] = do_nothing
    ) -> list[int]:
        """Return the tokens of a conversation, up to the point where the model answers.

        The oldest messages are left out if fewer than `n_new` tokens of the context would remain for the answer.
        `check` is called before each attempt, and may raise an exception to abort.
        """
        if self.template is None:
            raise UsageError(
                "this model was not trained to answer. Train one on prompts and answers: JSON lines like "
                '{"prompt": "...", "completion": "..."}'
            )
        room = max(self.model.settings.context_length - n_new, self.model.settings.context_length // 2)
        n_system = sum(message.role == "system" for message in messages[:1])

        def without(n_pairs: int) -> list[int]:
            check()
            return self._conversation([*messages[:n_system], *messages[n_system + 2 * n_pairs :]])

        tokens = without(0)
        if len(tokens) <= room:
            return tokens
        most = max(0, (len(messages) - n_system - 1) // 2)  # one or two messages stay
        return without(bisect_left(range(most), True, key=lambda n_pairs: len(without(n_pairs)) <= room))

    def _conversation(self, messages: Sequence[Message]) -> list[int]:
        assert self.template is not None
        turns, rest = self.template.turns(messages)
        tokens: list[int] = []
        for turn in turns:
            tokens += [*encode_pieces(self.tokenizer, turn.prompt), *encode_pieces(self.tokenizer, [turn.answer])]
            tokens.append(self.template.end_of_answer(self.tokenizer))
        return self.tokenizer.prompt([*tokens, *encode_pieces(self.tokenizer, rest)])

    def requests(
        self,
        prompt: str | Sequence[int],
        settings: GivenSettings = None,
        n: int = 1,
        *,
        n_likely: int = 0,
        biases: Mapping[int, float] | None = None,
        check: Callable[[], None] = do_nothing,
    ) -> list[Request]:
        """Return requests for n completions of a prompt, which can join the batch of `pool()`.

        The completions are the same as those of `generate` for the prompt repeated n times. The prompt may be a list of
        tokens. `biases` are added to the logits of single tokens. `check` is called while constraints are built, and
        may raise an exception to abort. Raises UsageError if no completion of the prompt can satisfy the settings.
        """
        text = prompt if isinstance(prompt, str) else self._text(prompt)
        tokens = self._encode(prompt) if isinstance(prompt, str) else self.tokenizer.prompt(prompt)
        plan = self._plan(decoding_settings(self.defaults, settings), [text], biases, check)
        return [Request(text, tokens, plan, number, n_likely) for number in range(n)]

    def pool(self, max_rows: int = 64) -> ContinuousBatch:
        """Return an empty batch, which completions with any prompts and settings can join and leave at any time."""
        return ContinuousBatch(self.model, self.tokenizer, self.engine, max_rows)

    @property
    def end_ids(self) -> set[int]:
        """The tokens that end a completion."""
        return {*self.tokenizer.end_ids, (self.template or PLAIN_TEMPLATE).end_of_answer(self.tokenizer)}

    @torch.inference_mode()
    def next_logits(self, tokens: Sequence[int]) -> Float[Tensor, " vocab_size"]:
        """Return the logits of the token after `tokens`, which begin with the start token."""
        with evaluating(self.model):
            return PromptBatch(self.model, [tokens], 1, self.engine).first()[0]

    def embed(self, texts: str | Sequence[str]) -> Float[Tensor, "texts d_model"]:
        """Return a unit vector for each text: the mean of the last layer's hidden states.

        A text longer than the context is split into windows, and the vectors of the windows are averaged.
        """
        texts = [texts] if isinstance(texts, str) else texts
        room = self.model.settings.context_length
        windows = [split(self._encode(text) or [self.tokenizer.end_id], room) for text in texts]
        vectors = read_windows(self.model, windows, self._pooled)
        return normalize(mean_vectors(vectors, self.model.settings.d_model), dim=-1)

    def _pooled(self, batch: Padded) -> Float[Tensor, "windows d_model"]:
        return mean_pooled(self.model.hidden(batch.tokens), batch.is_token)

    def bits_per_byte(self, completion: Completion) -> float | None:
        """Return the bits per byte of the generated text, stop strings included, or None if it is empty.

        The probabilities are those of the model, before sampling settings are applied.
        """
        pairs = zip(completion.tokens, completion.log_probs, strict=True)
        nats = -sum(log_prob for token, log_prob in pairs if token not in self.end_ids)
        n_bytes = sum(len(self.tokenizer.token_bytes(token)) for token in completion.tokens)
        return nats / log(2) / n_bytes if n_bytes else None

    def warnings(self, prompt: str) -> tuple[str, ...]:
        """Return warnings about unknown characters in a prompt, and about tokens that do not fit in the context."""
        warnings = unknown_warnings(self.tokenizer, prompt)
        n_prompt, context_length = len(self._encode(prompt)), self.model.settings.context_length
        if n_prompt > context_length:
            warnings.append(
                f"the prompt has {n_prompt} tokens, but the model reads at most {context_length}: "
                f"only the last {newest_half(context_length)} are used"
            )
        return tuple(warnings)

    def _plan(
        self,
        settings: DecodingSettings,
        prompts: Sequence[str],
        biases: Mapping[int, float] | None = None,
        check: Callable[[], None] = do_nothing,
    ) -> DecodingPlan:
        return plan_of(self.tokenizer, settings, prompts, self.end_ids, biases, check)

    def _text(self, prompt: Sequence[int]) -> str:
        """Return the text of a prompt, with a line break in place of a special token at its end."""
        ends_word = len(prompt) > 0 and not self.tokenizer.token_bytes(prompt[-1])
        return self.tokenizer.decode(prompt) + "\n" * ends_word

    def _encode(self, prompt: str) -> list[int]:
        return self.tokenizer.prompt(self.tokenizer.encode(prompt))

    def _completion(self, request: Request) -> Completion:
        draft = request.draft
        assert draft is not None and draft.finish is not None
        text, warnings = "".join(draft.pieces), self.warnings(request.prompt)
        return Completion(request.prompt, text, tuple(draft.tokens), tuple(draft.log_probs), draft.finish, warnings)


def _from_first_word(stream: Stream[str, None, Completion]) -> Stream[str, None, Completion]:
    """Strip the spaces around an answer. The chat templates of some models put spaces there."""
    has_begun = False
    while True:
        try:
            piece = next(stream)
        except StopIteration as end:
            return replace(end.value, text=end.value.text.strip(" "))
        piece = piece if has_begun else piece.lstrip(" ")
        if piece:
            has_begun = True
            yield piece
