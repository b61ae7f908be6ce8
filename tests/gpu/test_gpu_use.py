"""The commands that use a model give the same results with `--device cuda` as on the CPU."""

import asyncio
import json
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
import torch

import penwright as api
from penwright.config import ModelSettings
from penwright.errors import UsageError
from penwright.inspection import Inspector
from penwright.training.auto.machine import Machine
from penwright.training.auto.throughput import throughput_meter

from .conftest import DEVICE, IS_CUDA, TRAINING, Command, needs_cuda, options, pytestmark_of_gpu

pytestmark = pytestmark_of_gpu
GREEDY = ["--temperature", 0, "--max-new-tokens", 60]
COMMANDS: dict[str, list[object]] = {
    "greedy": ["generate", "writer", "It was", *GREEDY, "--json"],
    "several continuations": ["generate", "writer", "It was", *GREEDY, "--n", 3, "--json"],
    "pattern": ["generate", "writer", "It", *GREEDY, "--pattern", "[a-z ]{5,20}[.]", "--json"],
    "ban": ["generate", "writer", "It was", *GREEDY, "--ban", "rain", "--ban", "d*", "--json"],
    "bias": ["generate", "writer", "It was", *GREEDY, *options(logit_bias='{" rain" = 2.0}'), "--json"],
    "penalties": [
        "generate",
        "writer",
        "It was",
        *GREEDY,
        *options(repetition_penalty=1.3, frequency_penalty=0.1, no_repeat_ngram=3, dry_multiplier=0.8),
        "--json",
    ],
    "translate greedily": ["translate", "translator", "eins zwei", "drei", "--beam", 1, "--json"],
    "translate with beams": ["translate", "translator", "eins zwei drei", "--beam", 4, "--n-best", 3, "--json"],
    "prefix": ["translate", "translator", "eins zwei", "--prefix", "one", "--json"],
    "aligned": ["translate", "translator", "eins zwei", "--align", "--json"],
    "alternatives": ["translate", "translator", "eins zwei", "--prefix", "one ", "--alternatives", 3, "--json"],
    "diverse": ["translate", "translator", "eins zwei", "--diverse", 5.0, "--n-best", 3, "--json"],
    "classify": ["classify", "classifier", "a fine film", "a dull film number 3", "--json"],
    "evaluate writer": ["evaluate", "writer", "--json"],
    "evaluate translator": ["evaluate", "translator", "--json"],
    "evaluate classifier": ["evaluate", "classifier", "--json"],
    "embed": ["embed", "writer", "It was day 3", "rain"],
    "embed with a classifier": ["embed", "classifier", "a fine film", "rain"],
    "inspect writer": ["inspect", "writer", "It was day 7", "--lens", "--rollout", "--head", "0.1", "--json"],
    "inspect translator": [
        "inspect",
        "translator",
        "eins zwei",
        "--target",
        "one two",
        "--head",
        "cross.0.1",
        "--json",
    ],
    "attribute": ["inspect", "translator", "eins zwei", "--target", "one two", "--attribute", "--json"],
    "ablate": ["inspect", "translator", "eins zwei", "--target", "one two", "--ablate", "0.0,cross.0.1", "--json"],
    "inspect classifier": ["inspect", "classifier", "a fine film", "--target", "good", "--attribute", "--json"],
    "ablate each": ["inspect", "classifier", "a fine film", "--ablate", "each", "--lens", "--json"],
}
WORKING: dict[str, list[object]] = {  # commands whose results may differ: random choices, or other kernels
    "sample": ["generate", "writer", "It", "--n", 4, "--seed", 3, "--top-p", 0.9, "--min-p", 0.05],
    "typical": ["generate", "writer", "It", *options(typical_p=0.9, epsilon_cutoff=0.001, xtc_probability=0.5)],
    "sigma": ["generate", "writer", "It", *options(top_n_sigma=1.0, eta_cutoff=0.001, top_k=9)],
    "bfloat16": ["generate", "writer", "It", *GREEDY, "--precision", "bfloat16"],
    "int8": ["generate", "writer", "It", *GREEDY, "--precision", "int8"],
    "bfloat16 beams": ["translate", "translator", "eins zwei", "--beam", 3, "--precision", "bfloat16"],
    "int8 beams": ["translate", "translator", "eins zwei", "--beam", 3, "--precision", "int8"],
    "sampled translations": ["translate", "translator", "eins zwei", "--sample", "--n-best", 3, "--seed", 1],
    "require": ["generate", "writer", "It", "--require", "rain", "--max-new-tokens", 40],
    "tune": ["tune", "translator", "--beam", 2],
}


