from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from penwright.config import Recipe, Table, validate
from penwright.errors import PenwrightError, UsageError
from penwright.run.folder import Run
from penwright.tasks import TASKS, generation, reading_of, translation
from penwright.training.auto.planner import Plan
from penwright.training.distributed import parallel
from penwright.training.observers import Observer
from penwright.workflows import load
from penwright.workflows import resume as resume_workflow
from penwright.workflows import train as train_workflow
from penwright.workflows.evaluate import evaluate
from penwright.workflows.plan import new_run_folder, prepare, read_recipe
from penwright.workflows.resume import resume
from penwright.workflows.train import train


@pytest.mark.parametrize(
    ("above", "training"),
    [({}, {"minutes": 5, "keep": 1}), ({"training": {"steps": 9}}, {"keep": 1})],
)
def test_a_budget_laid_over_a_recipe_replaces_its_own(
    tmp_path: Path, above: dict[str, dict[str, int]], training: dict[str, int]
) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text("[training]\nminutes = 5\nkeep = 1\n", encoding="utf-8")
    assert read_recipe(path, above) == {"training": training}


def test_the_tokenizer_of_a_large_text_is_trained_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENWRIGHT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(train_workflow, "LARGE", 1)
    text = tmp_path / "text.txt"
    text.write_text("".join(f"Line {n} of a short text.\n" for n in range(300)), encoding="utf-8")
    table = {"data": {"train": [str(text)]}, "tokenizer": {"type": "bpe", "vocab_size": 9000}, "training": {"steps": 1}}
    recipe = validate(Recipe, {"task": "generate", "model": {}, **table}, "here")
    corpus = TASKS["generate"].open_corpus(recipe.data.train, reading_of(recipe))
    heard = Saying()
    first = train_workflow._tokenizer(recipe, corpus, [heard])
    monkeypatch.setattr(train_workflow, "train_tokenizer", None)
    again = train_workflow._tokenizer(recipe, corpus, [heard])
    assert again.content == first.content
    assert sum("only supports a vocabulary" in line for line in heard.texts) == 2


def test_a_new_run_is_named_after_its_text_and_never_one_that_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
def test_another_number_of_processes_is_told_when_a_run_goes_on(before: int | None, now: int, words: list[str]) -> None:
    said = " ".join(resume_workflow._changed_processes(before, now))
    assert bool(said) == bool(words) and all(word in said for word in words)


@pytest.mark.parametrize(
    ("text", "name"),
    [("src/**/*.py", "src"), ("*.txt", "run"), ("/**/*.txt", "run"), ("War and Peace.txt", "War and Peace")],
)
def test_a_run_of_a_pattern_is_named_after_the_folder_before_it(text: str, name: str) -> None:
    table = {"task": "generate", "data": {"train": text}, "model": {}, "training": {"steps": 1}}
    assert new_run_folder(validate(Recipe, table, "here")) == Path("runs") / name


def test_settings_that_depend_on_what_is_chosen_can_be_given_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("novel.txt").write_text("".join(f"It was a dark night, the {n}th.\n" for n in range(300)), encoding="utf-8")
    given = {"data": {"train": "novel.txt"}, "training": {"steps": 1}, "schedule": {"cooldown_fraction": 0.3}}
    asked = {**given, "optimizer": {"adamw": {"learning_rate": 0.01}}, "model": {"n_heads": 8}}
    recipe = prepare(asked).plan.recipe
    assert (recipe.schedule.type, recipe.optimizer.type, recipe.model.n_heads) == ("wsd", "muon", 8)
    assert recipe.schedule.cooldown_fraction == 0.3 and recipe.optimizer.adamw.learning_rate == 0.01
    with pytest.raises(UsageError, match=r"\[schedule\] has no key 'cooldown_fractoin'"):
        prepare({**given, "schedule": {"cooldown_fractoin": 0.3}})


def test_a_run_finds_its_text_from_other_folders_and_after_both_were_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there, elsewhere = tmp_path / "here", tmp_path / "there", tmp_path / "elsewhere"
    here.mkdir()
    elsewhere.mkdir()
    (elsewhere / "nov.txt").write_text("Something else of that name, which is not meant.\n", encoding="utf-8")
    (here / "novel.txt").write_text("".join(f"It was a dark night, the {n}th.\n" for n in range(300)), encoding="utf-8")
    monkeypatch.chdir(here)
    sizes = {"d_model": 16, "n_layers": 1, "n_heads": 1, "context_length": 32}
    asked = {"task": "generate", "data": {"train": ["nov*.txt"]}, "model": sizes, "training": {"steps": 2}}
    train(prepare(asked), Path("runs/novel"))
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


