"""Background compilation of decoding steps, which makes generation fast even without `optimize`."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import gettempdir
from time import time
from typing import IO

import torch

from penwright.config import Precision
from penwright.decoding import engine
from penwright.decoding.ahead_of_time import KEY_LENGTH
from penwright.devices import available_memory, n_allowed, n_processors
from penwright.errors import PenwrightError, Say, say_nothing
from penwright.model import EncoderOnly, Model, make_model
from penwright.model.quantized import to_precision
from penwright.model.transformer import DecoderOnly, EncoderDecoder
from penwright.model.weights import shapes_only
from penwright.native import toolchain
from penwright.run.folder import Run
from penwright.storage import cache_folder
from penwright.text import count
from penwright.tokenizers import Tokenizer

try:
    import fcntl
except ImportError:  # on Windows, decoding steps are not compiled
    fcntl = None  # type: ignore[assignment]  # Windows has no such module

SWITCH = "PENWRIGHT_COMPILE"  # environment variable; "off": compile only if `penwright optimize` is called
FEWEST_PARAMETERS = 100_000  # minimum number of parameters; smaller models are not worth compiling
MOST_PARAMETERS = 300_000_000  # maximum number of parameters; larger models take too long to compile
# Memory in bytes for compiling while another process trains the model. Compiling alone takes about 4 bytes for each
# parameter, plus 1.4 GB (measured with 97 million parameters).
BYTES_PER_PARAMETER, COMPILER_BYTES = 16, 2e9
FOLDERS = ("PENWRIGHT_CACHE", toolchain.INDUCTOR_CACHE_VARIABLE)  # environment variables that name folders
NICENESS = 10  # nice value where there is no idle priority: other programs get about ten times as much processor time
# Nice values do not help against a limit on processor time, as in a container: all its processes share the time. If
# the limit is below this number of processors, nothing is compiled in the background.
FEWEST_PROCESSORS = 4
RETRY_AFTER = 24 * 3600.0  # seconds after which a failed compilation is tried again
LOCK, FAILED = "background.lock", "background-failed"
KILLED = "the process that was compiling the decoding steps was killed, perhaps for lack of memory\n"
SOON = "will be faster in a minute or two: its steps are being compiled in the background"
INITIAL_STD = 0.02  # standard deviation of the random weights, for the check of the compiled code


def compile_in_background(run: Run, precision: Precision, *, waits: bool = False) -> subprocess.Popen[bytes] | None:
    """Start a process that compiles the decoding steps of a run, and return it; return None if it was not started.

    No process is started if the model is very small or very large, or if there is no compiler, too little memory or too
    little processor time. The same holds for a day after a failure, and if `PENWRIGHT_COMPILE` is "off". While another
    process compiles, no process is started, unless `waits` is True: then the new process waits for the other one.
    """
    if not is_possible():
        return None
    with shapes_only():
        model = _model_of(run, precision)
    if not can_be_compiled(model) or engine.are_steps_compiled(model):
        return None
    with suppress(PenwrightError, OSError):  # the cache cannot be written, or another process holds the lock
        if not _recent_failure(model):
            with (toolchain.trusted_folder() / LOCK).open("a") as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the process that compiles inherits the lock
                    _write_shape(lock, model)
                except BlockingIOError:
                    if not waits:
                        return None
                folder, n_threads = str(run.folder.absolute()), str(torch.get_num_threads())
                return start_process(__name__, [str(lock.fileno()), folder, precision, n_threads], [lock.fileno()])
    return None


def kill_compiler(compiler: subprocess.Popen[bytes]) -> None:
    """Kill a process that `compile_in_background` started, and the C++ compilers that it runs."""
    if compiler.poll() is not None:
        return
    folder, leftovers = cache_folder("compiled"), list[Path]()
    with suppress(OSError):  # the lock names the shape of this process, unless it waits for another one
        leftovers.append(_failure_of((folder / LOCK).read_text(encoding="ascii")[:KEY_LENGTH]))
    kill_group(compiler)
    for leftover in (*leftovers, *folder.glob(f"*.{compiler.pid}.pt2")):  # a killed process cannot delete its files
        with suppress(OSError):
            leftover.unlink()


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a process that `start_process` started, with the processes that it runs."""
    if process.poll() is None:
        with suppress(ProcessLookupError):  # it has just ended
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def compile_alone(model: DecoderOnly | EncoderDecoder, say: Say = say_nothing) -> None:
    """Compile the decoding steps in this process, even after a failure. First wait for any background compilation.

    Raises PenwrightError if the results of the compiled code differ from those of the model.
    """
    with (toolchain.trusted_folder() / LOCK).open("a") as lock:
        with suppress(OSError):  # not all file systems have locks
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say("waiting for a background compilation to finish")
                fcntl.flock(lock, fcntl.LOCK_EX)
        _write_shape(lock, model)
        engine.compile_steps(model, say)
    _failure_of(engine.shape_key(model)).unlink(missing_ok=True)


