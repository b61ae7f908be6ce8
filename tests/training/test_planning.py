import pytest
import torch

from penwright.config import SIZES, ModelSettings, Table, merge, validate
from penwright.errors import PenwrightError, UsageError
from penwright.model.size import size_of, size_of_recipe
from penwright.native import toolchain
from penwright.text import rounded
from penwright.training.auto import capacity
from penwright.training.auto.capacity import LADDER
from penwright.training.auto.choices import Plan
from penwright.training.auto.facts import FEWEST_PIECES, Facts
from penwright.training.auto.planner import make_plan
from penwright.training.distributed.ranks import Ranks

SHAKESPEARE = Facts("generate", n_examples=1, n_bytes=1_000_000, n_distinct=65)
NOVELS = Facts("generate", n_examples=8, n_bytes=9_000_000, n_distinct=120)
PAIRS = Facts("translate", n_examples=29_000, n_bytes=2_000_000, n_distinct=100)
REVIEWS = Facts("classify", n_examples=67_000, n_bytes=3_500_000, n_distinct=60, n_labels=2)
MANY_REVIEWS = Facts("classify", n_examples=6_700_000, n_bytes=350_000_000, n_distinct=60, n_labels=2)
SPEED = 4e10
KEPT = {"tokenizer.type", "tokenizer.vocab_size", "model.size", "model.n_layers"}  # as the studio does


def plan_for(facts: Facts, speed: float = SPEED, **given: Table) -> Plan:
    """Plan for a machine that trains at `speed` FLOP/s, whatever the model."""

    def throughput(settings: ModelSettings, vocab_size: int, batch_tokens: int) -> float:
        return speed / (3 * size_of(facts.task, vocab_size, settings).flops_per_token)

    return make_plan(facts, merge({"data": {"train": ["corpus"]}}, given), throughput)


def plan_on_gpu(throughput: float, **training: object) -> Plan:
    """Plan for a GPU on which models of all sizes have the same throughput."""
    given: Table = {"data": {"train": ["corpus"]}, "training": training}
    return make_plan(NOVELS, given, lambda *asked: throughput, torch.device("cuda"))


