import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import penwright as penwright_package
from penwright.classification.classifier import Classifier
from penwright.cli.decoding_options import flag_of
from penwright.config import BEAM_SETTINGS, DecodingSettings
from penwright.config.descriptions import field_comments
from penwright.decoding.hypotheses import BeamSettings
from penwright.generation.generator import Generator
from penwright.run.folder import Run
from penwright.storage import write_atomically
from penwright.text import count
from penwright.translation.constraints.search import Searcher
from penwright.translation.translator import Translator
from penwright.workflows.evaluate import evaluate
from penwright.workflows.load import OpenedRun, load, load_translator

from .conftest import QUICK, Command, forget_origin


def test_command_list_shows_untruncated_descriptions(penwright: Command) -> None:
    commands = penwright("--help").stdout.partition("Commands:")[2].strip().split("\n")
    assert len(commands) > 10
    assert [line for line in commands if line.endswith("...")] == []


def test_generate_continues_the_prompt(penwright: Command, runs: Path) -> None:
    done = penwright("generate", runs / "writer", "It was", "--max-new-tokens", 20)
    assert done.returncode == 0 and done.stdout.startswith("It was") and len(done.stdout) > 10


def test_same_seed_generates_same_text(penwright: Command, runs: Path) -> None:
    texts = [
        penwright("generate", runs / "writer", "It", "--seed", seed, "--max-new-tokens", 40).stdout
        for seed in (1, 1, 2)
    ]
    assert texts[0] == texts[1] != texts[2]


def test_several_continuations_differ(penwright: Command, runs: Path) -> None:
    done = penwright("generate", runs / "writer", "It", "--n", 3, "--json", "--max-new-tokens", 40)
    texts = [json.loads(line)["text"] for line in done.stdout.strip().split("\n")]
    assert len(set(texts)) == 3


def test_too_long_prompt_is_truncated_with_a_warning(penwright: Command, runs: Path) -> None:
    done = penwright("generate", runs / "writer", "It was raining. " * 40, "--max-new-tokens", 5)
    assert done.returncode == 0 and "the last" in done.stderr


def test_unknown_characters_are_named_in_a_warning(penwright: Command, runs: Path) -> None:
    done = penwright("generate", runs / "writer", "Łódź", "--max-new-tokens", 5)
    assert done.returncode == 0 and "Ł" in done.stderr


def test_translate_prints_one_line_per_input_line(penwright: Command, runs: Path) -> None:
    done = penwright("translate", runs / "translator", stdin="eins zwei drei\n\nvier\u2028fünf\nsechs\n")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.split("\n")[:-1]
    assert len(lines) == 4 and lines[1] == ""


def test_translate_json_has_candidates_in_order_of_score(penwright: Command, runs: Path) -> None:
    done = penwright("translate", runs / "translator", "eins zwei", "--n-best", 3, "--json")
    scores = [candidate["score"] for candidate in json.loads(done.stdout)["candidates"]]
    assert scores == sorted(scores, reverse=True) and len(scores) == 3


def test_classify_prints_label_probability_and_text(penwright: Command, runs: Path) -> None:
    done = penwright("classify", runs / "classifier", stdin="a fine film\na dull film\n")
    rows = [line.split("\t") for line in done.stdout.strip().split("\n")]
    assert [row[2] for row in rows] == ["a fine film", "a dull film"]
    assert all(row[0] in ("good", "bad") and 0.5 <= float(row[1]) <= 1 for row in rows)
    unquoted = penwright("classify", runs / "classifier", "a", "fine", "film")
    assert done.stderr == "" and "put it in quotes" in unquoted.stderr


@pytest.mark.parametrize(
    ("verb", "run", "right"),
    [
        ("classify", "translator", "penwright translate"),
        ("translate", "writer", "penwright generate"),
        ("generate", "classifier", "penwright classify"),
    ],
)
def test_wrong_kind_of_run_names_the_right_command(
    penwright: Command, runs: Path, verb: str, run: str, right: str
) -> None:
    done = penwright(verb, runs / run, "a text")
    assert done.returncode == 2 and right in done.stderr