def _write_shape(lock: IO[str], model: DecoderOnly | EncoderDecoder) -> None:
    """Write the key of the shape that is being compiled into the lock file."""
    lock.truncate(0)
    lock.write(engine.shape_key(model))
    lock.flush()


def can_be_compiled(model: DecoderOnly | EncoderDecoder) -> bool:
    """Return whether a background process may compile the decoding steps of this model."""
    return is_possible() and _is_worthwhile(model) and not _shortage(model)


def _is_worthwhile(model: DecoderOnly | EncoderDecoder) -> bool:
    return FEWEST_PARAMETERS <= _n_parameters(model) <= MOST_PARAMETERS


def _n_parameters(model: DecoderOnly | EncoderDecoder) -> int:
    return sum(tensor.numel() for tensor in model.state_dict().values())


def _shortage(model: DecoderOnly | EncoderDecoder) -> str:
    """Return which limit of this machine rules out compiling in the background; "" if there is none."""
    n, needed = n_processors(), BYTES_PER_PARAMETER * _n_parameters(model) + COMPILER_BYTES
    if n < min(n_allowed(), FEWEST_PROCESSORS):
        return f"processor time is limited to {count(n, 'processor')}"
    return "" if available_memory() >= needed else f"this takes about {needed / 1e9:.2g} GB of memory"


def is_possible() -> bool:
    """Return whether processes can compile in the background on this system."""
    return fcntl is not None and os.environ.get(SWITCH) != "off" and not toolchain.missing_requirement()


def is_compiling(model: DecoderOnly | EncoderDecoder) -> bool:
    """Return whether a background process is compiling the decoding steps of models of this shape."""
    try:
        with (cache_folder("compiled") / LOCK).open(encoding="ascii") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return lock.read(KEY_LENGTH) == engine.shape_key(model)
    except (OSError, AttributeError, PenwrightError):
        pass
    return False


def compilation_note(model: Model) -> str:
    """Return a note on whether a CPU model decodes with compiled steps; "" if there is nothing to report."""
    if isinstance(model, EncoderOnly):
        return ""
    if engine.are_steps_compiled(model):
        return "decoding uses compiled steps"
    if is_compiling(model):
        return f"decoding {SOON}"
    reason = "" if os.environ.get(SWITCH) == "off" else _why_not_compiled(model)
    return f"decoding is slower than it could be, because its steps {reason}" if reason else ""


def _why_not_compiled(model: DecoderOnly | EncoderDecoder) -> str:
    """Return why the decoding steps are not compiled in the background; "" if they can be, or if it is not worth it."""
    if missing := toolchain.missing_requirement():
        return f"cannot be compiled: {missing}"
    if failure := _recent_failure(model):
        return f"could not be compiled: {failure} says why. To try again, run `penwright optimize`"
    if _is_worthwhile(model) and (shortage := _shortage(model)):
        return f"are not compiled in the background: {shortage}. To compile them, run `penwright optimize`"
    return ""