@pytest.mark.parametrize(("n_ranks", "message"), [(1, "does not fit.*smaller"), (2, "--steps or --epochs instead")])
def test_model_that_is_too_large_to_time_needs_a_budget_in_steps_if_it_can_be_sharded(
    n_ranks: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penwright.training.auto.capacity.joined", lambda: Ranks(0, n_ranks))
    with pytest.raises(PenwrightError, match=message):
        plan_on_gpu(0.0, minutes=60)
    assert plan_on_gpu(0.0, steps=100, parallelism="fsdp").recipe.training.steps == 100


@pytest.mark.parametrize("facts", [SHAKESPEARE, NOVELS, PAIRS, REVIEWS], ids=lambda facts: facts.task)
def test_every_choice_is_in_the_recipe_and_has_a_reason(facts: Facts) -> None:
    plan = plan_for(facts)
    for key, value, reason in plan.choices:
        found: object = plan.recipe.model_dump()
        for part in key.split("."):
            assert isinstance(found, dict)
            found = found[part]
        assert found == value and reason


def test_given_settings_are_not_chosen_again() -> None:
    plan = plan_for(NOVELS, model={"dropout": 0.33, "size": "nano"}, tokenizer={"type": "unigram", "vocab_size": 700})
    assert plan.recipe.model.dropout == 0.33 and plan.recipe.model.d_model == 64
    assert plan.recipe.tokenizer.vocab_size == 700
    assert not {"model.dropout", "model.size", "tokenizer.type"} & {choice.key for choice in plan.choices}


@pytest.mark.parametrize("facts", [SHAKESPEARE, NOVELS, PAIRS, REVIEWS], ids=lambda facts: facts.task)
def test_given_choices_of_a_plan_lead_to_the_same_model_at_any_speed(facts: Facts) -> None:
    fast, slow = 10 * SPEED, SPEED / 100
    plan = plan_for(facts, fast)
    kept = {choice.key: choice.value for choice in plan.choices if choice.key in KEPT}
    given: Table = {"model": {}, "tokenizer": {}}
    for key, value in kept.items():
        table, name = key.split(".")
        given[table][name] = value
    for speed in (slow, SPEED, fast):
        again = plan_for(facts, speed, **given)
        assert again.size.parameters == plan.size.parameters and again.vocab_size == plan.vocab_size, speed
    assert plan_for(facts, slow).size.parameters != plan.size.parameters, "without them, the size depends on the speed"


def test_given_setting_is_kept_when_the_type_of_its_table_is_chosen() -> None:
    assert plan_for(NOVELS, tokenizer={"vocab_size": 700}).recipe.tokenizer.vocab_size == 700
    plan = plan_for(PAIRS, optimizer={"learning_rate": 0.01}, schedule={"warmup_steps": 7})
    assert plan.recipe.optimizer.learning_rate == 0.01 and plan.recipe.schedule.warmup_steps == 7


def test_given_vocabulary_size_and_heads_are_kept() -> None:
    plan = plan_for(SHAKESPEARE, tokenizer={"vocab_size": 700})
    assert plan.recipe.tokenizer.type == "bpe" and plan.recipe.tokenizer.vocab_size == 700
    assert plan_for(NOVELS, 1e13, model={"n_heads": 6}).recipe.model.n_heads == 6
    shared = plan_for(NOVELS, 1e13, model={"n_kv_heads": 2}).recipe.model  # mini has 3 heads: not a multiple of 2
    assert shared.n_kv_heads == 2 and shared.d_model > 192
    with pytest.raises(UsageError, match="multiple of n_heads"):
        plan_for(NOVELS, model={"n_heads": 7})


@pytest.mark.parametrize(
    ("value", "words"), [(0.284, "0.28"), (5.31, "5.3"), (99.6, "100"), (5.3e2, "530"), (1.2e4, "12,000")]
)
def test_rounded_gives_two_digits_or_whole_numbers(value: float, words: str) -> None:
    assert rounded(value) == words


def test_only_small_texts_get_characters() -> None:
    assert plan_for(SHAKESPEARE._replace(n_bytes=240_000), 4e9).recipe.tokenizer.type == "characters"
    novella = plan_for(SHAKESPEARE._replace(n_bytes=400_000), training={"tokens": 2_000_000}).recipe.tokenizer
    assert novella.type == "bpe" and novella.vocab_size == FEWEST_PIECES
    gujarati = SHAKESPEARE._replace(n_bytes=1_000_000, length=400_000, n_distinct=90)  # three bytes for most characters
    assert plan_for(gujarati, 4e9).recipe.tokenizer.type == "characters"
    assert plan_for(SHAKESPEARE, 4e11).recipe.tokenizer.type == "bpe"
    assert plan_for(NOVELS).recipe.tokenizer.type == "bpe"


def test_thousands_of_characters_are_chosen_for_text_that_is_read_often() -> None:
    novel = SHAKESPEARE._replace(n_bytes=3_000_000, n_distinct=3400, length=1_000_000)
    budgets: list[tuple[Table, str]] = [({"minutes": 10}, "bpe"), ({"minutes": 100}, "characters")]
    budgets += [({"epochs": 9}, "bpe"), ({"epochs": 19}, "characters"), ({"tokens": 9_000_000}, "characters")]
    for training, kind in budgets:
        assert plan_for(novel, training=training).recipe.tokenizer.type == kind, training
    russian = novel._replace(n_bytes=1_800_000, n_distinct=120)
    assert plan_for(russian, training={"epochs": 19}).recipe.tokenizer.type == "bpe"


def test_one_minute_budget_means_a_small_vocabulary_except_for_tiny_text() -> None:
    minute: Table = {"minutes": 1}
    assert plan_for(SHAKESPEARE, training=minute).recipe.tokenizer.type == "bpe"
    assert plan_for(SHAKESPEARE._replace(n_bytes=100_000), training=minute).recipe.tokenizer.type == "characters"
    sizes = {
        facts: [plan_for(facts, training={"minutes": m}).recipe.tokenizer.vocab_size or 0 for m in (1, 10)]
        for facts in (NOVELS, PAIRS)
    }
    assert sizes[NOVELS][0] < sizes[NOVELS][1] and sizes[PAIRS][0] == sizes[PAIRS][1]


def test_thousands_of_ideographs_are_read_as_characters() -> None:
    chinese = SHAKESPEARE._replace(n_bytes=600_000, length=200_000, n_distinct=3400)
    assert plan_for(chinese, training={"minutes": 1}).recipe.tokenizer.type == "characters"
    with_odd_signs = chinese._replace(n_bytes=210_000)
    assert plan_for(with_odd_signs, training={"minutes": 1}).recipe.tokenizer.type == "bpe"
    assert plan_for(chinese._replace(n_bytes=9_000_000, length=3_000_000)).recipe.tokenizer.type == "bpe"


def test_plan_depends_on_characters_not_on_their_bytes() -> None:
    """One text length, with letters of one byte (English), two (Russian) or three (Thai)."""
    texts = [SHAKESPEARE._replace(n_bytes=n_bytes * 1_000_000, length=1_000_000) for n_bytes in (1, 2, 3)]
    for minutes in (1, 10):
        assert len({plan_for(text, training={"minutes": minutes}).recipe.tokenizer.type for text in texts}) == 1
    by_characters: Table = {"type": "characters"}
    assert len({plan_for(text, 4e11, tokenizer=by_characters).epochs for text in texts}) == 1


@pytest.mark.parametrize(
    ("facts", "bytes_per_token"),  # in vocabularies of 1,024 and 8,192
    [
        (Facts("generate", 1, 2_517_394, 4_532, length=855_342), (2.79, 4.36)),  # a Chinese novel
        (Facts("generate", 6, 3_432_674, 3_679, length=1_153_554), (3.37, 5.67)),  # Japanese novels
        (Facts("generate", 1, 3_393_410, 136, length=1_904_684), (4.31, 6.92)),  # a Russian novel
        (Facts("generate", 1, 1_115_394, 65), (2.44, 3.54)),  # Shakespeare
    ],
)
def test_estimated_token_counts_are_within_a_quarter_in_all_scripts(
    facts: Facts, bytes_per_token: tuple[float, float]
) -> None:
    for vocab_size, n_bytes in zip((1024, 8192), bytes_per_token, strict=True):
        assert facts.tokens_in("bpe", vocab_size) == pytest.approx(facts.n_bytes / n_bytes, rel=0.25)


def test_new_writer_with_subwords_starts_from_bigrams() -> None:
    recipe = plan_for(NOVELS).recipe
    assert recipe.tokenizer.type == "bpe" and recipe.training.bigram_init and recipe.model.tie_embeddings == "none"
    others: list[dict[str, Table]] = [{"model": {"tie_embeddings": "all"}}, {"training": {"bigram_init": False}}]
    for given in (*others, {"model": {"zero_init_outputs": False}}):
        tied = plan_for(NOVELS, **given).recipe
        assert tied.model.tie_embeddings == "all" and not tied.training.bigram_init
    large = plan_for(NOVELS, tokenizer={"vocab_size": 32_000}).recipe
    characters = plan_for(Facts("generate", 1, 100_000, 60)).recipe
    for other in (large, characters, plan_for(PAIRS).recipe, plan_for(REVIEWS).recipe):
        assert other.model.tie_embeddings == "all" and not other.training.bigram_init


def test_only_new_writers_with_subwords_are_smoothed_a_little() -> None:
    assert plan_for(NOVELS).recipe.training.label_smoothing == 0.01
    others = plan_for(NOVELS, tokenizer={"type": "characters"}), plan_for(NOVELS, finetuning={"base": "runs/old"})
    assert not any(plan.recipe.training.label_smoothing for plan in others)


@pytest.mark.parametrize(
    ("n_bytes", "often", "vocab_size"),
    [
        *((800_000, often, size) for often, size in ((1, 1024), (3, 640), (9, 384), (99, 384))),
        *((1_800_000, often, size) for often, size in ((1, 2048), (3, 1280), (9, 640))),
        *((9_000_000, often, 8192) for often in (1, 9)),
    ],
)
def test_writer_that_reads_a_small_text_often_has_a_smaller_vocabulary(
    n_bytes: int, often: float, vocab_size: int
) -> None:
    novel, steps = Facts("generate", 1, n_bytes, 80), round(often * n_bytes / 8192)
    in_steps: Table = {"steps": steps, "batch_tokens": 4096, "accumulate": 2}
    for training in ({"epochs": 2.4 * often}, {"tokens": often * n_bytes}, in_steps):
        assert plan_for(novel, training=training).recipe.tokenizer.vocab_size == vocab_size


@pytest.mark.parametrize("often", [1, 3, 9])
def test_vocabulary_for_a_small_text_depends_on_characters_not_on_their_bytes(often: int) -> None:
    latin = Facts("generate", 1, 1_800_000, 80)
    cyrillic = latin._replace(n_bytes=3_600_000, length=1_800_000)
    one, other = (plan_for(facts, training={"tokens": often * 1_800_000}).recipe for facts in (latin, cyrillic))
    assert one.tokenizer.vocab_size == other.tokenizer.vocab_size and (often < 9 or one.tokenizer.vocab_size == 640)


def test_student_has_the_vocabulary_of_a_teacher_by_characters() -> None:
    taught = plan_for(SHAKESPEARE, distillation={"teachers": ["a"]}, tokenizer={"type": "characters", "from": "a"})
    assert taught.vocab_size == SHAKESPEARE.n_distinct + 4


def test_vocabulary_grows_with_the_text() -> None:
    sizes = [
        plan_for(Facts("generate", 1, n_bytes, 500)).recipe.tokenizer.vocab_size or 0
        for n_bytes in (10_000, 1_000_000, 100_000_000)
    ]
    assert sizes == sorted(set(sizes))


@pytest.mark.parametrize("facts", [SHAKESPEARE, NOVELS, PAIRS, MANY_REVIEWS], ids=lambda facts: facts.task)
def test_more_minutes_never_mean_a_smaller_model(facts: Facts) -> None:
    sizes = [plan_for(facts, training={"minutes": minutes}).size.parameters for minutes in (1, 10, 60, 600)]
    assert sizes == sorted(sizes) and sizes[0] < sizes[-1]


@pytest.mark.parametrize("kind", ["bpe", "unigram", "characters", "bytes"])
def test_prefix_space_is_chosen_for_classifiers_with_subwords(kind: str) -> None:
    assert plan_for(REVIEWS, tokenizer={"type": kind}).recipe.tokenizer.prefix_space == (kind in ("bpe", "unigram"))
    assert not plan_for(PAIRS, tokenizer={"type": kind}).recipe.tokenizer.prefix_space


def test_named_size_keeps_its_layers() -> None:
    assert plan_for(REVIEWS, model={"size": "small"}).recipe.model.n_layers == 6


def test_few_labels_get_a_small_model_for_any_budget() -> None:
    sizes = {plan_for(REVIEWS, training={"minutes": minutes}).recipe.model.size for minutes in (10, 600)}
    assert sizes == {"tiny"}


def test_more_labels_than_a_linear_classifier_can_sample_texts_for() -> None:
    for n_labels, has_linear in ((5_000, True), (10_000, False)):
        facts = Facts("classify", n_examples=30_000, n_bytes=3_000_000, n_distinct=60, n_labels=n_labels)
        assert plan_for(facts).recipe.model.ngrams == has_linear


def test_balanced_classifier_is_not_smoothed() -> None:
    assert plan_for(REVIEWS).recipe.training.label_smoothing == 0.1
    assert plan_for(REVIEWS, model={"balanced": True}).recipe.training.label_smoothing == 0


def test_small_labelled_corpus_gets_tiny_only_if_read_often() -> None:
    few = REVIEWS._replace(n_examples=5_000, n_bytes=300_000)
    sizes = [plan_for(few, speed, training={"minutes": 2}).recipe.model.size for speed in (3e9, 1e11, 1e13)]
    assert sizes == ["nano", "tiny", "tiny"]


def test_faster_machine_gets_a_larger_model() -> None:
    slow, fast = (plan_for(NOVELS, speed).size.parameters for speed in (1e10, 1e14))
    assert slow < fast


def test_small_corpus_gets_the_smallest_model() -> None:
    little = Facts("generate", 1, 20_000, 60)
    assert plan_for(little, speed=1e16).recipe.model.size == LADDER[0]


def test_only_translators_that_read_their_text_often_get_consistency() -> None:
    few = PAIRS._replace(n_examples=2_000, n_bytes=140_000)
    assert plan_for(few).epochs > 25 and plan_for(few).recipe.training.consistency == 0.7
    assert plan_for(PAIRS, SPEED / 10).epochs < 25 and plan_for(PAIRS, SPEED / 10).recipe.training.consistency == 0
    taught = plan_for(few, distillation={"teachers": ["runs/a"]})
    in_steps = plan_for(few, training={"steps": 10_000})
    assert taught.recipe.training.consistency == in_steps.recipe.training.consistency == 0
    assert in_steps.epochs > 25
    without = plan_for(few, training={"consistency": 0.0})
    assert plan_for(few).size.training_bytes > without.size.training_bytes  # both passes are in memory at once


def test_keeping_old_text_halves_the_learning_rate() -> None:
    base: Table = {"base": "runs/old", "keep_old": 0.2}
    kept, usual = plan_for(PAIRS, finetuning=base).recipe, plan_for(PAIRS).recipe
    assert kept.finetuning and kept.finetuning.base_weight == 0.15
    assert 2 * kept.optimizer.learning_rate == usual.optimizer.learning_rate
    assert plan_for(PAIRS, finetuning=base, optimizer={"learning_rate": 0.1}).recipe.optimizer.learning_rate == 0.1


def test_many_epochs_get_more_dropout() -> None:
    rates = [
        plan_for(SHAKESPEARE, model={"size": "mini"}, training={"epochs": epochs}).recipe.model.dropout
        for epochs in (1, 4, 30, 60)
    ]
    assert rates == sorted(set(rates)) and rates[0] == 0.0


@pytest.mark.parametrize(("epochs", "rate"), [(0.6, 0.0), (3.0, 0.1)])
def test_pretrained_encoder_gets_no_dropout_for_texts_read_once(epochs: float, rate: float) -> None:
    size = {"d_model": 384, "n_heads": 12, "n_layers": 1}
    tables = {"tokenizer": {"type": "imported", "vocab_size": 30_000}, "finetuning": {"base": "runs/bert"}}
    model = plan_for(REVIEWS, **tables, model=size, training={"epochs": epochs}).recipe.model
    assert (model.dropout, model.attention_dropout) == (rate, rate)
    model = plan_for(REVIEWS, **tables, model=size | {"dropout": 0.2}, training={"epochs": epochs}).recipe.model
    assert (model.dropout, model.attention_dropout) == (0.2, rate)


def test_adapters_of_a_pretrained_writer_learn_in_smaller_batches() -> None:
    base = {"tokenizer": {"type": "imported", "vocab_size": 30_000}, "finetuning": {"base": "runs/llama"}}
    model = {"d_model": 64, "n_heads": 4, "n_layers": 1}
    plans = [plan_for(NOVELS, **base, **lora, model=model) for lora in ({}, {"lora": {"rank": 16}})]
    assert [plan.recipe.training.batch_tokens for plan in plans] == [1024, 512]
    chat = NOVELS._replace(task="chat")
    plans = [plan_for(chat, **table, model=model) for table in (base, base | {"lora": {"rank": 16}}, {})]
    assert [plan.recipe.training.batch_tokens for plan in plans] == [1024, 512, 4096]


def test_missing_budget_becomes_chosen_minutes() -> None:
    plan = plan_for(SHAKESPEARE)
    assert plan.recipe.training.minutes and "training.minutes" in {choice.key for choice in plan.choices}


def test_named_architecture_is_used_unchanged() -> None:
    model = plan_for(PAIRS, model={"size": "transformer-base"}).recipe.model
    assert not model.qk_norm and model.dropout == 0.1 and model.norm_position == "post"


def test_compilation_is_chosen_by_run_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "missing_requirement", lambda: "")

    def compiled(**training: object) -> str:
        return plan_for(SHAKESPEARE, training=training, model={"size": "tiny"}).recipe.training.compile

    assert compiled(minutes=1) == compiled(steps=10) == compiled(compile="off", minutes=60) == "off"
    assert compiled(minutes=60) == compiled(steps=100_000) == compiled(compile="auto", epochs=1000) == "on"
    assert compiled(compile="on", minutes=1) == "on"


