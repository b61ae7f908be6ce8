"""The standard streams of a process: closed streams, terminals, encodings. One process forks for each case."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from inspect import getattr_static
from io import StringIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

from penwright.streams import EscapingStream, LossyStream, discard, escaped
from penwright.training.progress import SafeConsole

from .conftest import Command

HOSTILE = "\x1b[31m\x07\x1b]0;title\x07\x9b5n\u202egnp.\r"  # colours, a bell, a title, a C1 command, a reversal

# Runs command lines in forks, with some streams closed or connected to a terminal. Each line of standard input is a
# folder and a list of cases.
FORKS = """
import json, os, pty, sys
import penwright.cli.main as cli, penwright.workflows.resume, penwright.training.progress, penwright.cli.questions

def run(arguments, closed=(), terminal=False, environment={}):
    there, here = pty.openpty()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.environ.update(environment)
        for number in (0, 1, 2):
            os.close(number)
        place = here if terminal else write
        for number in (0, 1, 2):
            os.dup2(place if number else os.open(os.devnull, os.O_RDONLY), number)
        for number in closed:
            os.close(number)
        streams = [None if n in closed else open(n, "w" if n else "r", closefd=False) for n in range(3)]
        sys.stdin, sys.stdout, sys.stderr = streams
        if "PYTHONIOENCODING" in environment:
            for stream in filter(None, streams):
                stream.reconfigure(encoding=environment["PYTHONIOENCODING"], errors="strict")
        sys.argv = ["penwright", *arguments]
        try:
            cli.main()
        except SystemExit as end:
            for stream in filter(None, (sys.stdout, sys.stderr)):
                stream.flush()
            os._exit(end.code or 0)
        except BaseException as error:
            os._exit(99)
    os.close(write), os.close(here)
    output = b""
    source = there if terminal else read
    while True:
        try:
            piece = os.read(source, 65536)
        except OSError:
            break
        if not piece:
            break
        output += piece
    os.close(there), os.close(read)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), output.decode("latin-1")]

for line in sys.stdin:
    folder, cases = json.loads(line)
    os.chdir(folder)
    print(json.dumps([run(**each) for each in cases]), flush=True)
