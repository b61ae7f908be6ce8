"""The recipe: all settings of a training run, from the data to decoding."""

from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from penwright.config.model import ModelSettings
from penwright.config.ranges import Above0Below1, Above0To1, From0Below1, From0To1
from penwright.config.schedules import Constant, Schedule
from penwright.config.settings import Settings, merge, validate, with_present_names
from penwright.config.training import AdamW, Limit, Optimizer, TrainingSettings
from penwright.errors import UnknownArgument

Task = Literal["generate", "chat", "translate", "classify", "encode"]
Column = str | int  # name or number (from 1) of a table column


def one_or_more(value: Any) -> Any:
    """Put a single string or number into a tuple; return any other value unchanged."""
    return (value,) if isinstance(value, str | int) else value


def off(value: Any) -> Any:
    """Replace 0 and -1 with None, since other tools use these values to turn a filter off."""
    return None if isinstance(value, int | float) and not isinstance(value, bool) and value in (0, -1) else value


OrOff = BeforeValidator(off)
Paths = Annotated[tuple[str, ...], BeforeValidator(one_or_more)]
Texts = Annotated[tuple[str, ...], BeforeValidator(one_or_more)]
Columns = Annotated[tuple[Column, ...], BeforeValidator(one_or_more)]


class DataSettings(Settings):
    """Source of the examples, columns of tables, filters, and held-out data."""

    train: Annotated[Paths, Field(min_length=1)]  # training data: files, folders, hub:NAME or hub:NAME/CONFIG
    validation: Paths = ()  # your own held-out files; empty: hold out a part of the training data
    held_out: Above0Below1 | None = None  # share to hold out; None: depends on the data's size
    seed: NonNegativeInt | None = None  # seed for choosing held-out examples; None: the recipe's seed
    source: Column | None = None  # column of the source sentences
    target: Column | None = None  # column of the target sentences
    text: Columns = ()  # columns of the text, joined by spaces; two columns of a classifier are read as a pair
    label: Column | tuple[Column, ...] | None = None  # column of the labels, or a column of 0 and 1 for each label
    label_separator: Annotated[str, Field(min_length=1)] | None = None  # separator of labels in a cell, such as |
    label_names: dict[str, str] = Field(default_factory=dict)  # names for labels in the files, such as {"1" = "World"}
    dictionary: str | None = None  # translators: file of terms and translations to learn
    dictionary_hints: From0To1 | None = (
        None  # share of sentences with dictionary translations in place of terms; None: chosen by the plan
    )
    group: Column | None = None  # column of groups, such as authors: a group is held out as a whole, or not at all
    encoding: str | None = None  # encoding of text files; None: detect it
    max_characters: PositiveInt | None = (
        None  # drop pairs, labelled texts and conversations with a longer side; None: 5000 for pairs, else 1,000,000
    )
    max_ratio: Limit = 9.0  # drop pairs if one side is more than this many times as long as the other; 0: off
    deduplicate: bool = True  # drop repeated examples


class TokenizerSettings(Settings):
    """Type and size of the tokenizer."""

    type: Literal["characters", "bytes", "bpe", "unigram", "imported"] = "bpe"  # imported: set by `penwright import`
    from_: str | None = Field(None, alias="from")  # existing tokenizer to use: a run, a folder, a file or hub:NAME
    vocab_size: PositiveInt | None = (
        None  # vocabulary size, special tokens included; an upper limit if type is characters, ignored if type is bytes
    )
    prefix_space: bool = (
        False  # for classifiers: put a space before each text, so that its first word is encoded like any other
    )

    @property
    def is_pretrained(self) -> bool:
        """Whether the tokenizer came with an imported model, rather than from the setting `from`."""
        return self.type == "imported" and self.from_ is None

    @model_validator(mode="after")
    def _check(self) -> "TokenizerSettings":
        if self.prefix_space and self.type in ("characters", "bytes"):
            raise ValueError(f"prefix_space needs a tokenizer of type bpe or unigram, not {self.type}")
        return self


