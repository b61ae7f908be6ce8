"""Completion requests in progress: their prompts are tokenized, and new tokens are added to their choices."""

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import aclosing

import numpy as np

from penwright.config import DecodingSettings
from penwright.decoding.requests import Request, TokenUpdate
from penwright.errors import UsageError
from penwright.inspection import Inspector
from penwright.inspection.token_scores import TokenScores, token_scores_in_steps
from penwright.serving.completion_fields import (
    CompletionAnswer,
    CompletionChoice,
    CompletionRequest,
    Finish,
    LogProbs,
    Usage,
)
from penwright.serving.errors import RequestTooLarge
from penwright.serving.fields import check_texts, check_tokens
from penwright.serving.model_worker import ModelWorker
from penwright.serving.settings import ServingSettings
from penwright.tokenizers import TextStream, Tokenizer

MAX_NUMBERS = 1_000_000  # maximum number of tokens in a response, including alternatives for each position
MIN_TOP_P = 1e-6  # replaces a top_p of 0, so that only the most likely token is kept


class CompletionJob:
    """A completion request in progress."""

    def __init__(self, body: CompletionRequest, worker: ModelWorker, limits: ServingSettings):
        """Store the request. It is checked later, by `prepare`."""
        self.body, self._worker, self._limits = body, worker, limits
        self.id, self.created = f"cmpl-{secrets.token_hex(12)}", int(time.time())
        self._settings = _settings(body)
        self._requests, self._echoes, self._n_read = list[Request](), list[str](), 0
        self._scored: dict[tuple[int, ...], TokenScores] = {}
        self.choices: list[_ChoiceBuilder] = []
        _ = worker.generator  # raises UsageError unless the model is a language model

    async def prepare(self) -> None:
        """Check the request and tokenize its prompts, on a thread because long prompts take time.

        Raises UsageError if the model cannot fulfil the request, and RequestTooLarge if it exceeds a server limit.
        """
        self._until = asyncio.get_running_loop().time() + self._limits.deadline_seconds
        await asyncio.to_thread(self._prepare)

    def _prepare(self) -> None:
        body, generator = self.body, self._worker.generator
        prompts = _prompts(body, generator.tokenizer)
        _check_prompts(prompts, self._limits)
        _check(body, self._limits)
        _check_answer(body, prompts)
        biases = _biases(body.logit_bias, generator.tokenizer)
        n, times = body.n, Counter[tuple[int, ...]]()
        for text, tokens in prompts:
            new_requests = generator.requests(tokens, self._settings, n, n_likely=body.logprobs or 0, biases=biases)
            for request in new_requests:
                request.number += times[tuple(tokens)] * n  # so that repeated prompts get different completions
            times[tuple(tokens)] += 1
            self._requests += new_requests
            self._echoes += [text] * n
        self._n_read = sum(len(tokens) for _, tokens in prompts)
        tokenizer, k, keeps = generator.tokenizer, body.logprobs, not body.stream
        self.choices = [_ChoiceBuilder(place, tokenizer, k, keeps=keeps) for place in range(len(self._requests))]

    async def stream(self) -> AsyncGenerator[CompletionChoice, None]:
        """Yield chunks of the choices as they are generated. If the response is not streamed, also store the chunks."""
        if self.body.echo:
            n_start = int(self._worker.generator.tokenizer.begins)
            for builder, request, text in zip(self.choices, self._requests, self._echoes, strict=True):
                yield builder.piece(text, None, await self._scores(builder, tuple(request.prompt_tokens[n_start:])))
        if self.body.max_tokens == 0:
            for builder in self.choices:
                yield builder.piece("", "length")
            return
        async with aclosing(self._worker.write(self._requests, self._until)) as updates:
            async for number, update in updates:
                piece = self.choices[number].take(update)
                if piece.text or piece.logprobs or piece.finish_reason:
                    yield piece

    def answer(self, choices: Sequence[CompletionChoice], *, with_usage: bool) -> CompletionAnswer:
        """Return these choices in OpenAI's format."""
        n_written = sum(choice.n_tokens for choice in self.choices)
        usage = Usage(prompt_tokens=self._n_read, completion_tokens=n_written, total_tokens=self._n_read + n_written)
        return CompletionAnswer(
            id=self.id,
            created=self.created,
            model=self._worker.name,
            choices=list(choices),
            usage=usage if with_usage else None,
        )

    async def _scores(self, builder: "_ChoiceBuilder", tokens: tuple[int, ...]) -> LogProbs | None:
        """Return the log-probabilities of a prompt's tokens, or None if they are not requested."""
        if self.body.logprobs is None or not tokens:
            return None
        async with asyncio.timeout_at(self._until):
            if tokens not in self._scored:
                self._scored[tokens] = await self._worker.run_in_steps(
                    lambda: _score(self._worker.inspector, tokens, builder.n_likely or 1)
                )
            return await asyncio.to_thread(_log_probs, builder, tokens, self._scored[tokens])