def start_process(
    module: str, arguments: Sequence[str], locks: Sequence[int] = (), **variables: str
) -> subprocess.Popen[bytes]:
    """Run a module in a new process with these environment variables; it inherits the locks (file descriptors).

    With `-P`, Python imports no modules from its working folder.
    """
    folders = {name: str(Path(os.environ[name]).absolute()) for name in FOLDERS if os.environ.get(name)}
    return subprocess.Popen(
        [sys.executable, "-P", "-m", module, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=gettempdir(),
        env={**os.environ, **folders, **variables},
        pass_fds=locks,
        start_new_session=True,
    )


def compile_decoding(run: Run, precision: Precision) -> None:
    """Compile decoding steps for a run's model shape, even before its first checkpoint.

    A file records a failure. It is written first, and deleted on success, because a process that the system kills for
    lack of memory cannot write anything. Only a second kill counts as a failure: the first may be a shutdown.
    """
    model = _model_of(run, precision)
    failure = _failure_of(engine.shape_key(model))
    was_killed = _is_recent(failure) and failure.read_text(encoding="utf-8").startswith(KILLED)
    failure.write_text(KILLED * (1 + was_killed), encoding="utf-8")
    try:
        engine.compile_steps(model)
    except Exception as error:
        failure.write_text(f"{error}\n", encoding="utf-8", errors="replace")
        raise
    failure.unlink(missing_ok=True)


def _model_of(run: Run, precision: Precision) -> DecoderOnly | EncoderDecoder:
    """Return a model of the run's shape with random weights."""
    model = make_model(run.recipe.task, Tokenizer.load(run.tokenizer_path).vocab_size, run.recipe.model).eval()
    assert isinstance(model, DecoderOnly | EncoderDecoder)
    for parameter in model.parameters():
        if parameter.dim() > 1:  # with zero matrices, wrong results of compiled code would go undetected
            torch.nn.init.normal_(parameter, std=INITIAL_STD)
    to_precision(model, precision)
    return model


def _failure_of(key: str) -> Path:
    """Return the path of the file that records that models of the shape with this key could not be compiled."""
    return cache_folder("compiled") / f"{FAILED}-{key}"


def _recent_failure(model: DecoderOnly | EncoderDecoder) -> Path | None:
    """Return the file that records a recent failure to compile models of this shape, or None."""
    with suppress(OSError, PenwrightError):
        failure = _failure_of(engine.shape_key(model))
        return failure if _is_recent(failure) and failure.read_text(encoding="utf-8") != KILLED else None
    return None


def _is_recent(failure: Path) -> bool:
    return failure.is_file() and time() < failure.stat().st_mtime + RETRY_AFTER


def lower_priority() -> None:
    """Leave the processors to other programs, training included, as far as the system allows."""
    os.nice(NICENESS)
    if hasattr(os, "SCHED_IDLE"):  # slows training beside it half as much as a high nice value does
        with suppress(OSError):  # a container may forbid it
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    with suppress(OSError):  # Linux groups processes by session, and compares nice values only within a group
        Path("/proc/self/autogroup").write_text(str(NICENESS), encoding="ascii")


def main(lock_descriptor: str, folder: str, precision: Precision, n_threads: str) -> None:
    """Wait for any other compilation, then compile the decoding steps of the run in this folder.

    The lock is an open file descriptor. This process may already hold the lock.
    """
    lower_priority()
    torch.set_num_threads(int(n_threads))  # compiled code depends on the number of threads
    run = Run.open(Path(folder))
    with os.fdopen(int(lock_descriptor), "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with shapes_only():
            model = _model_of(run, precision)
        _write_shape(lock, model)
        compile_decoding(run, precision)


if __name__ == "__main__":
    main(*sys.argv[1:])  # type: ignore[arg-type]  # compile_in_background passes the arguments
