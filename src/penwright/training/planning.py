"""The recipe that suits a corpus, a machine and a budget: every choice with its reason, and each can be overruled."""

from collections.abc import Sequence
from functools import cached_property, lru_cache
from math import log2
from typing import NamedTuple

import torch

from penwright.config import BUDGETS, SIZES, ModelSettings, Recipe, Table, Task, merge, validate
from penwright.models.size import Size, size_of
from penwright.training.compilation import GAIN, choose_compilation
from penwright.training.pace import Pace

DEFAULT_MINUTES = 10.0
SHORT = 2.0  # minutes
LADDER = ("nano", "tiny", "mini", "small", "medium", "base", "large")
TOKENS_PER_PARAMETER: dict[Task, float] = {"generate": 1.0, "translate": 0.8, "classify": 0.8}
# ... that training should see: with fewer, a smaller model gets further in the time
SHORT_SHARE = 0.6  # of them, that is enough for a writer of less than two minutes
PARAMETERS_PER_TOKEN: dict[Task, float] = {"generate": 12.0, "translate": 12.0, "classify": 0.6}
# ... of the corpus: more only learns it by heart, and soonest where a whole text teaches no more than a label
TRAINING_SHARE = 0.9  # of the time; the rest goes into evaluations
FLOPS = 2e11  # a second, that two cores train at: to tell roughly how long so many tokens take
CPU = torch.device("cpu")
HOPE = 1.5  # a larger model may do so many times more FLOP a second than a smaller one, and seldom does


class Facts(NamedTuple):
    """What the plan needs to know of a corpus."""

    task: Task
    n_examples: int  # of the training part: documents, pairs or labelled texts
    n_bytes: int  # of their text (of pairs: of the target side)
    n_characters: int  # distinct ones
    n_labels: int = 0


class Choice(NamedTuple):
    """One setting that was chosen, and why."""

    key: str
    value: object
    reason: str


class Plan(NamedTuple):
    """A recipe, the choices behind it, and the size of its model."""

    recipe: Recipe
    choices: tuple[Choice, ...]
    size: Size
    epochs: float  # times that the corpus will be read, about


def make_plan(facts: Facts, given: Table, pace: Pace, device: torch.device = CPU) -> Plan:
    """The recipe for these facts; what is `given` stands, the rest is chosen to suit it.

    `pace` says how fast a model would train here (see pace_on); it is asked as seldom as may be.
    """
    planner = _Planner(facts, given, pace, device)
    recipe = planner.recipe()
    size = size_of(
        facts.task, planner.vocab_size, recipe.model, recipe.training.batch_tokens, n_labels=max(1, facts.n_labels)
    )
    return Plan(recipe, tuple(planner.choices), size, planner.epochs)