class DistillationSettings(Settings):
    """Distillation: models of other runs on the same text provide soft targets for the new model."""

    teachers: Annotated[tuple[str, ...], Field(min_length=1)]  # run folders of the teachers
    weight: Above0To1 = 0.7  # weight of the teachers in the loss, from 0 to 1


class FineTuningSettings(Settings):
    """Fine-tuning: training starts from the weights and the tokenizer of another run (the base)."""

    base: str  # run folder of the model to start from
    base_sha256: str | None = None  # checksum of the base model's weights, recorded when training begins
    keep_old: From0Below1 = 0.0  # share of batches from the base model's training text
    base_weight: From0Below1 = 0.0  # weight of the base in the mean of both models' weights
    trim_vocabulary: bool = False  # drop tokens of the base model that are not in the training text
    add_tokens: PositiveInt | str | None = None  # number of new tokens to learn from the text, or a file of words
    freeze_embeddings: bool = False  # do not train the token embeddings, which makes steps of small models faster
    contrastive: bool = False  # for few texts: contrastive fine-tuning and a new head, instead of ordinary training

    @model_validator(mode="after")
    def _check(self) -> "FineTuningSettings":
        if self.freeze_embeddings and self.add_tokens:
            raise ValueError("freeze_embeddings cannot be combined with add_tokens, whose vectors must be trained")
        if self.base_weight and not self.keep_old:
            raise ValueError("base_weight can be set only together with keep_old")
        return self


class ChatSettings(Settings):
    """The chat template of a model, in Jinja. Other projects store it in tokenizer_config.json."""

    template: Annotated[str, Field(max_length=100_000)]  # Jinja template that turns messages into one text
    bos_token: str = ""  # value of the template variable bos_token
    eos_token: str = ""  # value of the template variable eos_token
    unk_token: str = ""  # value of the template variable unk_token; "": the variable is undefined
    pad_token: str = ""  # value of the template variable pad_token; "": the variable is undefined
    end_of_turn: str = ""  # special token that ends an answer; "" means eos_token


LoraTarget = Literal["query", "key", "value", "output", "gate", "up", "down"]


class LoraSettings(Settings):
    """LoRA (Hu et al. 2022): train small low-rank adapters, and keep the weights of the base frozen."""

    rank: Annotated[int, Field(gt=0, le=4096)]  # rank of each adapter
    alpha: PositiveFloat | None = None  # adapters are scaled by alpha / rank; None: twice the rank
    targets: Annotated[tuple[LoraTarget, ...], Field(min_length=1)] = get_args(LoraTarget)  # layers that get an adapter

    @property
    def scale(self) -> float:
        """Scaling factor of the low-rank update."""
        return 2.0 if self.alpha is None else self.alpha / self.rank


LARGEST = 2**31 - 1
Count = Annotated[int, Field(gt=0, le=LARGEST)]
Score = Annotated[float, Field(ge=-1e30, le=1e30)]  # logits are float32, which overflows above 3e38
Factor = Annotated[float, Field(ge=1e-30, le=1e30)]
FactorOrZero = Annotated[float, Field(ge=0, le=1e30)]
CountOrOff = Annotated[Count | None, OrOff]
PositiveOrOff = Annotated[PositiveFloat | None, OrOff]
ProbabilityOrOff = Annotated[Above0Below1 | None, OrOff]