def test_too_short_budget_reports_the_minutes_wanted() -> None:
    short = plan_for(PAIRS, training={"minutes": 0.25})
    assert short.minutes_wanted is not None and short.minutes_wanted > 0.25
    wanted = float(short.minutes_wanted * 1.01)
    assert plan_for(PAIRS, training={"minutes": wanted}).minutes_wanted is None
    large = plan_for(PAIRS, training={"minutes": wanted}, model={"size": "base"}).minutes_wanted
    assert large is not None and large > 10 * wanted
    assert plan_for(PAIRS, training={"steps": 1}).minutes_wanted is None


def test_teachers_reduce_the_epochs_in_the_budget() -> None:
    alone, taught = (
        plan_for(SHAKESPEARE, training={"minutes": 10}, tokenizer={"vocab_size": 1024}, model={"size": "tiny"}, **more)
        for more in ({}, {"distillation": {"teachers": ["a", "b", "c"]}})
    )
    assert taught.epochs == pytest.approx(alone.epochs / 2)


def test_classifier_gets_token_dropout_unless_it_is_given() -> None:
    often, once = (plan_for(REVIEWS, training={"epochs": epochs}).recipe.model.token_dropout for epochs in (9.0, 1.0))
    assert (often, once, plan_for(MANY_REVIEWS).recipe.model.token_dropout) == (0.7, 0.6, 0.6)
    assert plan_for(REVIEWS, model={"dropout": 0.2}, training={"epochs": 1}).recipe.model.token_dropout == 0.6
    assert plan_for(REVIEWS, model={"token_dropout": 0.2}).recipe.model.token_dropout == 0.2
    assert plan_for(PAIRS).recipe.model.token_dropout == 0


