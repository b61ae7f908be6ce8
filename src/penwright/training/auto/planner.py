"""The recipe that suits a corpus, a machine and a budget: every choice with its reason, and each can be overruled."""

from math import floor, log2
from typing import NamedTuple

import torch

from penwright.config import BUDGETS, Recipe, Table, merge, validate
from penwright.devices import CPU
from penwright.model.size import Size, size_of
from penwright.training.auto.capacity import DEFAULT_MINUTES, LADDER, MANY_CHARACTERS, CapacityPlanner, Facts
from penwright.training.auto.choices import Choice, Choices, in_words, rounded
from penwright.training.auto.throughput import Pace

MANY_EPOCHS = 6.0  # of labelled texts: more of them is hidden from there on (measured)
SPELLED_EPOCHS = 6.0  # by characters: after 3.5, pieces were 5 % better, after 5.2 2 %, after 13 6 % worse (measured)
WARMUP_STEPS, WARMUP_SHARE = 50, 0.2  # so many, but no more than this part of all


class Plan(NamedTuple):
    """A recipe, the choices behind it, and the size of its model."""

    recipe: Recipe
    choices: tuple[Choice, ...]
    size: Size
    epochs: float  # times that the corpus will be read, about
    minutes_wanted: float | None = None  # where the budget has far too few for this model

    def __repr__(self) -> str:
        training = self.recipe.training
        budget = next((f"{value:g} {name}" for name in BUDGETS if (value := getattr(training, name)) is not None), "")
        return f"<Plan to {self.recipe.task}: {self.size.parameters:,} parameters, {budget}, {self.epochs:.2g} epochs>"


def make_plan(facts: Facts, given: Table, pace: Pace, device: torch.device = CPU) -> Plan:
    """The recipe for these facts; what is `given` stands, the rest is chosen to suit it.

    `pace` says how fast a model would train here (see pace_on); it is asked as seldom as may be.
    """
    choices = Choices(merge({"task": facts.task}, given))
    affordable = CapacityPlanner(facts, choices, pace, device)
    recipe = _Planner(facts, choices, affordable).recipe()
    size = size_of(
        facts.task, affordable.vocab_size, recipe.model, recipe.training.batch_tokens, n_labels=max(1, facts.n_labels)
    )
    return Plan(recipe, tuple(choices.made), size, affordable.epochs, affordable.minutes_wanted())


