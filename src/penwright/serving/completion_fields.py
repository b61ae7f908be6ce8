"""The request and response fields of OpenAI's completions API."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from penwright.config.ranges import From0To1
from penwright.serving.fields import MAX_ENTRIES, MAX_INT, Name, Text, TokenId

Ids = Annotated[list[TokenId], Field(max_length=1_000_000, fail_fast=True)]
Stop = Annotated[Text, Field(max_length=1000)]
MAX_LOGPROBS = 20  # maximum value of `logprobs`
Finish = Literal["stop", "length"] | None


MAX_BIASES = 300


def _limit_entries(given: Any) -> Any:
    """Reject an object with too many entries before validating its values."""
    if isinstance(given, dict) and len(given) > MAX_BIASES:
        raise ValueError(f"must have at most {MAX_BIASES} entries")
    return given


Biases = Annotated[dict[str, Annotated[float, Field(ge=-100, le=100)]], BeforeValidator(_limit_entries)]


class StreamOptions(BaseModel):
    """Options for a streamed response."""

    include_usage: bool = False  # whether the last event contains the token counts


def _allow_null(schema: dict[str, Any]) -> None:
    """Let each field with a default be null in the schema, too."""
    for name, field in schema["properties"].items():
        if field.get("default") is not None:
            outer = {key: field.pop(key) for key in ("title", "default")}
            schema["properties"][name] = {"anyOf": [field, {"type": "null"}], **outer}


class SamplingRequest(BaseModel):
    """The fields that completion requests and chat requests have in common. A field that is null has its default."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False, json_schema_extra=_allow_null)

    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0  # at temperature 0, the likeliest token is chosen
    top_p: From0To1 = 1.0
    stream: bool = False  # whether to send the text in events while it is generated
    stream_options: StreamOptions | None = None  # options for a streamed response
    stop: Stop | Annotated[list[Stop], Field(max_length=16)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None  # random seed; None for a new one in each request
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    logit_bias: Biases = {}  # values to add to logits, by token id
    top_k: Annotated[int, Field(ge=-1, le=MAX_INT)] | None = None  # top-k sampling; 0 or -1 disables it
    min_p: From0To1 | None = None
    repetition_penalty: Annotated[float, Field(ge=1e-30, le=10)] = 1.0

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, data: Any) -> Any:
        return {key: value for key, value in data.items() if value is not None} if isinstance(data, dict) else data


class CompletionRequest(SamplingRequest):
    """A request for completions. Unknown fields, e.g. `user`, are ignored.

    `top_k`, `min_p` and `repetition_penalty` are not part of OpenAI's API.
    """

    model: Name | None = None  # name of a model; None: the first language model
    prompt: (  # one or more prompts, as texts or as token ids
        Text
        | Annotated[list[Text], Field(max_length=MAX_ENTRIES, fail_fast=True)]
        | Ids
        | Annotated[list[Ids], Field(max_length=MAX_ENTRIES, fail_fast=True)]
    ) = "\n"
    max_tokens: Annotated[int, Field(ge=0, le=MAX_INT)] = 16  # maximum number of new tokens
    n: Annotated[int, Field(ge=1, le=MAX_INT)] = 1  # number of completions per prompt
    best_of: Annotated[int, Field(ge=1, le=MAX_INT)] | None = None  # must equal n; other values are not supported
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None  # number of alternatives per token
    echo: bool = False  # whether to return the prompt before the completion
    suffix: Text | None = None  # not supported


class LogProbs(BaseModel):
    """The log-probabilities of tokens. Each offset is a token's position in the choice's text, in characters."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]

    @classmethod
    def joined(cls, parts: Sequence["LogProbs"], with_top: bool) -> "LogProbs":
        """Concatenate the log-probabilities of consecutive parts of a text."""
        return cls(
            tokens=[token for part in parts for token in part.tokens],
            token_logprobs=[value for part in parts for value in part.token_logprobs],
            top_logprobs=[top for part in parts for top in part.top_logprobs or []] if with_top else None,
            text_offset=[place for part in parts for place in part.text_offset],
        )

    def before(self, place: int) -> "LogProbs":
        """Return the log-probabilities of the tokens that begin before the character at index `place`."""
        n = sum(offset < place for offset in self.text_offset)
        top = None if self.top_logprobs is None else self.top_logprobs[:n]
        return LogProbs(
            tokens=self.tokens[:n],
            token_logprobs=self.token_logprobs[:n],
            top_logprobs=top,
            text_offset=self.text_offset[:n],
        )


class CompletionChoice(BaseModel):
    """A completion, or a chunk of a streamed completion."""

    index: int
    text: str
    logprobs: LogProbs | None = None
    finish_reason: Finish = None


class Usage(BaseModel):
    """The number of tokens in the prompts and in the completions."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class CompletionAnswer(BaseModel):
    """The completions in the order of the prompts, or an event of a stream."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None = None
