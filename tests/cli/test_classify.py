"""`penwright classify` with its options, and what `evaluate` and `train` say about a classifier."""

import csv
import io
import json
import re
import shlex
import shutil
from dataclasses import replace
from math import inf
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import pytest
import torch
from tests.cli.conftest import QUICK, Command
from tests.data.test_spreadsheets import save_ods, save_xlsx

from penwright.classification.fitting import HeldOut
from penwright.classification.linear import LinearClassifier
from penwright.cli.user_table import UserTable
from penwright.data.readers import spreadsheets
from penwright.errors import PenwrightError
from penwright.run.folder import LINEAR_FILE, Run
from penwright.tasks import classification, labelled, linear
from penwright.workflows.evaluate import check_labels, evaluation_context, open_corpus_of
from penwright.workflows.load import load_classifier, open_run

TABLE = 'id,text,note\n1,"a fine film\nof two lines, ""quoted""",x\n2,,y\n3,a dull film,"two\r\nlines"\n'


def rows_of(text: str, delimiter: str = ",") -> list[list[str]]:
    return list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter))


def test_table_keeps_its_columns_and_gets_two_more(penwright: Command, runs: Path, tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_bytes(TABLE.encode())
    done = penwright("classify", open_run(runs / "classifier").best.folder, "--csv", path)
    assert done.returncode == 0, done.stderr
    before, found = rows_of(TABLE.replace("\r\n", "\n")), rows_of(done.stdout)
    assert [row[:3] for row in found] == before
    assert found[0][3:] == ["predicted", "probability"]
    assert [row[3] for row in found[1:]] == ["good", "", "bad"] and found[2][4] == ""
    assert "1 of 3 rows" in done.stderr and "empty" in done.stderr


@pytest.mark.parametrize("delimiter", ["\t", ",", ";"])
def test_stray_quotation_marks_join_no_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str], delimiter: str) -> None:
    texts = [f"a fine film {n}" for n in range(200)]
    texts[50], texts[150], texts[199] = '"best film ever they said', '"the end" is dull', "a fine\rfilm"
    rows = [[text, str(n)] for n, text in enumerate(texts)]
    path = tmp_path / "in.txt"
    path.write_text("".join(f"{delimiter.join(row)}\n" for row in [["text", "id"], *rows]))
    table = UserTable.read(str(path))
    assert table.rows == rows
    table.write(["predicted"], [["good"] * 200])
    assert rows_of(capsys.readouterr().out, delimiter)[1:] == [[*row, "good"] for row in rows]


@pytest.mark.parametrize(
    ("content", "header", "delimiter"),
    [
        ("text\tname, first, last\ngood, very\tx\nbad\ty, z\n", ["text", "name, first, last"], "\t"),
        ("sep=;\ntext,s;note\na, fine, film;1\n", ["text,s", "note"], ";"),
        ("text;price\na film;1,5\na plot;2,0\n", ["text", "price"], ";"),
        ("text\na film\n", ["text"], ","),
    ],
)
def test_delimiter_fits_the_rows(tmp_path: Path, content: str, header: list[str], delimiter: str) -> None:
    (tmp_path / "in.csv").write_text(content, encoding="utf-8")
    table = UserTable.read(str(tmp_path / "in.csv"))
    assert (table.header, table.delimiter) == (header, delimiter)
    assert table.rows and all(len(row) == len(header) for row in table.rows)


@pytest.mark.parametrize(("names", "trained"), [(["text"], ()), ([], (("text", 1),))])
def test_repeated_column_name_gives_a_warning(
    capsys: pytest.CaptureFixture[str], names: list[str], trained: tuple[tuple[str, int], ...]
) -> None:
    table = UserTable("t.csv", ["id", "text", "text"], [["1", "good", "bad"]], ",")
    assert table.texts(names, trained) == ["good"]
    assert "columns 2, 3 with the name 'text'" in capsys.readouterr().err
    assert table.texts(["3"], trained) == ["bad"] and not capsys.readouterr().err


def test_table_for_a_model_of_pairs_needs_two_columns() -> None:
    table = UserTable("t.csv", ["a", "b"], [["1", "2"]], ",")
    with pytest.raises(PenwrightError, match="--text FIRST --text SECOND"):
        table.texts(["a"], (), "\t")