@pytest.mark.parametrize("name", ["writer", "translator", "classifier"])
def test_evaluate_reproduces_the_best_score_of_training(penwright: Command, runs: Path, name: str) -> None:
    beam = ["--beam", 1] if name == "translator" else []
    scores = {s["name"]: s["value"] for s in json.loads(penwright("evaluate", runs / name, *beam, "--json").stdout)}
    metrics = [json.loads(line) for line in (runs / name / "metrics.jsonl").read_text().strip().split("\n")]
    expected = next(record for record in metrics if record["step"] == Run(runs / name).checkpoints.best_step())
    for score, value in scores.items():
        if score != "calibration error":  # not measured during training
            assert value == pytest.approx(expected[score], rel=1e-4), score


def test_damaged_best_checkpoint_is_skipped_with_a_warning(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "writer", tmp_path / "writer")
    damaged = Run(tmp_path / "writer").checkpoints.best()[0].folder
    (damaged / "model.safetensors").write_bytes(b"")
    for use in (load, evaluate):
        with pytest.warns(UserWarning, match=f"model.safetensors is damaged.*skipped {damaged.name}"):
            use(tmp_path / "writer")


@pytest.mark.parametrize("name", ["writer", "translator", "classifier"])
def test_load_reads_only_weights_and_leaves_the_rng_state_unchanged(runs: Path, tmp_path: Path, name: str) -> None:
    shutil.copytree(runs / name, tmp_path / name)
    for checkpoint in Run(tmp_path / name).checkpoints.all():
        (checkpoint.folder / "training.safetensors").unlink()
    before = torch.get_rng_state()
    loaded, expected = load(tmp_path / name).model.state_dict(), load(runs / name).model.state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    assert loaded.keys() == expected.keys() and all(torch.equal(loaded[key], expected[key]) for key in loaded)


