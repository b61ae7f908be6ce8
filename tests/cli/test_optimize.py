"""`penwright optimize`, the precision it saves, and compilation in the background."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import PIPE, Popen
from threading import Event, Thread
from time import time
from unittest.mock import Mock
from warnings import catch_warnings

import pytest
import torch

from penwright.application import Application
from penwright.data.batches import Batch
from penwright.decoding import engine
from penwright.errors import PenwrightError, PenwrightWarning
from penwright.evaluation.perplexity import NegativeLogLikelihood
from penwright.generation.generator import Generator
from penwright.model import EncoderOnly, Model
from penwright.model.quantized import Int8Linear
from penwright.run.folder import Run
from penwright.tasks import RunContext
from penwright.translation.alignment import Aligner
from penwright.translation.translator import Translator
from penwright.workflows import background, optimize, train
from penwright.workflows.evaluate import evaluate, evaluation_context, open_corpus_of
from penwright.workflows.load import kept_precision, load, open_run
from penwright.workflows.plan import prepare

from .conftest import QUICK, Command


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The models whose steps would be compiled. Compiling takes a minute and is tested elsewhere."""
    models: list[object] = []
    monkeypatch.setattr(engine, "compile_steps", lambda model, say: models.append(model))
    return models


@pytest.mark.parametrize("run", ["writer", "translator"])
def test_optimize_saves_the_fastest_precision_without_loss(
    penwright: Command, runs: Path, tmp_path: Path, compiled: list[object], run: str
) -> None:
    folder = tmp_path / run
    shutil.copytree(runs / run, folder)
    nats = json.loads(penwright("optimize", folder, "--json").stdout)
    assert list(nats) == optimize.fastest_first()
    chosen = json.loads((folder / "quickened.json").read_text(encoding="utf-8"))["precision"]
    assert nats[chosen] <= nats["float32"] + 0.005
    assert len(compiled) == 1
    assert penwright("evaluate", folder, "--precision", "int8").returncode == 0


@pytest.fixture
def int8_run(penwright: Command, runs: Path, tmp_path: Path, compiled: list[object]) -> Path:
    """A writer optimized for int8, without compiled steps."""
    folder = tmp_path / "run"
    shutil.copytree(runs / "writer", folder)
    assert penwright("optimize", folder, "--precision", "int8").returncode == 0
    return folder


def test_evaluate_uses_the_saved_precision(penwright: Command, int8_run: Path) -> None:
    scores = {}
    for asked in ((), ("--precision", "int8"), ("--precision", "float32")):
        done = penwright("evaluate", int8_run, "--json", *asked)
        assert ("evaluating in int8" in done.stderr) == (asked == ())
        scores[asked[-1:]] = done.stdout
    assert scores[()] == scores["int8",] != scores["float32",]


def test_given_precision_overrides_the_saved_one(penwright: Command, int8_run: Path) -> None:
    quick = load(int8_run)
    exact = load(int8_run, precision="float32")
    assert isinstance(quick, Generator) and isinstance(exact, Generator)
    assert isinstance(quick.model.output, Int8Linear) and not isinstance(exact.model.output, Int8Linear)
    done = penwright("generate", int8_run, "It", "--max-new-tokens", 5)
    assert (done.returncode, done.stdout[:2], done.stderr) == (0, "It", "")


def test_int8_changes_the_loss_by_less_than_0_02_nats(runs: Path, compiled: list[object]) -> None:
    for run in ("writer", "translator"):
        found = {each: evaluate(runs / run, precision=each)[-1].value for each in ("float32", "int8")}
        assert abs(found["int8"] - found["float32"]) < 0.02, run


def test_optimize_refuses_a_classifier(penwright: Command, runs: Path) -> None:
    done = penwright("optimize", runs / "classifier")
    assert done.returncode == 2 and "no decoding steps" in done.stderr