@pytest.mark.parametrize("suffix", ["xlsx", "ods"])
def test_spreadsheet_is_printed_with_new_columns(penwright: Command, runs: Path, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"in.{suffix}"
    rows = [["id", "text"], [1, "a fine, old film"], [None, None], [3, "a dull film"]]
    save_xlsx(path, rows) if suffix == "xlsx" else save_ods(path, rows)
    done = penwright("classify", runs / "classifier", "--csv", path)
    assert done.returncode == 0, done.stderr
    found = rows_of(done.stdout)
    assert found[0] == ["id", "text", "predicted", "probability"]
    assert [row[:3] for row in found[1:]] == [
        ["1", "a fine, old film", "good"],
        ["", "", ""],
        ["3", "a dull film", "bad"],
    ]
    save_xlsx(tmp_path / "long.xlsx", [["text"], ["a fine film", "x"]])
    long = penwright("classify", runs / "classifier", "--csv", tmp_path / "long.xlsx")
    assert "row 2 has 2 cells, but the header has 1. Name every column in the first row" in long.stderr
    path.with_suffix(".docx").write_bytes(path.read_bytes()[:200])
    broken = penwright("classify", runs / "classifier", "--csv", path.with_suffix(".docx"))
    assert broken.returncode == 1 and "is a Word document, not a table" in broken.stderr


def test_test_files_of_a_folder_are_evaluated(penwright: Command, runs: Path, tmp_path: Path) -> None:
    for name, n in (("train", 20), ("test", 6)):
        (tmp_path / f"{name}.csv").write_text("text,label\n" + "a fine film,good\na dull film,bad\n" * (n // 2))
    done = penwright("evaluate", runs / "classifier", tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"evaluating on the held-out files: {tmp_path / 'test.csv'}" in done.stderr
    assert "% of 6 examples" in done.stdout and "dropped" not in done.stderr
    (tmp_path / "test.csv").write_text("text,label\na fine film,good\na dull film,\n,bad\n")
    assert "1 of 3 labelled texts kept; " in penwright("evaluate", runs / "classifier", tmp_path).stderr


def test_table_that_would_be_huge_with_blank_cells_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_text("a,b,c,d\n" + "x\n" * 25)
    monkeypatch.setattr(spreadsheets, "MOST_CELLS", 99)
    with pytest.raises(PenwrightError, match=r"in.csv has more than 99 cells"):
        UserTable.read(str(path))
    path.write_text("a,b,c,d\n" + "x\n" * 24)
    assert UserTable.read(str(path)).rows == [["x", "", "", ""]] * 24


def test_delimiter_and_column_names_of_a_table_are_respected(penwright: Command, runs: Path) -> None:
    done = penwright(
        "classify", runs / "classifier", "--csv", "-", "--text", "2", stdin="predicted;review\n7;a fine one\n"
    )
    assert rows_of(done.stdout, ";") == [
        ["predicted", "review", "predicted_2", "probability"],
        ["7", "a fine one", "good", rows_of(done.stdout, ";")[1][3]],
    ]


def test_cells_are_joined_as_in_training(penwright: Command, runs: Path, tmp_path: Path) -> None:
    table = UserTable("t", ["a", "b"], [[" a fine ", "film"], ["", " a film"], [" ", ""]], ",")
    assert table.texts(["a", "b"], ()) == ["a fine film", "a film", ""]
    assert table.texts(["a", "b"], (), "\t") == ["a fine\tfilm", "\ta film", "\t"]
    plain, spaced = (penwright("classify", runs / "classifier", "--json", text) for text in ("a film", " a film \n"))
    assert json.loads(plain.stdout)["scores"] == json.loads(spaced.stdout)["scores"]


def test_text_in_the_place_of_a_header_is_pointed_out(penwright: Command, runs: Path) -> None:
    rows = "".join(f"a long text about a fine film, the number {n} of many\n" for n in range(20)).replace(",", "")
    for first, is_header in (("review", True), ("this was a dull film and I left before the end of it", False)):
        done = penwright("classify", runs / "classifier", "--csv", "-", stdin=f"{first}\n{rows}")
        assert done.returncode == 0 and ("not as a text" in done.stderr) != is_header


@pytest.mark.parametrize(
    ("table", "options", "message"),
    [
        ("a,b\n1,2\n", [], "Name it with --text. Columns: a, b"),
        ("a,b\n1,2\n", ["--text", "c"], "no column 'c'. Columns: a, b"),
        ("a,b\n1,2,3\n", ["--text", "a"], "row 2 has 3 cells, but the header has 2"),
        ("", [], "no header"),
        ('{"text": "a fine film"}\n', [], "is JSON, which --csv does not read. Save the table as .csv"),
        ('[\n {"text": "a fine film"}\n]', [], "is JSON, which --csv does not read"),
        ("text\nx\n", ["--json"], "--json has no effect with --csv"),
    ],
)
def test_unsuitable_table_is_refused_with_a_reason(
    penwright: Command, runs: Path, table: str, options: list[str], message: str
) -> None:
    done = penwright("classify", runs / "classifier", "--csv", "-", *options, stdin=table)
    assert done.returncode in (1, 2) and message in done.stderr and not done.stdout


def test_parquet_table_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "in.parquet"
    path.write_bytes(b"PAR1\x15\x04")
    with pytest.raises(PenwrightError, match=r"in.parquet is a Parquet file, which --csv does not read"):
        UserTable.read(str(path))


def test_top_prints_the_most_likely_labels(penwright: Command, runs: Path) -> None:
    (line,) = penwright("classify", runs / "classifier", "--top", 3, "a fine film").stdout.splitlines()
    first, p, second, q, none, nothing, text = line.split("\t")
    assert {first, second} == {"good", "bad"} and float(p) > float(q) and (none, nothing) == ("", "")
    assert text == "a fine film"
    done = penwright("classify", runs / "classifier", "--csv", "-", "--top", 2, stdin="text\na fine film\n")
    assert rows_of(done.stdout)[0] == ["text", "predicted", "probability", "predicted_2", "probability_2"]
    assert rows_of(done.stdout)[1][1:] == [first, p, second, q]


def test_text_below_the_threshold_gets_no_label(penwright: Command, runs: Path) -> None:
    done = penwright("classify", runs / "classifier", "--threshold", 1, "a fine film", "qqq")
    assert [line.split("\t")[0] for line in done.stdout.splitlines()] == ["", ""]
    record = json.loads(penwright("classify", runs / "classifier", "--threshold", 1, "a film", "--json").stdout)
    assert record["label"] is None and set(record["scores"]) == {"good", "bad"}


def test_evaluate_reports_labels_confusions_and_mistakes(penwright: Command, runs: Path, tmp_path: Path) -> None:
    rows = ["a fine film,good", "a dull film,bad", "a dull plot,bad", "such a fine film,bad"]
    (tmp_path / "mine.csv").write_text("text,label\n" + "\n".join(rows) + "\n", encoding="utf-8")
    done = penwright("evaluate", open_run(runs / "classifier").best.folder, tmp_path / "mine.csv")
    lines = done.stdout.splitlines()
    assert "good\t50.0\t100.0\t66.7\t1" in lines and "bad\t100.0\t66.7\t80.0\t3" in lines
    assert "bad\t2\t1" in lines and "good\t0\t1" in lines
    assert lines[-1].endswith("good\tbad\tsuch a fine film")
    assert any(line.startswith("worst mistakes") and "--check-labels" in line for line in lines)
    scores = json.loads(penwright("evaluate", runs / "classifier", tmp_path / "mine.csv", "--json").stdout)
    report = scores[0]["report"]
    assert report["confusion"] == [[2, 1], [0, 1]] and report["mistakes"][0]["row"] == 3
    assert all("report" not in score for score in scores[1:])


def test_linear_classifier_is_the_baseline(penwright: Command, runs: Path, corpora: Path, tmp_path: Path) -> None:
    record = json.loads((runs / "classifier" / "baselines.json").read_text())
    linear = {
        each["name"]: each["value"] for each in record["scores"] if each["note"] == "linear classifier of n-grams"
    }
    assert linear["accuracy"] == 100.0 and set(linear) == {"accuracy", "macro-F1", "nats per text"}
    scores = json.loads(penwright("evaluate", runs / "classifier", "--json").stdout)
    assert ["linear classifier of n-grams", 100.0] in [[b["name"], b["value"]] for b in scores[0]["baselines"]]
    old = tmp_path / "plain"  # without n-grams, like older runs: `evaluate` fits the linear classifier
    made = penwright("train", corpora / "labels.csv", "--run", old, "--steps", 3, "--set", "model.ngrams=false", *QUICK)
    assert "to beat: macro-F1 100.000 (linear classifier of n-grams)" in made.stderr
    assert "12 held-out texts: too few to tell whether the model beats its baselines" in made.stderr
    (old / LINEAR_FILE).unlink()
    done = penwright("evaluate", old)
    assert "fitting a linear classifier" in done.stderr and "linear classifier of n-grams, not beaten" in done.stdout


def test_baseline_before_training_is_scored_on_the_texts_of_quick_evaluations(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = open_run(runs / "classifier")
    corpus, notes = open_corpus_of(opened), []
    held_out = replace(corpus.held_out, groups=np.arange(len(corpus.held_out), dtype=np.uint64) // 4)
    corpus = replace(corpus, held_out=held_out)
    monkeypatch.setattr(labelled, "MOST_EVALUATED", 5)
    for whole in (False, True):
        context = evaluation_context(opened, corpus, opened.model())
        notes.append([score.note for score in classification.baselines(context, whole=whole) if "linear" in score.note])
        parts = labelled.linear_predictions(context, whole)
        assert sum(len(truth) for _, truth in parts) == (len(corpus.held_out) if whole else 5)
    sampled = f"linear classifier of n-grams, scored on a sample of 5 of {len(corpus.held_out)} texts"
    assert notes == [3 * [sampled], 3 * ["linear classifier of n-grams"]]
    assert "(3 groups)" in classification.evaluate(context)[0].note and "independent" in labelled.group_note(context)


def test_no_linear_classifier_is_fitted_with_too_many_labels(
    penwright: Command, corpora: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear, "MOST_LOGITS", 3)  # a sample of one text for two labels
    run = tmp_path / "run"
    made = penwright("train", corpora / "labels.csv", "--run", run, "--steps", 1, *QUICK)
    assert made.returncode == 0 and "fewer texts than labels" in made.stderr and not (run / LINEAR_FILE).exists()
    assert "accuracy" in penwright("evaluate", run).stdout
    assert penwright("train", "--resume", run, "--steps", 1).returncode == 0


def test_unknown_label_is_named_with_its_row_and_can_be_left_out(
    penwright: Command, runs: Path, tmp_path: Path
) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("text,label\na fine film,good\na film,7\n", encoding="utf-8")
    done = penwright("evaluate", runs / "classifier", path)
    assert done.returncode == 1 and f"{path} row 3: the label '7' does not occur" in done.stderr
    setting = shlex.split(done.stderr)[-1]
    assert "accuracy" in penwright("evaluate", runs / "classifier", path, "--set", setting).stdout


def test_few_validation_texts_are_used_if_there_is_little_time(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, sizes = open_run(runs / "classifier"), list[int]()
    corpus = open_corpus_of(opened)
    context = evaluation_context(opened, corpus, opened.model())
    data = context.recipe.data.model_copy(update={"validation": ("validation.csv",)})
    context.recipe = context.recipe.model_copy(update={"data": data})
    fit = LinearClassifier.fit

    def spy(*args: Any, held_out: HeldOut, **kwargs: Any) -> LinearClassifier:
        assert held_out.validation is not None
        sizes.append(len(held_out.validation[0]))
        return fit(*args, held_out=held_out, **kwargs)

    monkeypatch.setattr(LinearClassifier, "fit", spy)
    for until in (inf, monotonic() + 1e6, monotonic()):
        linear.fit_linear(context, corpus, until)
    assert sizes == [len(corpus.held_out), len(corpus.held_out), 1]


def test_damaged_or_missing_linear_classifier_is_refused(penwright: Command, runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "classifier", tmp_path / "run")
    content = bytearray((tmp_path / "run" / LINEAR_FILE).read_bytes())
    content[-1] ^= 1
    (tmp_path / "run" / LINEAR_FILE).write_bytes(content)
    done = penwright("classify", tmp_path / "run", "a fine film")
    assert done.returncode == 1 and LINEAR_FILE in done.stderr
    (tmp_path / "run" / LINEAR_FILE).unlink()
    done = penwright("classify", tmp_path / "run", "a fine film")
    assert done.returncode == 1 and LINEAR_FILE in done.stderr


def test_resumed_run_keeps_its_linear_classifier(penwright: Command, corpora: Path, tmp_path: Path) -> None:
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    for run, steps in ((whole, 20), (halves, 10)):
        options = ["--steps", steps, "--set", "training.evaluate_every=10", "--set", "schedule.type=constant", *QUICK]
        assert penwright("train", corpora / "labels.csv", "--run", run, *options).returncode == 0
    before = (halves / LINEAR_FILE).read_bytes()
    assert penwright("train", "--resume", halves, "--steps", 10).returncode == 0
    assert (halves / LINEAR_FILE).read_bytes() == before == (whole / LINEAR_FILE).read_bytes()
    texts = ["a fine film", "a dull one"]
    assert penwright("classify", whole, *texts).stdout == penwright("classify", halves, *texts).stdout


def test_balancing_predicts_a_rare_label_more_often(penwright: Command, tmp_path: Path) -> None:
    rows = [
        f"film {n} was {'odd' if n % 10 == 0 else 'usual'} {n % 7},{'rare' if n % 20 == 0 else 'frequent'}"
        for n in range(400)
    ]
    (tmp_path / "rare.csv").write_text("text,label\n" + "\n".join(rows) + "\n", encoding="utf-8")
    found = {}
    for name, options in (("plain", []), ("balanced", ["--balance"])):
        made = penwright("train", tmp_path / "rare.csv", "--run", tmp_path / name, "--steps", 2, *options, *QUICK)
        assert made.returncode == 0, made.stderr
        texts = [f"film {n} was odd {n % 7}" for n in range(1000, 1050)]
        done = penwright("classify", tmp_path / name, *texts)
        found[name] = sum(line.startswith("rare") for line in done.stdout.splitlines())
    assert found["balanced"] > found["plain"]
    scores = json.loads(penwright("evaluate", tmp_path / "balanced", "--json").stdout)
    names = ["balanced accuracy", "macro-F1", "accuracy", "nats per text", "calibration error"]
    assert [score["name"] for score in scores] == names
    note = "mixture weights fitted on these texts; probabilities are for equally frequent labels"
    assert scores[-1]["note"].endswith(note)
    note = "linear classifier of n-grams, all labels weighted equally"
    assert [baseline["name"] for baseline in scores[0]["baselines"]] == ["always the most frequent label", note]


def test_check_labels_finds_wrong_labels(penwright: Command, corpora: Path, tmp_path: Path) -> None:
    lines = (corpora / "labels.csv").read_text("utf-8").splitlines()
    wrong = {f"a fine film number {n}" for n in (7, 23)}
    changed = [line.replace(",good", ",bad") if line.split(",")[0] in wrong else line for line in lines]
    (tmp_path / "labels.csv").write_text("\n".join(changed) + "\n", encoding="utf-8")
    made = penwright("train", tmp_path / "labels.csv", "--run", tmp_path / "run", "--steps", 2, *QUICK)
    assert made.returncode == 0, made.stderr
    found = json.loads(penwright("evaluate", tmp_path / "run", "--check-labels", "--json").stdout)
    assert found and {each["text"] for each in found} <= wrong
    assert all((each["label"], each["predicted"]) == ("bad", "good") for each in found)
    shown = penwright("evaluate", tmp_path / "run", "--check-labels").stdout.splitlines()
    row = 2 + next(n for n, line in enumerate(changed[1:]) if line.startswith(f"{found[0]['text']},"))
    assert found[0]["location"] == f"{tmp_path / 'labels.csv'} row {row}"
    assert len(shown) == len(found) + 1
    assert shown[1].endswith(f"good\tbad\t{found[0]['text']}\t{found[0]['location']}")


def test_held_out_labels_are_checked_too(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, words = open_run(runs / "classifier"), list[str]()
    corpus = open_corpus_of(opened)
    monkeypatch.setattr(classification, "DOUBTFUL", 0.0)
    checked = list[list[str]]()

    def wrong(texts: list[str], *_: object) -> torch.Tensor:
        checked.append(texts)
        return torch.tensor([[0.0, -9.0]]).repeat(len(texts), 1)

    monkeypatch.setattr(classification, "out_of_fold", wrong)
    found = check_labels(runs / "classifier", words.append)
    assert [each.label for each in found] == 60 * ["good"] and words == [
        "fitting linear classifiers on n-grams to check the labels of 120 texts",
        "60 doubtful labels in 120 texts",
    ]
    texts = [example.text for part in (corpus.training, corpus.held_out) for example in part]
    assert all(texts[each.row] == each.text for each in found)
    lines = (Path(corpus.files[0].path)).read_text("utf-8").splitlines()
    assert all(lines[int(each.location.split()[-1]) - 1] == f"{each.text},good" for each in found)
    monkeypatch.setattr(linear, "MOST_LOGITS", 20)
    assert check_labels(runs / "classifier", words.append)
    sample = re.search(r"in a sample of (\d+) of 120 texts$", words[-1])
    assert sample and 8 <= int(sample[1]) <= 10, "the limit is for both parts together: 20 logits, two for each text"
    monkeypatch.setattr(linear, "MOST_LOGITS", 50_000_000)
    monkeypatch.setattr(classification, "MOST_CHECKED", 500)
    check_labels(runs / "classifier", words.append)
    assert 300 < len("".join(checked[-1])) < 600 and "in a sample of" in words[-1]


def test_check_labels_refuses_a_writer(penwright: Command, runs: Path) -> None:
    done = penwright("evaluate", runs / "writer", "--check-labels")
    assert done.returncode == 2 and "not a classifier" in done.stderr


@pytest.mark.parametrize(
    ("command", "options", "message"),
    [
        ("classify", ["--text", "text", "a fine film"], "--text has no effect without --csv"),
        ("evaluate", ["--output", "x.txt"], "which is not a translator. Leave it out"),
        ("evaluate", ["--beam", "3"], "--beam has no effect"),
        ("evaluate", ["labels.csv", "--check-labels"], "DATA has no effect with --check-labels"),
        ("evaluate", ["--check-labels", "--output", "x.txt"], "--output has no effect with --check-labels"),
        ("evaluate", ["--check-labels", "--set", "data.label=x"], "--set has no effect with --check-labels"),
        ("evaluate", ["--check-labels", "--precision", "float32"], "--precision has no effect with --check-labels"),
        ("evaluate", ["--check-labels", "--beam", "3"], "--beam has no effect with --check-labels"),
    ],
)
def test_options_without_effect_are_refused(
    penwright: Command, runs: Path, command: str, options: list[str], message: str
) -> None:
    done = penwright(command, runs / "classifier", *options)
    assert done.returncode == 2 and message in done.stderr and not done.stdout


def test_threshold_applies_to_the_positive_label(penwright: Command, runs: Path) -> None:
    texts = [f"a {word} film number {n}" for n in range(5) for word in ("fine", "dull")]
    for threshold, labels in ((0, {"bad"}), (1, {"good"})):
        options = ["--positive", "bad", "--threshold", threshold]
        lines = penwright("classify", runs / "classifier", *options, *texts).stdout.splitlines()
        assert {line.split("\t")[0] for line in lines} == labels
    record = json.loads(penwright("classify", runs / "classifier", *options, "--json", texts[1]).stdout)
    assert record["label"] == "good" == next(iter(record["scores"])) and set(record["scores"]) == {"good", "bad"}
    table = penwright("classify", runs / "classifier", "--csv", "-", "--positive", "bad", stdin="text\na dull film\n")
    assert rows_of(table.stdout)[1][1] == "bad"
    refused = penwright("classify", runs / "classifier", "--positive", "worse", "a film")
    assert refused.returncode == 2 and "no label 'worse'. The labels are bad, good" in refused.stderr


def test_evaluate_prints_the_best_threshold_for_two_labels(penwright: Command, runs: Path, tmp_path: Path) -> None:
    printed = penwright("evaluate", runs / "classifier").stdout
    assert "best threshold: --positive " in printed and "; tuned on these texts)" in printed
    for rarer, other in (("fine", "dull"), ("dull", "fine")):  # the label depends on training, not on this file
        rows = f"a {rarer} film,{'good' if rarer == 'fine' else 'bad'}\n"
        rows += "".join(f"a {other} film {n},{'good' if other == 'fine' else 'bad'}\n" for n in range(3))
        (tmp_path / "test.csv").write_text(f"text,label\n{rows}", encoding="utf-8")
        assert (
            "best threshold: --positive bad "
            in penwright("evaluate", runs / "classifier", tmp_path / "test.csv").stdout
        )
    report = json.loads(penwright("evaluate", runs / "classifier", "--json").stdout)[0]["report"]
    assert report["threshold"]["label"] in ("good", "bad") and 0 <= report["threshold"]["threshold"] <= 1


def test_final_linear_part_is_fitted_on_held_out_texts_too(
    penwright: Command, corpora: Path, runs: Path, tmp_path: Path
) -> None:
    run, path = runs / "classifier", runs / "classifier" / LINEAR_FILE
    measuring, whole = (LinearClassifier.load(path, 2, whole=each) for each in (False, True))
    assert whole.vectorizer.idf.sum() != measuring.vectorizer.idf.sum()
    used = load_classifier(run).linear
    assert used is not None and torch.equal(used.coefficients.weights, whole.coefficients.weights)
    opened = Run.open(run)
    measured = {record["step"]: record["nats per text"] for record in opened.records("metrics.jsonl")}
    nats = json.loads(penwright("evaluate", run, "--json").stdout)[2]["value"]
    assert nats == pytest.approx(measured[opened.checkpoints.best_step()])
    seen = json.loads(penwright("evaluate", run, corpora / "labels.csv", "--json").stdout)[2]
    baseline = {each["name"]: each["value"] for each in seen["baselines"]}
    assert baseline["linear classifier of n-grams"] > 0
    (tmp_path / "own.csv").write_text("text,label\na fine thing,good\na dull thing,bad\n", encoding="utf-8")
    options = ["--validation", tmp_path / "own.csv", "--steps", 1, *QUICK]
    made = penwright("train", corpora / "labels.csv", "--run", tmp_path / "own", *options)
    assert made.returncode == 0, made.stderr
    path = tmp_path / "own" / LINEAR_FILE
    assert len({LinearClassifier.load(path, 2, whole=each).vectorizer.idf.sum() for each in (False, True)}) == 1


def test_text_pairs_are_learned_and_classified(penwright: Command, tmp_path: Path) -> None:
    path, run = tmp_path / "pairs.csv", tmp_path / "run"
    letters = "abcdefgh"
    pairs = [(letters[i % 8], letters[(i + j * (1 + i // 8)) % 8], i) for i in range(56) for j in range(2)]
    rows = [f"{a} x{i},{b} y{i},{'same' if a == b else 'other'}" for a, b, i in pairs]
    path.write_text("\n".join(["left,right,label", *rows]) + "\n", encoding="utf-8")
    options = ["--columns", "left,right", "--steps", 2, "--run", run, *QUICK, "--set", "model.ngrams=true"]
    made = penwright("train", path, *options)
    assert made.returncode == 0, made.stderr
    assert "left | right" in made.stderr
    done = penwright("classify", run, stdin="c x1\tc y1\nc x1\te y2\n")
    assert [line.split("\t")[0] for line in done.stdout.splitlines()] == ["same", "other"]
    table = penwright("classify", run, "--csv", "-", stdin="right,left,note\nb y3,b x3,x\n,b,y\n")
    assert [row[3] for row in rows_of(table.stdout)[1:]] == ["same", ""]
    scores = penwright("evaluate", run, path, "--json")
    assert scores.returncode == 0 and "accuracy" in scores.stdout
    assert "one tab between the two texts" in penwright("classify", run, "a text").stderr
