"""`penwright train` on a GPU: each task learns, runs resume, and each setting works."""

import json
import shutil
from pathlib import Path

import pytest
import torch

import penwright as api
from penwright.config import Table
from penwright.run.folder import Run
from penwright.training.auto.machine import Machine
from penwright.training.trainer import Trainer

from ..training.conftest import make_trainer, text  # noqa: F401  # fixtures
from ..training.test_trainer import MakeTrainer, train
from .conftest import DEVICE, IS_CUDA, TRAINING, Command, difference, options, pytestmark_of_gpu

pytestmark = pytestmark_of_gpu
ON_DEVICE = Machine(torch.device(DEVICE), torch.float32, ())
# whether CUDA kernels add up in a fixed order is not documented, and Muon enlarges small differences
NEARLY = 1e-3 if IS_CUDA else 0.0
TASKS: dict[str, list[object]] = {
    "characters": ["novel.txt", *options(tokenizer__type="characters")],
    "bpe": ["novel.txt", *options(tokenizer__type="bpe", tokenizer__vocab_size=300)],
    "translate": ["pairs.tsv"],
    "consistent": ["pairs.tsv", *options(training__consistency=0.7)],
    "classify": ["labels.csv", *options(model__ngrams="true", model__token_dropout=0.2)],
    "encode": ["novel.txt", "--task", "encode"],
    "chat": ["chat.jsonl"],
    "scores": ["scores.csv", "--task", "score"],
}
SETTINGS: dict[str, Table] = {
    "ema": {"training__ema_decay": 0.9},
    "accumulate": {"training__accumulate": 3},
    "adamw": {"optimizer__type": "adamw"},
    "muon": {"optimizer__type": "muon"},
    "float32": {"training__precision": "float32"},
    "recomputed": {"training__activation_checkpointing": "true"},
    "dropouts": {"model__dropout": 0.1, "model__attention_dropout": 0.1, "model__feed_forward_dropout": 0.1},
    "bigrams": {"training__bigram_init": "true", "model__tie_embeddings": '"none"'},
    "smoothing": {"training__label_smoothing": 0.1},
    "early": {"training__early": 1, "training__cooldown_on_overfitting": "true", "training__patience": 3},
    "grouped": {"model__n_kv_heads": 1, "model__window": 16},
    "classic": {"model__size": "transformer-base", "model__d_model": 32, "model__d_ff": 64, "model__n_layers": 1},
    "numbered device": {"training__device": f"{DEVICE}:0"},
}


@pytest.fixture(scope="session")
def data(corpora: Path, chat_file: Path, scores_file: Path) -> Path:
    for path in (chat_file, scores_file):
        shutil.copy(path, corpora)
    return corpora


def losses(run: Path) -> list[float]:
    """Return the loss of each evaluation. For classifiers, return the first score, which rises."""
    counters = {"step", "seconds", "epoch", "targets", "skipped"}
    scores = [{k: v for k, v in each.items() if k not in counters} for each in Run(run).records("metrics.jsonl")]
    return [each.get("nats per token", next(iter(each.values()))) for each in scores]


@pytest.mark.parametrize("task", TASKS)
def test_each_task_learns_on_the_gpu_that_is_found(task: str, penwright: Command, data: Path, tmp_path: Path) -> None:
    name, *rest = TASKS[task]
    shown = penwright("train", data / str(name), "--run", tmp_path / "run", "--steps", 60, *TRAINING, *rest)
    assert shown.returncode == 0, shown.stderr
    assert ("machine: GPU" in shown.stderr) == IS_CUDA, shown.stderr
    found = losses(tmp_path / "run")
    if task in ("classify", "scores"):
        assert found[-1] >= 0.9
    else:
        assert min(found) < found[0], found
    weights = Run(tmp_path / "run").checkpoints.newest()[0].weights()
    assert all(tensor.isfinite().all() for tensor in weights.values())
    again = penwright("evaluate", tmp_path / "run", "--device", DEVICE, "--json")
    assert again.returncode == 0, again.stderr


@pytest.mark.parametrize("name", SETTINGS)
def test_each_setting_works_on_a_gpu(name: str, penwright: Command, data: Path, tmp_path: Path) -> None:
    given = TRAINING if name != "classic" else [*TRAINING, *options(model__context_length=64)]
    made = penwright(
        "train", data / "novel.txt", "--run", tmp_path / "run", "--steps", 40, *given, *options(**SETTINGS[name])
    )
    assert made.returncode == 0, made.stderr
    found = losses(tmp_path / "run")
    assert min(found) < 0.99 * found[0] or name == "bigrams", found


