"""`penwright train --from RUN`: fine-tuning of all weights, or of LoRA adapters."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import penwright as penwright_package
from penwright.config import Table
from penwright.data.batches import MixedBatches
from penwright.errors import PenwrightError
from penwright.run.folder import Run
from penwright.tasks import TASKS, generation
from penwright.workflows.export import export
from penwright.workflows.load import open_run
from penwright.workflows.old_text import old_texts, with_old_text
from penwright.workflows.plan import prepare
from penwright.workflows.train import _begin

from .conftest import QUICK, Command


def settings(*extra: object) -> list[object]:
    options = [each for each in QUICK if each != "--set" and not each.startswith("model.")]
    return [*(part for each in options for part in ("--set", each)), "--set", "training.evaluate_every=3", *extra]


@pytest.fixture(scope="session")
def new_text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("new")
    lines = [f"Night {n} was cold, and house {n * 5 % 29} had no roof.\n" for n in range(300)]
    (folder / "nights.txt").write_text("".join(lines), encoding="utf-8")
    words = {"acht": "eight", "neun": "nine", "eins": "one", "zwei": "two", "drei": "three", "vier": "four"}
    pairs = [f"{a} und {b}\t{words[a]} and {words[b]}\n" for a in words for b in words]
    pairs += [f"{a} und {b} {c}\t{words[a]} and {words[b]} {words[c]}\n" for a in words for b in words for c in words]
    (folder / "pairs.tsv").write_text("".join(pairs), encoding="utf-8")
    labelled = [f"house {n} is {('cold', 'warm')[n % 2]},{('yes', 'no')[n % 2]}\n" for n in range(60)]
    (folder / "labels.csv").write_text("text,label\n" + "".join(labelled), encoding="utf-8")
    sets = (f"a film number {n},{('good', 'good|bad', 'bad|good')[n % 3]}\n" for n in range(60))
    (folder / "sets.csv").write_text("text,label\n" + "".join(sets), encoding="utf-8")
    return folder


def weights(run: Path) -> dict[str, bytes]:
    found = Run(run).checkpoints.newest()[0].weights()
    return {name: tensor.numpy().tobytes() for name, tensor in found.items()}


def copy_without_last_checkpoint(run: Path, copy: Path) -> Path:
    """Copy a run as if it had been killed after its second-to-last checkpoint."""
    shutil.copytree(run, copy)
    shutil.rmtree(Run(copy).checkpoints.all()[-1].folder)
    return copy


def metrics_of_step_zero(run: Path) -> dict[str, float]:
    return next(record for record in Run(run).records("metrics.jsonl") if record["step"] == 0)


def test_fine_tuning_starts_from_the_base_weights(
    penwright: Command, corpora: Path, runs: Path, new_text: Path, tmp_path: Path
) -> None:
    made = penwright(
        "train",
        new_text / "pairs.tsv",
        "--from",
        runs / "translator",
        "--steps",
        6,
        "--run",
        tmp_path / "run",
        *settings(),
    )
    assert made.returncode == 0, made.stderr
    assert "too little text" not in made.stdout + made.stderr
    base, run = open_run(runs / "translator"), open_run(tmp_path / "run")
    assert f"({runs / 'translator'}, before fine-tuning)" in made.stderr
    assert f"the tokenizer of {runs / 'translator'} needs" in made.stderr
    same = penwright("plan", corpora / "pairs.tsv", "--set", f"finetuning.base={runs / 'translator'}")
    assert (same.returncode, "--add-tokens" in same.stdout + same.stderr) == (0, False), same.stderr
    assert run.recipe.finetuning.base_sha256 == base.run.checkpoints.best()[0].weights_sha256
    assert run.tokenizer.fingerprint == base.tokenizer.fingerprint
    first = run.run.checkpoints.all()[0] if run.run.checkpoints.all()[0].step == 0 else run.run.checkpoints.first()
    assert all(torch.equal(tensor, base.weights()[name]) for name, tensor in first.weights().items())
    assert not torch.equal(
        run.run.checkpoints.newest()[0].weights()["encoder.norm.weight"], base.weights()["encoder.norm.weight"]
    )
    assert penwright_package.load(tmp_path / "run").kind == "translator"
    assert metrics_of_step_zero(tmp_path / "run")["nats per token"] > 0


@pytest.mark.parametrize("extra", [(), ("--lora", 2), ("--keep-old", 0.4)])
def test_killed_run_resumes_to_the_same_weights(
    penwright: Command, runs: Path, new_text: Path, tmp_path: Path, extra: Sequence[object]
) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    options = ["--from", runs / "writer", "--steps", 6, "--set", "model.dropout=0.1", *settings(*extra)]
    assert penwright("train", new_text / "nights.txt", "--run", whole, *options).returncode == 0
    resumed = penwright("train", "--resume", copy_without_last_checkpoint(whole, killed))
    assert resumed.returncode == 0, resumed.stderr
    assert "resuming from step 3" in resumed.stderr
    assert weights(killed) == weights(whole)
    assert (killed / "metrics.jsonl").read_text().count("\n") == 3  # steps 0, 3 and 6


def test_held_out_texts_that_a_base_knows_are_counted(runs: Path, corpora: Path, tmp_path: Path) -> None:
    text, base, newer = tmp_path / "labels.csv", tmp_path / "base", tmp_path / "newer"
    shutil.copy(corpora / "labels.csv", text)
    for run, finetuning in ((base, ""), (newer, f'\n[finetuning]\nbase = "{base}"\n')):
        shutil.copytree(runs / "classifier", run)
        recipe = (run / "recipe.toml").read_text(encoding="utf-8").partition("\n")[2]
        moved = recipe.replace(str(corpora / "labels.csv"), str(text))
        (run / "recipe.toml").write_text(moved + finetuning, encoding="utf-8")
    said = list[str]()
    tuned: Table = {"data": {"train": [str(text)]}, "training": {"steps": 1}, "finetuning": {"base": str(newer)}}

    def notes(seed: int) -> list[str]:
        said.clear()
        prepare({**tuned, "seed": seed}, said.append)
        return [line for line in said if "too optimistic" in line]

    assert not notes(open_run(base).recipe.seed), "the same split"
    known = notes(5)
    assert [str(run) in line for run, line in zip((newer, base), known, strict=True)] == [True, True]
    assert all("held-out texts also occur in the training text" in line for line in known)
    with text.open("a", encoding="utf-8") as file:
        file.write("one more film,good\n")
    changed = notes(5)
    assert len(changed) == 2 and all("has changed since then" in line for line in changed)


def test_keep_old_averages_the_weights_with_those_of_the_base(
    penwright: Command, runs: Path, new_text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generation, "LEAST_DECREASE", 1.0)  # the model is not calibrated, which would change its norm
    options = ["--from", runs / "writer", "--keep-old", 0.4, "--steps", 3, *settings()]
    made = penwright("train", new_text / "nights.txt", "--run", tmp_path / "run", *options)
    assert made.returncode == 0, made.stderr
    run, base = open_run(tmp_path / "run"), open_run(runs / "writer").weights()
    assert run.recipe.finetuning.base_weight == 0.15
    assert run.recipe.optimizer.learning_rate == 0.01  # half of the usual rate
    checkpoint = run.run.checkpoints.newest()[0]
    trained = checkpoint.training()
    for name, tensor in checkpoint.weights().items():
        torch.testing.assert_close(tensor, torch.lerp(trained[f"raw/{name}"], base[name], 0.15))
    assert any(not torch.equal(tensor, trained[f"raw/{name}"]) for name, tensor in checkpoint.weights().items())
    refused = penwright("train", new_text / "nights.txt", *options, "--lora", 2, "--set", "finetuning.base_weight=0.2")
    assert (refused.returncode, "base_weight cannot be combined with [lora]" in refused.stderr) == (2, True)
    said: list[str] = []
    export(tmp_path / "run", "penwright", tmp_path / "copy", say=said.append)
    assert any("no longer that of" in line and str(runs / "writer") in line for line in said)
    assert_a_chat_model_keeps_both_older_texts(runs, tmp_path)


def assert_a_chat_model_keeps_both_older_texts(runs: Path, folder: Path) -> None:
    talks = [{"prompt": f"Is house {n} cold?", "completion": f"House {n} is."} for n in range(60)]
    (folder / "chat.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in talks), encoding="utf-8")
    chat: Table = {"data": {"train": [str(folder / "chat.jsonl")]}, "training": {"steps": 3}}
    chat["finetuning"] = {"base": str(folder / "run"), "keep_old": 0.25}
    said: list[str] = []
    context = _begin(prepare(chat, say=said.append), Run.create(folder / "chat"), [])
    assert any(f"the text of {runs / 'writer'} is mixed in, too" in line for line in said)
    assert context.recipe.task == "chat" and context.training is not None
    mixed = with_old_text(context, TASKS["chat"].batches(context, context.training))
    assert isinstance(mixed, MixedBatches) and isinstance(mixed.old, MixedBatches)
    assert (mixed.share, mixed.old.share) == (0.25, 0.4)
    for batches, word in ((mixed.new, "ssistant"), (mixed.old.new, "roof"), (mixed.old.old, "rain")):
        tokens = [token for number in range(3) for token in batches.batch(number).tokens.flatten().tolist()]
        assert word in context.tokenizer.decode(tokens)
    recipe = folder / "run" / "recipe.toml"
    content = recipe.read_text(encoding="utf-8").partition("\n")[2]
    recipe.write_text(content.replace(str(runs / "writer"), str(folder / "run")), encoding="utf-8")
    with pytest.raises(PenwrightError, match="names itself as its base"):
        old_texts(context.recipe)
    recipe.write_text(content.replace(str(runs / "writer"), str(folder / "gone")), encoding="utf-8")
    with pytest.raises(PenwrightError, match=r"--keep-old also needs the text of .*gone, .*leave out --keep-old"):
        old_texts(context.recipe)


def test_lora_saves_only_adapters_and_merges_them_on_loading(
    penwright: Command, runs: Path, new_text: Path, tmp_path: Path
) -> None:
    base, run = tmp_path / "base", tmp_path / "run"
    shutil.copytree(runs / "writer", base)
    made = penwright(
        *("train", new_text / "nights.txt", "--from", base, "--lora", 2, "--steps", 6, "--run", run, *settings()),
        *("--set", 'lora.targets=["query", "value"]'),
    )
    assert made.returncode == 0, made.stderr
    saved = Run(run).checkpoints.newest()[0].weights()
    assert saved
    assert all(name.endswith(("lora_A", "lora_B")) for name in saved)
    assert sum(map(torch.numel, saved.values())) < 0.1 * sum(map(torch.numel, open_run(base).weights().values()))
    training = Run(run).checkpoints.newest()[0].training()
    assert all(".lora_" in name or name.startswith("random/") for name in training)
    opened = open_run(run)
    merged, before = opened.weights(), open_run(base).weights()
    changed = {name for name in merged if not torch.equal(merged[name], before[name])}
    assert changed
    assert all(name.endswith(("query.weight", "value.weight")) for name in changed)
    best = next(r for r in Run(run).records("metrics.jsonl") if r["step"] == Run(run).checkpoints.best_step())
    scores = {score.name: score.value for score in penwright_package.evaluate(run, quiet=True)}
    assert scores["nats per token"] == pytest.approx(
        best["nats per token"], rel=1e-4
    )  # the merged weights score as the unmerged adapters did


def test_adapter_of_a_missing_or_changed_base_is_refused(
    penwright: Command, runs: Path, new_text: Path, tmp_path: Path
) -> None:
    base, run = tmp_path / "base", tmp_path / "run"
    shutil.copytree(runs / "writer", base)
    made = penwright(
        "train", new_text / "nights.txt", "--from", base, "--lora", 2, "--steps", 3, "--run", run, *settings()
    )
    assert made.returncode == 0, made.stderr
    longer = penwright("train", "--resume", base, "--steps", 3)  # would delete the weights that the adapters need
    assert longer.returncode == 1 and f"export {run} --to penwright" in longer.stderr
    shutil.rmtree(base)
    gone = penwright("generate", run, "Night")
    assert gone.returncode == 1
    assert f"there is no run in {base}" in gone.stderr
    assert f"set [finetuning] base in {run / 'recipe.toml'} to its new path" in gone.stderr
    other = ["--set", "seed=7", "--steps", 3, *QUICK]
    text = new_text / "nights.txt"
    assert penwright("train", text, "--run", base, *other).returncode == 0
    refused = penwright("generate", run, "Night")
    assert refused.returncode == 1
    assert "does not have the weights" in refused.stderr or "lacks" in refused.stderr


def test_keep_old_refuses_a_missing_or_changed_text(
    penwright: Command, runs: Path, corpora: Path, new_text: Path, tmp_path: Path
) -> None:
    text, base = tmp_path / "novel.txt", tmp_path / "base"
    shutil.copy(corpora / "novel.txt", text)
    assert penwright("train", text, "--run", base, "--steps", 3, *QUICK).returncode == 0
    options = ["--from", base, "--keep-old", 0.2, "--steps", 3, *settings()]
    text.unlink()
    missed = penwright("train", new_text / "nights.txt", "--run", tmp_path / "a", *options)
    assert missed.returncode == 1
    assert f"--keep-old needs the text that {base} was trained on: there is no file" in missed.stderr
    text.write_text("Something else entirely.\n" * 100, encoding="utf-8")
    changed = penwright("train", new_text / "nights.txt", "--run", tmp_path / "b", *options)
    assert changed.returncode == 1
    assert "changed since then. Restore the text, or leave out --keep-old" in changed.stderr
    assert not (tmp_path / "a").exists()


def test_writer_is_fine_tuned_to_a_classifier_with_a_new_head(
    penwright: Command, runs: Path, corpora: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    made = penwright(
        "train", corpora / "labels.csv", "--from", runs / "writer", "--steps", 3, "--run", run, *settings()
    )
    assert made.returncode == 0, made.stderr
    assert "correct in cross-validation" in made.stderr  # the head is fitted before the first step
    assert next(record["step"] for record in Run(run).records("metrics.jsonl")) == 0
    base = open_run(runs / "writer")
    assert open_run(run).recipe.task == "classify"
    assert open_run(run).tokenizer.fingerprint == base.tokenizer.fingerprint
    assert penwright_package.load(run).classify("a fine film")[0].label in ("good", "bad")


def test_contrastive_fine_tuning_learns_few_labels(
    penwright: Command, runs: Path, corpora: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    options = ["--from", runs / "writer", "--minutes", 0.5, "--set", "finetuning.contrastive=true", *settings()]
    made = penwright("train", corpora / "labels.csv", "--run", run, *options)
    assert made.returncode == 0, made.stderr
    assert "contrastive fine-tuning (" in made.stderr and "before fine-tuning" not in made.stderr
    assert "tunes the encoder contrastively" in made.stderr and "goes through the text" not in made.stderr
    assert "linear classifier of n-grams: 100.0 % correct in the same cross-validation" in made.stderr
    assert "held-out texts: too few to tell" in made.stderr and "00:00 left" in made.stderr
    assert [record["step"] for record in Run(run).records("metrics.jsonl")] == [0]
    assert penwright_package.load(run).classify("a fine film")[0].label == "good"
    more = penwright("train", "--resume", run)
    assert more.returncode == 1 and "To train longer, add a budget" in more.stderr
    again = ["--from", run, "--minutes", 0.5, "--set", "finetuning.contrastive=true", *settings()]
    same_labels = penwright("train", corpora / "labels.csv", "--run", tmp_path / "again", *again)
    assert same_labels.returncode == 0, same_labels.stderr
    assert "contrastive fine-tuning (" in same_labels.stderr
    longer = penwright("train", "--resume", run, "--steps", 2)
    assert longer.returncode == 0, longer.stderr
    assert Run(run).checkpoints.last_step() == 2


def test_frozen_embeddings_stay_as_they_are(penwright: Command, runs: Path, corpora: Path, tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    options = ["--from", runs / "writer", "--steps", 6, *settings("--set", "finetuning.freeze_embeddings=true")]
    made = penwright("train", corpora / "labels.csv", "--run", whole, *options)
    assert made.returncode == 0, made.stderr
    before, after = open_run(runs / "writer").weights(), Run(whole).checkpoints.newest()[0].weights()
    assert torch.equal(after["embedding.tokens.weight"], before["embedding.tokens.weight"])
    assert not torch.equal(after["encoder.norm.weight"], before["decoder.norm.weight"])
    assert not any(name.startswith("optimizer/embedding") for name in Run(whole).checkpoints.newest()[0].training())
    resumed = penwright("train", "--resume", copy_without_last_checkpoint(whole, killed))
    assert resumed.returncode == 0, resumed.stderr
    assert weights(killed) == weights(whole)


def test_classifier_is_fine_tuned_keeping_its_head(
    penwright: Command, runs: Path, corpora: Path, tmp_path: Path
) -> None:
    run, base = tmp_path / "run", runs / "classifier"
    options = ["--steps", 3, "--run", run, *settings("--balance", "--set", "model.ngrams=true")]
    made = penwright("train", corpora / "labels.csv", "--from", base, *options)
    assert made.returncode == 0, made.stderr
    assert f"({base}, before fine-tuning)" in made.stderr  # the labels are the same, so the head is kept
    recipe = open_run(run).recipe
    assert (recipe.model.ngrams, recipe.model.balanced) == (True, True)
    assert {"mixture", "log_prior"} <= Run(run).checkpoints.newest()[0].weights().keys()
    assert penwright_package.load(run).classify("a fine film")[0].label in ("good", "bad")


@pytest.mark.parametrize("lora", [(), ("--lora", 2)])
def test_classifier_may_get_a_different_head_from_its_base(
    penwright: Command, runs: Path, corpora: Path, tmp_path: Path, lora: Sequence[object]
) -> None:
    run = tmp_path / "run"
    options = ["--steps", 3, "--run", run, *settings("--set", "model.pooling=first", "--set", "model.pooler=true")]
    made = penwright("train", corpora / "labels.csv", "--from", runs / "classifier", *options)
    assert made.returncode == 0 and "head: fitted on the frozen embeddings" in made.stderr, made.stderr
    recipe = open_run(run).recipe
    assert (recipe.model.pooling, recipe.model.pooler) == ("first", True)
    assert "pooler.weight" in open_run(run).weights()
    again = tmp_path / "again"  # the head of `run` was fitted to other vectors than those of a mean
    options = ["--steps", 3, "--run", again, *settings("--set", "model.pooling=mean", "--set", "model.pooler=false")]
    made = penwright("train", corpora / "labels.csv", "--from", run, *options, *lora)
    assert made.returncode == 0 and "head: fitted on the frozen embeddings" in made.stderr, made.stderr
    assert "pooler.weight" not in open_run(again).weights()
    assert penwright_package.load(again).classify("a fine film")[0].label in ("good", "bad")


@pytest.mark.parametrize(
    ("base", "data", "options", "message"),
    [
        ("classifier", "nights.txt", (), "trained to classify cannot be trained to generate"),
        ("writer", "pairs.tsv", (), "trained to generate cannot be trained to translate"),
        ("writer", "nights.txt", ("--size", "tiny"), "model.size cannot be set"),
        ("writer", "nights.txt", ("--set", "model.d_model=32"), "model.d_model cannot be set"),
        ("writer", "nights.txt", ("--set", "tokenizer.type=bytes"), "keeps its tokenizer"),
        ("writer", "nights.txt", ("--add-tokens", "9", "--set", "finetuning.freeze_embeddings=true"), "add_tokens"),
        ("translator", "pairs.tsv", ("--keep-old", "1.5"), "keep_old"),
        ("writer", "labels.csv", ("--keep-old", "0.5"), "its task is generate, and the task of this run is classify"),
        ("classifier", "labels.csv", ("--keep-old", "0.5"), "its labels (bad, good) differ"),
        ("classifier", "sets.csv", ("--keep-old", "0.5"), "that of this text is multi_label_classification"),
        ("nothing", "nights.txt", (), "there is no run in"),
        ("writer", "greek.txt", (), "characters that the tokenizer does not know: Μ ῆ"),
        ("writer", "greek.txt", (), "without --from and --tokenizer\n"),  # its vocabulary of characters cannot grow
        ("writer", "nights.txt", ("--trim-vocabulary", "--add-tokens", "9"), "--trim-vocabulary and --add-tokens: "),
        ("writer", "nights.txt", ("--lora", "0"), "[lora] rank: must be greater than 0"),
    ],
)
def test_unsuitable_base_or_data_is_refused_before_training(
    penwright: Command,
    runs: Path,
    new_text: Path,
    tmp_path: Path,
    base: str,
    data: str,
    options: Sequence[str],
    message: str,
) -> None:
    (tmp_path / "greek.txt").write_text("Μῆνιν ἄειδε θεὰ Πηληϊάδεω Ἀχιλῆος\n" * 200, encoding="utf-8")
    text = tmp_path / data if data == "greek.txt" else new_text / data
    refused = penwright("train", text, "--from", runs / base, "--run", tmp_path / "run", "--steps", 3, *options)
    assert refused.returncode in (1, 2)
    assert message in refused.stderr
    assert not (tmp_path / "run").exists()


def test_lora_without_a_base_is_refused(penwright: Command, new_text: Path, tmp_path: Path) -> None:
    refused = penwright("train", new_text / "nights.txt", "--lora", 4, "--run", tmp_path / "run")
    assert refused.returncode == 2
    assert "--from RUN" in refused.stderr


def test_recipe_records_the_base_run(penwright: Command, runs: Path, new_text: Path, tmp_path: Path) -> None:
    shown = penwright("train", new_text / "nights.txt", "--from", runs / "writer", "--dry-run", "--json", "--steps", 3)
    assert shown.returncode == 0, shown.stderr
    recipe = json.loads(shown.stdout)["recipe"]
    assert recipe["finetuning"]["base"] == str(runs / "writer")
    assert recipe["model"]["d_model"] == 16


@pytest.mark.parametrize("options", [(), ("--lora", 2)])
def test_printed_recipe_of_a_fine_tuned_run_round_trips(
    penwright: Command, runs: Path, new_text: Path, tmp_path: Path, options: Sequence[object]
) -> None:
    recipe, shows = tmp_path / "recipe.toml", ("--print-recipe", "--steps", 3)
    shown = penwright("train", new_text / "nights.txt", "--from", runs / "writer", *options, *shows)
    recipe.write_text(shown.stdout, encoding="utf-8")
    again = penwright("train", "--recipe", recipe, "--print-recipe")
    assert again.returncode == 0 and again.stdout == shown.stdout, again.stderr


def test_decoding_settings_of_the_base_are_kept_unless_others_are_given(
    penwright: Command, new_text: Path, runs: Path, tmp_path: Path
) -> None:
    base = tmp_path / "base"
    options = ["--from", runs / "writer", "--steps", 3, *settings()]
    given = ["--set", "decoding.temperature=0.3", "--set", "decoding.top_k=7"]
    assert penwright("train", new_text / "nights.txt", "--run", base, *options, *given).returncode == 0
    own = ["--set", "decoding.top_k=9"]
    shown = penwright("train", new_text / "nights.txt", "--from", base, "--dry-run", "--json", "--steps", 3, *own)
    assert shown.returncode == 0, shown.stderr
    decoding = json.loads(shown.stdout)["recipe"]["decoding"]
    assert (decoding["temperature"], decoding["top_k"]) == (0.3, 9)


def test_adapter_round_trips_through_the_peft_format(
    penwright: Command, runs: Path, new_text: Path, tmp_path: Path
) -> None:
    run, base = tmp_path / "run", runs / "writer"
    options = ["--from", base, "--lora", 2, "--steps", 6, "--set", "optimizer.learning_rate=0.05", *settings()]
    assert penwright("train", new_text / "nights.txt", "--run", run, *options).returncode == 0
    written = penwright("export", run, "--to", "peft", "--output", tmp_path / "adapter")
    assert written.returncode == 0, written.stderr
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert (config["peft_type"], config["r"], config["lora_alpha"]) == ("LORA", 2, 4.0)
    attention, feed_forward = ["k_proj", "o_proj", "q_proj", "v_proj"], ["down_proj", "gate_proj", "up_proj"]
    assert config["target_modules"] == sorted(attention + feed_forward)  # module names of Qwen3 in transformers
    names = load_file(tmp_path / "adapter" / "adapter_model.safetensors").keys()
    assert "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight" in names
    merged = tmp_path / "merged"
    done = penwright("export", run, "--to", "penwright", "--output", merged)
    assert done.returncode == 0, done.stderr
    again = tmp_path / "again"
    done = penwright("export", base, "--adapter", tmp_path / "adapter", "--to", "penwright", "--output", again)
    assert done.returncode == 0, done.stderr
    own, read, expected = (open_run(each).weights() for each in (merged, again, run))
    assert all(torch.equal(own[name], expected[name]) for name in expected)
    assert all(torch.equal(read[name], expected[name]) for name in expected)
    assert any(not torch.equal(read[name], tensor) for name, tensor in open_run(base).weights().items())
    refused = penwright(
        "export", merged, "--adapter", tmp_path / "adapter", "--to", "penwright", "--output", tmp_path / "x"
    )
    assert refused.returncode == 1
    assert "a different base model" in refused.stderr
    (tmp_path / "adapter" / "adapter_model.safetensors").unlink()
    (tmp_path / "adapter" / "adapter_model.bin").write_bytes(b"cos\nsystem\n(S'touch executed'\ntR.")
    pickled = penwright(
        "export", base, "--adapter", tmp_path / "adapter", "--to", "penwright", "--output", tmp_path / "x", cwd=tmp_path
    )
    assert pickled.returncode == 1
    assert not (tmp_path / "executed").exists() and not (tmp_path / "x").exists()
    none = penwright("export", base, "--to", "peft", "--output", tmp_path / "none")
    assert none.returncode == 2
    assert "not trained with --lora" in none.stderr
