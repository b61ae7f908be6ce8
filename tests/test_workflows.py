import shutil
from collections.abc import Iterator
from contextlib import chdir
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import ClassVar
from unittest.mock import Mock
from warnings import warn
from weakref import WeakSet

import pytest
import torch

from penwright import losses
from penwright.config import LoraSettings, Recipe, Table, merge, parse_toml, validate
from penwright.data.corpus import Columns, ReadingOptions
from penwright.data.parallel import open_pairs
from penwright.errors import PenwrightError, PenwrightWarning, UsageError
from penwright.evaluation.scores import Score
from penwright.model import DecoderOnly
from penwright.native.toolchain import INDUCTOR_CACHE_VARIABLE
from penwright.run.checkpoint_folder import CheckpointFolder
from penwright.run.folder import BASELINES, CORPUS, Run
from penwright.run.provenance import CorpusRecord
from penwright.run.records import is_overfitted
from penwright.tasks import TASKS, RunContext, generation, reading_of, token_store, translation
from penwright.tokenizers.training import train_tokenizer
from penwright.training.auto.choices import Plan
from penwright.training.observers import Observer
from penwright.training.progress import LineProgress
from penwright.training.trainer import StepReport, Trainer
from penwright.workflows import compile_training, load
from penwright.workflows import resume as resume_workflow
from penwright.workflows import train as train_workflow
from penwright.workflows.evaluate import evaluate, evaluation_context, is_trained_on, open_corpus_of
from penwright.workflows.load import open_run
from penwright.workflows.plan import new_run_folder, prepare, read_recipe
from penwright.workflows.resume import resume
from penwright.workflows.train import train
from penwright.workflows.verdict import verdicts