@pytest.mark.parametrize("name", ["tuned", "mean", "adapted", "distilled"])
def test_model_is_fine_tuned_or_distilled(
    name: str, penwright: Command, runs: Path, data: Path, tmp_path: Path
) -> None:
    base, run = runs / "writer", tmp_path / "run"
    given: list[object] = {
        "tuned": ["--from", base, "--keep-old", 0.3],
        "mean": ["--from", base, "--keep-old", 0.3, *options(finetuning__base_weight=0.3)],
        "adapted": ["--from", base, "--lora", 4],
        "distilled": [
            *TRAINING,
            *options(model__context_length=32),
            *options(distillation__teachers=f'["{base}"]'),
            "--tokenizer",
            base,
        ],
    }[name]
    lines = "".join(f"day {n} was in house {n * 5 % 29}.\n" for n in range(300))
    (tmp_path / "days.txt").write_text(lines, encoding="utf-8")
    each = options(training__evaluate_every=10, training__batch_tokens=1024)
    new = data / "novel.txt" if name == "distilled" else tmp_path / "days.txt"
    made = penwright("train", new, "--run", run, "--steps", 20, *given, *each)
    assert made.returncode == 0, made.stderr
    assert min(losses(run)) < losses(run)[0]
    used = penwright("generate", run, "It", "--device", DEVICE, "--max-new-tokens", 5)
    assert used.returncode == 0, used.stderr


@pytest.mark.parametrize("task", ["writer", "translator", "classifier"])
def test_ensemble_is_distilled(task: str, penwright: Command, data: Path, tmp_path: Path) -> None:
    name = {"writer": "novel.txt", "translator": "pairs.tsv", "classifier": "labels.csv"}[task]
    made = penwright("train", data / name, "--run", tmp_path / "run", "--ensemble", 2, "--steps", 10, *TRAINING)
    assert made.returncode == 0, made.stderr


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_resumed_trainer_reaches_the_weights_of_an_uninterrupted_one(
    precision: torch.dtype,
    make_trainer: MakeTrainer,  # noqa: F811  # a fixture
    tmp_path: Path,
) -> None:
    settings = {"machine": ON_DEVICE._replace(precision=precision), "training": {"steps": 6, "ema_decay": 0.9}}
    whole, halted = train(make_trainer(**settings)), make_trainer(**settings)
    for report in halted.steps():
        if report.step == 3:
            break
    run = Run.create(tmp_path / "run")
    tensors, state = halted.save()
    run.checkpoints.save(3, halted.weights(), tensors, state)

    def resumed(*, with_rng: bool) -> Trainer:
        torch.manual_seed(99)  # as in another process
        other = make_trainer(**settings)
        other.load(run.checkpoints.newest()[0])
        if not with_rng:
            torch.manual_seed(98)
        return train(other)

    expected = whole.weights()
    assert all(tensor.device.type == DEVICE for tensor in expected.values())
    near, far = (difference(resumed(with_rng=chosen).weights(), expected) for chosen in (True, False))
    print(f"largest difference after a resume: {near}; with other random numbers: {far}")
    assert near <= NEARLY and far > 2 * NEARLY


def test_run_started_on_a_gpu_resumes_on_gpu_and_cpu(penwright: Command, data: Path, tmp_path: Path) -> None:
    given = [*TRAINING, *options(model__dropout=0.1, training__precision="float32", training__evaluate_every=10)]
    made = penwright("train", data / "novel.txt", "--run", tmp_path / "whole", "--steps", 20, *given)
    assert made.returncode == 0, made.stderr
    weights = []
    for device in (DEVICE, "cpu"):
        run = tmp_path / f"on {device}, {len(weights)}"
        shutil.copytree(tmp_path / "whole", run)
        shutil.rmtree(Run(run).checkpoints.all()[-1].folder)
        resumed = penwright("train", "--resume", run, *options(training__device=device))
        assert resumed.returncode == 0, resumed.stderr
        weights.append(Run(run).checkpoints.newest()[0].weights())
        assert losses(run)[-1] == pytest.approx(losses(tmp_path / "whole")[-1], rel=0.05)
    whole = Run(tmp_path / "whole").checkpoints.newest()[0].weights()
    print(f"largest difference after a resume: {difference(weights[0], whole)}")
    assert difference(weights[0], whole) <= 10 * NEARLY


def test_run_started_on_a_cpu_continues_on_a_gpu(penwright: Command, runs: Path, tmp_path: Path) -> None:
    for name in ("writer", "translator", "classifier"):
        shutil.copytree(runs / name, tmp_path / name)
        more = penwright("train", "--resume", tmp_path / name, "--steps", 10, *options(training__device=DEVICE))
        assert more.returncode == 0, more.stderr
        assert json.loads((tmp_path / name / "metrics.jsonl").read_text().splitlines()[-1])["step"] == 40


@pytest.mark.usefixtures("no_type_checks")
@pytest.mark.parametrize("name", ["novel.txt", "pairs.tsv"])
def test_compiled_training_learns(name: str, penwright: Command, data: Path, tmp_path: Path) -> None:
    torch.compiler.reset()
    given = [*TRAINING, *options(training__compile="on", model__n_layers=1)]
    made = penwright("train", data / name, "--run", tmp_path / "run", "--steps", 20, *given)
    assert made.returncode == 0, made.stderr
    assert losses(tmp_path / "run")[-1] < 4.0


def test_api_returns_a_model_that_writes(data: Path, tmp_path: Path) -> None:
    settings = {"model": {"d_model": 32, "n_layers": 1, "n_heads": 2}, "training": {"steps": 5, "device": DEVICE}}
    writer = api.train(data / "novel.txt", run=tmp_path / "run", settings=settings, quiet=True)
    assert writer.generate("It", max_new_tokens=5)[0].text
    assert api.load(tmp_path / "run", device=DEVICE).generate("It", max_new_tokens=5)[0].text