@pytest.mark.parametrize(("allowed", "chosen"), [(1.0, "int8"), (-1.0, "float32")])
def test_training_chooses_int8_only_if_the_loss_does_not_rise(
    penwright: Command, corpora: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, allowed: float, chosen: str
) -> None:
    monkeypatch.setattr(optimize, "INT8_FROM", 0)
    monkeypatch.setattr(optimize, "fastest_first", lambda: ["int8", "float32"])
    monkeypatch.setattr(optimize, "MAX_LOSS_INCREASE", allowed)
    done = penwright("train", corpora / "novel.txt", "--steps", 2, "--run", tmp_path / "run", *QUICK)
    assert done.returncode == 0 and f"decoding uses {chosen}" in done.stderr
    assert kept_precision(tmp_path / "run") == chosen
    generator = load(tmp_path / "run", precision="float32")
    assert isinstance(generator, Generator) and not isinstance(generator.model.output, Int8Linear)


def test_a_large_model_is_measured_on_fewer_tokens(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(runs / "writer", tmp_path / "run")
    monkeypatch.setattr(optimize, "INT8_FROM", 0)
    monkeypatch.setattr(optimize, "fastest_first", lambda: ["int8", "float32"])
    monkeypatch.setattr(optimize, "FEW_TARGETS", 1)
    opened_run, n_targets = open_run(tmp_path / "run"), list[int]()
    context = evaluation_context(opened_run, open_corpus_of(opened_run), opened_run.model())
    measure = optimize.negative_log_likelihood

    def counted(model: Model, batches: Iterable[Batch], device: torch.device) -> NegativeLogLikelihood:
        total = measure(model, batches, device)
        n_targets.append(total.n_targets)
        return total

    monkeypatch.setattr(optimize, "negative_log_likelihood", counted)
    for medium in (0, 10**9):
        monkeypatch.setattr(optimize, "MEDIUM", medium)
        assert optimize.choose_precision(opened_run.run, context)
    assert n_targets[0] == n_targets[1] < n_targets[2] == n_targets[3]  # both precisions on the same tokens
    monkeypatch.setattr(RunContext, "is_slow", True)
    assert not optimize.choose_precision(opened_run.run, context)  # imported language models stay in float32
    assert len(n_targets) == 4


def test_small_models_decode_in_float32(runs: Path) -> None:
    assert not (runs / "writer" / "quickened.json").exists()


@pytest.fixture
def background_commands(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[list[str]]:
    """The commands of the background processes that would compile."""
    commands: list[list[str]] = []

    def start(command: list[str], **_: object) -> Mock:
        commands.append(command)
        return Mock(spec=Popen)

    monkeypatch.setattr(subprocess, "Popen", start)
    monkeypatch.setattr(background, "FEWEST_PARAMETERS", 0)
    monkeypatch.setattr(background.toolchain, "missing_requirement", str)
    monkeypatch.setattr(background, "n_processors", lambda: 1000)
    monkeypatch.setattr(background, "available_memory", lambda: 1e12)
    monkeypatch.setenv(background.SWITCH, "on")
    monkeypatch.setenv("PENWRIGHT_CACHE", str(tmp_path))  # an empty cache of compiled steps
    background.toolchain.trusted_folder()  # creates the folder
    return commands


def test_small_models_try_int8_only_if_their_steps_can_be_compiled(
    runs: Path, background_commands: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(optimize, "fastest_first", lambda: ["int8", "float32"])
    model = open_run(runs / "translator").model()
    assert optimize.expected_precision(model, torch.device("cpu")) == "int8"
    monkeypatch.setenv(background.SWITCH, "off")
    assert optimize.expected_precision(model, torch.device("cpu")) == "float32"
    monkeypatch.setenv(background.SWITCH, "on")
    monkeypatch.setattr(background.toolchain, "missing_requirement", lambda: "no compiler")
    assert optimize.expected_precision(model, torch.device("cpu")) == "float32"
    assert optimize.expected_precision(open_run(runs / "classifier").model(), torch.device("cpu")) == "float32"


def _use(application: Application) -> None:
    """Generate a token, or translate a text."""
    if isinstance(application, Translator):
        application.translate("eins", max_new_tokens=1)
    else:
        assert isinstance(application, Generator)
        application.generate("It", max_new_tokens=1)


def test_stopping_a_compilation_ends_its_processes() -> None:
    wait = "import time; print(flush=True); time.sleep(600)"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {wait!r}])"
    compiler = Popen([sys.executable, "-c", code], stdout=PIPE, start_new_session=True)
    assert compiler.stdout is not None
    with compiler.stdout as output:
        output.readline()  # the inner process runs
        background.kill_compiler(compiler)
        assert output.read() == b"", "both processes have closed their output"
    background.kill_compiler(compiler)  # it has already ended


@pytest.mark.parametrize("name", ["writer", "translator"])
def test_first_use_compiles_in_the_background(
    runs: Path, background_commands: list[list[str]], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(runs)  # the background process runs in another folder
    application = load(name)
    if isinstance(application, Translator):
        Aligner(application.model, application.tokenizer, None).align([("eins", "one")])
    else:
        assert isinstance(application, Generator)
        application.embed("It")
        application.next_logits([application.tokenizer.start_id, 5])
    assert not background_commands, "loading, embedding and scoring need no compiled steps"
    with pytest.warns(PenwrightWarning, match="compiled in the background"):
        _use(application)
    with catch_warnings(action="error"):
        _use(application)
    assert [command[-3:] for command in background_commands] == [[str(runs / name), "float32", "1"]]


def test_loaded_model_can_be_used_after_its_run_was_moved(
    runs: Path, background_commands: list[list[str]], tmp_path: Path
) -> None:
    application = load(shutil.copytree(runs / "writer", tmp_path / "run"))
    (tmp_path / "run").rename(tmp_path / "moved")
    _use(application)
    assert not background_commands


def test_compilation_note_while_a_shape_is_compiled(
    runs: Path, background_commands: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = open_run(runs / "writer").model()
    background.compile_in_background(Run.open(runs / "writer"), "float32")
    lock = background.toolchain.trusted_folder() / background.LOCK
    with lock.open("a") as held:
        background.fcntl.flock(held, background.fcntl.LOCK_EX)  # as the compiling process does
        assert "in the background" in background.compilation_note(model)
        with pytest.warns(PenwrightWarning, match="compiled in the background"):
            _use(load(runs / "writer"))
        other = open_run(runs / "translator").model()
        assert not background.is_compiling(other) and background.compilation_note(other) == ""
    assert background.compilation_note(model) == ""
    monkeypatch.setattr(background.toolchain, "missing_requirement", lambda: "no compiler")
    assert background.compilation_note(model).endswith(": no compiler")
    monkeypatch.setattr(background.engine, "are_steps_compiled", lambda _: True)
    assert background.compilation_note(model) == "decoding uses compiled steps"
    assert background.compilation_note(open_run(runs / "classifier").model()) == ""


def test_training_compiles_for_the_threads_of_later_processes(
    corpora: Path, tmp_path: Path, background_commands: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train, "WORTH_COMPILING", 0.0)
    training = {"minutes": 0.01, "threads": 2, "device": "cpu"}
    sizes = {"d_model": 16, "n_layers": 1, "n_heads": 1, "context_length": 32}
    torch.set_num_threads(1)
    prepared = prepare({"data": {"train": [str(corpora / "novel.txt")]}, "model": sizes, "training": training})
    assert torch.get_num_threads() == 2
    train.train(prepared, tmp_path / "run")
    assert torch.get_num_threads() == 1
    assert background_commands and {command[-1] for command in background_commands} == {"1"}


def test_background_compilation_leaves_the_rng_state_unchanged(
    runs: Path, background_commands: list[list[str]]
) -> None:
    before = torch.get_rng_state()
    assert background.compile_in_background(Run.open(runs / "writer"), "float32") and background_commands
    assert torch.equal(torch.get_rng_state(), before)


def test_no_compilation_if_disabled_or_already_running(
    runs: Path, background_commands: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run.open(runs / "writer")
    folder = background.toolchain.trusted_folder()
    with (folder / background.LOCK).open("w") as lock:
        background.fcntl.flock(lock, background.fcntl.LOCK_EX)
        assert not background.compile_in_background(run, "float32") and not background_commands
        assert background.compile_in_background(run, "float32", waits=True) and background_commands.pop()
    monkeypatch.setenv(background.SWITCH, "off")
    assert not background.compile_in_background(run, "float32", waits=True) and not background_commands


def test_process_that_waits_compiles_after_the_other_one(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, compiled = Run.open(runs / "writer"), Event()
    monkeypatch.setattr(background, "lower_priority", lambda: None)
    monkeypatch.setattr(background, "compile_decoding", lambda *_: compiled.set())
    path = background.toolchain.trusted_folder() / background.LOCK
    with path.open("w") as held, ThreadPoolExecutor(1) as pool:
        background.fcntl.flock(held, background.fcntl.LOCK_EX)
        its_own = os.open(path, os.O_WRONLY | os.O_APPEND)
        ended = pool.submit(background.main, str(its_own), str(run.folder), "float32", "1")
        assert not compiled.wait(0.5) and not path.read_text(encoding="ascii")
        background.fcntl.flock(held, background.fcntl.LOCK_UN)
        ended.result(timeout=60)
    model = open_run(run.folder).model()
    assert not isinstance(model, EncoderOnly)
    assert compiled.is_set() and path.read_text(encoding="ascii") == engine.shape_key(model)


def test_background_compiles_the_loaded_shape_and_stops_on_error(
    runs: Path, background_commands: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, shapes = Run.open(runs / "translator"), []

    def fail(model: engine.EncoderDecoder) -> None:
        shapes.append(engine.shape_key(model))
        raise PenwrightError("no space left")

    monkeypatch.setattr(engine, "compile_steps", fail)
    with pytest.raises(PenwrightError, match="no space"):
        background.compile_decoding(run, "float32")
    monkeypatch.setenv(background.SWITCH, "off")
    translator = load(run.folder)
    monkeypatch.setenv(background.SWITCH, "on")
    assert isinstance(translator, Translator) and shapes == [engine.shape_key(translator.model)]
    assert not background.compile_in_background(run, "float32") and not background_commands
    assert background.compile_in_background(run, "int8")  # another shape


def test_failure_is_reported_and_tried_again_after_a_day_or_by_optimize(
    runs: Path, background_commands: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, records = Run.open(runs / "writer"), []
    model = open_run(runs / "writer").model()
    assert not isinstance(model, EncoderOnly)
    failure = background._failure_of(engine.shape_key(model))

    def fail(model: engine.DecoderOnly) -> None:
        records.append(failure.read_text(encoding="utf-8"))  # remains if the system kills this process now
        raise PenwrightError("no space left")

    monkeypatch.setattr(engine, "compile_steps", fail)
    with pytest.raises(PenwrightError, match="no space"):
        background.compile_decoding(run, "float32")
    assert "killed" in records[0] and failure.read_text(encoding="utf-8") == "no space left\n"
    assert f"could not be compiled: {failure} says why" in background.compilation_note(model)
    assert not background.compile_in_background(run, "float32")
    os.utime(failure, (0, time() - background.RETRY_AFTER - 60))
    assert background.compilation_note(model) == "" and background.compile_in_background(run, "float32")
    monkeypatch.setattr(engine, "compile_steps", lambda *_: os._exit(9))  # as if the system killed the process
    failure.unlink()
    for counts in (False, True):  # one kill may have been a shutdown
        if not (child := os.fork()):
            background.compile_decoding(run, "float32")
        os.waitpid(child, 0)
        assert bool(background._recent_failure(model)) == counts
    monkeypatch.setattr(engine, "compile_steps", lambda *_: None)
    for compile_again in (lambda: background.compile_decoding(run, "float32"), lambda: background.compile_alone(model)):
        failure.touch()
        assert not background.compile_in_background(run, "float32")
        compile_again()
        assert background.compile_in_background(run, "float32")


def test_a_stopped_compilation_is_no_failure(runs: Path, background_commands: list[list[str]]) -> None:
    run = Run.open(runs / "writer")
    assert background.compile_in_background(run, "float32")
    model = open_run(runs / "writer").model()
    assert not isinstance(model, EncoderOnly)
    background._failure_of(engine.shape_key(model)).touch()  # as if the process had written it
    with Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True) as compiler:
        unfinished = background.cache_folder("compiled") / f"step-key.{compiler.pid}.pt2"
        unfinished.touch()
        background.kill_compiler(compiler)
    assert background.compile_in_background(run, "float32") and not unfinished.exists()


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"n_processors": 1}, "processor time is limited to 1 processor"),
        ({"n_processors": 3}, "processor time is limited to 3 processors"),
        ({"available_memory": 1e9}, "this takes about 2 GB of memory"),
        ({"n_processors": 4, "available_memory": 4e9}, ""),
    ],
)
def test_nothing_is_compiled_in_the_background_without_enough_processors_or_memory(
    runs: Path,
    background_commands: list[list[str]],
    monkeypatch: pytest.MonkeyPatch,
    limits: dict[str, float],
    said: str,
) -> None:
    for name, value in {"n_allowed": 8, "n_processors": 8, "available_memory": 1e12, **limits}.items():
        monkeypatch.setattr(background, name, lambda value=value: value)
    model = open_run(runs / "writer").model()
    assert not isinstance(model, EncoderOnly)
    assert said in background.compilation_note(model) and ("optimize" in background.compilation_note(model)) == bool(
        said
    )
    assert background.can_be_compiled(model) == (not said)
    assert bool(background.compile_in_background(Run.open(runs / "writer"), "float32")) == (not said)


def test_optimize_waits_for_the_process_that_compiles(
    runs: Path, background_commands: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, done, waits = open_run(runs / "writer").model(), [], Event()
    monkeypatch.setattr(engine, "compile_steps", lambda model, say: done.append(background.is_compiling(model)))
    lock = background.toolchain.trusted_folder() / background.LOCK
    with lock.open("a") as held:
        background.fcntl.flock(held, background.fcntl.LOCK_EX)  # as the compiling process does
        thread = Thread(target=lambda: background.compile_alone(model, lambda _: waits.set()))
        thread.start()
        assert waits.wait(60) and not done
    thread.join()
    assert done == [True], "other processes see what is compiled"


def test_running_process_uses_newly_compiled_steps(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = load(runs / "writer")
    assert isinstance(generator, Generator)
    before = generator.generate("It", temperature=0.0, max_new_tokens=2)
    used: list[str] = []

    def load_part(part: engine.ModelPart, name: str, _: int) -> engine.Compiled:
        def run(*inputs: engine.Input) -> list[torch.Tensor]:
            used.append(name)
            found = part(*inputs)
            return [found] if isinstance(found, torch.Tensor) else list(found)

        return run

    monkeypatch.setattr(engine, "load", load_part)
    assert generator.generate("It", temperature=0.0, max_new_tokens=2) == before and not used
    monkeypatch.setattr(engine, "LOOK_EVERY", 0.0)
    assert generator.generate("It", temperature=0.0, max_new_tokens=2) == before and "one" in used


@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="this system does not group processes by session")
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_background_process_has_lower_priority_than_other_sessions(tmp_path: Path) -> None:
    if (child := os.fork()) == 0:  # a fork does not import torch again
        try:
            os.setsid()
            background.lower_priority()
            found = f"{os.sched_getscheduler(0)} {Path('/proc/self/autogroup').read_text('ascii')}"
            (tmp_path / "found").write_text(found, encoding="ascii")
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    policy, *_, niceness = (tmp_path / "found").read_text("ascii").split()
    assert int(policy) == os.SCHED_IDLE and int(niceness) == background.NICENESS
