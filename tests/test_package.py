"""The Python API: names, keyword arguments and reprs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import penwright
from penwright.config import DecodingSettings, decoding_settings
from penwright.errors import PenwrightError, PenwrightWarning, UnknownArgument, UsageError
from penwright.generation.generator import Generator
from penwright.run.folder import Run
from penwright.translation.translator import Translator

TINY = {
    "model": {"d_model": 16, "n_layers": 1, "n_heads": 2, "context_length": 32},
    "training": {"steps": 4, "threads": 1, "evaluate_every": 2, "device": "cpu", "keep": 1},
    "decoding": {"max_new_tokens": 20},
}
DEFAULTS = DecodingSettings()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny writer and a tiny translator."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENWRIGHT_CACHE", str(folder / "cache"))
        (folder / "novel.txt").write_text("".join(f"It was day {n}.\n" for n in range(300)), encoding="utf-8")
        pairs = [f"eins {n}\tone {n}\n" for n in range(300)]
        (folder / "pairs.tsv").write_text("".join(pairs), encoding="utf-8")
        for name in ("novel.txt", "pairs.tsv"):
            penwright.train(folder / name, run=folder / name.partition(".")[0], settings=TINY, quiet=True)
    return folder


def test_settings_may_be_keyword_arguments() -> None:
    options = {"temperature": 0.5, "stop": ".", "ban": "dragon", "beam": 3, "top_p": None}
    found = decoding_settings(DEFAULTS, None, options)
    assert (found.temperature, found.stop, found.banned_words, found.beam_size) == (0.5, (".",), ("dragon",), 3)
    assert decoding_settings(DEFAULTS) == decoding_settings(DEFAULTS, {}) == DEFAULTS
    assert decoding_settings(DEFAULTS, {"top_k": 5}, {"seed": 3}) == DecodingSettings(top_k=5, seed=3)
    assert decoding_settings(DEFAULTS, DecodingSettings(top_k=5), {"seed": 3}) == DecodingSettings(top_k=5, seed=3)


@pytest.mark.parametrize("name", ["top_k", "top_n_sigma", "epsilon_cutoff", "eta_cutoff", "no_repeat_ngram"])
@pytest.mark.parametrize("value", [0, -1, 0.0])
def test_zero_and_minus_one_disable_a_filter(name: str, value: float) -> None:
    assert (
        getattr(
            decoding_settings(DecodingSettings(**{name: 0.5 if "cutoff" in name else 3}), None, {name: value}), name
        )
        is None
    )
    with pytest.raises(UsageError, match=name):
        decoding_settings(DEFAULTS, None, {name: -7})


def test_unknown_arguments_are_refused_with_the_nearest_name(folder: Path) -> None:
    writer, translator = penwright.load(folder / "novel"), penwright.load(folder / "pairs")
    assert isinstance(writer, Generator) and isinstance(translator, Translator)
    for error in (TypeError, PenwrightError, UnknownArgument):
        with pytest.raises(error, match="did you mean 'temperature'"):
            writer.generate("It", temprature=0.5)
    with pytest.raises(TypeError, match="did you mean 'beam_size'"):
        translator.translate("eins", beam_sise=2)
    with pytest.raises(TypeError, match="temperature has no effect in this call"):
        translator.translate("eins", temperature=2.0)
    with pytest.raises(TypeError, match="beam_size has no effect in this call"):
        writer.generate("It", beam_size=2)


def test_models_accept_settings_as_keyword_arguments(folder: Path) -> None:
    writer, translator = penwright.load(folder / "novel"), penwright.load(folder / "pairs")
    assert isinstance(writer, Generator) and isinstance(translator, Translator)
    texts = writer.generate(["It", "was"], n=2, max_new_tokens=3, temperature=0.9)
    assert [each.prompt for each in texts] == ["It", "It", "was", "was"]
    assert all(len(each.tokens) <= 3 for each in texts)
    assert texts[0].text == writer.generate("It", DecodingSettings(max_new_tokens=3, temperature=0.9))[0].text
    assert len(translator.translate("eins 3", beam_size=4, n_best=4)[0].candidates) == 4
    assert len(translator.sample("eins 3", 2, temperature=0.5)[0].candidates) == 2
    with pytest.raises(UsageError):
        writer.generate("It", n=0)


def test_reprs_are_short(folder: Path) -> None:
    writer, translator = penwright.load(folder / "novel"), penwright.load(folder / "pairs")
    assert isinstance(writer, Generator) and isinstance(translator, Translator)
    (translation,) = translator.translate("eins 3 " * 40)
    objects = [writer, translator, translation, translation.candidates[0], *writer.generate("It" * 200)]
    objects += [penwright.inspect(writer), Run(folder / "novel")]
    for each in objects:
        assert type(each).__name__ in repr(each) and len(repr(each)) < 300 and "object at" not in repr(each)


def test_run_is_evaluated_with_baselines_and_resumed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENWRIGHT_CACHE", str(folder / "cache"))
    scores = {score.name: score for score in penwright.evaluate(folder / "novel", quiet=True)}
    assert [each.name for each in scores["nats per token"].baselines] == ["unigram", "bigram", "Kneser-Ney 5-gram"]
    assert penwright.evaluate(folder / "novel", folder / "novel.txt", quiet=True)[0].baselines
    names = ["the source, untranslated", "word by word, with a dictionary learned from the pairs"]
    for paths in ((), folder / "pairs.tsv"):
        (bleu, *_) = penwright.evaluate(folder / "pairs", paths, quiet=True)
        assert [each.name for each in bleu.baselines] == names
    penwright.resume(folder / "novel", steps=2, quiet=True)
    assert Run(folder / "novel").checkpoints.last_step() == 6
    with pytest.raises(UsageError, match="keeps its model"):
        penwright.resume(folder / "novel", steps=2, settings={"model": {"d_model": 8}}, quiet=True)


def test_budget_in_the_settings_replaces_the_budget_of_the_recipe(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENWRIGHT_CACHE", str(folder / "cache"))
    recipe, text = tmp_path / "recipe.toml", folder / "novel.txt"
    recipe.write_text("[training]\nminutes = 5\n", encoding="utf-8")
    penwright.train(text, run=tmp_path / "run", recipe=recipe, settings=TINY, quiet=True)
    assert Run(tmp_path / "run").recipe.training.minutes is None
    with pytest.raises(UsageError, match="minutes: must be greater than 0"):
        penwright.train(text, minutes=0.0, run=tmp_path / "other", quiet=True)


def test_first_checkpoint_is_kept_and_can_be_loaded(folder: Path) -> None:
    run = Run(folder / "novel")
    first = run.checkpoints.first()
    assert first is not None and first.step == 2 and first.step not in [each.step for each in run.checkpoints.all()]
    first.verify()
    assert isinstance(penwright.load(folder / "novel" / "checkpoints" / "first"), Generator)


def test_quicken_warns_with_the_name_optimize(folder: Path) -> None:
    with pytest.warns(PenwrightWarning, match=r"penwright\.optimize"), pytest.raises(PenwrightError):
        penwright.quicken(folder / "nowhere", quiet=True)


def test_library_does_not_import_the_commands() -> None:
    package = Path(penwright.__file__).parent
    others = [path for path in package.rglob("*.py") if path.parent.name != "cli" and path.name != "__main__.py"]
    assert [path for path in others if "penwright.cli" in path.read_text(encoding="utf-8")] == []


LOADED = """
import sys, warnings, penwright
warnings.simplefilter("ignore")
run = penwright.load(sys.argv[1])
run.generate("It", max_new_tokens=2) if hasattr(run, "generate") else run.translate("eins")
print(*[name for name in sys.modules if name.startswith(("penwright.", "torch._dynamo"))])
"""


@pytest.mark.parametrize("name", ["novel", "pairs"])
def test_using_a_run_does_not_import_training_code_or_the_compiler(folder: Path, name: str) -> None:
    done = subprocess.run([sys.executable, "-c", LOADED, folder / name], capture_output=True, text=True, check=True)
    loaded = {name.split(".")[1] for name in done.stdout.split()}
    assert {"model", "decoding"} <= loaded
    assert not loaded & {"training", "data", "formats", "tasks", "evaluation", "inspection", "serving", "_dynamo"}


@pytest.mark.parametrize(
    ("set_by_user", "is_loaded", "expected"), [("5000", False, "20000"), ("5000", True, "5000"), ("7", False, "7")]
)
def test_idle_threads_spin_longer_unless_the_user_decides_or_it_is_too_late(
    set_by_user: str, is_loaded: bool, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOMP_SPINCOUNT", set_by_user)
    if is_loaded:
        monkeypatch.setitem(sys.modules, "torch", sys)
    else:
        monkeypatch.delitem(sys.modules, "torch", raising=False)
    penwright.spin_longer()
    assert os.environ["GOMP_SPINCOUNT"] == expected
