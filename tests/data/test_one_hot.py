"""Tables with a column of 0 and 1 for each label."""

from pathlib import Path

import pytest

from penwright.data.corpus import Columns, LabelKind, ReadingOptions
from penwright.data.detection import detect_task
from penwright.data.labelled import open_evaluation_labelled, open_labelled
from penwright.errors import PenwrightError, Undecided

NAMES = ("toxic", "threat", "insult")


def write(folder: Path, header: str, row: str, n: int = 120) -> Path:
    """Write a table whose row `k` is `row` with a, b and c replaced by 0 or 1."""
    path = folder / "comments.csv"
    rows = []
    for k in range(n):
        a, b, c = k % 2, int(k % 3 == 0), int(k % 5 == 0)
        rows.append(row.format(k=k, a=a, b=b, c=c, text=f"a comment number {k}", not_a=1 - a))
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return path


def test_columns_of_0_and_1_are_one_label_each(tmp_path: Path) -> None:
    path = write(tmp_path, "id,comment_text,toxic,threat,insult", "{k},{text},{a},{b},{c}")
    assert detect_task([str(path)])[0] == "classify"
    corpus = open_labelled([path])
    assert corpus.label_kind == LabelKind("multi_label_classification") and set(corpus.labels) == {*NAMES}
    assert any("3 columns of 0 and 1 (toxic, threat, insult)" in note for note in corpus.report.notes)
    found = {example.text: example.labels for part in (corpus.training, corpus.held_out) for example in part}
    assert len(found) == 120, "a text without labels is kept"
    for text, labels in found.items():
        k = int(text.rsplit(" ", 1)[1])
        chosen = zip(NAMES, (k % 2, k % 3 == 0, k % 5 == 0), strict=True)
        assert set(labels) == {name for name, is_chosen in chosen if is_chosen}
    again = write(tmp_path, "insult,comment_text,toxic,threat", "{c},{text},{a},{b}", n=6)
    reading = ReadingOptions(Columns(as_trained=corpus.roles, label_kind=corpus.label_kind))
    evaluated = list(open_evaluation_labelled([again], reading).held_out)
    assert [set(each.labels) for each in evaluated] == [set(found[each.text]) for each in evaluated]


@pytest.mark.parametrize("value", [("true", "false"), ("Yes", "no"), ("1.0", "0.0"), ("x", "")])
def test_named_columns_may_hold_other_words(tmp_path: Path, value: tuple[str, str]) -> None:
    path = tmp_path / "a.csv"
    rows = [f"text number {k},{value[k % 2]},{value[k % 3 > 0]}\n" for k in range(40)]
    path.write_text("words,warm,wet\n" + "".join(rows), encoding="utf-8")
    corpus = open_labelled([path], ReadingOptions(Columns(label=("warm", "wet"))))
    assert {each.labels for each in corpus.training} <= {(), ("warm",), ("wet",), ("warm", "wet")}
    assert len(corpus.training) + len(corpus.held_out) == 40, "a text without labels is kept"
    assert corpus.label_counts["warm"] + sum("warm" in each.labels for each in corpus.held_out) in (19, 20)


def test_exactly_one_label_in_each_row_is_a_class(tmp_path: Path) -> None:
    path = write(tmp_path, "text,sports,business", "{text},{a},{not_a}")
    corpus = open_labelled([path], ReadingOptions(Columns(label=("sports", "business"))))
    assert corpus.label_kind == LabelKind() and corpus.labels == ("business", "sports")


def test_rows_that_nobody_labelled_are_dropped(tmp_path: Path) -> None:
    path = write(tmp_path, "text,sports,business", "{text},{a},{not_a}")
    path.write_text(path.read_text() + "".join(f"not yet read {n},,\n" for n in range(5)))
    corpus = open_labelled([path], ReadingOptions(Columns(label=("sports", "business"))))
    assert corpus.label_kind == LabelKind() and corpus.labels == ("business", "sports")
    assert any("5 dropped: the label is missing" in line for line in corpus.report.lines())


def test_label_that_is_too_rare_for_the_sample_is_learned(tmp_path: Path) -> None:
    path = write(tmp_path, "text,threat,insult,joke,rare,lang", "{text},{b},{c},{b},0,0", n=4001)
    lines = [line if n % 8 != 2 else line[:-3] + "1,0" for n, line in enumerate(path.read_text().splitlines())]
    path.write_text("\n".join(lines) + "\n")
    corpus = open_labelled([path])
    assert set(corpus.labels) == {"threat", "insult", "joke", "rare"}


def test_missing_label_column_is_not_taken_for_absent_labels(tmp_path: Path) -> None:
    path = write(tmp_path, "text,is_toxic,is_threat", "{text},{a},{b}")
    corpus = open_labelled([path])
    reading = ReadingOptions(Columns(as_trained=corpus.roles, label_kind=corpus.label_kind))
    with pytest.raises(PenwrightError, match=r"no column 'is_threat', which was the label.*text, is_toxic\. Choose"):
        open_evaluation_labelled([write(tmp_path, "text,is_toxic", "{text},{a}")], reading)


def test_texts_without_any_label_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "text,toxic,threat", "{text},0,0")
    with pytest.raises(PenwrightError, match=r"no training text has a label \(label columns: toxic, threat\)"):
        open_labelled([path], ReadingOptions(Columns(label=("toxic", "threat"))))


@pytest.mark.parametrize(
    ("header", "row", "label"),
    [
        ("text,label,pinned,liked,shared", "{text},{a},{b},{c},{a}", "label"),
        ("text,pinned,is_joke,liked", "{text},{b},{a},{c}", "is_joke"),
    ],
)
def test_column_named_like_labels_is_the_only_label(tmp_path: Path, header: str, row: str, label: str) -> None:
    corpus = open_labelled([write(tmp_path, header, row)])
    assert [name for name, _ in corpus.roles["label"]] == [label] and corpus.labels == ("0", "1")


def test_several_columns_named_like_labels_are_all_learned(tmp_path: Path) -> None:
    corpus = open_labelled([write(tmp_path, "text,is_toxic,is_threat", "{text},{a},{b}")])
    assert corpus.labels == ("is_threat", "is_toxic")


def test_two_columns_without_telling_names_are_a_question(tmp_path: Path) -> None:
    path = write(tmp_path, "text,pinned,liked", "{text},{a},{b}")
    with pytest.raises(Undecided) as asked:
        open_labelled([path])
    assert 'data.label=["pinned", "liked"]' in asked.value.options[-1].settings
    with pytest.raises(Undecided) as asked:
        detect_task([str(path)])
    assert ("task=classify", 'data.label=["pinned", "liked"]') in [each.settings for each in asked.value.options]


def test_other_columns_are_never_mistaken_for_labels(tmp_path: Path) -> None:
    path = write(tmp_path, "text,mood,pinned,liked,shared", "{text},{a}{b},{a},{b},{c}")
    with pytest.raises(Undecided, match="which column is the label"):
        open_labelled([path])
    with pytest.raises(PenwrightError, match="a score needs one column"):
        columns = Columns(label=("pinned", "liked"), label_kind=LabelKind("regression"))
        open_labelled([path], ReadingOptions(columns))
    with pytest.raises(PenwrightError, match="120 dropped: the column of a label holds neither 0 nor 1"):
        open_labelled([path], ReadingOptions(Columns(label=("mood", "liked"))))
