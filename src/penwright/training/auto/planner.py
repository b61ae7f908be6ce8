"""The planner: a recipe for a corpus, a machine and a budget. Each choice has a reason, and can be overridden."""

import torch

from penwright.config import BUDGETS, Recipe, Table, merge, validate
from penwright.devices import CPU
from penwright.tasks.linear import use_linear
from penwright.text import amount, in_words, rounded
from penwright.training.auto.capacity import DEFAULT_MINUTES, LADDER, CapacityPlanner
from penwright.training.auto.choices import Choices, Plan
from penwright.training.auto.facts import MANY_CHARACTERS, Facts
from penwright.training.auto.throughput import MeasureThroughput

MANY_EPOCHS = 6.0  # minimum number of epochs at which classifiers did better with a higher token dropout
# In texts with fewer characters, each character is a token. SMALL is for scripts whose characters take three bytes: a
# small vocabulary of subwords, which begins with 256 bytes, has no room for all of these characters.
VERY_SMALL, SMALL = 250_000, 500_000
CHARACTER_EPOCHS = 6.0  # epochs after which characters beat subwords (5 % worse after 3.5, 6 % better after 13)
# learning rates (measured): of adapters, and of Muon with `--keep-old`, which is half the usual one
LORA_RATE, KEEPING_RATE = 1e-2, 1e-2
PRETRAINED_RATE, PRETRAINED_LORA_RATE = 1e-4, 1e-3  # usual learning rates for fine-tuning, in full and with adapters
# Batch size in tokens and learning rate for pretrained models that become classifiers: BERT's values, and a higher
# rate for models that are narrower than BERT (measured with MiniLM, whose width is 384).
FINE_BATCH, FINE_RATE, NARROW_RATE, WIDTH_OF_BERT = 768, 5e-5, 1e-4, 768
NEEDS_EMBEDDINGS = {"add_tokens", "contrastive"}  # fine-tuning settings that require training the embeddings
FEW_LABELS = 64  # maximum number of texts per label for which a pretrained encoder is tuned contrastively
# Largest vocabulary for which initialization from bigrams takes only seconds. This initialization lowered the bits per
# byte of small models by 2 % after 5 epochs, and by 1 % after 10.
MOST_BIGRAMMED = 8192
# Share of sentences with dictionary hints, and the minimum number of epochs at which a translator learns to use them:
# they lowered BLEU by 1.9 after 3.3 epochs, and raised it by 1.1 after 26.
HINTS, HINT_EPOCHS = 0.2, 15.0
# `training.consistency`: minimum number of epochs, and the share of them that is left, since steps take longer
CONSISTENT_EPOCHS, CONSISTENT_PACE = 25.0, 0.75
# Batch size in tokens of a writer for which fewer than FEW_STEPS steps are planned (FEW_STEPS_BY_CHARACTERS without
# subwords). Where 650 to 1,400 steps of 4,096 tokens fit, it lowered the bits per byte with subwords by 0.1 to 1.6 %.
SMALL_BATCH, FEW_STEPS, FEW_STEPS_BY_CHARACTERS = 2048, 1500, 800
WARMUP_STEPS, WARMUP_SHARE = 50, 0.2  # number of warm-up steps, and their maximum share of all steps


def make_plan(facts: Facts, settings: Table, measure_throughput: MeasureThroughput, device: torch.device = CPU) -> Plan:
    """Choose a recipe for these facts. The `settings` are kept, and all others are chosen to suit them.

    `measure_throughput` times training steps on this machine (see `throughput_meter`). It is called rarely.
    """
    choices = Choices(merge({"task": facts.task}, settings))
    capacity = CapacityPlanner(facts, choices, measure_throughput, device)
    recipe = _Planner(facts, choices, capacity).recipe()
    size = capacity.size(recipe.model, capacity.vocab_size, recipe.training.tokens_at_once)
    epochs = capacity.epochs * (CONSISTENT_PACE if recipe.training.consistency and recipe.training.minutes else 1.0)
    is_contrastive = recipe.finetuning is not None and recipe.finetuning.contrastive
    minutes_wanted = None if is_contrastive else capacity.minutes_wanted()  # an estimate for ordinary training only
    expected = (epochs, minutes_wanted, epochs * capacity.corpus_tokens)
    return Plan(recipe, tuple(choices.made), size, *expected, capacity.vocab_size)