def test_distilled_classifier_gets_less_dropout() -> None:
    taught = plan_for(REVIEWS, distillation={"teachers": ["a", "b"]}).recipe.model
    assert (taught.dropout, taught.token_dropout) == (0.1, 0.45)
    assert plan_for(REVIEWS).recipe.model.dropout == 0.3


def test_classifier_learning_rate_is_higher_for_fewer_epochs() -> None:
    few, some, many = (plan_for(REVIEWS, training={"epochs": epochs}).recipe.optimizer for epochs in (1.0, 2.0, 9.0))
    assert {few.type, some.type, many.type} == {"adamw"}
    assert few.learning_rate == 0.003 > some.learning_rate > many.learning_rate == 0.001
    assert plan_for(PAIRS).recipe.optimizer.type == "muon"


def test_short_run_warms_up_in_a_fifth_of_its_steps() -> None:
    assert plan_for(PAIRS, training={"steps": 30}).recipe.schedule.warmup_steps == 6
    assert plan_for(PAIRS, training={"steps": 3000}).recipe.schedule.warmup_steps == 50


def test_larger_models_are_timed_on_a_gpu() -> None:
    medium = validate(ModelSettings, dict(SIZES["medium"]), "here")
    n_tokens = 1.01 * size_of("generate", 8192, medium).matrix_parameters
    assert plan_on_gpu(n_tokens / (0.6 * 60 * 10), minutes=10).recipe.model.d_model == medium.d_model