def run(penwright: Command, runs: Path, words: Sequence[object], device: str, cwd: Path) -> str:
    verb, name, *rest = words
    done = penwright(verb, runs / str(name), *rest, "--device", device, cwd=cwd)
    assert done.returncode == 0, done.stderr
    assert "CUDA graphs do not work" not in done.stderr
    return done.stdout


def assert_near(found: Any, expected: Any) -> None:
    """Compare JSON values; numbers may differ by a rounding."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key in expected:
            assert_near(found[key], expected[key])
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_near(one, other)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=5e-3, abs=2e-3)
    else:
        assert found == expected


@pytest.mark.parametrize("name", COMMANDS)
def test_results_equal_those_of_the_cpu(name: str, penwright: Command, runs: Path, tmp_path: Path) -> None:
    lines = [run(penwright, runs, COMMANDS[name], device, tmp_path).splitlines() for device in (DEVICE, "cpu")]
    found, expected = ([json.loads(line) for line in each] for each in lines)
    assert expected
    assert_near(found, expected)


@pytest.mark.parametrize("name", WORKING)
def test_command_works_on_a_gpu(name: str, penwright: Command, runs: Path, tmp_path: Path) -> None:
    assert run(penwright, runs, WORKING[name], DEVICE, tmp_path).strip()


def test_glossary_documents_and_word_links_equal_those_of_the_cpu(
    penwright: Command, runs: Path, tmp_path: Path
) -> None:
    (tmp_path / "terms.tsv").write_text("zwei\tdeuce\n", encoding="utf-8")
    (tmp_path / "letter.txt").write_text("eins zwei\n\n  - drei vier\n", encoding="utf-8")
    (tmp_path / "pairs.tsv").write_text("eins zwei\tone two\ndrei\tthree\n", encoding="utf-8")
    for words in (
        ["translate", "translator", "eins zwei X-17 drei", "--glossary", "terms.tsv", "--protect", "X-[0-9]+"],
        ["translate", "translator", "--document", "letter.txt"],
    ):
        assert run(penwright, runs, words, DEVICE, tmp_path) == run(penwright, runs, words, "cpu", tmp_path)
    found, expected = (
        penwright("align", runs / "translator", "pairs.tsv", "--device", device, cwd=tmp_path)
        for device in (DEVICE, "cpu")
    )
    assert (found.returncode, found.stdout) == (expected.returncode, expected.stdout), found.stderr


def test_search_finds_the_line_itself(penwright: Command, runs: Path, tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_text("a fine film number 3\na dull film number 7\nelse\n", encoding="utf-8")
    words = [tmp_path / "corpus.txt", "a dull film number 7", "--top", 1, "--device", DEVICE]
    done = penwright("search", runs / "classifier", *words)
    assert done.returncode == 0 and done.stdout.split("\t")[1] == "2", done.stderr


def test_chat_answers_like_the_cpu(penwright: Command, chat_file: Path, tmp_path: Path) -> None:
    given = [*TRAINING, *options(training__device="cpu")]
    assert penwright("train", chat_file, "--run", tmp_path / "run", "--steps", 30, *given).returncode == 0
    words = ["chat", tmp_path / "run", "--temperature", 0, "--max-new-tokens", 12]
    found, expected = (
        penwright(*words, "--device", device, stdin="Will there be rain?\nAnd snow?\n") for device in (DEVICE, "cpu")
    )
    assert (found.returncode, found.stdout) == (0, expected.stdout), found.stderr


@pytest.mark.parametrize("kind", ["writer", "translator", "classifier"])
def test_every_view_of_the_inspector_works(kind: str, runs: Path) -> None:
    text, target = {
        "writer": ("It was day 7", None),
        "translator": ("eins zwei", "one two"),
        "classifier": ("a fine film", "good"),
    }[kind]
    inspector = Inspector(api.load(runs / kind, device=DEVICE))
    views = ["attention", "head_statistics", "rollout", "attribution", "model_map", "head_importance"]
    for view in [*views, "occlusion"] if kind == "classifier" else views:
        assert getattr(inspector, view)(text, target) is not None, view
    inspector.embedding_map(n=20)
    inspector.packed_attention(text, target)
    if kind != "classifier":
        inspector.token_scores(text, target)
        inspector.token_nlls(text, target)
        inspector.lens(text, target)
    if kind == "translator":
        inspector.alignment(text, target)
        inspector.beams(text, 3)
    if kind == "writer":
        inspector.induction(10)


def test_server_answers_concurrent_requests_like_the_cpu(runs: Path) -> None:
    pytest.importorskip("fastapi", reason="the server is an extra: pip install 'penwright[serve]'")
    from penwright.serving.model_registry import ModelRegistry
    from penwright.serving.model_worker import ModelWorker
    from penwright.serving.server import Server
    from penwright.serving.settings import ServingSettings

    settings = ServingSettings(port=0, device=DEVICE, drain_seconds=1.0)
    kinds = ("writer", "translator", "classifier")
    server = Server(ModelRegistry([ModelWorker.load(runs / kind, limits=settings) for kind in kinds]), settings)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()))
    thread.start()

    def ask(body: dict[str, object], path: str = "v1/completions") -> str:
        headers = {"content-type": "application/json"}
        with urlopen(Request(f"{server.address}/{path}", json.dumps(body).encode(), headers), timeout=60) as answer:
            return answer.read().decode()

    prompts = [f"It was day {n}" for n in range(8)]
    bodies = [{"model": "writer", "prompt": each, "max_tokens": 30, "temperature": 0} for each in prompts]
    try:
        with ThreadPoolExecutor(8) as threads:
            answers = [json.loads(each) for each in threads.map(ask, bodies)]
            streamed = ask({**bodies[0], "stream": True})
    finally:
        server.stop()
        thread.join()
    texts = [each["choices"][0]["text"] for each in answers]
    expected = api.load(runs / "writer").generate(prompts, temperature=0.0, max_new_tokens=30)
    assert texts == [each.text for each in expected]
    events = [json.loads(line[6:]) for line in streamed.splitlines() if line.startswith("data: {")]
    assert "".join(choice["text"] for each in events for choice in each["choices"]) == texts[0]


def test_doctor_names_the_gpu(penwright: Command) -> None:
    facts = json.loads(penwright("doctor", "--json").stdout)
    assert facts["device"] == DEVICE
    if IS_CUDA:
        assert torch.cuda.get_device_name() in facts["reasons"][0] and facts["precision"] == "bfloat16"
    assert penwright("doctor").returncode == 0


@pytest.mark.parametrize("words", [["novel.txt"], ["pairs.tsv"], ["labels.csv"], ["novel.txt", "--task", "encode"]])
def test_plan_for_a_gpu(words: list[str], penwright: Command, corpora: Path) -> None:
    name, *rest = words
    shown = penwright("plan", corpora / name, *rest, "--minutes", 1)
    assert shown.returncode == 0, shown.stderr
    assert ("machine: GPU" in shown.stdout) == IS_CUDA, shown.stdout


@needs_cuda
def test_number_of_a_missing_gpu_is_refused_with_the_highest_number() -> None:
    highest = torch.cuda.device_count() - 1
    with pytest.raises(UsageError, match=f"The highest GPU number is {highest}"):
        api.load("any", device="cuda:77")


@pytest.fixture
def little_memory() -> Any:
    """Limit the memory of the GPU for this process to about 200 MB."""
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 200e6) / total)
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.cuda.empty_cache()


@needs_cuda
@pytest.mark.usefixtures("little_memory")
def test_training_that_does_not_fit_ends_with_advice(penwright: Command, corpora: Path, tmp_path: Path) -> None:
    large = options(model__d_model=512, model__n_layers=4, model__n_heads=8, training__batch_tokens=100_000)
    done = penwright("train", corpora / "novel.txt", "--run", tmp_path / "run", "--steps", 3, *large)
    assert done.returncode == 1 and "does not fit in the memory" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr


@needs_cuda
@pytest.mark.usefixtures("little_memory")
def test_throughput_of_a_model_that_does_not_fit_is_zero() -> None:
    measure = throughput_meter(Machine(torch.device("cuda"), torch.float32, ()), "generate")
    assert measure(ModelSettings(d_model=512, n_layers=4, n_heads=8, context_length=512), 8000, 100_000) == 0
    assert measure(ModelSettings(d_model=32, n_layers=1, n_heads=2), 300, 1000) > 0


@needs_cuda
@pytest.mark.usefixtures("little_memory")
def test_model_that_does_not_fit_ends_with_advice(penwright: Command, corpora: Path, tmp_path: Path) -> None:
    large = options(model__d_model=512, model__n_layers=4, training__device="cpu", training__batch_tokens=64)
    made = penwright("train", corpora / "novel.txt", "--run", tmp_path / "run", "--steps", 1, *large)
    assert made.returncode == 0, made.stderr
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 20e6) / total)
    done = penwright("generate", tmp_path / "run", "It", "--device", "cuda")
    assert done.returncode == 1 and "CUDA out of memory. End other programs" in done.stderr, done.stderr
