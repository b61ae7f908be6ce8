"""A recipe: everything that, beside the text itself, decides what a training run does."""

from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from penwright.config.model import ModelSettings
from penwright.config.schedules import Constant, Schedule
from penwright.config.settings import Settings, merge, validate
from penwright.config.training import AdamW, Optimizer, TrainingSettings
from penwright.errors import UnknownArgument

Task = Literal["generate", "translate", "classify"]
Column = str | int  # of a table, by its name or its number from 1


def one_or_more(given: Any) -> Any:
    """Several things as they are; a single text or number as a tuple of one."""
    return (given,) if isinstance(given, str | int) else given


def off(given: Any) -> Any:
    """0 and -1, with which other tools switch a filter off, as None."""
    return None if isinstance(given, int | float) and not isinstance(given, bool) and given in (0, -1) else given


OrOff = BeforeValidator(off)
Paths = Annotated[tuple[str, ...], BeforeValidator(one_or_more)]
Texts = Annotated[tuple[str, ...], BeforeValidator(one_or_more)]
Probability = Annotated[float, Field(gt=0, lt=1)]
Columns = Annotated[tuple[Column, ...], BeforeValidator(one_or_more)]


class DataSettings(Settings):
    """Where the examples come from, how a table is read, and what is held out."""

    train: Annotated[Paths, Field(min_length=1)]  # files, folders, or hub:name/config
    validation: Paths = ()  # held-out files of one's own; without them a part of train is held out
    held_out: Annotated[float, Field(gt=0, lt=1)] | None = None  # that part; None: chosen from the size
    seed: NonNegativeInt | None = None  # of what is held out; None: the recipe's
    source: Column | None = None
    target: Column | None = None
    text: Columns = ()  # of a labelled table; several are joined by a space
    label: Column | None = None
    label_names: dict[str, str] = Field(
        default_factory=dict
    )  # what to call labels that files name otherwise, such as {"1" = "World"}
    encoding: str | None = None  # None: found out
    max_characters: PositiveInt = 5000  # of one side of a pair, or of a labelled text
    max_ratio: PositiveFloat | None = 9.0  # between the lengths of the sides of a pair
    deduplicate: bool = True


class TokenizerSettings(Settings):
    """What the pieces of the text are."""

    type: Literal["characters", "bytes", "bpe", "unigram"] = "bpe"
    vocab_size: PositiveInt | None = None  # with special tokens; at most, for characters; of no account for bytes
    prefix_space: bool = False  # before each text: the first word is the token that it is elsewhere; for classifiers

    @model_validator(mode="after")
    def _check(self) -> "TokenizerSettings":
        if self.prefix_space and self.type in ("characters", "bytes"):
            raise ValueError(f"prefix_space is for pieces of words, of type bpe or unigram, not for {self.type}")
        return self


class DistillationSettings(Settings):
    """Runs on the same text whose models teach this one: what they expect is part of what it is to learn."""

    teachers: Annotated[tuple[str, ...], Field(min_length=1)]  # run folders
    weight: Annotated[float, Field(gt=0, le=1)] = 0.7  # of their probabilities; the text itself has the rest


LARGEST = 2**31 - 1
Count = Annotated[int, Field(gt=0, le=LARGEST)]


