"""Capacity planning: the number of tokens that a model sees within the budget, and the model size that suits it."""

from functools import cached_property, lru_cache
from math import inf

import torch

from penwright.config import SIZES, LoraSettings, ModelSettings, Task, merge, validate
from penwright.devices import TOO_LITTLE_MEMORY, available_memory
from penwright.errors import PenwrightError, UsageError
from penwright.model.size import Size, n_copies_of, size_of
from penwright.text import amount, in_words
from penwright.training.auto.choices import Choices
from penwright.training.auto.facts import CHARACTERS_PER_TOKEN, Facts
from penwright.training.auto.machine import GAIN, choose_compilation
from penwright.training.auto.throughput import MeasureThroughput
from penwright.training.distributed.parallel import SHARDED_TASKS
from penwright.training.distributed.ranks import joined

DEFAULT_MINUTES = 10.0
SHORT = 2.0  # a budget for text generation counts as short below this many minutes, except on an NVIDIA GPU
LADDER = ("nano", "tiny", "mini", "small", "medium", "base", "large")
# Training tokens that a model needs per parameter. With fewer tokens, a smaller model is better in the same time.
TOKENS_PER_PARAMETER: dict[Task, float] = {
    "generate": 1.0,
    "chat": 1.0,
    "translate": 0.53,
    "classify": 0.7,
    "encode": 1.0,
}
SHORT_SHARE = 0.4  # fraction of TOKENS_PER_PARAMETER that suffices for text generation with a budget below SHORT
# Maximum number of parameters per token of the corpus. Larger models overfit, classifiers soonest.
PARAMETERS_PER_TOKEN: dict[Task, float] = {
    "generate": 9.0,
    "chat": 12.0,
    "translate": 12.0,
    "classify": 0.6,
    "encode": 12.0,
}
# minimum number of epochs at which the second-smallest classifier beat the smallest on a small corpus
CLASSIFIER_EPOCHS = 8.0
FEWEST_STEPS = 100  # minimum number of steps to learn anything: on Multi30k, 50 steps gave BLEU 1.8, and 100 gave 9.6
# Throughput of a whole run, divided by that of its fastest step. The difference goes into padding, dropout, compiling
# and evaluation. Measured on a CPU with AVX-512; on a slow CPU, compiling takes a larger part of a short run.
EFFICIENCY: dict[Task, float] = {"generate": 0.6, "chat": 0.6, "translate": 0.6, "classify": 0.8, "encode": 0.6}
FLOPS = 2e11  # FLOP per second of training on two cores, for a rough estimate of durations
# Upper bound, on a CPU, of the ratio of a larger model's FLOP/s to a smaller model's. It is usually lower.
MAX_FLOPS_GAIN = 1.5
TOO_LARGE_TO_TIME = (
    "a budget in minutes needs the time of a training step, but this model does not fit in the memory of one device, "
    "which would time it. To train it with a shard on each device, give --steps or --epochs instead of --minutes"
)