class DecodingSettings(Settings):
    """Defaults for generation and translation. The comments are also the help texts of the command-line options."""

    max_new_tokens: Count | None = (
        None  # maximum number of new tokens; if not set, 400 (translation: depends on the source length)
    )
    min_new_tokens: Annotated[int, Field(ge=0, le=LARGEST)] = 0  # minimum number of new tokens before the text may end
    temperature: FactorOrZero = 0.8  # sampling temperature; 0 always takes the most likely token
    top_n_sigma: PositiveOrOff = None  # sample from tokens within N standard deviations of the highest logit
    top_k: CountOrOff = None  # sample from the K most likely tokens; 0 turns this off
    top_p: Above0To1 | None = None  # nucleus sampling: use the smallest set of tokens whose probabilities add up to P
    min_p: From0To1 | None = None  # sample from tokens at least P times as likely as the most likely one
    typical_p: Above0To1 | None = (
        None  # typical sampling: use the tokens with surprisal closest to the entropy, up to a total probability of P
    )
    epsilon_cutoff: ProbabilityOrOff = None  # sample from tokens with at least this probability
    eta_cutoff: ProbabilityOrOff = None  # like the epsilon cutoff, with a lower threshold at high entropy
    xtc_probability: From0To1 = 0.0  # XTC: probability of dropping all top choices but the least likely one
    xtc_threshold: Above0To1 = 0.1  # XTC: top choices are tokens with at least this probability
    repetition_penalty: Factor = 1.0  # above 1: tokens of the prompt and the text so far become less likely
    presence_penalty: Score = 0.0  # subtract this from the logit of every token generated so far
    frequency_penalty: Score = 0.0  # subtract this from the logit of a token for each time it was generated
    no_repeat_ngram: CountOrOff = None  # never repeat a sequence of N tokens; 0 turns this off
    dry_multiplier: FactorOrZero = 0.0  # DRY: above 0, penalize repetitions, more strongly the longer they are
    dry_base: Annotated[float, Field(ge=1)] = 1.75  # DRY: factor by which the penalty grows with each repeated token
    dry_allowed_length: Count = 2  # DRY: longest repetition without penalty, in tokens
    dry_breakers: Texts = ("\n", ":", '"', "*")  # DRY: no repetition extends across a token that contains this text
    logit_bias: dict[str, Score] = Field(default_factory=dict)  # raise the log-probability of a text by a score in nats
    banned_words: Texts = ()  # ban a word, ignoring case; beg* bans all words that begin with beg
    required_words: Texts = ()  # require a word in the completion
    pattern: str | None = None  # regular expression that the whole completion must match
    stop: Texts = ()  # end the completion before this text
    seed: Annotated[int, Field(ge=0, lt=2**64)] = 0  # random seed; the same seed gives the same text
    beam_size: Count = 5  # beam size; 1 is greedy search
    length_penalty: Annotated[float, Field(ge=-10, le=10)] = 1.0  # length penalty; higher favors longer translations
    beam_patience: FactorOrZero = (
        0.25  # let beams grow longer by this share of their length (at least 4 tokens) before the search stops
    )
    coverage_penalty: FactorOrZero = 0.0  # above 0: penalize translations that leave out parts of the source


# Generation accepts WRITER_SETTINGS. SAMPLING_SETTINGS are the sampling settings that translation accepts.
BEAM_SETTINGS = ("beam_size", "length_penalty", "coverage_penalty", "beam_patience")
WRITER_SETTINGS = tuple(name for name in DecodingSettings.model_fields if name not in BEAM_SETTINGS)
SAMPLING_SETTINGS = (
    *("temperature", "top_n_sigma", "top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff"),
    *("xtc_probability", "xtc_threshold", "seed"),
)

GivenSettings = DecodingSettings | Mapping[str, Any] | None

# Names of command-line options that differ from the names of their settings.
FLAGS = {"ban": "banned_words", "beam": "beam_size", "bias": "logit_bias", "require": "required_words"}


