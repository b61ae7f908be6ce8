"""What the page needs to write: tokens as they come, each with what else might have come, and why."""

import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from functools import lru_cache
from time import perf_counter
from typing import Annotated, Any

import torch
from fastapi import APIRouter
from fastapi.responses import StreamingResponse
from jaxtyping import Float
from pydantic import BaseModel, Field
from torch import Tensor

from penwright.config import DecodingSettings, merge, validate
from penwright.decoding import Generator
from penwright.decoding.decodable import Continuing, evaluating
from penwright.decoding.penalties import History
from penwright.errors import PenwrightError, UsageError
from penwright.inspection.tokens import readable
from penwright.serving.fields import Text, TheSettings, TheShelf
from penwright.serving.served import Served
from penwright.tokenizers import TextStream, Tokenizer

router = APIRouter()
N_LIKELY = 10


class Choice(BaseModel):
    """A token that might come."""

    id: int
    text: str  # as it reads by itself
    shown: str | None = None  # what it adds to a text, where that is something else: "" for a part of a character
    probability: float  # under the model itself
    chance: float | None  # of being drawn under the settings; None where there were none


class Foresight(BaseModel):
    """The next token, before it is drawn."""

    likeliest: list[Choice]
    entropy: float  # of the model's distribution, in nats
    n_kept: int  # how many tokens can be drawn


class ScoredToken(BaseModel):
    """A token of a text, as the model saw it come."""

    id: int
    text: str
    start: int  # in characters (Unicode code points) of the text
    end: int
    log_prob: float
    rank: int
    entropy: float
    likeliest: list[Choice]


class Scores(BaseModel):
    """All tokens of a text."""

    tokens: list[ScoredToken]
    warnings: list[str]


class Prompt(BaseModel):
    """A text, and tokens after it that are known as such: what was written before is gone on from as it was written."""

    model: str | None = None
    text: Text = ""
    tokens: Annotated[list[Annotated[int, Field(ge=0)]], Field(max_length=100_000)] = []
    settings: dict[str, Any] = {}  # what differs from the model's own; a null takes a rule away


@router.post("/next")
async def next_token(asked: Prompt, shelf: TheShelf) -> Foresight:
    """What may come next, before and after the settings; the model runs only when the text is another one."""
    served = shelf.get(asked.model, "writer")
    settings = _settings(served, asked.settings)

    def answer() -> Foresight:
        tokens = _tokens(served.generator, asked)
        return foresight(served.generator, _logits(served, tokens), tokens, settings)

    return await served.run(answer)


@router.post("/score")
async def score(asked: Prompt, shelf: TheShelf) -> Scores:
    """How likely each token of a text is, given those before it."""
    served = shelf.get(asked.model, "writer")

    def answer() -> Scores:
        tokenizer = served.generator.tokenizer
        found = served.inspector.token_scores(asked.text, k=N_LIKELY)
        likeliest = found.alternatives
        tokens = [
            ScoredToken(
                id=token.id,
                text=token.text,
                start=token.start,
                end=token.end,
                log_prob=float(found.log_probs[at]),
                rank=int(found.ranks[at]),
                entropy=float(found.entropies[at]),
                likeliest=[
                    _choice(tokenizer, int(other), float(share), None)
                    for other, share in zip(likeliest.ids[at], likeliest.probabilities[at], strict=True)
                ],
            )
            for at, token in enumerate(found.tokens)
        ]
        return Scores(tokens=tokens, warnings=[])

    return await served.run(answer)


@router.post("/write", response_class=StreamingResponse)
async def write(asked: Prompt, shelf: TheShelf, limits: TheSettings) -> StreamingResponse:
    """Goes on with a text: events `token` {id, text, shown, log_prob, rank, entropy, likeliest}, then `done` or `error`."""
    served = shelf.get(asked.model, "writer")
    settings = _settings(served, asked.settings)
    return StreamingResponse(_events(served, asked, settings), media_type="text/event-stream")


