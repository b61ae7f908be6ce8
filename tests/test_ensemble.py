import shutil
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from penwright.application import Application
from penwright.config import Table, merge
from penwright.errors import Interrupted, PenwrightError, UsageError
from penwright.run.checkpoint_folder import CheckpointFolder
from penwright.run.folder import Run
from penwright.training.auto import planner
from penwright.training.observers import Observer
from penwright.workflows import ensemble
from penwright.workflows.plan import Prepared, prepare
from penwright.workflows.resume import resume
from penwright.workflows.train import train

TINY: Table = {
    "tokenizer": {"type": "characters"},
    "model": {"d_model": 16, "n_layers": 1, "n_heads": 1, "context_length": 16},
    "training": {"steps": 4, "batch_tokens": 64, "evaluate_every": 4, "prompts": ["a"]},
    "decoding": {"max_new_tokens": 2},
}


def no_observers(folder: Path, prepared: Prepared | None) -> list[Observer]:
    return []


@pytest.fixture
def settings(tmp_path: Path) -> Table:
    text = tmp_path / "text.txt"
    text.write_text("".join(f"line {n} of a text, {n * 7 % 13} and so on\n" for n in range(400)), encoding="utf-8")
    return {**TINY, "data": {"train": [str(text)]}}


def test_members_share_the_held_out_part_and_teach_one_student(settings: Table, tmp_path: Path) -> None:
    ensemble.train_ensemble(settings, 2, tmp_path / "all", no_observers)
    runs = [Run.open(tmp_path / name) for name in ("all-member-1", "all-member-2", "all")]
    assert len({run.recipe.seed for run in runs}) == 3
    assert len({str(run.recipe.data) for run in runs}) == 1 and runs[0].recipe.data.seed == 1
    assert runs[2].recipe.distillation is not None
    assert runs[2].recipe.distillation.teachers == tuple(str(run.folder) for run in runs[:2])
    assert all(run.is_finished for run in runs)


def test_only_members_are_trained_with_consistency(settings: Table, tmp_path: Path) -> None:
    consistent = merge(settings, {"training": {"consistency": 0.5}, "model": {"dropout": 0.1}})
    for _ in range(2):  # the second time, the settings are compared with those of the runs
        ensemble.train_ensemble(consistent, 2, tmp_path / "all", no_observers)
    runs = [Run.open(tmp_path / name) for name in ("all-member-1", "all-member-2", "all")]
    assert [run.recipe.training.consistency for run in runs] == [0.5, 0.5, 0.0]