def decoding_settings(
    defaults: DecodingSettings,
    given: GivenSettings = None,
    options: Mapping[str, Any] | None = None,
    used: Collection[str] = tuple(DecodingSettings.model_fields),
) -> DecodingSettings:
    """Merge decoding settings: the defaults, then `given`, then keyword arguments (`options`) that are not None.

    If `given` is a DecodingSettings, it replaces the defaults; a table overrides only the settings in it. Raises
    UnknownArgument, with the closest name, for an option that is not in `used`.
    """
    base, table = (given, {}) if isinstance(given, DecodingSettings) else (defaults, given or {})
    table, options = (with_present_names(each or {}, "decoding.") for each in (table, options))
    named = {FLAGS.get(name, name): value for name, value in options.items() if value is not None}
    for name in [FLAGS.get(name, name) for name in options]:
        if name in used:
            continue
        if name in DecodingSettings.model_fields:
            raise UnknownArgument(
                f"{name} has no effect in this call. The settings that have an effect are {', '.join(used)}"
            )
        nearest = get_close_matches(name, [*used, *FLAGS], n=1, cutoff=0.5)
        hint = f"did you mean '{nearest[0]}'?" if nearest else f"the settings are {', '.join(used)}"
        raise UnknownArgument(f"there is no setting '{name}'; {hint}")
    if not table and not named:
        return base
    return validate(DecodingSettings, merge(base.model_dump(), table, named), "decoding")


class Recipe(Settings):
    """All settings of a run. `penwright config` prints them; a run folder keeps them in recipe.toml."""

    task: Task  # generate, chat, translate, classify or encode
    seed: NonNegativeInt = 1  # random seed
    data: DataSettings
    tokenizer: TokenizerSettings = TokenizerSettings()
    model: ModelSettings
    optimizer: Optimizer = AdamW()
    schedule: Schedule = Constant()
    training: TrainingSettings
    distillation: DistillationSettings | None = None
    finetuning: FineTuningSettings | None = None
    lora: LoraSettings | None = None
    chat: ChatSettings | None = None
    decoding: DecodingSettings = DecodingSettings()

    @property
    def gives_one_label(self) -> bool:
        """Whether the model is a classifier that gives each text one label."""
        return self.task == "classify" and self.model.problem_type == "single_label_classification"

    @model_validator(mode="after")
    def _check(self) -> "Recipe":
        is_new_writer = self.task == "generate" and not self.finetuning and self.model.tie_embeddings == "none"
        if self.training.bigram_init and not is_new_writer:
            raise ValueError(
                '[training] bigram_init is only for new language models with [model] tie_embeddings = "none": a '
                "shared embedding matrix cannot tell which of two tokens comes first"
            )
        if self.training.consistency:
            self._check_consistency()
        self._check_task()
        if self.finetuning and self.finetuning.base_weight and (self.lora or self.training.ema_decay):
            raise ValueError("[finetuning] base_weight cannot be combined with [lora] or with [training] ema_decay")
        if self.lora and not self.finetuning:
            raise ValueError("[lora] needs [finetuning]: an adapter changes a trained model. Name it with --from RUN")
        return self

    def _check_task(self) -> None:
        """Raise ValueError for settings that have no effect with this task."""
        is_classifier, is_encoder = self.task == "classify", self.task in ("classify", "encode")
        tuning, single = self.finetuning, "classifiers that give each text one label"
        for value, suits, name, whom in (
            # other models would begin each text with a space
            (self.tokenizer.prefix_space, is_encoder, "[tokenizer] prefix_space", "classifiers and encoders"),
            (self.data.group, is_classifier, "[data] group (--group)", "classifiers"),
            (self.data.dictionary, self.task == "translate", "[data] dictionary", "translators"),
            (self.data.dictionary_hints, self.data.dictionary, "[data] dictionary_hints", "runs with a dictionary"),
            (self.model.token_dropout, is_classifier, "[model] token_dropout", "classifiers"),
            (self.model.balanced, self.gives_one_label, "[model] balanced (--balance)", single),
            (tuning and tuning.contrastive, self.gives_one_label, "[finetuning] contrastive", single),
            (self.distillation, self.task != "encode", "[distillation]", "tasks other than encode"),
        ):
            if value and not suits:
                raise ValueError(f"{name} is only for {whom}")

    def _check_consistency(self) -> None:
        remedy = "set training.consistency to 0"
        if self.task in ("classify", "encode"):
            raise ValueError(f"[training] consistency is not possible for the task {self.task}: {remedy}")
        if self.distillation:
            raise ValueError(f"[training] consistency cannot be combined with [distillation] (teachers): {remedy}")