class _Planner:
    """Lays suggestions under what is given, one table after the other, and writes down why."""

    def __init__(self, facts: Facts, given: Table, pace: Pace, device: torch.device):
        self.facts, self.given, self.pace, self.device = facts, given, lru_cache(maxsize=None)(pace), device
        self.table: Table = merge({"task": facts.task}, given)
        self.choices: list[Choice] = []

    def recipe(self) -> Recipe:
        self._choose_budget()
        self._choose_tokenizer()
        self._choose_batch()
        self._choose_model()
        self._choose_regularisation()
        self._choose_optimizer()
        self._choose_over_fitting()
        self._choose_compilation()
        return validate(Recipe, self.table, "the settings")

    def _suggest(self, key: str, value: object, reason: str) -> None:
        """Take this value unless one is given; the key is that of an override, such as model.d_model."""
        path = key.split(".")
        below = self.table
        for table in path[:-1]:
            below = below.get(table, {})
        if path[-1] not in below:
            self.table = _filled_in(self.table, path, value)
            self.choices.append(Choice(key, value, reason))

    def _get(self, key: str, default: float = 0.0) -> float:
        table, _, name = key.partition(".")
        value = self.table.get(table, {}).get(name, default)
        return float(value) if isinstance(value, int | float) else default

    def _choose_budget(self) -> None:
        if not any(name in self.table.get("training", {}) for name in BUDGETS):
            self._suggest("training.minutes", DEFAULT_MINUTES, "a first good look; more minutes give a better model")

    def _choose_tokenizer(self) -> None:
        facts = self.facts
        if facts.task == "generate" and facts.n_characters <= 400 and facts.n_bytes < self._spelled_below:
            size = f"{rounded(facts.n_bytes / 1e6)} MB with {facts.n_characters} characters"
            reason = f"{size} teach spelling, not many words"
            self._suggest("tokenizer.type", "characters", reason)
        else:
            self._suggest("tokenizer.type", "bpe", "pieces of words; nothing is unknown to it")
        if self.table["tokenizer"]["type"] in ("bpe", "unigram"):
            vocabulary, reason = self._vocabulary()
            self._suggest("tokenizer.vocab_size", vocabulary, reason)

    @property
    def _is_short(self) -> bool:
        """Whether a writer has so little time that what it reads should be few kinds of large pieces (measured)."""
        return self.facts.task == "generate" and self._get("training.minutes", DEFAULT_MINUTES) < SHORT

    @property
    def _spelled_below(self) -> int:
        """The bytes of text below which a writer reads characters."""
        return 500_000 if self._is_short else 3_000_000

    def _vocabulary(self) -> tuple[int, str]:
        """Twice as many pieces for every fourfold text (after Gowda and May 2020), in powers of two."""
        text = self.facts.n_bytes * (2 if self.facts.task == "translate" else 1)  # one vocabulary for both sides
        pieces = 2 ** round(log2(max(256.0, 4000 * (text / 4e6) ** 0.5)) - self._is_short / 2)
        if self.facts.task == "translate":
            pieces *= 2  # fewer steps to a sentence: three BLEU more after two minutes (measured)
        size = f"{rounded(text / 1e6)} MB of text"
        if self.facts.task == "classify":
            return min(32_000, max(512, 4 * pieces)), f"for {size}: whole words tell classes apart best (measured)"
        return min(32_000, max(512, pieces)), f"for {size}, so that most pieces are seen often"

    @property
    def vocab_size(self) -> int:
        """As far as it can be known before the tokenizer is trained."""
        kind = self.table["tokenizer"]["type"]
        if kind == "characters":
            return self.facts.n_characters + 4
        return 259 if kind == "bytes" else int(self._get("tokenizer.vocab_size"))

    @property
    def corpus_tokens(self) -> float:
        """Of the training part, roughly."""
        letters = {"characters": 1.0, "bytes": 1.0}.get(self.table["tokenizer"]["type"], 3.5)
        return max(1.0, self.facts.n_bytes / letters)

    def _choose_batch(self) -> None:
        if self.facts.task == "generate":
            context, batch = (128, 2048) if self._is_short else (256, 4096)
            self._suggest("model.context_length", context, "tokens that the model looks back on")
            self._suggest("training.batch_tokens", batch, "many small steps learn fastest here")
        elif self.facts.task == "translate":
            self._suggest("model.context_length", 256, "longer texts are split into sentences")
            self._suggest("training.batch_tokens", 2048, "padding included; many small steps learn fastest here")
        else:
            self._suggest("model.context_length", 256, "longer texts are read in parts")
            self._suggest("training.batch_tokens", 4096, "padding included")

    def _choose_model(self) -> None:
        size = self.table.get("model", {}).get("size")
        if size is None or size in LADDER:
            self._suggest("model.qk_norm", True, "keeps attention steady at high learning rates")
            if self.facts.task == "translate":
                self._suggest("model.scale_embeddings", True, "a translator learns faster so (measured)")
        if size is None and self.facts.task == "classify":
            self._suggest("model.n_layers", 2, "labels teach little; more layers learn by heart (measured)")
        if size is None and "d_model" not in self.table["model"]:
            self._suggest("model.size", *self._size())

    def _size(self) -> tuple[str, str]:
        """The largest size that sees enough tokens in the budget and does not dwarf the corpus."""
        chosen, tokens = LADDER[0], self._affordable_tokens(LADDER[0])
        for name in LADDER[1:]:
            cost, needed = self._flops(name) / self._flops(chosen), self._tokens_needed(name)
            if (
                self._parameters(name) > PARAMETERS_PER_TOKEN[self.facts.task] * self.corpus_tokens
                or HOPE * tokens / cost < needed
            ):
                break
            affordable = self._affordable_tokens(name)
            if affordable < needed:
                break
            chosen, tokens = name, affordable
        return (
            chosen,
            f"sees about {in_words(tokens)} tokens in the budget, {rounded(tokens / self.corpus_tokens)} epochs",
        )

    def _settings(self, name: str | None) -> ModelSettings:
        return validate(ModelSettings, merge(SIZES[name] if name else {}, self.table.get("model", {})), "the settings")

    def _measure(self, name: str | None) -> Size:
        n_labels = max(1, self.facts.n_labels)
        return size_of(self.facts.task, self.vocab_size, self._settings(name), n_labels=n_labels)

    def _parameters(self, name: str) -> int:
        return self._measure(name).matrix_parameters

    def _flops(self, name: str | None) -> int:
        return self._measure(name).flops_per_token

    def _tokens_needed(self, name: str) -> float:
        share = SHORT_SHARE if self._is_short else 1.0
        return share * TOKENS_PER_PARAMETER[self.facts.task] * self._parameters(name)

    def _affordable_tokens(self, name: str | None) -> float:
        """Target tokens that the budget allows for."""
        batch_tokens = int(self._get("training.batch_tokens"))
        counted = self.counted_tokens
        if counted is not None:
            return counted
        seconds = 60 * self._get("training.minutes")
        pace = self.pace(self._settings(name), self.vocab_size, batch_tokens)  # not compiled
        gain = GAIN if self.device.type == "cpu" and self._compilation(seconds)[0] else 1.0
        n_teachers = len(self.table.get("distillation", {}).get("teachers", ()))
        return seconds * TRAINING_SHARE * pace * gain / (1 + n_teachers / 3)  # a teacher only goes forward

    @property
    def counted_tokens(self) -> float | None:
        """Those that a budget of steps, epochs or tokens says; None for minutes."""
        training = self.table["training"]
        if "tokens" in training:
            return self._get("training.tokens")
        if "epochs" in training:
            return self._get("training.epochs") * self.corpus_tokens
        if "steps" in training:
            per_step = self._get("training.batch_tokens") * self._get("training.accumulate", 1.0)
            return self._get("training.steps") * per_step
        return None

    @cached_property
    def epochs(self) -> float:
        """Passes over the training part that the budget allows for, once the model is chosen."""
        return self._affordable_tokens(self.table["model"].get("size")) / self.corpus_tokens

    def _choose_regularisation(self) -> None:
        model = self.table["model"]
        if "dropout" not in model and (model.get("size") is None or model["size"] in LADDER):
            self._suggest("model.dropout", *self._dropout())
            if self.facts.task == "classify":
                self._suggest("model.token_dropout", *self._token_dropout())
        if self.facts.task == "translate":
            self._suggest("training.label_smoothing", 0.1, "a sentence has more than one good translation")
        if self.facts.task == "classify":
            self._suggest("training.label_smoothing", 0.1, "so that it does not grow too sure (measured)")

    def _dropout(self) -> tuple[float, str]:
        if self.facts.task == "classify":
            return 0.3, "labels are soon learned by heart (measured)"
        epochs = self.epochs
        rates = [(5.0 if self._is_short else 2.5, 0.0), (15.0, 0.1), (50.0, 0.2)]  # beside weight decay (measured)
        return next((rate for limit, rate in rates if epochs < limit), 0.3), f"for about {rounded(epochs)} epochs"

    def _token_dropout(self) -> tuple[float, str]:
        if self.epochs < 2.5:
            return 0.1, f"for about {rounded(self.epochs)} epochs"
        return 0.5, "no single word shall decide; one point of accuracy (measured)"

    def _choose_optimizer(self) -> None:
        if "type" not in self.table.get("optimizer", {}):
            self.table = merge(self.table, {"optimizer": merge({"type": "muon"}, self.table.get("optimizer", {}))})
            self.choices.append(Choice("optimizer.type", "muon", "needs far fewer steps than AdamW"))
        if self.facts.task != "classify" and self.table["optimizer"]["type"] == "muon":
            self._suggest("optimizer.weight_decay", 0.1, "a text read many times is learned by heart less (measured)")
        if self.facts.task == "translate" and self.table["optimizer"]["type"] == "muon":
            self._suggest(
                "optimizer.adamw.learning_rate", 0.02, "of the embeddings, of which each is seen seldom (measured)"
            )
        if "type" not in self.table.get("schedule", {}):
            schedule = {"type": "wsd", "warmup_steps": 50, "cooldown_fraction": 0.6}
            self.table = merge(self.table, {"schedule": merge(schedule, self.table.get("schedule", {}))})
            self.choices.append(Choice("schedule.type", "wsd", "the end need not be known until the cooldown begins"))

    def _choose_over_fitting(self) -> None:
        """Only for minutes: who asks for so many steps or epochs is to get them."""
        if self.counted_tokens is None:
            self._suggest("training.mind_over_fitting", True, "time that makes it worse is not spent")

    def _choose_compilation(self) -> None:
        """As late as this, since for a budget that is not in minutes its length depends on the model."""
        training = self.table["training"]
        if training.get("compile") == "auto":
            self.table = {**self.table, "training": {key: training[key] for key in training if key != "compile"}}
        counted = self.counted_tokens
        if counted is None:
            seconds = 60 * self._get("training.minutes")
        else:
            seconds = 3 * self._flops(self.table["model"].get("size")) * counted / FLOPS
        compiled, reason = self._compilation(seconds)
        self._suggest("training.compile", "on" if compiled else "off", reason)

    def _compilation(self, seconds: float) -> tuple[bool, str]:
        asked = self.table["training"].get("compile", "auto")
        if asked != "auto":
            return asked == "on", "as asked"
        return choose_compilation(self.device, self.facts.task, seconds)


def _filled_in(table: Table, path: Sequence[str], value: object) -> Table:
    """With this value added; unlike in merge(), a type that is added leaves its neighbours as they are."""
    first, *rest = path
    return {**table, first: _filled_in(table.get(first, {}), rest, value) if rest else value}


def in_words(count: float) -> str:
    """1.2 million, 530 thousand."""
    for limit, unit in ((1e9, "billion"), (1e6, "million"), (1e3, "thousand")):
        if count >= limit:
            return f"{rounded(count / limit)} {unit}"
    return f"{count:.0f}"


def rounded(value: float) -> str:
    """Two digits, but all of a whole number: 0.28, 5.3, 530."""
    return f"{value:.2g}" if value < 99.5 else f"{value:,.0f}"