class DecodingSettings(Settings):
    """How a trained model is read out, unless a command says otherwise."""

    max_new_tokens: Count | None = None  # None: 400 in writing; what the source's length allows in translation
    min_new_tokens: Annotated[int, Field(ge=0, le=LARGEST)] = 0  # the end does not come before, unless nothing else may
    temperature: NonNegativeFloat = 0.8  # 0: always the likeliest token
    top_n_sigma: Annotated[PositiveFloat | None, OrOff] = None  # tokens within n standard deviations of the best score
    top_k: Annotated[Count | None, OrOff] = None  # the k likeliest tokens; 0: all
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None  # 1: all tokens
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    typical_p: Annotated[float, Field(gt=0, le=1)] | None = None
    epsilon_cutoff: Annotated[Probability | None, OrOff] = None  # only tokens of at least this probability
    eta_cutoff: Annotated[Probability | None, OrOff] = None  # the same, less strict where much is possible
    xtc_probability: Annotated[float, Field(ge=0, le=1)] = 0.0  # how often the likeliest tokens are passed over
    xtc_threshold: Annotated[float, Field(gt=0, le=1)] = 0.1  # those of at least this probability, all but the last
    repetition_penalty: PositiveFloat = 1.0
    presence_penalty: float = 0.0  # what a token that was written loses in score
    frequency_penalty: float = 0.0  # and what it loses for each time
    no_repeat_ngram: Annotated[Count | None, OrOff] = None  # no n tokens in a row come twice
    dry_multiplier: NonNegativeFloat = 0.0  # above 0: what goes on repeating loses score, the more the longer it is
    dry_base: Annotated[float, Field(ge=1)] = 1.75
    dry_allowed_length: Count = 2  # tokens
    dry_breakers: Texts = ("\n", ":", '"', "*")  # no repetition reaches across tokens that hold one of these
    logit_bias: dict[str, float] = Field(default_factory=dict)  # scores for texts: { dragon = 2.0, "the end" = -5.0 }
    banned_words: Texts = ()  # whole words in any case; a * at an end stands for the rest of a word
    required_words: Texts = ()
    pattern: str | None = None  # a regular expression that matches the whole completion
    stop: Texts = ()
    seed: Annotated[int, Field(ge=0, lt=2**64)] = 0
    beam_size: Count = 5
    length_penalty: Annotated[float, Field(ge=-10, le=10)] = (
        1.0  # hypotheses are ranked by log-probability / length ** length_penalty
    )
    outlook: NonNegativeFloat = 0.25  # the share that beams may become longer while they are waited for, or 4 tokens
    coverage_penalty: NonNegativeFloat = 0.0  # above 0: against translations that leave out parts of the source


GivenSettings = DecodingSettings | Mapping[str, Any] | None

# What the command line calls some settings.
FLAGS = {"ban": "banned_words", "beam": "beam_size", "bias": "logit_bias", "require": "required_words"}


def decoding_settings(
    defaults: DecodingSettings,
    given: GivenSettings = None,
    options: Mapping[str, Any] | None = None,
    used: Collection[str] = tuple(DecodingSettings.model_fields),
) -> DecodingSettings:
    """Lay settings over the defaults: `given` as a whole or as a table, then keyword arguments; None changes nothing.

    Raises UnknownArgument, with the nearest name, for a keyword argument that is not among those `used`.
    """
    base, table = (given, {}) if isinstance(given, DecodingSettings) else (defaults, given or {})
    named = {FLAGS.get(name, name): value for name, value in (options or {}).items() if value is not None}
    for name in [FLAGS.get(name, name) for name in options or {}]:
        if name in used:
            continue
        if name in DecodingSettings.model_fields:
            raise UnknownArgument(f"{name} has no effect here; the settings that have one are {', '.join(used)}")
        nearest = get_close_matches(name, [*used, *FLAGS], n=1, cutoff=0.5)
        hint = f"did you mean '{nearest[0]}'?" if nearest else f"The settings are {', '.join(used)}."
        raise UnknownArgument(f"there is no setting '{name}'; {hint}")
    if not table and not named:
        return base
    return validate(DecodingSettings, merge(base.model_dump(), table, named), "decoding")


class Recipe(Settings):
    """All settings of one run. `penwright config` prints it; a run folder keeps it as recipe.toml."""

    task: Task
    seed: NonNegativeInt = 1
    data: DataSettings
    tokenizer: TokenizerSettings = TokenizerSettings()
    model: ModelSettings
    optimizer: Optimizer = AdamW()
    schedule: Schedule = Constant()
    training: TrainingSettings
    distillation: DistillationSettings | None = None
    decoding: DecodingSettings = DecodingSettings()

    @model_validator(mode="after")
    def _check(self) -> "Recipe":
        if self.tokenizer.prefix_space and self.task != "classify":
            raise ValueError("[tokenizer] prefix_space is for classifiers: what others write would begin with a space")
        return self