"""
RunForked = Callable[[list[dict[str, object]]], list[tuple[int, str]]]


@pytest.fixture(scope="module")
def forking() -> Iterator[subprocess.Popen[str]]:
    """The process that forks."""
    command = [sys.executable, "-W", "ignore", "-c", FORKS]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    yield process
    process.communicate()
    assert process.returncode == 0


@pytest.fixture
def run_forked(forking: subprocess.Popen[str], tmp_path: Path) -> RunForked:
    """A function that returns the exit code of each case and its output, decoded as Latin-1."""

    def run(cases: list[dict[str, object]]) -> list[tuple[int, str]]:
        assert forking.stdin is not None and forking.stdout is not None
        forking.stdin.write(f"{json.dumps([str(tmp_path), cases])}\n")
        forking.stdin.flush()
        return [(code, output) for code, output in json.loads(forking.stdout.readline())]

    return run


@given(st.text())
def test_escaping_removes_control_characters_and_is_idempotent(text: str) -> None:
    shown = escaped(text)
    assert all(char.isprintable() or char in "\n\t" or not ord(char) < 0xA0 for char in shown)
    assert escaped(shown) == shown
    assert shown.replace("\n", "").isprintable() or not text.isascii() or "\t" in text


def test_terminal_commands_are_escaped_as_by_repr() -> None:
    assert escaped(HOSTILE) == r"\x1b[31m\x07\x1b]0;title\x07\x9b5n\u202egnp.\r"
    assert escaped("Zażółć\tgęślą\n") == "Zażółć\tgęślą\n"


def test_text_in_rich_output_is_escaped() -> None:
    out = StringIO()
    console = SafeConsole(EscapingStream(out))
    console.print(Text(HOSTILE, style="red"))
    console.print(HOSTILE)
    assert "\x07" not in out.getvalue() and "\x9b" not in out.getvalue() and "\u202e" not in out.getvalue()
    assert out.getvalue().count(r"\x1b]0;title") == 2


def test_writing_to_a_broken_pipe_raises_nothing() -> None:
    read, write = os.pipe()
    with open(write, "w", encoding="utf-8") as pipe:
        os.close(read)
        stream = LossyStream(pipe)
        for _ in range(2):
            stream.write("a message\n" * 10_000)
            stream.flush()
        discard(pipe)


def commands(runs: Path, corpora: Path) -> list[list[str]]:
    """Return quick command lines of each kind: some print, some read, some train, some fail."""
    writer, translator, classifier = (str(runs / name) for name in ("writer", "translator", "classifier"))
    return [
        ["--help"], ["nothing"], ["train", str(corpora / "novel.txt"), "--dry-run", "--steps", "2"],
        ["generate", writer, "It", "--max-new-tokens", "3"], ["translate", translator], ["classify", classifier, "😀"],
        ["inspect", writer], ["inspect", writer, "It was"], ["novelty", writer], ["runs", str(runs)],
        ["translate", "Ł"],
    ]  # fmt: skip


def test_no_command_crashes_with_closed_streams(run_forked: RunForked, runs: Path, corpora: Path) -> None:
    every = [{"arguments": line, "closed": [0, 1, 2]} for line in commands(runs, corpora)]
    one = [{"arguments": line, "closed": [n % 3]} for n, line in enumerate(commands(runs, corpora))]
    cases = [*every, *one]
    for case, (code, output) in zip(cases, run_forked(cases), strict=True):
        assert code in (0, 1, 2) and "Traceback" not in output, (case, output)


def test_closed_standard_input_is_named_in_the_error(run_forked: RunForked, runs: Path) -> None:
    ((code, output),) = run_forked([{"arguments": ["translate", str(runs / "translator")], "closed": [0]}])
    assert code == 1 and "standard input cannot be read" in output


def test_no_command_crashes_in_an_ascii_locale(run_forked: RunForked, runs: Path, corpora: Path) -> None:
    cases: list[dict[str, object]] = [
        {"arguments": line, "environment": {"PYTHONIOENCODING": "ascii", "TERM": "xterm"}, "terminal": place % 2 == 0}
        for place, line in enumerate(commands(runs, corpora))
    ]
    for case, (code, output) in zip(cases, run_forked(cases), strict=True):
        assert code in (0, 1, 2) and "Traceback" not in output, (case, output)


def test_json_output_is_valid_in_any_encoding(run_forked: RunForked, runs: Path) -> None:
    arguments = ["classify", str(runs / "classifier"), "Zażółć 😀", "--json"]
    ((code, output),) = run_forked([{"arguments": arguments, "environment": {"PYTHONIOENCODING": "latin-1"}}])
    assert code == 0 and json.loads(output.split("\n")[0])["text"] == "Zażółć 😀"


def test_terminal_output_is_escaped_and_piped_output_is_not(run_forked: RunForked, runs: Path) -> None:
    lines = [
        ["generate", str(runs / "writer"), HOSTILE, "--max-new-tokens", "3"],
        ["classify", str(runs / "classifier"), HOSTILE],
        ["inspect", str(runs / "writer"), "It was" + HOSTILE],
        ["inspect", str(runs / "writer"), "It", "--other-text", HOSTILE],
        ["translate", HOSTILE],
        ["serve", f"/{HOSTILE}"],
        ["runs", f"/{HOSTILE}"],
        ["train", f"/{HOSTILE}", "--recipe", HOSTILE],
        [HOSTILE],
        ["train", f"--{HOSTILE}"],
    ]
    cases: list[dict[str, object]] = [{"arguments": line, "terminal": True} for line in lines]
    for case, (code, output) in zip(cases, run_forked(cases), strict=True):
        text = output.encode("latin-1").decode()
        assert code in (0, 1, 2), (case, output)
        for command in ("\x1b[31m", "\x07", "\x1b]", "\x9b", "\u202e"):
            assert command not in text, (case, text)
    ((_, output),) = run_forked([{"arguments": lines[0]}])
    assert output.encode("latin-1").decode().startswith(HOSTILE)


def test_full_disk_gives_a_one_line_error(penwright: Command, runs: Path, tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("the system has no /dev/full")
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "penwright", "config"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 1 and done.stderr.startswith("penwright: ") and done.stderr.count("\n") == 1


@pytest.mark.parametrize("kind", [EscapingStream, LossyStream])
@pytest.mark.parametrize("name", ["write", "flush", "isatty", "fileno"])
def test_streams_have_their_methods_without_delegation(kind: type, name: str) -> None:
    assert callable(getattr_static(kind, name))  # isinstance() of Python 3.12 looks here for the methods of a protocol


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_stop_signal_ends_any_command_with_130_after_its_clean_up(tmp_path: Path, name: str) -> None:
    code = f"""
import signal
import penwright.cli.main as cli
from penwright.storage import saving

def command():
    with saving(Path({str(tmp_path / "new")!r}), is_locked=False):
        signal.raise_signal(signal.{name})

cli.app = command
cli.main()
"""
    done = subprocess.run([sys.executable, "-c", f"from pathlib import Path{code}"], capture_output=True, check=False)
    assert done.returncode == 130 and b"interrupted" in done.stderr and not list(tmp_path.iterdir())
