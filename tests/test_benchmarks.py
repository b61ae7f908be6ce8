"""The list of the benchmarks, and their peers that are programs, with small programs in their place."""

import json
import os
import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep

import pytest

ROOT = Path(__file__).parents[1]
TEXTS = [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
SERVER = """
import json, os, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
options = dict(zip(sys.argv[1:], sys.argv[2:]))
assert os.path.basename(options["--model"]) == "model.gguf"
open(os.path.dirname(options["--model"]) + "/pid", "w").write(str(os.getpid()))
asked = []
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):  # busy at first, as while a model is being loaded
        asked.append(self.path)
        self.send_response(200 if len(asked) > 2 else 503)
        self.end_headers()
    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert self.path == "/completion" and len(request["prompt"]) == int(options["--parallel"]), request
        found = [{"content": f"{text[0]} " * request["n_predict"]} for text in request["prompt"]]
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(found[0] if len(found) == 1 else found).encode())
    def log_message(self, *_): pass
HTTPServer((options["--host"], int(options["--port"])), Handler).serve_forever()
"""
MARIAN = """
import os, shutil, sys
name, options = sys.argv[1], dict(zip(sys.argv[2:], sys.argv[3:]))
assert os.path.exists(options["--vocabs"]), "the SentencePiece model"
if name == "train":
    assert os.path.exists(options["--train-sets"])
    print("Ep. 1 : Up. 10", flush=True)
    open("model.npz", "w").close()
else:
    shutil.copy("test.de" if os.path.exists(options["--models"]) else os.devnull, options["--output"])
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A function that writes a Python script as an executable program and returns its path."""
    monkeypatch.syspath_prepend(str(ROOT))

    def write(code: str) -> Path:
        path = tmp_path / "program"
        path.write_text(f"#!{sys.executable}\n{code}", encoding="utf-8")
        path.chmod(0o755)
        return path

    return write


def test_benchmarks_are_listed_without_the_packages_that_they_need():
    command = [sys.executable, "-S", "-m", "benchmarks"]  # without installed packages
    listed = subprocess.check_output(command, text=True, cwd=ROOT, timeout=60).splitlines()
    names = {line.split()[2].removeprefix("benchmarks.") for line in listed}
    assert {"engines", "quality", "ranks", "transformer_lens", "views"} <= names
    assert names.isdisjoint({"ours", "peers", "report"})  # parts of benchmarks


def test_server_of_a_fork_of_llama_cpp_answers_each_text_in_order(program, tmp_path):
    from benchmarks.engine_process import Engine, Job

    engine = Engine("llama-server", "generate", str(tmp_path), program=(str(program(SERVER)),))
    command = [sys.executable, "-m", "benchmarks.engine_process", json.dumps(engine)]
    jobs = [Job(TEXTS, 2), Job(TEXTS[:1], 3)]
    given = "".join(f"{json.dumps(job)}\n" for job in jobs)
    written = subprocess.check_output(command, input=given, text=True, cwd=ROOT, timeout=60)
    answers = [json.loads(line)[1] for line in written.splitlines()]
    assert answers == [["1 1 ", "4 4 ", "7 7 "], ["1 1 1 "]]
    assert ends(int((tmp_path / "pid").read_text()))


def test_server_that_does_not_start_is_reported(program, tmp_path):
    from benchmarks.engine_process import Engine, Job, LlamaServer

    server = LlamaServer(Engine("llama-server", "generate", str(tmp_path), program=(str(program("exit(3)")),)))
    with pytest.raises(SystemExit, match="status 3"):
        server.write(Job(TEXTS, 2))


def ends(pid: int) -> bool:
    """Return whether a process ends within ten seconds."""
    begin = monotonic()
    while monotonic() - begin < 10:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        sleep(0.05)
    return False


def test_marian_is_trained_and_scored_through_its_command(program, tmp_path):
    pytest.importorskip("sentencepiece", reason="sentencepiece, which trains Marian's vocabulary, is not installed")
    marian = program(MARIAN)
    from benchmarks.translation_peers import PEERS

    parts = {}
    for part in ("train", "dev", "test"):
        parts[part] = tmp_path / f"{part}.en", tmp_path / f"{part}.de"
        for file, words in zip(
            parts[part], ("a cat sees the small dog", "eine Katze sieht den kleinen Hund"), strict=True
        ):
            file.write_text(f"{words}\n" * 20, encoding="utf-8")
    peer = PEERS["Marian"](marian, tmp_path / "peer", ("en", "de"), parts)
    peer.prepare(24)
    assert peer.bleu() == 0  # not trained yet
    assert peer.train_for(60, 1).found(r"Up\. (\d+)") == [(pytest.approx(0, abs=60), 10.0)]
    assert peer.bleu() == pytest.approx(100)


def test_processes_can_share_their_caches(program, tmp_path: Path):
    from benchmarks.peers import run

    write = program("import os, pathlib\npathlib.Path(os.environ['PENWRIGHT_CACHE'], 'kept').touch()")
    read = [sys.executable, "-c", "import os\nprint(os.listdir(os.environ['PENWRIGHT_CACHE']))"]
    shared = tmp_path / "caches"
    shared.mkdir()
    run([write], shared=shared)
    assert [line for _, line in run(read, shared=shared).lines] == ["['kept']"]
    assert [line for _, line in run(read).lines] == ["[]"]


def test_the_random_text_has_every_token_of_the_vocabulary(program, tmp_path: Path):
    from benchmarks import gpu

    from penwright.tokenizers.training import train_tokenizer

    gpu.write_text(tmp_path / "text", gpu.TINY)
    text = (tmp_path / "text").read_text(encoding="utf-8")
    tokenizer = train_tokenizer("characters", [text])
    assert tokenizer.vocab_size == gpu.TINY.vocab_size
    assert len(tokenizer.encode(text)) == len(text) >= gpu.TINY.n_tokens


def test_a_profile_lists_the_kernels_of_each_step(program):
    import torch
    from benchmarks import gpu

    matrix, profiler = torch.ones(64, 64, device=gpu.DEVICE), gpu.Profiler()
    profiler.start()
    for _ in range(4):
        matrix @ matrix
    summary, *kernels = profiler.stop(4)
    assert "idle" in summary
    assert any("1.0 calls" in line for line in kernels)