@pytest.mark.parametrize(
    ("speed", "given", "batch_tokens"),
    [
        (SPEED, {"training": {"minutes": 60}, "model": {"size": "tiny"}}, 4096),
        (SPEED / 8, {"training": {"minutes": 10}}, 2048),
        (SPEED / 8, {"training": {"minutes": 10, "batch_tokens": 8192}}, 8192),
        (SPEED / 8, {"training": {"steps": 100}}, 4096),
        (SPEED / 8, {"training": {"minutes": 10}, "finetuning": {"base": "runs/base"}}, 4096),
        (SPEED / 8, {"training": {"minutes": 10, "accumulate": 2}}, 4096),
        (SPEED / 8, {"training": {"minutes": 10}, "model": {"context_length": 4096}}, 4096),
        (SPEED / 8, {"training": {"minutes": 10}, "model": {"size": "tiny"}}, 2048),
        (SPEED / 8, {"training": {"minutes": 10}, "model": {"size": "gpt2"}}, 4096),
    ],
    ids=["many steps", "few", "a given batch", "steps", "fine-tuning", "gradients", "context", "size", "architecture"],
)
def test_new_writer_with_few_steps_has_smaller_batches(speed: float, given: Table, batch_tokens: int) -> None:
    assert plan_for(NOVELS, speed, **given).recipe.training.batch_tokens == batch_tokens