class _Planner:
    """A planner that fills in the tables of a recipe one after the other."""

    def __init__(self, facts: Facts, choices: Choices, capacity: CapacityPlanner):
        self.facts, self.choices, self.capacity = facts, choices, capacity
        self._suggest = choices.suggest

    def recipe(self) -> Recipe:
        self._choose_budget()
        self._choose_batch()
        self._choose_tokenizer()
        self._choose_model()
        self._shrink_batch()
        self._choose_regularization()
        self._choose_optimizer()
        self._react_to_overfitting()
        self._choose_compilation()
        return validate(Recipe, self.choices.table, "the settings")

    def _choose_budget(self) -> None:
        if not any(name in self.choices.section("training") for name in BUDGETS):
            self._suggest("training.minutes", DEFAULT_MINUTES, "for a first try; more minutes give a better model")

    def _choose_tokenizer(self) -> None:
        is_short = self.capacity.is_short
        if self._prefers_characters():
            facts = self.facts
            size = f"{in_words(float(facts.n_characters))} characters, {facts.n_distinct:,} of them distinct"
            little = "enough text to learn spelling, but too little to learn many words"
            why = "most characters are whole words" if facts.has_many_characters else little
            self._suggest("tokenizer.type", "characters", f"{size}: {why}")
        else:
            self._suggest("tokenizer.type", "bpe", "subwords, which can encode any text")
        if self.choices.section("tokenizer")["type"] in ("bpe", "unigram"):
            is_timed = self.facts.is_small_novel and not self.choices.number("tokenizer.vocab_size")
            often = self.capacity.tokens_per_character if is_timed else 0.0
            vocabulary = self.facts.vocabulary(is_short=is_short, tokens_per_character=often)
            self._suggest("tokenizer.vocab_size", *vocabulary)
            if self.facts.task in ("classify", "encode"):
                reason = "a word gets the same tokens at the start of a text as elsewhere, which helped in experiments"
                self._suggest("tokenizer.prefix_space", True, reason)

    def _prefers_characters(self) -> bool:
        """Return whether a text-generating model should use characters, not subwords.

        Characters did as well in experiments with very small texts. In scripts with thousands of characters, they did
        better, also with medium-sized texts and many epochs. Return False if the settings have a tokenizer type or a
        vocabulary size.
        """
        facts, requested = self.facts, self.choices.section("tokenizer")
        are_odd = facts.n_distinct > MANY_CHARACTERS and not facts.has_many_characters
        if facts.task != "generate" or are_odd or requested.keys() & {"type", "vocab_size"}:
            return False
        if facts.n_characters < (VERY_SMALL if facts.n_bytes <= 2 * facts.n_characters else SMALL):
            return True
        is_small = facts.n_characters < 1_200_000 and not self.capacity.is_short
        return is_small and facts.has_many_characters and self.capacity.tokens_per_character >= CHARACTER_EPOCHS

    def _choose_batch(self) -> None:
        is_short, of_pretrained = self.capacity.is_short, 512 if self.choices.section("lora") else 1024
        batch = of_pretrained if self.choices.is_pretrained else SMALL_BATCH if is_short else 4096
        if self.facts.task == "generate":
            self._suggest("model.context_length", 128 if is_short else 256, "tokens that the model sees at once")
            self._suggest("training.batch_tokens", batch, "a model learns fastest from many small batches")
        elif self.facts.task == "chat":
            self._suggest("model.context_length", 512, "tokens that the model sees at once")
            self._suggest("training.batch_tokens", batch, "padding included")
        elif self.facts.task == "translate":
            self._suggest("model.context_length", 256, "longer texts are split into sentences")
            self._suggest("training.batch_tokens", 2048, "a model learns fastest from many small batches")
        elif self.facts.task == "encode":
            self._suggest("model.context_length", 256, "longer lines are split into parts")
            self._suggest("training.batch_tokens", 4096, "average tokens per batch, padding included")
        else:
            self._suggest("model.context_length", 256, "longer texts are split into parts")
            small = FINE_BATCH, "a pretrained model learns best from many small batches"
            usual = 3072, "average tokens per batch, padding included"
            self._suggest("training.batch_tokens", *(small if self.choices.is_pretrained else usual))

    def _choose_model(self) -> None:
        facts, size = self.facts, self.choices.section("model").get("size")
        if size is None or size in LADDER:
            self._suggest("model.qk_norm", True, "keeps attention stable at high learning rates")
            if self._starts_from_bigrams:
                self._suggest("model.tie_embeddings", "none", "lets the output layer start from bigram counts")
                self._suggest("training.bigram_init", True, "replaces the first part of training")
            if facts.task == "translate":
                self._suggest("model.scale_embeddings", True, "makes translators learn faster")
            if facts.task == "classify":  # choose token dropout before the size, since dropped tokens cost no time
                if not self.choices.is_pretrained:
                    self._suggest("model.token_dropout", *self._token_dropout())
                if self.choices.section("model").get("text_pairs"):
                    self._suggest("model.token_types", 2, "lets the model tell the two texts of a pair apart")
                if facts.has_few_labels:
                    few = f"at most {FEW_LABELS} texts for each label"
                    self._suggest("finetuning.contrastive", True, f"{few}: too few for ordinary training")
                    self._suggest("model.ngrams", False, f"{few}: too few for n-grams")
                self._suggest("model.ngrams", *use_linear(facts.n_examples, facts.n_characters, facts.n_labels))
        if size is None and facts.task == "classify":
            self._suggest("model.n_layers", 2, "labels carry little information, so more layers overfit")
        if size is None and "d_model" not in self.choices.section("model"):
            self._suggest("model.size", *self.capacity.largest_size())

    def _shrink_batch(self) -> None:
        """Choose smaller batches on a CPU if few steps of a new writer of a usual size fit in the minutes."""
        has_usual_context = "model.context_length" in {choice.key for choice in self.choices.made}
        is_usual = self.choices.is_new and has_usual_context and self.choices.section("model").get("size") in LADDER
        is_usual = is_usual and "accumulate" not in self.choices.section("training")
        is_timed = self.facts.task == "generate" and self.capacity.is_on_cpu and self.capacity.counted_tokens is None
        few = FEW_STEPS if self._has_subwords else FEW_STEPS_BY_CHARACTERS
        if is_usual and is_timed and self.capacity.steps < few:
            reason = "few steps fit in the budget, and smaller batches allow more"
            self.choices.revise("training.batch_tokens", SMALL_BATCH, reason)

    def _choose_regularization(self) -> None:
        model = self.choices.section("model")
        if self.facts.task == "classify" and self.choices.is_pretrained:
            rate, reason = (0.0, "each text is seen at most once") if self.capacity.epochs < 1 else (0.1, "as in BERT")
            self._suggest("model.dropout", rate, reason)
            self._suggest("model.attention_dropout", rate, reason)
        if "dropout" not in model and (model.get("size") is None or model["size"] in LADDER):
            self._suggest("model.dropout", *self._dropout())
        is_taught = bool(self.choices.section("distillation"))
        if self.facts.task == "classify" and not is_taught and self.capacity.epochs >= MANY_EPOCHS:
            reason = f"for about {amount(self.capacity.epochs, 'epoch')}, to prevent reliance on single words"
            self.choices.revise("model.token_dropout", 0.7, reason)
        if self.facts.task == "translate":
            self._suggest("training.label_smoothing", 0.1, "a sentence has more than one good translation")
            self._choose_hints()
        if self.facts.task == "generate" and self.choices.is_new and self._has_subwords:
            self._suggest("training.label_smoothing", 0.01, "tokens that the text lacks keep some probability")
        problem = model.get("problem_type", "single_label_classification")
        is_single = problem == "single_label_classification" and not model.get("balanced", False)
        if self.facts.task == "classify" and is_single:
            self._suggest("training.label_smoothing", 0.1, "keeps the model from growing overconfident")

    def _dropout(self) -> tuple[float, str]:
        if self.facts.task == "classify":
            if self.choices.section("distillation"):
                return 0.1, "a model overfits to teachers' predictions more slowly than to labels"
            return 0.3, "small labelled sets overfit quickly"
        epochs = self.capacity.epochs
        rates = [(3.3 if self.capacity.is_short else 1.7, 0.0), (20.0, 0.1), (50.0, 0.2)]  # (limit of epochs, dropout)
        return next((rate for limit, rate in rates if epochs < limit), 0.3), f"for about {amount(epochs, 'epoch')}"

    def _choose_hints(self) -> None:
        """Choose the share of sentences with dictionary hints: for new translators with a tokenizer of their own."""
        has_own_tokenizer = not self.choices.section("tokenizer").get("from")  # another one may lack the brackets
        if self.choices.is_new and has_own_tokenizer and self.choices.section("data").get("dictionary"):
            share, enough = (HINTS, "enough") if self.capacity.epochs >= HINT_EPOCHS else (0.0, "too few")
            epochs = amount(self.capacity.epochs, "epoch")
            reason = f"about {epochs} are {enough} for learning to use translations in the source"
            self._suggest("data.dictionary_hints", share, reason)

    @property
    def _starts_from_bigrams(self) -> bool:
        """Whether to initialize a new language model from bigram counts, which helps if its tokens are subwords."""
        is_new = self.facts.task == "generate" and not self.choices.section("finetuning")
        is_small = self._has_subwords and self.choices.number("tokenizer.vocab_size") <= MOST_BIGRAMMED
        model, training = self.choices.section("model"), self.choices.section("training")
        is_free = model.get("tie_embeddings", "none") == "none" and model.get("zero_init_outputs", True)
        return is_new and is_small and is_free and training.get("bigram_init", True)

    @property
    def _has_subwords(self) -> bool:
        return self.choices.section("tokenizer").get("type") in ("bpe", "unigram")

    def _token_dropout(self) -> tuple[float, str]:
        if self.choices.section("distillation"):
            return 0.45, "lower than usual, since the dropped tokens are hidden from the teachers, too"
        return 0.6, "prevents reliance on single words; in experiments, accuracy was a point higher after half the time"

    def _choose_optimizer(self) -> None:
        excludes = self.choices.section("lora") or self.choices.section("training").get("ema_decay")
        keeps_old = bool(self.choices.section("finetuning").get("keep_old"))
        if keeps_old and not excludes:
            self._suggest("finetuning.base_weight", 0.15, "a mean with the weights of the base forgets less (measured)")
        if self.choices.section("lora") or self.choices.is_pretrained:
            self._choose_optimizer_of_pretrained()
            return
        if self.facts.task == "classify":
            self._choose_optimizer_of_classifier()
            return
        self.choices.suggest_type("optimizer", {"type": "muon"}, "needs far fewer steps than AdamW")
        if self.choices.section("optimizer")["type"] == "muon":
            self._suggest("optimizer.weight_decay", 0.1, "reduces overfitting in training with many epochs")
            if keeps_old:
                self._suggest("optimizer.learning_rate", KEEPING_RATE, "half the usual rate forgets less (measured)")
        if self.facts.task == "translate" and self.choices.section("optimizer")["type"] == "muon":
            reason = "high for the embeddings, since each is updated rarely"
            self._suggest("optimizer.adamw.learning_rate", KEEPING_RATE if keeps_old else 0.02, reason)
            self._suggest("optimizer.adamw.betas", (0.9, 0.98), "the other settings were tuned with these values")
        self._choose_schedule(0.6, "the number of steps need not be known until the cooldown begins")

    def _choose_optimizer_of_pretrained(self) -> None:
        """Choose AdamW, with the usual learning rate for a pretrained model or for adapters."""
        has_adapters = bool(self.choices.section("lora"))
        full = PRETRAINED_RATE
        if self.facts.task == "classify":
            full = NARROW_RATE if self.choices.number("model.d_model") < WIDTH_OF_BERT else FINE_RATE
        usual = PRETRAINED_LORA_RATE if has_adapters else full
        rate = usual if self.choices.is_pretrained else LORA_RATE
        adamw: Table = {"type": "adamw", "learning_rate": rate, "weight_decay": 0.0}
        reason = f"learning rate {rate:g}, for {'adapters' if has_adapters else 'a pretrained model'}"
        self.choices.suggest_type("optimizer", adamw, reason)
        if self.facts.task == "classify":
            if self.choices.is_pretrained and not self.choices.section("finetuning").keys() & NEEDS_EMBEDDINGS:
                reason = "pretrained token embeddings are good already, and freezing them makes steps faster"
                self._suggest("finetuning.freeze_embeddings", True, reason)
            self._choose_schedule(0.95, "a decay for nearly the whole run worked best in experiments")
        elif has_adapters and self.choices.is_pretrained:
            self._choose_schedule(0.95, "the learning rate decays for nearly the whole run, as in peft's examples")
        else:
            self._choose_schedule(0.6, "the number of steps need not be known until the cooldown begins")

    def _choose_optimizer_of_classifier(self) -> None:
        """Choose AdamW with a low learning rate: in experiments, Muon overfitted by 0.02 nats more after 5 epochs."""
        n_read = self.capacity.epochs * self.facts.n_examples
        rate = min(0.003, max(0.001, 240 / n_read))  # this formula was fitted to two corpora (benchmarks/LOG.md)
        optimizer: Table = {"type": "adamw", "learning_rate": round(rate, 4), "weight_decay": 0.0}
        reason = f"overfits less than Muon; learning rate {rate:.2g} for {rounded(n_read)} texts in all epochs together"
        self.choices.suggest_type("optimizer", optimizer, f"{reason} (measured)")
        self._choose_schedule(0.95, "classifiers do best if the learning rate falls for nearly the whole run")

    def _choose_schedule(self, cooldown_fraction: float, reason: str) -> None:
        warmup = max(1, min(WARMUP_STEPS, int(WARMUP_SHARE * self.capacity.steps)))
        schedule: Table = {"type": "wsd", "warmup_steps": warmup, "cooldown_fraction": cooldown_fraction}
        self.choices.suggest_type("schedule", schedule, reason)

    def _react_to_overfitting(self) -> None:
        """React to overfitting and choose consistency if the budget is in minutes. Other budgets are spent in full."""
        if self.capacity.counted_tokens is None:
            self._suggest("training.cooldown_on_overfitting", True, "stops when the held-out loss rises")
            has_dropout = self.facts.task == "translate" and self.choices.number("model.dropout") > 0
            if has_dropout and self.choices.is_new and self.capacity.epochs >= CONSISTENT_EPOCHS:
                self._suggest("training.consistency", 0.7, "worth more than further epochs (measured)")

    def _choose_compilation(self) -> None:
        """Choose whether to compile. This comes last, since it may depend on the training time of the model."""
        compiled, reason = self.capacity.compilation()
        if self.choices.section("training").get("compile") == "auto":
            self.choices.withdraw("training", "compile")
        self._suggest("training.compile", "on" if compiled else "off", reason)