@pytest.mark.parametrize(
    ("above", "training"),
    [({}, {"minutes": 5, "keep": 1}), ({"training": {"steps": 9}}, {"keep": 1})],
)
def test_budget_override_replaces_the_recipes_budget(
    tmp_path: Path, above: dict[str, dict[str, int]], training: dict[str, int]
) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text("[training]\nminutes = 5\nkeep = 1\n", encoding="utf-8")
    assert read_recipe(path, above) == {"training": training}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[modle]\nd_model = 64\n", "there is no key 'modle'; did you mean 'model'"),
        ('[schedule]\ntype = "cosine"\nwarmup = 5\n', r"\[schedule\] has no key 'warmup'"),
        ('[training]\nbatch_tokens = "many"\n', r"\[training\] batch_tokens: 'many' is not a whole number"),
        ("training = 5\n", "training: must be a table of settings"),
    ],
)
def test_mistake_in_a_recipe_names_the_file(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(UsageError, match=f"mine.toml: {message}"):
        read_recipe(path, {})


@pytest.mark.parametrize(
    "content", ["", "[optimizer]\nmomentum = 0.9\n", "[model]\nn_heads = 7\n", 'task = "score"\n[lora]\nrank = 8\n']
)
def test_recipe_need_not_be_complete(tmp_path: Path, content: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(content, encoding="utf-8")
    assert read_recipe(path, {}) == parse_toml(content.encode(), path)


def test_tokenizer_of_a_large_text_is_trained_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENWRIGHT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(train_workflow, "LARGE", 1)
    text = tmp_path / "text.txt"
    text.write_text("".join(f"Line {n} of a short text.\n" for n in range(300)), encoding="utf-8")
    table = {"data": {"train": [str(text)]}, "tokenizer": {"type": "bpe", "vocab_size": 9000}, "training": {"steps": 1}}
    recipe = validate(Recipe, {"task": "generate", "model": {}, **table}, "here")
    corpus = TASKS["generate"].open_corpus(recipe.data.train, reading_of(recipe))
    observer = RecordingObserver()
    first = train_workflow._tokenizer(recipe, corpus, [observer])
    monkeypatch.setattr(train_workflow, "train_tokenizer", None)
    again = train_workflow._tokenizer(recipe, corpus, [observer])
    assert again.content == first.content
    assert sum("only supports a vocabulary" in line for line in observer.texts) == 2


def test_new_run_is_named_after_its_text_and_never_reused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    table = {"task": "generate", "data": {"train": ["books/novel.txt.gz"]}, "model": {}, "training": {"steps": 1}}
    recipe = validate(Recipe, table, "here")
    assert new_run_folder(recipe) == Path("runs/novel")
    (tmp_path / "runs" / "novel").mkdir(parents=True)
    assert new_run_folder(recipe) == Path("runs/novel-2")


@pytest.mark.parametrize(
    ("before", "now", "words"),
    [(None, 2, []), (2, 2, []), (1, 2, ["1 process;", "with 2"]), (2, 1, ["2 processes;", "with 1", "bit for bit"])],
)
def test_resuming_with_another_number_of_processes_is_reported(before: int | None, now: int, words: list[str]) -> None:
    message = " ".join(resume_workflow._changed_processes(before, now))
    assert bool(message) == bool(words) and all(word in message for word in words)


@pytest.mark.parametrize(
    ("text", "name"),
    [("src/**/*.py", "src"), ("*.txt", "run"), ("/**/*.txt", "run"), ("War and Peace.txt", "War and Peace")],
)
def test_run_of_a_glob_pattern_is_named_after_its_folder(text: str, name: str) -> None:
    table = {"task": "generate", "data": {"train": text}, "model": {}, "training": {"steps": 1}}
    assert new_run_folder(validate(Recipe, table, "here")) == Path("runs") / name


def test_settings_of_an_automatically_chosen_variant_can_be_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("novel.txt").write_text("".join(f"It was a dark night, the {n}th.\n" for n in range(300)), encoding="utf-8")
    settings_given = {"data": {"train": "novel.txt"}, "training": {"steps": 1}, "schedule": {"cooldown_fraction": 0.3}}
    requested = {**settings_given, "optimizer": {"adamw": {"learning_rate": 0.01}}, "model": {"n_heads": 8}}
    recipe = prepare(requested).plan.recipe
    assert (recipe.schedule.type, recipe.optimizer.type, recipe.model.n_heads) == ("wsd", "muon", 8)
    assert recipe.schedule.cooldown_fraction == 0.3 and recipe.optimizer.adamw.learning_rate == 0.01
    with pytest.raises(UsageError, match=r"\[schedule\] has no key 'cooldown_fractoin'"):
        prepare({**settings_given, "schedule": {"cooldown_fractoin": 0.3}})


def test_run_finds_its_text_from_other_folders_and_after_a_move(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there, elsewhere = tmp_path / "here", tmp_path / "there", tmp_path / "elsewhere"
    here.mkdir()
    elsewhere.mkdir()
    (elsewhere / "nov.txt").write_text("Something else of that name, which is not meant.\n", encoding="utf-8")
    (here / "novel.txt").write_text("".join(f"It was a dark night, the {n}th.\n" for n in range(300)), encoding="utf-8")
    monkeypatch.chdir(here)
    sizes = {"d_model": 16, "n_layers": 1, "n_heads": 1, "context_length": 32}
    requested = {"task": "generate", "data": {"train": ["nov*.txt"]}, "model": sizes, "training": {"steps": 2}}
    train(prepare(requested), Path("runs/novel"))
    monkeypatch.chdir(elsewhere)
    scores = evaluate(here / "runs" / "novel")
    here.rename(there)
    assert evaluate(there / "runs" / "novel") == scores
    resume(there / "runs" / "novel", {"training": {"steps": 3}})
    assert Run(there / "runs" / "novel").recipe.data.train == ("nov*.txt",)
    (there / "novel.txt").unlink()
    (elsewhere / "nov.txt").unlink()
    with pytest.raises(PenwrightError, match=r"no file matches the pattern nov\*.txt"):
        evaluate(there / "runs" / "novel")


class RecordingObserver(Observer):
    def __init__(self) -> None:
        self.texts: list[str] = []
        self.trainers = WeakSet[Trainer]()
        self.n_trainers_at_restart = 0

    def message(self, text: str) -> None:
        self.texts.append(text)
        if "starting again" in text:
            self.n_trainers_at_restart = len(self.trainers)

    def stepped(self, trainer: Trainer, report: StepReport) -> None:
        self.trainers.add(trainer)


@pytest.fixture(scope="module")
def text_and_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a text and a run of two steps, moved after training, so that a copy reads its own text."""
    folder = tmp_path_factory.mktemp("trained") / "here"
    folder.mkdir()
    with chdir(folder):
        text = "".join(f"It was a dark night, the {n}th.\n" for n in range(300))
        Path("novel.txt").write_text(text, encoding="utf-8")
        sizes = {"d_model": 16, "n_layers": 1, "n_heads": 1, "context_length": 32}
        given = {"task": "generate", "data": {"train": ["novel.txt"]}, "model": sizes, "training": {"steps": 2}}
        train(prepare(given), Path("run"))
    return folder.rename(folder.with_name("there"))


@pytest.fixture
def trained_run(text_and_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the run of two steps, in the working directory, beside its text."""
    shutil.copytree(text_and_run, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return Path("run")


def test_consistency_needs_dropout(trained_run: Path) -> None:
    model = {"d_model": 16, "n_layers": 1, "n_heads": 1, "context_length": 32}
    given = {"task": "generate", "data": {"train": ["novel.txt"]}, "training": {"steps": 2, "consistency": 0.7}}
    train(prepare({**given, "model": {**model, "dropout": 0.1}}), Path("consistent"))
    with pytest.raises(UsageError, match="consistency needs dropout, so that two passes differ"):
        prepare({**given, "model": {**model, "dropout": 0.0}})


def test_bigram_init_lowers_the_first_loss_and_needs_two_tables(trained_run: Path) -> None:
    first_losses = []
    model = {"d_model": 16, "n_layers": 1, "n_heads": 1, "context_length": 32}
    for has_bigrams in (False, True):
        given = {"task": "generate", "data": {"train": ["novel.txt"]}, "training": {"steps": 1}}
        given = merge(given, {"model": model | {"tie_embeddings": "none"}, "training": {"bigram_init": has_bigrams}})
        train(prepare(given), Path(f"bigrams-{has_bigrams}"))
        first_losses.append(Run.open(Path(f"bigrams-{has_bigrams}")).records("steps.jsonl")[0]["loss"])
    assert first_losses[1] < 0.7 * first_losses[0]
    with pytest.raises(UsageError, match="tie_embeddings"):
        prepare(merge(given, {"model": {"tie_embeddings": "all"}}))


@pytest.mark.parametrize("checks", [{"WATCHED": 1e-6}, {"CHECK_EVERY": 0.0}], ids=["a single check", "many checks"])
@pytest.mark.parametrize(("pace", "width"), [(1.0, 24), (1e9, 16)], ids=["much faster than planned", "as planned"])
def test_much_faster_run_restarts_with_a_larger_model(
    trained_run: Path, monkeypatch: pytest.MonkeyPatch, pace: float, width: int, checks: dict[str, float]
) -> None:
    def settings(width: int, **budget: float) -> Table:
        sizes = {"d_model": width, "n_layers": 1, "n_heads": 1, "context_length": 32, "dropout": 0.1}
        return {"task": "generate", "data": {"train": ["novel.txt"]}, "model": sizes, "training": budget}

    for name, value in checks.items():
        monkeypatch.setattr(train_workflow, name, value)
    monkeypatch.setattr(train_workflow, "WORTH_COMPILING", 0.01)
    requested, started, stopped = [], [], []

    def compile_in_background(run: Run, precision: object, *, waits: bool) -> Run:
        started.append(run)
        return run

    monkeypatch.setattr(train_workflow, "compile_in_background", compile_in_background)
    monkeypatch.setattr(train_workflow, "kill_compiler", stopped.append)

    def replan(minutes: float) -> Plan:
        requested.append(minutes)
        return prepare(settings(24, steps=4)).plan

    minutes = (
        1.0 if width == 24 else 0.02
    )  # a run that starts again does not use up its minutes, even on a busy machine
    prepared, observer = prepare(settings(16, minutes=minutes, evaluate_every=30)), RecordingObserver()
    prepared = replace(prepared, replan=replan, plan=prepared.plan._replace(tokens=2 * pace))
    train(prepared, Path("watched"), [observer, LineProgress()])
    assert not observer.n_trainers_at_restart  # the memory of the smaller model is free
    run = Run.open(Path("watched"))
    assert run.recipe.model.d_model == width
    assert any("starting again" in text for text in observer.texts) == (width == 24)
    assert len(started) == 1 and stopped == (started if width == 24 else [])  # the larger model has a budget in steps
    if width == 24:
        train(prepare(settings(24, steps=4)), Path("fresh"))  # the recipe alone describes what was trained
        fresh = Run.open(Path("fresh"))
        assert 0 < requested[0] < minutes and run.checkpoints.best_step() == fresh.checkpoints.best_step() == 4
        found, wanted = run.checkpoints.best()[0].weights(), fresh.checkpoints.best()[0].weights()
        assert all(torch.equal(found[name], wanted[name]) for name in wanted)
        steps = [[(each["step"], each["loss"]) for each in which.records("steps.jsonl")] for which in (run, fresh)]
        assert steps[0] == steps[1]


@pytest.mark.parametrize(("epochs", "width"), [(1e-6, 24), (1e9, 16)], ids=["much faster than planned", "as planned"])
def test_much_faster_classifier_restarts_with_the_same_linear_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, epochs: float, width: int
) -> None:
    def settings(width: int, **budget: float) -> Table:
        sizes = {"d_model": width, "n_layers": 1, "n_heads": 1, "context_length": 32, "dropout": 0.1}
        return {"task": "classify", "data": {"train": ["words.tsv"]}, "model": sizes, "training": budget}

    monkeypatch.chdir(tmp_path)
    rows = [f"{word} film number {n}\t{word}" for n in range(60) for word in ("good", "bad")]
    Path("words.tsv").write_text("\n".join(["text\tlabel", *rows]), encoding="utf-8")
    monkeypatch.setattr(train_workflow, "WATCHED", 1e-6)
    fits, fit_linear = [], train_workflow.fit_linear
    monkeypatch.setattr(train_workflow, "fit_linear", lambda *what: fits.append(fit_linear(*what)) or fits[-1])
    minutes = 0.5 if width == 24 else 0.05
    prepared, observer = prepare(settings(16, minutes=minutes, evaluate_every=30)), RecordingObserver()
    plan = prepared.plan._replace(epochs=epochs, tokens=1.0)  # the pace is measured in texts
    larger = prepare(settings(24, steps=4)).plan
    train(replace(prepared, replan=lambda _: larger, plan=plan), Path("run"), [observer])
    assert Run.open(Path("run")).recipe.model.d_model == width and len(fits) == 1
    assert any("starting again" in text for text in observer.texts) == (width == 24)
    assert sum("fitting a linear" in text for text in observer.texts) == 1
    assert evaluate(Path("run"))


def test_evaluation_on_a_file_of_the_run_or_without_it_says_so(trained_run: Path) -> None:
    said = list[str]()
    evaluate(trained_run, ["novel.txt"], say=said.append)
    assert any("in the data of the run, so the scores may be too optimistic: novel.txt" in text for text in said)
    with pytest.raises(UsageError, match=r"cannot be written: there is no folder nowhere"):
        evaluate(trained_run, output=Path("nowhere/found.txt"))
    Path("novel.txt").unlink()
    with pytest.raises(
        PenwrightError, match=r"text that run was trained on is needed, but .*novel\.txt does not exist"
    ):
        evaluate(trained_run)


def test_evaluation_refuses_training_text_as_held_out(trained_run: Path) -> None:
    with pytest.raises(PenwrightError, match=r"how the data is read"):
        evaluate(trained_run, changes={"data": {"held_out": 0.5}})
    text = Path("novel.txt").read_text(encoding="utf-8")
    Path("novel.txt").write_text(text[: len(text) // 2], encoding="utf-8")
    with pytest.raises(PenwrightError, match=r"novel\.txt changed since.*name (other|different) files"):
        evaluate(trained_run)
    assert evaluate(trained_run, ["novel.txt"])


def test_a_corpus_that_is_only_described_in_other_words_is_unchanged(
    trained_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = evaluate(trained_run)
    monkeypatch.setattr("penwright.data.text.fingerprint_of", lambda *_, **__: "0" * 64)
    assert evaluate(trained_run) == wanted
    with pytest.raises(PenwrightError, match=r"how the data is read"):
        evaluate(trained_run, changes={"data": {"held_out": 0.3}})
    with Path("novel.txt").open("a", encoding="utf-8") as text:
        text.write("One more line.")
    with pytest.raises(PenwrightError, match=r"novel\.txt changed since"):
        evaluate(trained_run)


def test_a_corpus_with_another_seed_or_other_recordedis_not_unchanged(tmp_path: Path) -> None:
    rows = [f"word {n}\tWort {n}\tmot {n}\n" for n in range(80)]
    (tmp_path / "pairs.tsv").write_text("en\tde\tfr\n" + "".join(rows), encoding="utf-8")
    columns = [Columns(source="en", target=target) for target in ("de", "fr")]
    kinds = [ReadingOptions(columns[0], seed=1), ReadingOptions(columns[0], seed=2), ReadingOptions(columns[1], seed=1)]
    same, *others = (open_pairs([tmp_path / "pairs.tsv"], reading) for reading in kinds)
    files = [{"path": str(file.path), "sha256": file.sha256} for file in same.files]
    stored = {"fingerprint": "", "files": files, "card": {}, "report": same.report.as_dict()}
    for recorded in ({"columns": same.roles}, {}):  # earlier versions named the columns in notes only
        record = CorpusRecord.model_validate({**stored, **recorded})
        assert [is_trained_on(record, corpus) for corpus in (same, *others)] == [True, False, False]


def test_text_that_changes_while_it_is_read_is_refused_and_not_cached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENWRIGHT_CACHE", str(tmp_path / "cache"))
    rows, path = [f"word {n}\tWort {n}\n" for n in range(80)], tmp_path / "pairs.tsv"
    tokenizer = train_tokenizer("characters", rows, 100)
    for changed in (True, False):
        path.write_text("en\tde\n" + "".join(rows), encoding="utf-8")
        corpus = open_pairs([path], ReadingOptions(Columns(source="en", target="de")))
        if changed:
            path.write_text("en\tde\n" + "".join(reversed(rows)), encoding="utf-8")
            with pytest.raises(PenwrightError, match=r"pairs\.tsv changed while it was read"):
                token_store("translate", corpus, tokenizer, (), held_out=False)
        else:
            assert token_store("translate", corpus, tokenizer, (), held_out=False).n_rows == corpus.n_training


@pytest.mark.parametrize("moved", ["../moved/novel.txt", ["../moved/novel.txt"]], ids=["a file", "a list"])
def test_settings_changed_on_resuming_are_saved(
    trained_run: Path, moved: str | list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("moved").mkdir()
    Path("novel.txt").rename("moved/novel.txt")
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    changes = {"data": {"train": moved}, "training": {"steps": 2}, "decoding": {"temperature": 0.3}}
    resume(Path("..") / trained_run, changes)
    monkeypatch.chdir("..")
    recipe = Run(trained_run).recipe
    assert recipe.data.train == ("moved/novel.txt",) and recipe.decoding.temperature == 0.3
    assert evaluate(trained_run)


def test_refused_resume_leaves_the_recipe_unchanged(trained_run: Path) -> None:
    before = (trained_run / "recipe.toml").read_bytes()
    with pytest.raises(PenwrightError, match="To train longer, add a budget"):
        resume(trained_run, {"decoding": {"temperature": 0.3}})
    assert (trained_run / "recipe.toml").read_bytes() == before


@pytest.mark.parametrize("wanted", ["gpu", "cuda:77"])
def test_unavailable_device_is_refused_by_name(trained_run: Path, wanted: str) -> None:
    for use in (load.load, partial(load.load, precision="float32"), load.kept_precision):
        with pytest.raises(UsageError, match=f"device: '{wanted}' cannot be used here"):
            use(trained_run, device=wanted)
    with pytest.raises(UsageError, match=f"device: '{wanted}' cannot be used here"):
        evaluate(trained_run, device=wanted, precision="float32")


def test_out_of_memory_during_a_step_gives_advice(trained_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def too_large(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(losses, "summed_loss", too_large)
    with pytest.raises(PenwrightError, match=r"smaller model\.size.*training\.batch_tokens"):
        resume(trained_run, {"training": {"steps": 2}})


def test_resuming_a_run_killed_while_reading_gives_advice(trained_run: Path) -> None:
    (trained_run / CORPUS).unlink()
    with pytest.raises(PenwrightError, match="Repeat the command that started it"):
        resume(trained_run, {})


def test_missing_checkpoint_names_the_existing_ones(trained_run: Path) -> None:
    with pytest.raises(PenwrightError, match=r"no checkpoint step-00000009\..*step-00000002"):
        load.open_run(trained_run / "checkpoints" / "step-00000009")


def test_training_reports_a_model_that_does_not_beat_its_baselines(trained_run: Path) -> None:
    class Listener(Observer):
        words: ClassVar[list[str]] = []

        def message(self, text: str) -> None:
            self.words.append(text)

    sizes = {"d_model": 16, "n_layers": 1, "n_heads": 1, "context_length": 32}
    requested = {"task": "generate", "data": {"train": ["novel.txt"]}, "model": sizes, "training": {"steps": 1}}
    train(prepare(requested), Path("brief"), [Listener()])
    assert any(word.startswith("not beaten: nats per token") for word in Listener.words)
    assert Listener.words[-1].endswith(", and needs more minutes, or more text")
    for steps, content, has_verdict in ((2, None, True), (3, '{"scores": [{"name": 1}]}', False), (4, "{", False)):
        Listener.words.clear()
        if content is not None:
            Path("brief", BASELINES).write_text(content)
        resume(Path("brief"), {"training": {"steps": steps}}, [Listener()])
        assert any(word.startswith("not beaten: nats per token") for word in Listener.words) == has_verdict


def test_run_of_a_different_kind_is_refused_before_its_model_is_read(
    trained_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CheckpointFolder, "read_best", lambda *_: pytest.fail("the weights were read"))
    with pytest.raises(UsageError, match="run holds a writer; `translate` needs a translator"):
        load.load_translator(trained_run)


def unbeaten(run: Run, step: int, *baselines: Score, n_held_out: int = 100) -> list[str]:
    """Return the messages about baselines that a classifier does not beat."""
    context = Mock(spec=RunContext, recipe=Mock(task="classify"), held_out=range(n_held_out), skips_training=not step)
    return list(verdicts(run, context, step, baselines))


def test_score_that_is_not_finite_does_not_beat_the_baselines(trained_run: Path) -> None:
    run = Run(trained_run)
    run.append("metrics.jsonl", {"step": 10**6, "nats per token": float("nan"), "epoch": 2.0})
    (message,) = unbeaten(run, 10**6, Score("nats per token", 3.0))
    assert message.startswith("not beaten: nats per token 3.000") and "The model has nan, and needs more" in message


def test_fine_tuned_writer_worse_than_n_grams_may_do_better_from_scratch(trained_run: Path) -> None:
    run = Run(trained_run)
    run.append("metrics.jsonl", {"step": 10**6, "nats per token": 4.0, "epoch": 0.1})
    ngrams, base = (
        Score("nats per token", 3.0, note=note) for note in ("Kneser-Ney 5-gram", "base, before fine-tuning")
    )
    first, second = unbeaten(run, 10**6, ngrams, base)
    assert first.endswith("more text. Also try without --from") and second.endswith("more text")


def test_model_is_not_judged_by_differences_that_may_be_due_to_chance(trained_run: Path) -> None:
    run = Run(trained_run)
    for step in (0, 10**6):
        run.append("metrics.jsonl", {"step": step, "accuracy": 80.0, "macro-F1": 80.0})
        both = (
            Score("accuracy", 80.0, True, standard_error=4.0, note="linear"),
            Score("macro-F1", 82.0, True, "linear"),
        )
        assert not unbeaten(run, step, *both)
        assert not unbeaten(run, step, Score("accuracy", 80.0, True), Score("accuracy", 83.0, True, standard_error=4.0))
        (message,) = unbeaten(run, step, Score("accuracy", 85.0, True, standard_error=4.0))
        assert message.startswith("not beaten: accuracy 85.000") and "before fine-tuning" not in message
    level = [Score(name, 78.0, True, "linear classifier of n-grams", 4.0) for name in ("accuracy", "macro-F1")]
    (message,) = unbeaten(run, 10**6, *level)
    assert "level with the linear classifier" in message and "accuracy 80.000 and 78.000" in message
    (message,) = unbeaten(run, 0, Score("accuracy", 99.0, True), n_held_out=4)
    assert message.startswith("4 held-out texts: too few")


def test_each_baseline_is_judged_by_its_own_standard_error(trained_run: Path) -> None:
    run, errors = Run(trained_run), {"balanced accuracy": 8.0, "macro-F1": None, "accuracy": 0.4}
    run.append("metrics.jsonl", {"step": 10**6, **dict.fromkeys(errors, 74.0)})
    (message,) = unbeaten(run, 10**6, *(Score(name, 75.0, True, "bag", error) for name, error in errors.items()))
    assert message.startswith("not beaten: accuracy 75.000")


def test_overfitting_is_detected_from_the_evaluations(trained_run: Path) -> None:
    run, step = Run(trained_run), Run(trained_run).checkpoints.last_step()
    run.append("metrics.jsonl", {"step": step, "nats per token": 3.0})
    assert not is_overfitted(run.records("metrics.jsonl"), step, step)
    (run.folder / "metrics.jsonl").write_text(
        f'{{"step": 1, "nats per token": 1.0}}\n{{"step": {step}, "nats per token": 1.1}}\n'
    )
    assert is_overfitted(run.records("metrics.jsonl"), step, 1)
    run.append("metrics.jsonl", {"step": step, "nats per token": 1.1, "epoch": 0.5})
    assert not is_overfitted(run.records("metrics.jsonl"), step, 1), "the text has not been read once"


@pytest.mark.parametrize(("budget", "n_evaluated"), [({"steps": 1}, 4), ({"minutes": 0.015}, 3)])
def test_evaluations_translate_a_sample_of_many_held_out_pairs(
    trained_run: Path, monkeypatch: pytest.MonkeyPatch, budget: dict[str, float], n_evaluated: int
) -> None:
    class Listener(Observer):
        words: ClassVar[list[str]] = []

        def message(self, text: str) -> None:
            self.words.append(text)

    monkeypatch.setattr(translation, "MOST_EVALUATED", 4)
    translated: list[int] = []
    monkeypatch.setattr(
        translation, "_translate", lambda _, pairs, beam_size: translated.append(len(pairs)) or ["" for _ in pairs]
    )
    for name, n in (("pairs.tsv", 60), ("valid.tsv", 10)):
        Path(name).write_text("".join(f"{name} {i}\tein {i} {name}\n" for i in range(n)), encoding="utf-8")
    sizes = {"d_model": 16, "n_layers": 1, "n_heads": 1, "context_length": 32}
    data = {"train": ["pairs.tsv"], "validation": ["valid.tsv"]}
    requested = {"task": "translate", "data": data, "model": sizes, "tokenizer": {"type": "bytes"}}
    train(prepare({**requested, "training": budget}), Path("brief"), [Listener()])
    assert max(translated) == n_evaluated
    assert any(f"{n_evaluated} of the 10 held-out pairs" in word for word in Listener.words)


def test_writer_is_calibrated_at_the_end_of_training(trained_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Listener(Observer):
        words: ClassVar[list[str]] = []

        def message(self, text: str) -> None:
            self.words.append(text)

    sizes = {"d_model": 16, "n_layers": 1, "n_heads": 1, "context_length": 32}
    requested = {"task": "generate", "data": {"train": ["novel.txt"]}, "model": sizes, "training": {"steps": 30}}
    for name, least in (("as-trained", 1.0), ("calibrated", 0.0)):
        monkeypatch.setattr(generation, "LEAST_DECREASE", least)
        train(prepare(requested), Path(name), [Listener()])
    (message,) = (word for word in Listener.words if "multiplying its logits by" in word)
    factor = float(message.split("logits by ")[1].split()[0])
    before, after = (open_run(name).weights() for name in ("as-trained", "calibrated"))
    assert {name for name in before if not torch.equal(before[name], after[name])} == {"decoder.norm.weight"}
    torch.testing.assert_close(after["decoder.norm.weight"], factor * before["decoder.norm.weight"])
    expected, scores = (evaluate(Path(name)) for name in ("as-trained", "calibrated"))
    assert factor != 1 and ("unsure" in message) == (factor > 1)
    assert Run(Path("calibrated")).records("metrics.jsonl")[-1]["nats per token"] == pytest.approx(scores[0].value)
    assert scores[0].value < expected[0].value


@pytest.mark.parametrize("change", ["post-norm", "bias", "diverged", "lora", "imported", "none"])
def test_only_new_writers_with_a_final_norm_are_calibrated(
    trained_run: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    opened_run = open_run(trained_run)
    model, recipe = opened_run.model(), opened_run.recipe
    assert isinstance(model, DecoderOnly)
    if change == "post-norm":
        model.decoder.norm = torch.nn.Identity()
    if change == "bias":
        model.output.bias = torch.nn.Parameter(torch.zeros(len(model.output.weight)))
    if change == "diverged":
        torch.nn.init.constant_(model.output.weight, torch.nan)
    if change == "lora":
        recipe = recipe.model_copy(update={"lora": LoraSettings(rank=1)})
    if change == "imported":
        recipe = recipe.model_copy(update={"tokenizer": recipe.tokenizer.model_copy(update={"type": "imported"})})
    context = evaluation_context(opened_run, open_corpus_of(opened_run), model)
    monkeypatch.setattr(generation, "LEAST_DECREASE", 0.0)
    assert (generation.calibrate(replace(context, recipe=recipe)) != "") == (change == "none")


@pytest.mark.parametrize("budget", [{"steps": 1}, {"minutes": 1 / 300}])
def test_evaluations_sample_windows_of_a_large_held_out_text(
    trained_run: Path, monkeypatch: pytest.MonkeyPatch, budget: dict[str, float]
) -> None:
    class Listener(Observer):
        words: ClassVar[list[str]] = []

        def message(self, text: str) -> None:
            self.words.append(text)

    monkeypatch.setattr(generation, "MOST_EVALUATED", 1000 if "steps" in budget else 2000)
    monkeypatch.setattr(generation, "EVALUATED_PER_MINUTE", 300_000)  # 1,000 tokens in a fifth of a second
    lines = "".join(f"It was a bright day, the {n * 7 % 90}th.\n" for n in range(300))
    Path("valid.txt").write_text(lines, encoding="utf-8")
    sizes = {"d_model": 16, "n_layers": 1, "n_heads": 1, "context_length": 32}
    data = {"train": ["novel.txt"], "validation": ["valid.txt"]}
    requested = {"task": "generate", "data": data, "model": sizes, "training": {**budget, "batch_tokens": 64}}
    train(prepare(requested), Path("brief"), [Listener()])
    assert any("one in 10 windows" in word for word in Listener.words)
    during_training, whole = Run(Path("brief")).records("metrics.jsonl")[-1], evaluate(Path("brief"))
    for score in whole:
        assert (
            during_training[score.name] == pytest.approx(score.value, rel=0.03)
            and during_training[score.name] != score.value
        )


@pytest.mark.parametrize(
    ("tokenizer", "precision", "is_mixed"),
    [("imported", "bfloat16", True), ("imported", "float32", False), ("bytes", "bfloat16", False)],
)
def test_quick_evaluations_of_imported_models_use_the_precision_of_training(
    trained_run: Path, tokenizer: str, precision: str, is_mixed: bool
) -> None:
    opened = open_run(Path("run"))
    context = evaluation_context(opened, open_corpus_of(opened), opened.model())
    exact = generation.quick_evaluate(context)
    tokenizer_settings = context.recipe.tokenizer.model_copy(update={"type": tokenizer})
    training = context.recipe.training.model_copy(update={"precision": precision})
    context.recipe = context.recipe.model_copy(update={"tokenizer": tokenizer_settings, "training": training})
    with context.quick_precision():
        assert torch.is_autocast_enabled("cpu") is is_mixed
    for score, other in zip(exact, generation.quick_evaluate(context), strict=True):
        assert (score.value != other.value) is is_mixed
        assert score.value == pytest.approx(other.value, rel=0.02)


def test_resuming_with_other_data_is_refused(trained_run: Path) -> None:
    Path("other.txt").write_text("something else\n" * 99, encoding="utf-8")
    with pytest.raises(PenwrightError, match=r"on novel\.txt, not on other\.txt"):
        resume(trained_run, {"data": {"train": ["other.txt"]}, "training": {"steps": 1}})


def test_another_process_takes_two_compiled_steps_and_saves_nothing_in_the_run(
    trained_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[bool] = []
    monkeypatch.setattr("penwright.training.trainer.compile_blocks", lambda model, dynamic: compiled.append(dynamic))
    monkeypatch.setenv(INDUCTOR_CACHE_VARIABLE, str(tmp_path))
    before = {path: path.stat().st_mtime_ns for path in trained_run.rglob("*")}
    run = Run.open(trained_run)
    assert not compile_training._marker(run.recipe).exists()
    compile_training.compile_first_steps(run, torch.get_num_threads())
    assert compiled == [False]  # windows of running text have one shape
    assert {path: path.stat().st_mtime_ns for path in trained_run.rglob("*")} == before
    assert compile_training._marker(run.recipe).exists()


def test_failed_compilation_in_another_process_is_not_taken_for_done(
    trained_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def warn_and_step(trainer: Trainer) -> Iterator[None]:
        warn("compilation failed, so training continues without it", PenwrightWarning, stacklevel=2)
        yield None

    monkeypatch.setattr(Trainer, "compile", lambda trainer: None)
    monkeypatch.setattr(Trainer, "steps", warn_and_step)
    monkeypatch.setenv(INDUCTOR_CACHE_VARIABLE, str(tmp_path))
    run = Run.open(trained_run)
    with pytest.raises(PenwrightWarning):
        compile_training.compile_first_steps(run, torch.get_num_threads())
    assert not compile_training._marker(run.recipe).exists()