def test_no_budget_is_short_on_a_gpu() -> None:
    minute, more = (plan_on_gpu(1e6, minutes=minutes).recipe for minutes in (1, 10))
    assert minute.model.context_length == more.model.context_length
    assert minute.training.batch_tokens == more.training.batch_tokens


@pytest.mark.skipif(bool(toolchain.missing_requirement()), reason="torch.compile needs a C++ compiler")
def test_compilation_on_a_gpu_depends_on_timed_steps() -> None:
    assert plan_on_gpu(1e6, tokens=1_000_000).recipe.training.compile == "off"
    assert plan_on_gpu(1e3, tokens=1_000_000).recipe.training.compile == "on"


def test_budget_below_one_epoch_of_a_large_text_is_too_short() -> None:
    library = NOVELS._replace(n_bytes=90_000_000)
    short = plan_for(library, training={"minutes": 1})
    assert short.recipe.model.size == "nano" and short.epochs < 1
    assert short.minutes_wanted is not None and short.minutes_wanted > 1
    enough = plan_for(library, training={"minutes": 1.01 * short.minutes_wanted})
    assert enough.minutes_wanted is None and (enough.epochs >= 1 or enough.recipe.model.size != "nano")
    assert plan_for(library, training={"minutes": 5}, model={"size": "nano"}).minutes_wanted is None
    assert plan_for(SHAKESPEARE, 4e11, training={"minutes": 1}).minutes_wanted is None