class _ChoiceBuilder:
    """A builder that turns the tokens of a choice into response chunks, and stores them if `keeps` is true."""

    def __init__(self, index: int, tokenizer: Tokenizer, n_likely: int | None, *, keeps: bool):
        self._index, self._tokenizer, self.n_likely, self._keeps = index, tokenizer, n_likely, keeps
        self._stream = TextStream(tokenizer)
        self._n_shown = 0  # number of characters returned so far
        self._n_characters = 0  # number of characters of all tokens, including those not returned yet
        self.n_tokens = 0
        self._is_cut = False  # whether a stop string ended the choice; the tokens of that string are left out
        self._pieces: list[CompletionChoice] = []

    def take(self, update: TokenUpdate) -> CompletionChoice:
        """Append a new token to the choice, and return the response chunk that contains its text."""
        self.n_tokens += 1
        likely = {each.token: each.log_prob for each in update.candidates.likely} if update.candidates else {}
        finish: Finish = {"end": "stop", "stop": "stop", "length": "length", None: None}[update.finish]
        self._is_cut = update.finish == "stop"
        log_probs = None if update.finish == "end" else self.log_probs([(update.token, update.log_prob, likely)])
        return self.piece(update.text, finish, log_probs)

    def skip_added_space(self, prompt: Sequence[int]) -> None:
        """Do not count the space that some tokenizers add before a prompt. The text does not contain it."""
        has_space = b"".join(map(self._tokenizer.token_bytes, prompt)).startswith(b" ")
        self._n_characters -= self._tokenizer.prefix_space and has_space

    def piece(self, text: str, finish: Finish = None, log_probs: LogProbs | None = None) -> CompletionChoice:
        self._n_shown += len(text)
        self._n_characters = max(self._n_characters, self._n_shown)
        choice = CompletionChoice(index=self._index, text=text, logprobs=log_probs, finish_reason=finish)
        if self._keeps:
            self._pieces.append(choice)
        return choice

    def log_probs(self, scored: Sequence[tuple[int, float | None, Mapping[int, float]]]) -> LogProbs | None:
        """Return the log-probabilities of consecutive tokens and of their most likely alternatives; None if unknown."""
        if self.n_likely is None:
            return None
        offsets = []
        for token, _, _ in scored:
            offsets.append(max(0, self._n_characters))
            self._n_characters += len(self._stream.push(token))
        name = self._tokenizer.token_text
        tops = [
            None if own is None else {name(each): value for each, value in {**likely, token: own}.items()}
            for token, own, likely in scored
        ]
        return LogProbs(
            tokens=[name(token) for token, _, _ in scored],
            token_logprobs=[own for _, own, _ in scored],
            top_logprobs=list(tops) if self.n_likely else None,
            text_offset=offsets,
        )

    def whole(self) -> CompletionChoice:
        """Join the stored chunks into a single choice."""
        parts = [piece.logprobs for piece in self._pieces if piece.logprobs]
        log_probs = None if self.n_likely is None else LogProbs.joined(parts, bool(self.n_likely))
        if log_probs and self._is_cut:
            log_probs = log_probs.before(self._n_shown)
        finish, text = self._pieces[-1].finish_reason, "".join(piece.text for piece in self._pieces)
        return CompletionChoice(index=self._index, text=text, logprobs=log_probs, finish_reason=finish)


def _score(inspector: Inspector, ids: Sequence[int], k: int) -> Generator[None, None, TokenScores]:
    """Score each token of a prompt that has a token before it. Yield between steps."""
    return token_scores_in_steps(inspector.model, inspector.reader.read_ids(ids), inspector.words, k)