def test_evaluate_accepts_another_file(penwright: Command, runs: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("It was day 3, and the rain fell.\n", encoding="utf-8")
    done = penwright("evaluate", runs / "writer", tmp_path / "mine.txt", "--json")
    assert done.returncode == 0, done.stderr
    assert "33 held-out bytes" in done.stdout


@pytest.mark.parametrize(
    ("name", "data", "seen"),
    [("classifier", "labels.csv", "10 of 10 texts"), ("translator", "pairs.tsv", "20 of 20 sentences")],
)
@pytest.mark.parametrize("is_pattern", [False, True])
def test_evaluate_reports_texts_of_the_run(
    penwright: Command, runs: Path, corpora: Path, tmp_path: Path, name: str, data: str, seen: str, is_pattern: bool
) -> None:
    run, path = tmp_path / "run", corpora / data
    shutil.copytree(runs / name, run)
    if is_pattern:
        recipe = (run / "recipe.toml").read_text(encoding="utf-8")
        (run / "recipe.toml").write_text(recipe.replace(data, f"{data[:-1]}?"), encoding="utf-8")
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    header = lines[:1] if name == "classifier" else []
    (tmp_path / f"part{path.suffix}").write_text("".join([*header, *lines[50:60]]), encoding="utf-8")
    done = penwright("evaluate", run, tmp_path / f"part{path.suffix}")
    assert f"{seen} also occur in the data of the run" in done.stderr, done.stderr


def test_blank_line_gets_no_label_and_stays_a_line(penwright: Command, runs: Path) -> None:
    done = penwright("classify", runs / "classifier", stdin="a fine film\n\n \n")
    rows = [line.split("\t") for line in done.stdout.split("\n")[:-1]]
    assert [row[0] for row in rows][1:] == ["", ""] and rows[0][0] and "text 2" in done.stderr
    record = json.loads(penwright("classify", runs / "classifier", "", "--json").stdout)
    assert record["label"] is None and record["scores"] == {}


@pytest.mark.parametrize("name", ["writer", "translator", "classifier"])
def test_evaluate_prints_baselines(penwright: Command, runs: Path, name: str) -> None:
    assert "baseline" in penwright("evaluate", runs / name).stdout.split("\n")[0]


def test_top_k_of_zero_or_minus_one_is_off(penwright: Command, runs: Path) -> None:
    texts = [
        penwright("generate", runs / "writer", "It", "--max-new-tokens", 9, *options).stdout
        for options in ((), ("--top-k", 0), ("--top-k", -1), ("--set", "top_k=0"))
    ]
    assert len(set(texts)) == 1 and len(texts[0]) > 2


@pytest.mark.parametrize("command", ["train", "plan", "--resume"])
def test_unwritable_cache_is_refused_before_reading_the_text(
    penwright: Command, runs: Path, corpora: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("PENWRIGHT_CACHE", str(tmp_path / "file"))
    line = ["train", "--resume", runs / "writer"] if command == "--resume" else [command, corpora / "novel.txt"]
    done = penwright(*line, "--steps", 2, cwd=tmp_path)
    assert done.returncode == 1 and "PENWRIGHT_CACHE" in done.stderr and "reading" not in done.stderr
    assert not (tmp_path / "runs").exists()


def test_runs_lists_every_run_with_its_task(penwright: Command, runs: Path) -> None:
    listed = penwright("runs", runs).stdout
    assert all(word in listed for word in ("writer", "translator", "classifier", "classify", "BLEU"))


def test_config_prints_the_whole_recipe(penwright: Command, runs: Path) -> None:
    done = penwright("config", runs / "writer", "--set", "model.dropout=0.25")
    assert done.returncode == 0 and "dropout = 0.25" in done.stdout and "[schedule]" in done.stdout


def test_config_explains_every_key(penwright: Command) -> None:
    explained = penwright("config").stdout
    assert all(key in explained for key in ("d_model", "warmup_steps", "held_out", "repetition_penalty"))


def test_full_memory_of_a_gpu_is_reported_with_advice(
    penwright: Command, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has ...")

    monkeypatch.setattr(Generator, "stream", fail)
    monkeypatch.setattr(Generator, "generate", fail)
    done = penwright("generate", runs / "writer", "It")
    assert done.returncode == 1 and "penwright: CUDA out of memory. End other programs" in done.stderr


def test_doctor_reports_the_training_device(penwright: Command) -> None:
    facts = json.loads(penwright("doctor", "--json").stdout)
    assert facts["device"] and facts["reasons"] and "GFLOP/s" in facts["matrix products"]


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"], ["--version"]])
def test_help_does_not_import_torch(arguments: list[str]) -> None:
    code = (
        f"import sys; sys.argv[1:] = {arguments!r}\n"
        "from penwright.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_python_api_trains_and_uses_each_task(corpora: Path, tmp_path: Path) -> None:
    tiny = {
        "model": {"d_model": 16, "n_layers": 1, "n_heads": 2, "context_length": 32},
        "training": {"steps": 5, "threads": 1, "evaluate_every": 5},
        "decoding": {"max_new_tokens": 40},
    }
    writer = penwright_package.train(corpora / "novel.txt", run=tmp_path / "writer", settings=tiny, quiet=True)
    assert isinstance(writer, Generator)
    again = penwright_package.load(tmp_path / "writer")
    assert isinstance(again, Generator)
    assert again.generate("It")[0].text == writer.generate("It")[0].text
    translator = penwright_package.train(corpora / "pairs.tsv", run=tmp_path / "translator", settings=tiny, quiet=True)
    assert isinstance(translator, Translator)
    assert len(translator.translate(["eins zwei", ""])) == 2
    classifier = penwright_package.train(corpora / "labels.csv", run=tmp_path / "classifier", settings=tiny, quiet=True)
    assert isinstance(classifier, Classifier)
    assert classifier.classify(["a fine film"])[0].label in ("good", "bad")


def test_glossary_and_protected_spans_are_applied_and_reported(penwright: Command, runs: Path, tmp_path: Path) -> None:
    (tmp_path / "terms.tsv").write_text("zwei\tdeuce\n", encoding="utf-8")
    done = penwright(
        "translate", runs / "translator", "--glossary", tmp_path / "terms.tsv", "--protect", "X-[0-9]+", "--json",
        stdin="eins zwei X-17 drei\n",
    )  # fmt: skip
    (best,) = json.loads(done.stdout)["candidates"]
    assert best["text"].lower().count("deuce") == 1 and best["text"].count("X-17") == 1
    assert [outcome["source"] for outcome in best["outcomes"]] == ["zwei", "X-17"]


def test_malformed_glossary_is_refused_with_its_line(penwright: Command, runs: Path, tmp_path: Path) -> None:
    (tmp_path / "terms.tsv").write_text("zwei deuce\n", encoding="utf-8")
    done = penwright("translate", runs / "translator", "eins", "--glossary", tmp_path / "terms.tsv")
    assert done.returncode == 1 and "terms.tsv line 1 has no tab" in done.stderr


def test_alternatives_samples_and_diverse_translations_are_printed(penwright: Command, runs: Path) -> None:
    words = penwright("translate", runs / "translator", "eins zwei", "--prefix", "one ", "--alternatives", 3)
    assert all(line.split("\t")[2].startswith("one") for line in words.stdout.strip().split("\n"))
    for options in (["--sample", "--temperature", 2.0, "--seed", 1], ["--diverse", 5.0]):
        done = penwright("translate", runs / "translator", "eins zwei", "--n-best", 3, *options)
        assert done.returncode == 0 and 1 <= len(done.stdout.strip().split("\n")) <= 3


def test_translated_document_keeps_its_layout(penwright: Command, runs: Path, tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("eins zwei\n\n  - drei vier\n\n\nfünf\n", encoding="utf-8")
    done = penwright("translate", runs / "translator", "--document", tmp_path / "letter.txt")
    lines = done.stdout.split("\n")
    assert [bool(line.strip()) for line in lines] == [True, False, True, False, False, True, False]
    assert lines[2].startswith("  - ")


@pytest.mark.parametrize(
    ("name", "content", "kept"),
    [
        ("a.srt", "1\n00:00:01,000 --> 00:00:02,000\neins zwei\n\n", r"1\n00:00:01,000 --> 00:00:02,000\n.+\n\n"),
        ("a.html", "<html><p class='a'>eins zwei</p></html>\n", r"<html><p class='a'>.+</p></html>\n"),
    ],
)
def test_tags_and_times_of_a_translated_document_are_kept(
    penwright: Command, runs: Path, tmp_path, name, content, kept
):
    (tmp_path / name).write_text(content, encoding="utf-8")
    done = penwright("translate", runs / "translator", "--document", tmp_path / name)
    assert re.fullmatch(kept, done.stdout)


def test_documents_in_other_formats_are_refused(penwright: Command, runs: Path, tmp_path: Path) -> None:
    (tmp_path / "a.po").write_text('msgid "eins"\nmsgstr ""\n', encoding="utf-8")
    done = penwright("translate", runs / "translator", "--document", tmp_path / "a.po")
    assert done.returncode == 1 and "a translation file (PO)" in done.stderr


def test_warnings_of_a_translated_document_are_printed(penwright: Command, runs: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("eins zwei\n", encoding="utf-8")
    (tmp_path / "terms.tsv").write_text("zwei\tQUOKKA\n", encoding="utf-8")
    options = ("--glossary", tmp_path / "terms.tsv", "--bias", 0.1)
    done = penwright("translate", runs / "translator", "--document", tmp_path / "a.txt", *options)
    assert "QUOKKA" in done.stdout or "glossary's translation is missing" in done.stderr


@pytest.mark.parametrize(
    "arguments", [["--diverse", 0.0, "--n-best", 1], ["--alternatives", 1], ["--document", "one.txt"], []]
)
def test_every_search_uses_the_beam_search_options(
    penwright: Command, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[object]
) -> None:
    used: list[BeamSettings] = []
    search = Searcher.search

    def recording_search(self: Searcher, each: Any, settings: BeamSettings, *rest: Any) -> Any:
        used.append(settings)
        return search(self, each, settings, *rest)

    monkeypatch.setattr(Searcher, "search", recording_search)
    (tmp_path / "one.txt").write_text("eins zwei", encoding="utf-8")
    text = [] if "--document" in arguments else ["eins zwei"]
    options = ["--beam", 3, "--length-penalty", 0.25, "--coverage-penalty", 0.5, "--beam-patience", 0.125]
    done = penwright("translate", runs / "translator", *text, *arguments, *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = {(each.beam_size, each.length_penalty, each.coverage_penalty, each.beam_patience) for each in used}
    assert found == {(3, 0.25, 0.5, 0.125)}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--sample", "--beam", 4], "--beam has no effect with --sample"),
        (["--sample", "--length-penalty", 1], "--length-penalty has no effect with --sample"),
        (["--sample", "--prefix", "one"], "--prefix has no effect with --sample"),
        (["--temperature", 1], "--temperature has no effect without --sample"),
        (["--diverse", 1, "--seed", 1], "--seed has no effect with --diverse"),
        (["--alternatives", 2, "--n-best", 2], "--n-best has no effect with --alternatives"),
        (["--alternatives", 2, "--align"], "--align has no effect with --alternatives"),
        (["--document", "one.txt", "--n-best", 2], "--n-best has no effect with --document"),
        (["--document", "one.txt"], "Leave out the texts on the command line"),
        (["--document", "one.txt", "--sample"], "--document and --sample cannot be combined"),
        (["--bias", 2], "--bias has no effect without --glossary"),
    ],
)
def test_options_without_an_effect_are_refused(
    penwright: Command, runs: Path, options: list[object], message: str
) -> None:
    done = penwright("translate", runs / "translator", "eins zwei", *options)
    assert done.returncode == 2 and message in done.stderr and done.stdout == ""


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("generate writer It --json --novelty", "--novelty has no effect with --json"),
        ("generate writer It --json --jsonl", "--jsonl has no effect with --json"),
        ("generate writer It --prompts lines.txt", "PROMPT has no effect with --prompts"),
        ("generate writer It --set beam_size=4", "beam_size has no effect"),
        ("inspect writer It --lens --position 1", "--position has no effect without --attribute"),
        ("inspect writer It --whole --patch-kind heads", "--patch-kind has no effect without --patch"),
        ("plan novel.txt --gpu h100", "--gpu has no effect without --gpus"),
        ("train novel.txt --max-restarts 2", "--max-restarts has no effect without --processes"),
    ],
)
def test_options_that_need_or_exclude_others_are_refused(
    penwright: Command, runs: Path, command: str, message: str
) -> None:
    done = penwright(*command.split(), cwd=runs)
    assert done.returncode == 2 and message in done.stderr and done.stdout == ""


def test_sampled_translations_respect_top_k(penwright: Command, runs: Path) -> None:
    arguments = ["translate", runs / "translator", "eins zwei drei", "--sample", "--n-best", 8, "--temperature", 5.0]
    found = [set(penwright(*arguments, *options).stdout.splitlines()) for options in ([], ["--top-k", 1])]
    assert len(found[0]) > len(found[1]) == 1


def test_documents_and_alternatives_are_printed_as_json(penwright: Command, runs: Path, tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("eins\n\nzwei\n", encoding="utf-8")
    document = penwright("translate", runs / "translator", "--document", tmp_path / "one.txt", "--json")
    assert json.loads(document.stdout)["text"].count("\n") == 3
    words = penwright("translate", runs / "translator", "eins", "--alternatives", 2, "--json").stdout.splitlines()
    assert all({"word", "log_prob", "text", "score"} == set(json.loads(line)) for line in words)


@pytest.mark.parametrize("name", sorted(DecodingSettings.model_fields))
def test_every_decoding_setting_has_a_documented_option(penwright: Command, name: str) -> None:
    command = "translate" if name in BEAM_SETTINGS else "generate"
    text = " ".join(penwright(command, "--help").stdout.split())
    assert re.search(rf" {flag_of(name)} [<A-Z]", text)
    assert field_comments(DecodingSettings)[name][1:] in text


def test_runs_lists_old_recipes_without_warnings(penwright: Command, tmp_path: Path) -> None:
    for name in ("a", "b", "c.tmp-17"):  # the last one is an unfinished import
        (tmp_path / name).mkdir()
        recipe = 'task = "generate"\n[data]\ntrain = "a.txt"\n[model]\n[training]\nsteps = 5\naverage = 0.9\n'
        (tmp_path / name / "recipe.toml").write_text(recipe, encoding="utf-8")
    done = penwright("runs", tmp_path)
    assert done.returncode == 0 and len(done.stdout.splitlines()) == 2 and done.stderr == ""


@pytest.mark.parametrize(("number", "expected"), [(1, "1 minute"), ("2.5", "2.5 minutes"), (1200, "1,200 minutes")])
def test_counted_nouns_agree_with_their_number(number: int | str, expected: str) -> None:
    assert count(number, "minute") == expected


def test_sentence_splitting_uses_the_source_language(penwright: Command, runs: Path, tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("eins am 3. Mai. Zwei bzw. Drei.\n", encoding="utf-8")
    arguments = ["translate", runs / "translator", "--document", tmp_path / "letter.txt"]
    assert "is unknown" in penwright(*arguments).stderr
    assert "is unknown" not in penwright(*arguments, "--language", "de").stderr
    shutil.copytree(runs / "translator", tmp_path / "run")
    forget_origin(tmp_path / "run")
    facts = json.loads((tmp_path / "run" / "corpus.json").read_text(encoding="utf-8"))
    assert facts["card"].pop("languages") is None
    write_atomically(tmp_path / "run" / "corpus.json", json.dumps(facts))  # like older runs
    assert load_translator(tmp_path / "run").source_language is None
    facts["card"]["languages"] = ["de", "en"]
    write_atomically(tmp_path / "run" / "corpus.json", json.dumps(facts))
    assert load_translator(tmp_path / "run").source_language == "de"
    assert "is unknown" not in penwright("translate", tmp_path / "run", *arguments[2:]).stderr


def test_align_chooses_a_head_and_translate_uses_it(
    penwright: Command, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = OpenedRun.model
    shutil.copytree(runs / "translator", tmp_path / "run")
    for name, text in (("a.de", "eins zwei\ndrei\n"), ("a.en", "one two\nthree\n")):
        (tmp_path / name).write_text(text, encoding="utf-8")
    done = penwright("align", tmp_path / "run", tmp_path / "a.de", tmp_path / "a.en")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split("\n")) == 3 and (tmp_path / "run" / "alignment.json").is_file()
    loads: list[object] = []
    monkeypatch.setattr(
        OpenedRun, "model", lambda opened, precision: loads.append(precision) or model(opened, precision)
    )
    for precision, loaded in (("float32", ["float32"]), ("int8", ["int8", "float32"])):  # the head is for float32
        translated = penwright("translate", tmp_path / "run", "eins zwei", "--align", "--precision", precision)
        assert "\t" in translated.stdout and loads == loaded, translated.stderr
        loads.clear()
    (tmp_path / "a.en").write_text("one\n", encoding="utf-8")
    uneven = penwright("align", tmp_path / "run", tmp_path / "a.de", tmp_path / "a.en")
    assert uneven.returncode == 1 and "2 lines" in uneven.stderr


def test_align_without_the_text_of_the_run_chooses_a_head_on_the_given_pairs(
    penwright: Command, runs: Path, tmp_path: Path
) -> None:
    shutil.copytree(runs / "translator", tmp_path / "run")
    run = Run(tmp_path / "run")
    data = run.recipe.data.model_copy(update={"train": ("missing.tsv",)})
    run.save_recipe(run.recipe.model_copy(update={"data": data}))
    refused = penwright("translate", tmp_path / "run", "eins zwei", "--align")
    assert refused.returncode == 1 and f"penwright align {tmp_path / 'run'}" in refused.stderr
    for name, text in (("a.de", "eins zwei\ndrei\n"), ("a.en", "one two\nthree\n")):
        (tmp_path / name).write_text(text, encoding="utf-8")
    aligned = penwright("align", tmp_path / "run", tmp_path / "a.de", tmp_path / "a.en")
    assert aligned.returncode == 0 and "2 pairs" in aligned.stderr, aligned.stderr
    assert "\t" in penwright("translate", tmp_path / "run", "eins zwei", "--align").stdout


def test_tune_saves_improved_settings_and_lists_trials(penwright: Command, runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "translator", tmp_path / "run")
    done = penwright("tune", tmp_path / "run", "--beam", 2, "--json")
    assert done.returncode == 0, done.stderr
    tried = json.loads(done.stdout)
    decoding = Run(tmp_path / "run").recipe.decoding
    assert (decoding.length_penalty != 1.0 or decoding.coverage_penalty != 0.0) <= tried["kept"]
    assert "BLEU" in penwright("tune", tmp_path / "run", "--beam", 2).stdout


def test_evaluate_reads_the_columns_used_in_training(penwright: Command, runs: Path, tmp_path: Path) -> None:
    for name, text in (
        ("a.csv", "a fine film,good\na dull film,bad\n"),
        ("b.jsonl", '{"label": "GOOD", "text": "fine"}'),
    ):
        (tmp_path / name).write_text(text, encoding="utf-8")
        done = penwright("evaluate", runs / "classifier", tmp_path / name)
        assert done.returncode == 0 and "label = column" in done.stderr, done.stderr
    (tmp_path / "c.csv").write_text("text,label\na fine film,wonderful\n", encoding="utf-8")
    done = penwright("evaluate", runs / "classifier", tmp_path / "c.csv")
    assert done.returncode == 1 and "'wonderful'" in done.stderr and "bad, good" in done.stderr


def test_run_without_recorded_columns_can_be_evaluated(penwright: Command, runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "classifier", tmp_path / "old")
    forget_origin(tmp_path / "old")
    path = tmp_path / "old" / "corpus.json"
    record = json.loads(path.read_text(encoding="utf-8"))
    del record["columns"]
    path.write_text(json.dumps(record))
    done = penwright("evaluate", tmp_path / "old")
    assert done.returncode == 0, done.stderr
    for damaged in (3, {"text": "no list"}):
        path.write_text(json.dumps(record | {"columns": damaged}))
        done = penwright("evaluate", tmp_path / "old")
        assert done.returncode == 1 and f"{path} is damaged" in done.stderr, done.stderr


def test_swapped_parallel_files_are_swapped_back_with_a_message(
    penwright: Command, corpora: Path, tmp_path: Path
) -> None:
    pairs = [line.split("\t") for line in (corpora / "pairs.tsv").read_text(encoding="utf-8").splitlines()]
    for place, code in enumerate(("de", "en")):
        (tmp_path / f"a.{code}").write_text("".join(f"{pair[place]}\n" for pair in pairs), encoding="utf-8")
    sides, run = [tmp_path / "a.de", tmp_path / "a.en"], tmp_path / "run"
    made = penwright("train", *sides, "--run", run, "--steps", 5, *QUICK)
    assert made.returncode == 0, made.stderr
    right, turned = penwright("evaluate", run, *sides), penwright("evaluate", run, *reversed(sides))
    assert turned.stdout == right.stdout and "other way round" not in right.stderr
    assert "translates from de to en" in turned.stderr and "other way round" in turned.stderr
    table = tmp_path / "t.tsv"
    table.write_text("en\tde\n" + "".join(f"{en}\t{de}\n" for de, en in pairs), encoding="utf-8")
    turned = penwright("evaluate", run, table)
    assert turned.stdout == right.stdout and "other way round" in turned.stderr