class Saying(Observer):
    def __init__(self) -> None:
        self.texts: list[str] = []

    def said(self, text: str) -> None:
        self.texts.append(text)


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of two steps, trained where its text is."""
    monkeypatch.chdir(tmp_path)
    Path("novel.txt").write_text("".join(f"It was a dark night, the {n}th.\n" for n in range(300)), encoding="utf-8")
    sizes = {"d_model": 16, "n_layers": 1, "n_heads": 1, "context_length": 32}
    train(
        prepare({"task": "generate", "data": {"train": ["novel.txt"]}, "model": sizes, "training": {"steps": 2}}),
        Path("run"),
    )
    return Path("run")


@pytest.mark.parametrize("checks", [{"WATCHED": 1e-6}, {"CHECK_EVERY": 0.0}], ids=["a single check", "many checks"])
@pytest.mark.parametrize(("pace", "width"), [(1.0, 24), (1e9, 16)], ids=["much faster than planned", "as planned"])
def test_a_run_that_is_much_faster_than_planned_starts_again_with_a_larger_model(
    trained: Path, monkeypatch: pytest.MonkeyPatch, pace: float, width: int, checks: dict[str, float]
) -> None:
    def settings(width: int, **budget: float) -> Table:
        sizes = {"d_model": width, "n_layers": 1, "n_heads": 1, "context_length": 32, "dropout": 0.1}
        return {"task": "generate", "data": {"train": ["novel.txt"]}, "model": sizes, "training": budget}

    for name, value in checks.items():
        monkeypatch.setattr(train_workflow, name, value)
    asked = []

    def replan(minutes: float) -> Plan:
        asked.append(minutes)
        return prepare(settings(24, steps=4)).plan

    prepared, said = prepare(settings(16, minutes=0.03, evaluate_every=30)), Saying()
    prepared = replace(prepared, replan=replan, plan=prepared.plan._replace(tokens=2 * pace))
    train(prepared, Path("watched"), [said])
    run = Run.open(Path("watched"))
    assert run.recipe.model.d_model == width
    assert any("starting again" in text for text in said.texts) == (width == 24)
    if width == 24:
        train(prepare(settings(24, steps=4)), Path("fresh"))  # the recipe alone describes what was trained
        fresh = Run.open(Path("fresh"))
        assert 0 < asked[0] < 0.03 and run.best_step() == fresh.best_step() == 4
        found, wanted = run.best()[0].weights(), fresh.best()[0].weights()
        assert all(torch.equal(found[name], wanted[name]) for name in wanted)
        steps = [[(each["step"], each["loss"]) for each in which.records("steps.jsonl")] for which in (run, fresh)]
        assert steps[0] == steps[1]


def test_what_was_trained_on_is_not_measured_as_held_out(trained: Path) -> None:
    with pytest.raises(PenwrightError, match=r"how the data is read"):
        evaluate(trained, changes={"data": {"held_out": 0.5}})
    text = Path("novel.txt").read_text(encoding="utf-8")
    Path("novel.txt").write_text(text[: len(text) // 2], encoding="utf-8")
    with pytest.raises(PenwrightError, match=r"novel\.txt changed since.*name (other|different) files"):
        evaluate(trained)
    assert evaluate(trained, ["novel.txt"])


@pytest.mark.parametrize("moved", ["../moved/novel.txt", ["../moved/novel.txt"]], ids=["a file", "a list"])
def test_what_changes_when_a_run_goes_on_stays_changed(
    trained: Path, moved: str | list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("moved").mkdir()
    Path("novel.txt").rename("moved/novel.txt")
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    changes = {"data": {"train": moved}, "training": {"steps": 2}, "decoding": {"temperature": 0.3}}
    resume(Path("..") / trained, changes)
    monkeypatch.chdir("..")
    recipe = Run(trained).recipe
    assert recipe.data.train == ("moved/novel.txt",) and recipe.decoding.temperature == 0.3
    assert evaluate(trained)


@pytest.mark.parametrize("wanted", ["gpu", "cuda:77"])
def test_a_device_that_is_not_here_is_refused_by_name(trained: Path, wanted: str) -> None:
    for use in (load.load, partial(load.load, precision="float32"), load.kept_precision):
        with pytest.raises(UsageError, match=f"device: '{wanted}' cannot be used here"):
            use(trained, device=wanted)
    with pytest.raises(UsageError, match=f"device: '{wanted}' cannot be used here"):
        evaluate(trained, device=wanted, precision="float32")


def test_a_step_that_a_gpu_cannot_hold_ends_with_advice(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def too_large(*asked: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(parallel, "summed_loss", too_large)
    with pytest.raises(PenwrightError, match=r"smaller model\.size.*training\.batch_tokens"):
        resume(trained, {"training": {"steps": 2}})


def test_a_run_that_was_killed_while_its_text_was_read_says_what_to_do(trained: Path) -> None:
    (trained / load.CORPUS).unlink()
    with pytest.raises(PenwrightError, match="Repeat the command that started it"):
        resume(trained, {})


def test_a_checkpoint_that_is_gone_names_those_that_are_there(trained: Path) -> None:
    with pytest.raises(PenwrightError, match=r"no checkpoint step-00000009\..*step-00000002"):
        load.open_run(trained / "checkpoints" / "step-00000009")


def test_a_model_that_does_not_beat_its_baselines_ends_with_a_word_about_it(trained: Path) -> None:
    class Listener(Observer):
        words: ClassVar[list[str]] = []

        def said(self, text: str) -> None:
            self.words.append(text)

    sizes = {"d_model": 16, "n_layers": 1, "n_heads": 1, "context_length": 32}
    asked = {"task": "generate", "data": {"train": ["novel.txt"]}, "model": sizes, "training": {"steps": 1}}
    train(prepare(asked), Path("brief"), [Listener()])
    assert any(word.startswith("not beaten: nats per token") for word in Listener.words)
    assert Listener.words[-1].endswith("The model needs more minutes, or more text")


def test_a_model_that_over_fitted_is_not_told_to_take_more_minutes(trained: Path) -> None:
    run, step = Run(trained), Run(trained).last_step()
    run.append("metrics.jsonl", {"step": step, "nats per token": 3.0})
    assert not train_workflow.is_over_fitted(run, step)
    (run.folder / "metrics.jsonl").write_text(
        f'{{"step": 1, "nats per token": 1.0}}\n{{"step": {step}, "nats per token": 1.1}}\n'
    )
    assert train_workflow.is_over_fitted(run, 1)


def test_looks_translate_some_of_many_held_out_pairs_and_say_so(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Listener(Observer):
        words: ClassVar[list[str]] = []

        def said(self, text: str) -> None:
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
    asked = {"task": "translate", "data": data, "model": sizes, "tokenizer": {"type": "bytes"}}
    train(prepare({**asked, "training": {"steps": 1}}), Path("brief"), [Listener()])
    assert max(translated) == 4 and any("4 of the 10 held-out pairs" in word for word in Listener.words)


def test_looks_read_some_windows_of_much_held_out_text_as_if_they_were_all(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Listener(Observer):
        words: ClassVar[list[str]] = []

        def said(self, text: str) -> None:
            self.words.append(text)

    monkeypatch.setattr(generation, "MOST_EVALUATED", 1000)
    lines = "".join(f"It was a bright day, the {n * 7 % 90}th.\n" for n in range(300))
    Path("valid.txt").write_text(lines, encoding="utf-8")
    sizes = {"d_model": 16, "n_layers": 1, "n_heads": 1, "context_length": 32}
    data = {"train": ["novel.txt"], "validation": ["valid.txt"]}
    asked = {"task": "generate", "data": data, "model": sizes, "training": {"steps": 1, "batch_tokens": 64}}
    train(prepare(asked), Path("brief"), [Listener()])
    assert any("one in 10 windows" in word for word in Listener.words)
    looked, whole = Run(Path("brief")).records("metrics.jsonl")[-1], evaluate(Path("brief"))
    for score in whole:
        assert looked[score.name] == pytest.approx(score.value, rel=0.01) and looked[score.name] != score.value


def test_other_data_than_that_of_the_run_is_called_so(trained: Path) -> None:
    Path("other.txt").write_text("something else\n" * 99, encoding="utf-8")
    with pytest.raises(PenwrightError, match=r"on novel\.txt, not on other\.txt"):
        resume(trained, {"data": {"train": ["other.txt"]}, "training": {"steps": 1}})