def _log_probs(builder: _ChoiceBuilder, ids: Sequence[int], scores: TokenScores) -> LogProbs | None:
    """Return the scores of a prompt in OpenAI's format. A first token without a start token before it has no score."""
    likely = [
        dict(zip(row.tolist(), np.log(shares).tolist(), strict=True)) if builder.n_likely else {}
        for row, shares in zip(scores.alternatives.ids, scores.alternatives.probabilities, strict=True)
    ]
    builder.skip_added_space(ids)
    scored = list(zip((token.id for token in scores.tokens), scores.log_probs.tolist(), likely, strict=True))
    return builder.log_probs([(ids[0], None, {}), *scored] if len(scored) < len(ids) else scored)


def _prompts(body: CompletionRequest, tokenizer: Tokenizer) -> list[tuple[str, list[int]]]:
    """Return each prompt as text and as tokens."""
    given = body.prompt
    if isinstance(given, str):
        return [(given, tokenizer.encode(given))]
    if not given:
        raise UsageError("the prompt is an empty list. Send a text, or tokens")
    several = [given] if isinstance(given[0], int) else given
    return [_prompt(each, tokenizer) for each in several]


def _prompt(given: object, tokenizer: Tokenizer) -> tuple[str, list[int]]:
    if isinstance(given, str):
        return given, tokenizer.encode(given)
    assert isinstance(given, list)
    check_tokens(given, range(tokenizer.vocab_size))
    return tokenizer.decode(given), given


def _check_prompts(prompts: Sequence[tuple[str, list[int]]], limits: ServingSettings) -> None:
    check_texts([text for text, _ in prompts], limits)
    # the length is also limited in tokens, since some tokens have no text
    longest = max((len(tokens) for _, tokens in prompts), default=0)
    if longest > limits.max_characters:
        raise RequestTooLarge(
            f"a prompt has {longest:,} tokens, but this server accepts at most {limits.max_characters:,} "
            "(max_characters, which limits tokens, too). Shorten it"
        )


def _check_answer(body: CompletionRequest, prompts: Sequence[tuple[str, list[int]]]) -> None:
    n_tokens = sum(body.max_tokens + len(tokens) * body.echo for _, tokens in prompts) * body.n
    n_numbers = n_tokens * (1 + (body.logprobs or 0))
    if n_numbers > MAX_NUMBERS:
        raise RequestTooLarge(
            f"the response could contain {n_numbers:,} tokens and alternatives, but the limit is {MAX_NUMBERS:,}. "
            "Reduce max_tokens, n or logprobs"
        )


def _check(body: CompletionRequest, limits: ServingSettings) -> None:
    if body.n > limits.max_n:
        raise UsageError(f"n is {body.n}, but this server allows at most {limits.max_n} (max_n)")
    if body.max_tokens > limits.max_new_tokens:
        raise UsageError(
            f"max_tokens is {body.max_tokens}, but this server allows at most {limits.max_new_tokens} (max_new_tokens)"
        )
    if body.max_tokens == 0 and not body.echo:
        raise UsageError("max_tokens is 0, which is useful only with echo. Set echo, or ask for at least one token")
    if body.best_of not in {None, body.n}:
        raise UsageError("best_of is not supported unless it equals n. Leave it out")
    if body.suffix:
        raise UsageError("suffix is not supported: the model writes from left to right")


def _settings(body: CompletionRequest) -> DecodingSettings:
    stop = [body.stop] if isinstance(body.stop, str) else body.stop or []
    return DecodingSettings(
        max_new_tokens=max(1, body.max_tokens),
        temperature=body.temperature,
        top_p=None if body.top_p == 1 else max(body.top_p, MIN_TOP_P),
        top_k=body.top_k,
        min_p=body.min_p,
        repetition_penalty=body.repetition_penalty,
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        stop=tuple(stop),
        seed=secrets.randbelow(2**32) if body.seed is None else body.seed % 2**64,
    )


def _biases(given: Mapping[str, float], tokenizer: Tokenizer) -> dict[int, float]:
    known = {str(token): token for token in range(tokenizer.vocab_size)} if given else {}
    check_tokens(given, known, "logit_bias: ")
    return {known[text]: value for text, value in given.items()}