def test_repeated_call_resumes_a_stopped_ensemble(
    settings: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[str] = []

    def stop_at_the_second(first_call: bool) -> Callable[..., Application]:
        def train_one(prepared: Prepared, folder: Path, observers: Sequence[Observer] = ()) -> Application:
            if first_call and trained:
                raise Interrupted("stopped")
            trained.append(folder.name)
            return train(prepared, folder, observers)

        return train_one

    monkeypatch.setattr(ensemble, "train", stop_at_the_second(True))
    with pytest.raises(Interrupted, match="same command"):
        ensemble.train_ensemble(settings, 2, tmp_path / "all", no_observers)
    monkeypatch.setattr(ensemble, "train", stop_at_the_second(False))
    ensemble.train_ensemble(settings, 2, tmp_path / "all", no_observers)
    assert trained == ["all-member-1", "all-member-2", "all"]


def test_stop_signal_in_the_last_evaluation_of_a_member_ends_the_ensemble(settings: Table, tmp_path: Path) -> None:
    class SignalsInEvaluation(Observer):
        def evaluated(self, *_: object) -> None:
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(Interrupted, match="same command"):
        ensemble.train_ensemble(settings, 2, tmp_path / "all", lambda *_: [SignalsInEvaluation()])
    assert Run.open(tmp_path / "all-member-1").is_finished and not (tmp_path / "all-member-2").exists()


def test_call_with_other_settings_does_not_resume_the_ensemble(settings: Table, tmp_path: Path) -> None:
    others: dict[str, Table] = {
        r"training\.steps": {"training": {"steps": 5}},
        "seed": {"seed": 7},
        r"model\.d_model": {"model": {"d_model": 32}},
        r"data\.held_out": {"data": {"held_out": 0.2}},
    }
    for _ in range(2):  # the second time, nothing is left to do
        ensemble.train_ensemble(settings, 2, tmp_path / "all", no_observers)
    assert Run.open(tmp_path / "all").checkpoints.newest()[0].step == 4
    for what, other in others.items():
        with pytest.raises(PenwrightError, match=rf"member-1 was begun with a different {what}\."):
            ensemble.train_ensemble(merge(settings, other), 2, tmp_path / "all", no_observers)
    for member in tmp_path.glob("all-member-*"):  # as a user may do to free disk space
        shutil.rmtree(member)
    ensemble.train_ensemble(settings, 2, tmp_path / "." / "all", no_observers)
    del others["seed"]  # the student's seed is the first one
    for what, other in others.items():
        with pytest.raises(PenwrightError, match=rf"all was begun with a different {what}\."):
            ensemble.train_ensemble(merge(settings, other), 2, tmp_path / "all", no_observers)
    assert not list(tmp_path.glob("all-member-*"))


def test_member_that_began_again_with_fewer_minutes_is_continued(
    settings: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(prepare(settings), tmp_path / "one")
    stored = Run.open(tmp_path / "one").recipe
    training = stored.training.model_copy(update={"steps": None, "minutes": 0.7})
    monkeypatch.setattr(Run, "recipe", stored.model_copy(update={"training": training}))
    asked = merge(settings, {"training": {"steps": None, "minutes": 1.0}})
    ensemble._require_settings(tmp_path / "one", asked)
    with pytest.raises(PenwrightError, match=r"a different training\.batch_tokens"):
        ensemble._require_settings(tmp_path / "one", merge(asked, {"training": {"batch_tokens": 9}}))


def test_ensemble_of_regression_models_is_continued_and_encoders_are_refused(tmp_path: Path) -> None:
    table = tmp_path / "stars.tsv"
    table.write_text("stars\ttext\n" + "".join(f"{n % 5}\tword {n} is {'good ' * (n % 5)}\n" for n in range(60)))
    scored = merge(TINY, {"task": "score", "data": {"train": [str(table)]}, "training": {"batch_tokens": 256}})
    for _ in range(2):
        ensemble.train_ensemble(scored, 2, tmp_path / "all", no_observers)
    with pytest.raises(UsageError, match="--ensemble is not possible for the task encode"):
        ensemble.train_ensemble({**scored, "task": "encode"}, 2, tmp_path / "other", no_observers)


def test_folder_of_another_run_is_refused_before_training(settings: Table, tmp_path: Path) -> None:
    train(prepare(settings), tmp_path / "all")
    with pytest.raises(PenwrightError, match="not an ensemble of 2"):
        ensemble.train_ensemble(settings, 2, tmp_path / "all", no_observers)
    (tmp_path / "else").mkdir()
    (tmp_path / "else" / "letter.txt").write_text("Dear reader,\n")
    with pytest.raises(PenwrightError, match="else is not empty"):
        ensemble.train_ensemble(settings, 2, tmp_path / "else", no_observers)
    assert not list(tmp_path.glob("*-member-*"))


def test_student_uses_the_tokenizer_of_its_teachers(settings: Table, tmp_path: Path) -> None:
    pieces = {"type": "bpe", "vocab_size": 300}
    teacher = prepare({**settings, "tokenizer": pieces})
    train(teacher, tmp_path / "one")
    student = {key: value for key, value in settings.items() if key != "tokenizer"}
    plan = prepare({**student, "distillation": {"teachers": [str(tmp_path / "one")]}}).plan
    assert plan.size.training_bytes > teacher.plan.size.training_bytes  # the teacher takes memory, too
    assert plan.recipe.tokenizer.type == "bpe" and plan.recipe.tokenizer.vocab_size == 300


def test_members_share_half_of_the_minutes() -> None:
    settings: Table = {"training": {"minutes": 12}}
    members = [ensemble.member_settings(settings, 3, number)["training"]["minutes"] for number in (1, 2, 3)]
    assert sum(members) == pytest.approx(6)
    assert "minutes" not in ensemble.member_settings({"training": {"steps": 5}}, 3, 1)["training"]


def test_teacher_with_another_vocabulary_is_refused(settings: Table, tmp_path: Path) -> None:
    other = tmp_path / "other.txt"
    other.write_text("völlig anderer Text\n" * 200, encoding="utf-8")
    train(prepare(settings), tmp_path / "one")
    train(prepare({**settings, "data": {"train": [str(other)]}}), tmp_path / "two")
    teachers = {"teachers": [str(tmp_path / "one"), str(tmp_path / "two")]}
    with pytest.raises(PenwrightError, match="two cannot teach"):
        train(prepare({**settings, "distillation": teachers}), tmp_path / "three")


def test_member_killed_before_its_first_checkpoint_restarts(
    settings: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def kill(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(CheckpointFolder, "save", kill)
        ensemble.train_ensemble(settings, 2, tmp_path / "all", no_observers)
    assert not Run(tmp_path / "all-member-1").checkpoints.all()
    ensemble.train_ensemble(settings, 2, tmp_path / "all", no_observers)
    assert Run(tmp_path / "all").is_finished


def test_teacher_trained_on_held_out_text_is_refused(settings: Table, tmp_path: Path) -> None:
    text = {"train": settings["data"]["train"], "held_out": 0.2}
    train(prepare(settings), tmp_path / "one")
    with pytest.raises(PenwrightError, match="held out in this run"):
        train(
            prepare({**settings, "data": text, "distillation": {"teachers": [str(tmp_path / "one")]}}), tmp_path / "two"
        )


def test_student_resumes_from_another_working_directory(
    settings: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ensemble.train_ensemble(settings, 2, Path("all"), no_observers)
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    resume(Path("../all"), {"training": {"steps": 2}})
    assert Run(tmp_path / "all").checkpoints.newest()[0].step == 6


def test_choices_of_the_first_member_apply_to_all(
    settings: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The choice of a character tokenizer depends on a measured speed, which varies between measurements."""
    answers = iter([True, False, False])
    monkeypatch.setattr(planner._Planner, "_prefers_characters", lambda _: next(answers))
    requested = {name: table for name, table in settings.items() if name != "tokenizer"}
    ensemble.train_ensemble(requested, 2, tmp_path / "all", no_observers)
    recipes = [Run.open(tmp_path / name).recipe for name in ("all-member-1", "all-member-2", "all")]
    assert {recipe.tokenizer.type for recipe in recipes} == {"characters"}