class CapacityPlanner:
    """An estimator of how much training fits into the budget. It always uses the plan's latest choices.

    Methods take the name of a model size, or None for the model that the settings describe.
    """

    def __init__(self, facts: Facts, choices: Choices, measure_throughput: MeasureThroughput, device: torch.device):
        self._facts, self._choices, self._device = facts, choices, device
        self._measure_throughput = lru_cache(maxsize=None)(measure_throughput)

    @property
    def is_short(self) -> bool:
        """Whether a model for text generation is trained for less than SHORT minutes, and needs a small vocabulary.

        An NVIDIA GPU takes thousands of steps in a minute, so no budget is short there.
        """
        is_brief = self._choices.number("training.minutes", DEFAULT_MINUTES) < SHORT
        return self._facts.task == "generate" and self._device.type != "cuda" and is_brief

    @property
    def is_on_cpu(self) -> bool:
        """Whether a CPU trains the model."""
        return self._device.type == "cpu"

    @property
    def vocab_size(self) -> int:
        """Size of the vocabulary, or an estimate of it before the tokenizer is trained."""
        kind, requested = self._choices.section("tokenizer")["type"], int(self._choices.number("tokenizer.vocab_size"))
        # if the tokens of a teacher are characters, its recipe has no vocabulary size
        if requested and (self._choices.section("finetuning") or self._choices.section("tokenizer").get("from")):
            return requested
        if kind == "characters":
            every = self._facts.n_distinct + 4
            return min(every, requested or every)
        return 259 if kind == "bytes" else requested

    @property
    def corpus_tokens(self) -> float:
        """Estimated number of tokens in the training set. For a classifier, count at most one context per text."""
        tokens = self._facts.tokens_in(self._choices.section("tokenizer")["type"], self.vocab_size)
        if self._facts.task != "classify":
            return tokens
        return min(tokens, self._facts.n_examples * self._choices.number("model.context_length"))

    @property
    def counted_tokens(self) -> float | None:
        """Number of target tokens that a budget in steps, epochs or tokens allows. None for a budget in minutes."""
        training, number = self._choices.section("training"), self._choices.number
        if "tokens" in training:
            return number("training.tokens")
        if "epochs" in training:
            return number("training.epochs") * self.corpus_tokens
        if "steps" in training:
            return number("training.steps") * self._tokens_per_step
        return None

    @cached_property
    def epochs(self) -> float:
        """Number of epochs that fit in the budget with the chosen model."""
        tokens = self.tokens(self._chosen_size)
        if not tokens:
            can_shard = self._facts.task in SHARDED_TASKS and not self._choices.section("lora")
            raise PenwrightError(TOO_LARGE_TO_TIME if joined().size > 1 and can_shard else TOO_LITTLE_MEMORY)
        return tokens / self.corpus_tokens

    @property
    def tokens_per_character(self) -> float:
        """Number of training tokens of a small model for each character of the text.

        This value is available before a tokenizer is chosen. If tokens are characters, it is the number of epochs.
        """
        training, number = self._choices.section("training"), self._choices.number
        if "epochs" in training:
            return number("training.epochs") / CHARACTERS_PER_TOKEN[0]
        if "minutes" not in training:
            tokens = number("training.tokens") or number("training.steps") * self._tokens_per_step
            return tokens / self._facts.n_characters
        # If no size fits the settings, try the smallest one, which raises an error with the reason.
        sizes = [name for name in ("tiny", *LADDER) if self._is_possible(name)] or [LADDER[0]]
        tokens = self._tokens_in_minutes(self._chosen_size or sizes[0], self._facts.n_distinct + 4)
        return tokens / self._facts.n_characters

    @property
    def steps(self) -> float:
        """Number of optimizer steps that the budget allows with the chosen model."""
        return self.epochs * self.corpus_tokens / self._tokens_per_step

    @property
    def _tokens_per_step(self) -> float:
        """Number of tokens in an optimizer step. Only windows of running text can repeat a small corpus in a batch."""
        batch_tokens = self._choices.number("training.batch_tokens")
        if self._facts.task != "generate":
            batch_tokens = min(batch_tokens, self.corpus_tokens)
        return batch_tokens * self._choices.number("training.accumulate", 1.0)

    @property
    def _chosen_size(self) -> str | None:
        name: str | None = self._choices.section("model").get("size")
        return name

    def tokens(self, name: str | None) -> float:
        """Return the number of target tokens that the budget allows."""
        counted = self.counted_tokens
        return self._tokens_in_minutes(name, self.vocab_size) if counted is None else counted

    def _tokens_in_minutes(self, name: str | None, vocab_size: int) -> float:
        seconds = 60 * self._choices.number("training.minutes")
        throughput = self._tokens_per_second(name, vocab_size)
        gain = GAIN if self.is_on_cpu and self._compilation(seconds)[0] else 1.0
        n_teachers = len(self._choices.section("distillation").get("teachers", ()))
        # a teacher needs only a forward pass, a third of the cost of a training step
        return seconds * EFFICIENCY[self._facts.task] * throughput * gain / (1 + n_teachers / 3)

    def _tokens_per_second(self, name: str | None, vocab_size: int) -> float:
        """Return the throughput without compilation: measured, or estimated if the model does not fit in memory."""
        settings, batch_tokens = self._settings(name), int(self._choices.number("training.batch_tokens"))
        size = self.size(settings, vocab_size, batch_tokens)
        if self.is_on_cpu and size.training_bytes > available_memory():
            return FLOPS / (3 * size.flops_per_token)
        return self._measure_throughput(settings, vocab_size, batch_tokens)

    def tokens_needed(self, name: str) -> float:
        """Return the number of training tokens from which a model of this size is worthwhile."""
        share = SHORT_SHARE if self.is_short else 1.0
        needed = share * TOKENS_PER_PARAMETER[self._facts.task] * self._measure(name).matrix_parameters
        return max(needed, CLASSIFIER_EPOCHS * self.corpus_tokens) if self._dwarfs_corpus(name) else needed

    def minutes_wanted(self) -> float | None:
        """Return the minutes that the chosen model needs if the budget is far too small, otherwise None.

        A budget is far too small if it allows fewer than FEWEST_STEPS steps, or if even the smallest model sees only a
        part of the text.
        """
        if self.counted_tokens is not None:
            return None
        factors = [FEWEST_STEPS / self.steps]
        if self._chosen_size == LADDER[0] and any(choice.key == "model.size" for choice in self._choices.made):
            factors.append(min(1 / self.epochs, self._cost_of_next_size()))
        return self._choices.number("training.minutes") * max(factors) if max(factors) > 1 else None

    def _cost_of_next_size(self) -> float:
        """Estimate the factor by which the budget must grow before the second-smallest size is worth choosing."""
        smallest, next_size = LADDER[:2]
        if not self._is_possible(next_size):
            return inf
        size = self._measure(next_size)
        needed = TOKENS_PER_PARAMETER[self._facts.task] * size.matrix_parameters
        return needed * size.flops_per_token / self._flops(smallest) / self.tokens(smallest)

    def largest_size(self) -> tuple[str, str]:
        """Return the largest size that suits the memory, the corpus and the budget, and the reason."""
        # if no size fits the settings, try the smallest one, which raises an error with the reason
        sizes = [name for name in LADDER if self._is_possible(name)] or [LADDER[0]]
        chosen, tokens = sizes[0], self.tokens(sizes[0])
        for name in sizes[1:]:
            cost, needed = self._flops(name) / self._flops(chosen), self.tokens_needed(name)
            if self.is_on_cpu and self._measure(name).training_bytes > available_memory():
                break
            # in experiments, the second-smallest classifier did not overfit even on a small corpus
            is_small_classifier = self._facts.task == "classify" and name == LADDER[1]
            if (self._dwarfs_corpus(name) and not is_small_classifier) or self._max_flops_gain * tokens / cost < needed:
                break
            affordable = self.tokens(name)
            if affordable < needed:
                break
            chosen, tokens = name, affordable
        epochs = amount(tokens / self.corpus_tokens, "epoch")
        return chosen, f"about {in_words(tokens)} training tokens fit in the budget: {epochs}"

    def _dwarfs_corpus(self, name: str) -> bool:
        """Return whether a model of this size has too many parameters for the corpus."""
        return self._measure(name).matrix_parameters > PARAMETERS_PER_TOKEN[self._facts.task] * self.corpus_tokens

    def compilation(self) -> tuple[bool, str]:
        """Return whether to compile, and why, from the budget in minutes or an estimate of the training time."""
        counted = self.counted_tokens
        if counted is None:
            return self._compilation(60 * self._choices.number("training.minutes"))
        return self._compilation(self._seconds_for(counted))

    def _seconds_for(self, tokens: float) -> float:
        """Estimate the training time of the chosen model, in seconds: by rule of thumb on a CPU, by timing on a GPU."""
        name = self._chosen_size
        if self.is_on_cpu:
            return 3 * self._flops(name) * tokens / FLOPS
        throughput = self._tokens_per_second(name, self.vocab_size)
        return tokens / throughput if throughput else inf

    @property
    def _max_flops_gain(self) -> float:
        """Maximum factor by which a larger model raises the FLOP/s. No limit on a GPU: small models underuse it."""
        return MAX_FLOPS_GAIN if self.is_on_cpu else inf

    def _compilation(self, seconds: float) -> tuple[bool, str]:
        requested = self._choices.section("training").get("compile", "auto")
        if requested != "auto":
            return requested == "on", "as requested"
        return choose_compilation(self._device, seconds, has_adapters=bool(self._choices.section("lora")))

    def _settings(self, name: str | None) -> ModelSettings:
        table = merge(SIZES[name] if name else {}, self._choices.section("model"))
        return validate(ModelSettings, table, "the settings")

    def _is_possible(self, name: str) -> bool:
        """Return whether this size is compatible with the other model settings, such as the number of heads."""
        try:
            self._settings(name)
        except UsageError:
            return False
        return True

    def _measure(self, name: str | None) -> Size:
        return self.size(self._settings(name), self.vocab_size, int(self._choices.number("training.batch_tokens")))

    def size(self, settings: ModelSettings, vocab_size: int, batch_tokens: int) -> Size:
        """Return the size of a model. Its memory includes averages of the weights, and teachers."""
        training, tuning, own = map(self._choices.section, ("training", "finetuning", "lora"))
        lora = validate(LoraSettings, own, "[lora]") if own else None
        asked = (self._facts.task, vocab_size, settings, batch_tokens, self._facts.n_labels, lora)
        n_copies = n_copies_of(tuning.get("base_weight"), training.get("ema_decay"))
        size = size_of(*asked, recomputes=training.get("activation_checkpointing", False), n_copies=n_copies)
        return size._replace(training_bytes=size.training_bytes + self._facts.teacher_bytes)

    def _flops(self, name: str | None) -> int:
        return self._measure(name).flops_per_token