def test_chosen_size_fits_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = plan_for(NOVELS, 1e13)
    monkeypatch.setattr(capacity, "available_memory", lambda: usual.size.training_bytes - 1.0)
    smaller = plan_for(NOVELS, 1e13)
    assert smaller.size.training_bytes < usual.size.training_bytes
    assert (
        plan_for(NOVELS, 1e13, model={"size": usual.recipe.model.size}).recipe.model.d_model
        == usual.recipe.model.d_model
    )


@pytest.mark.parametrize("is_few", [True, False])
def test_pretrained_encoder_is_tuned_contrastively_only_if_the_labels_are_few(is_few: bool) -> None:
    base: Table = {"finetuning": {"base": "runs/minilm"}, "tokenizer": {"type": "imported", "vocab_size": 1000}}
    tuned = plan_for(REVIEWS._replace(has_few_labels=is_few), **base).recipe
    assert tuned.finetuning and tuned.finetuning.contrastive == is_few != tuned.finetuning.freeze_embeddings


def test_memory_includes_averages_of_the_weights_and_teachers() -> None:
    plain = plan_for(NOVELS).size
    average = plan_for(NOVELS, training={"ema_decay": 0.99}).size
    base: Table = {"base": "runs/old", "keep_old": 0.2}
    tuned, tuned_mean = (plan_for(NOVELS, finetuning={**base, "base_weight": weight}) for weight in (0.0, 0.2))
    taught = plan_for(NOVELS._replace(teacher_bytes=1_000_000)).size
    assert average.training_bytes == plain.training_bytes + 4 * plain.parameters
    assert tuned_mean.size.training_bytes == tuned.size.training_bytes + 8 * tuned.size.parameters
    assert tuned_mean.size == size_of_recipe(tuned_mean.recipe, tuned_mean.vocab_size, 0)
    assert taught.training_bytes == plain.training_bytes + 1_000_000


@pytest.mark.parametrize("facts", [PAIRS, REVIEWS], ids=lambda facts: facts.task)
def test_step_reads_a_small_corpus_at_most_once(facts: Facts) -> None:
    small = facts._replace(n_examples=40, n_bytes=800)
    plan = plan_for(small, training={"steps": 30, "accumulate": 2})
    assert plan.epochs == pytest.approx(60) and plan.recipe.schedule.warmup_steps == 6


def test_windows_of_running_text_repeat_a_small_text_in_a_batch() -> None:
    small = SHAKESPEARE._replace(n_bytes=1000)
    plan = plan_for(small, training={"steps": 30, "batch_tokens": 2000})
    assert plan.recipe.tokenizer.type == "characters" and plan.epochs == pytest.approx(60)
    assert plan.recipe.schedule.warmup_steps == 6


@pytest.mark.parametrize(("width", "rate"), [(384, 1e-4), (768, 5e-5)])
def test_pretrained_encoder_gets_a_low_learning_rate(width: int, rate: float) -> None:
    model = {"d_model": width, "n_heads": 12, "n_layers": 1, "dropout": 0.1}
    tokenizer = {"type": "imported", "vocab_size": 30_000}
    tables = {"model": model, "tokenizer": tokenizer, "training": {"steps": 60}}
    plan = plan_for(REVIEWS, **tables, finetuning={"base": "runs/bert"})
    assert plan.recipe.finetuning.freeze_embeddings
    more = plan_for(REVIEWS, **tables, finetuning={"base": "runs/bert", "add_tokens": 100})
    assert not more.recipe.finetuning.freeze_embeddings  # the vectors of new tokens must be trained
    assert plan.recipe.optimizer.learning_rate == rate
    assert (plan.recipe.training.batch_tokens, plan.recipe.schedule.cooldown_fraction) == (768, 0.95)
    assert (plan.recipe.model.token_dropout, plan.recipe.model.dropout, plan.recipe.model.ngrams) == (0.0, 0.1, True)