async def _events(served: Served, asked: Prompt, settings: DecodingSettings) -> AsyncIterator[str]:
    start, n = perf_counter(), 0
    try:
        steps = await served.run(lambda: _written(served.generator, asked, settings))
        while (token := await served.run(lambda: next(steps, None))) is not None:
            n += 1
            yield _event("token", token)
    except PenwrightError as error:
        yield _event("error", {"message": str(error)})
        return
    yield _event("done", {"n": n, "seconds": perf_counter() - start})


def _event(name: str, data: Mapping[str, Any]) -> str:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n"


def _written(generator: Generator, asked: Prompt, settings: DecodingSettings) -> Iterator[dict[str, Any]]:
    """Provisional: one at a time."""
    from penwright.decoding.sampling import Chances

    tokens = list(_tokens(generator, asked))
    manner = generator._manner([""], settings)
    chances = Chances(settings.seed, [0])
    stream = TextStream(generator.tokenizer)
    with torch.inference_mode(), evaluating(generator.model):
        continuing = Continuing(generator.model, [tokens], manner.n_new)
        logits = continuing.first()
        for _ in range(manner.n_new):
            history = History([tokens], logits)
            seen = foresight(generator, logits[0], tokens, settings)
            token = int(manner.sampling.choose(logits, history, chances))
            log_probs = logits[0].float().log_softmax(-1)
            tokens.append(token)
            yield {
                "id": token,
                "text": readable(generator.tokenizer, token),
                "shown": stream.push(token),
                "log_prob": float(log_probs[token]),
                "rank": int((log_probs > log_probs[token]).sum()) + 1,
                "entropy": seen.entropy,
                "likeliest": [each.model_dump(exclude_none=True) for each in seen.likeliest],
            }
            if token == generator.tokenizer.end_id:
                return
            logits = continuing.step(torch.tensor([token]))


def _tokens(generator: Generator, asked: Prompt) -> tuple[int, ...]:
    """With the start token; raises UsageError for tokens that the model does not have."""
    tokenizer = generator.tokenizer
    strange = next((token for token in asked.tokens if token >= tokenizer.vocab_size), None)
    if strange is not None:
        raise UsageError(f"there is no token {strange}: tokens are 0 to {tokenizer.vocab_size - 1}")
    return (tokenizer.start_id, *tokenizer.encode(asked.text), *asked.tokens)


def _settings(served: Served, changes: Mapping[str, Any]) -> DecodingSettings:
    """The model's own, with these laid over them."""
    return validate(DecodingSettings, merge(served.generator.defaults.model_dump(), changes), "settings")


@lru_cache(maxsize=32)
def _logits(served: Served, tokens: tuple[int, ...]) -> Float[Tensor, " vocab_size"]:
    """Of the token after these; kept, so that settings can be tried out."""
    with torch.inference_mode(), evaluating(served.generator.model):
        return Continuing(served.generator.model, [tokens], 1).first()[0]


def foresight(
    generator: Generator, logits: Float[Tensor, " vocab_size"], tokens: Sequence[int], settings: DecodingSettings
) -> Foresight:
    """What is known of the next token from its logits."""
    sampling = generator._manner([""], settings).sampling
    log_probs = logits.double().log_softmax(-1)
    reshaped = sampling.reshape(logits[None], History([tokens], logits[None]))[0].double()
    chances = reshaped.softmax(-1)
    probabilities = log_probs.exp()
    order = probabilities.argsort(descending=True, stable=True)[:N_LIKELY].tolist()
    return Foresight(
        likeliest=[
            _choice(generator.tokenizer, token, float(probabilities[token]), float(chances[token])) for token in order
        ],
        entropy=float(-(probabilities * log_probs.clamp(min=-1e9)).sum()),
        n_kept=1 if sampling.greedy else int(reshaped.isfinite().sum()),
    )


def _choice(tokenizer: Tokenizer, token: int, probability: float, chance: float | None) -> Choice:
    text = readable(tokenizer, token)
    spelled = TextStream(tokenizer).push(token)
    return Choice(
        id=token, text=text, shown=None if spelled == text else spelled, probability=probability, chance=chance
    )