class _Planner:
    """Makes the choices, one table after the other."""

    def __init__(self, facts: Facts, choices: Choices, affordable: CapacityPlanner):
        self.facts, self.choices, self.affordable = facts, choices, affordable
        self._suggest = choices.suggest

    def recipe(self) -> Recipe:
        self._choose_budget()
        self._choose_batch()
        self._choose_tokenizer()
        self._choose_model()
        self._choose_regularisation()
        self._choose_optimizer()
        self._choose_over_fitting()
        self._choose_compilation()
        return validate(Recipe, self.choices.table, "the settings")

    def _choose_budget(self) -> None:
        if not any(name in self.choices.section("training") for name in BUDGETS):
            self._suggest("training.minutes", DEFAULT_MINUTES, "a first good look; more minutes give a better model")

    def _choose_tokenizer(self) -> None:
        if self._is_spelled():
            facts = self.facts
            size = f"{in_words(float(facts.letters))} characters, {facts.n_characters:,} different ones"
            why = ": most are words" if facts.has_many_characters else ", teach spelling, not many words"
            self._suggest("tokenizer.type", "characters", size + why)
        else:
            self._suggest("tokenizer.type", "bpe", "pieces of words; nothing is unknown to it")
        if self.choices.section("tokenizer")["type"] in ("bpe", "unigram"):
            vocabulary, reason = self._vocabulary()
            self._suggest("tokenizer.vocab_size", vocabulary, reason)
            if self.facts.task == "classify":
                self._suggest("tokenizer.prefix_space", True, "the first word of a text is no other word (measured)")

    def _is_spelled(self) -> bool:
        """Whether characters suit: a writer of a small text, or of one read often (measured), with no other wish.

        Thousands of them do too where they are the words of a language, more or less (Chinese, Japanese; measured).
        """
        facts, asked = self.facts, self.choices.section("tokenizer")
        are_odd = facts.n_characters > MANY_CHARACTERS and not facts.has_many_characters
        if facts.task != "generate" or are_odd or asked.keys() & {"type", "vocab_size"}:
            return False
        if facts.letters < 500_000:
            return True
        is_small = facts.letters < 1_200_000 and not self.affordable.is_short
        return is_small and self.affordable.epochs_by_characters >= SPELLED_EPOCHS

    def _vocabulary(self) -> tuple[int, str]:
        """Twice as many pieces for every fourfold text (after Gowda and May 2020), in powers of two."""
        text = self.facts.n_bytes * (2 if self.facts.task == "translate" else 1)  # one vocabulary for both sides
        doublings = log2(max(256.0, 4000 * (text / 4e6) ** 0.5))
        pieces = 2 ** (floor(doublings) if self.affordable.is_short else round(doublings))
        if self.facts.task == "translate":
            pieces *= 2  # fewer steps to a sentence: three BLEU more after two minutes (measured)
        size = f"{rounded(text / 1e6)} MB of text"
        if self.facts.task == "classify":
            return min(32_000, max(512, 8 * pieces)), f"for {size}: whole words tell classes apart best (measured)"
        return min(32_000, max(512, pieces)), f"for {size}, so that most pieces are seen often"

    def _choose_batch(self) -> None:
        if self.facts.task == "generate":
            context, batch = (128, 2048) if self.affordable.is_short else (256, 4096)
            self._suggest("model.context_length", context, "tokens that the model looks back on")
            self._suggest("training.batch_tokens", batch, "many small steps learn fastest here")
        elif self.facts.task == "translate":
            self._suggest("model.context_length", 256, "longer texts are split into sentences")
            self._suggest("training.batch_tokens", 2048, "padding included; many small steps learn fastest here")
        else:
            self._suggest("model.context_length", 256, "longer texts are read in parts")
            self._suggest("training.batch_tokens", 3072, "on average, padding included; as many texts in each batch")

    def _choose_model(self) -> None:
        size = self.choices.section("model").get("size")
        if size is None or size in LADDER:
            self._suggest("model.qk_norm", True, "keeps attention steady at high learning rates")
            if self.facts.task == "translate":
                self._suggest("model.scale_embeddings", True, "a translator learns faster so (measured)")
            if self.facts.task == "classify":  # before the size, since a step takes as long as what is shown
                self._suggest("model.token_dropout", *self._token_dropout())
        if size is None and self.facts.task == "classify":
            self._suggest("model.n_layers", 2, "labels teach little; more layers learn by heart (measured)")
        if size is None and "d_model" not in self.choices.section("model"):
            self._suggest("model.size", *self.affordable.largest_size())

    def _choose_regularisation(self) -> None:
        model = self.choices.section("model")
        if "dropout" not in model and (model.get("size") is None or model["size"] in LADDER):
            self._suggest("model.dropout", *self._dropout())
        if self.facts.task == "classify" and not self._is_taught and self.affordable.epochs >= MANY_EPOCHS:
            reason = f"for about {rounded(self.affordable.epochs)} epochs: no single word shall decide (measured)"
            self.choices.revise("model.token_dropout", 0.7, reason)
        if self.facts.task == "translate":
            self._suggest("training.label_smoothing", 0.1, "a sentence has more than one good translation")
        if self.facts.task == "classify":
            self._suggest("training.label_smoothing", 0.1, "so that it does not grow too sure")

    def _dropout(self) -> tuple[float, str]:
        if self.facts.task == "classify":
            if self._is_taught:
                return 0.1, "what its teachers say is not learned by heart as labels are"
            return 0.3, "labels are soon learned by heart (measured)"
        epochs = self.affordable.epochs
        once = 3.3 if self.affordable.is_short else 1.7
        rates = [(once, 0.0), (15.0, 0.1), (50.0, 0.2)]  # beside weight decay (measured up to 15)
        return next((rate for limit, rate in rates if epochs < limit), 0.3), f"for about {rounded(epochs)} epochs"

    @property
    def _is_taught(self) -> bool:
        return bool(self.choices.section("distillation"))

    def _token_dropout(self) -> tuple[float, str]:
        if self._is_taught:
            return 0.45, "its teachers tell what they think of any part of a text, from a word to all of it (measured)"
        return 0.6, "no single word shall decide; about a point of accuracy, and in half the time (measured)"

    def _choose_optimizer(self) -> None:
        if self.facts.task == "classify":
            self._choose_optimizer_of_classifier()
            return
        self.choices.suggest_type("optimizer", {"type": "muon"}, "needs far fewer steps than AdamW")
        if self.choices.section("optimizer")["type"] == "muon":
            self._suggest("optimizer.weight_decay", 0.1, "a text read many times is learned by heart less (measured)")
        if self.facts.task == "translate" and self.choices.section("optimizer")["type"] == "muon":
            self._suggest(
                "optimizer.adamw.learning_rate", 0.02, "of the embeddings, of which each is seen seldom (measured)"
            )
            self._suggest("optimizer.adamw.betas", (0.9, 0.98), "with these the other choices were measured")
        self._choose_schedule(0.6, "the end need not be known until the cooldown begins")

    def _choose_optimizer_of_classifier(self) -> None:
        """AdamW, slowly: Muon fits texts that are read five times too well (two hundredths of a nat, measured)."""
        n_read = self.affordable.epochs * self.facts.n_examples
        rate = min(0.003, max(0.001, 240 / n_read))  # fitted on two corpora (benchmarks/LOG.md)
        optimizer: Table = {"type": "adamw", "learning_rate": round(rate, 4), "weight_decay": 0.0}
        reason = f"labels are learned by heart less than with Muon; at {rate:.2g}, for {rounded(n_read)} texts to read"
        self.choices.suggest_type("optimizer", optimizer, f"{reason} (measured)")
        self._choose_schedule(0.95, "nearly all of a run cools down; classifiers end best so")

    def _choose_schedule(self, cooldown_fraction: float, reason: str) -> None:
        warmup = max(1, min(WARMUP_STEPS, int(WARMUP_SHARE * self.affordable.steps)))
        schedule: Table = {"type": "wsd", "warmup_steps": warmup, "cooldown_fraction": cooldown_fraction}
        self.choices.suggest_type("schedule", schedule, reason)

    def _choose_over_fitting(self) -> None:
        """Only for minutes: who asks for so many steps or epochs is to get them."""
        if self.affordable.counted_tokens is None:
            self._suggest("training.mind_over_fitting", True, "time that makes it worse is not spent")

    def _choose_compilation(self) -> None:
        """As late as this, since for a budget that is not in minutes its length depends on the model."""
        compiled, reason = self.affordable.compilation()
        if self.choices.section("training").get("compile") == "auto":
            self.choices.withdraw("training", "compile")
        self._suggest("training.compile", "on" if compiled else "off", reason)
