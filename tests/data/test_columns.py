"""Column selection by names and values; the user decides ambiguous cases."""

import json
import shlex
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penwright.data import profiles
from penwright.data.conversations import open_conversations
from penwright.data.corpus import Columns, ReadingOptions
from penwright.data.detection import detect_task
from penwright.data.files import examine
from penwright.data.labelled import open_evaluation_labelled, open_labelled
from penwright.data.labels import label_key, tidy_label
from penwright.data.parallel import open_pairs
from penwright.data.profiles import TEXT, kind_of, shortened
from penwright.data.readers.tables import open_table
from penwright.data.text import open_evaluation_text, open_text
from penwright.errors import PenwrightError, Undecided

WORDS = ["the", "old", "kettle", "lamp", "garden", "seemed", "warm", "dull", "near", "by", "mill", "station", "soup"]
N = 60
Cell = Callable[[int], object]


def sentence(number: int, n_words: int = 8) -> str:
    return " ".join(Random(f"{number} {n_words}").choices(WORDS, k=n_words)) + f" {number}."


def short(number: int) -> str:
    return sentence(number, 2)


def link(number: int) -> str:
    return f"https://news.example/2019/a-long-path-of-words-to-the-story/{number}/{sentence(number).replace(' ', '-')}"


def parity(number: int) -> int:
    return number % 2


def table(folder: Path, columns: Mapping[str, Cell], name: str = "a.jsonl", n: int = N) -> Path:
    rows = [{key: cell(i) for key, cell in columns.items()} for i in range(n)]
    path = folder / name
    if name.endswith(".jsonl"):
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    else:  # without a header
        path.write_text("".join("\t".join(map(str, row.values())) + "\n" for row in rows), encoding="utf-8")
    return path


def chosen(path: Path) -> dict[str, list[str]]:
    """Return the columns of the detected task by role."""
    task, _ = detect_task([path])
    openers = {"generate": open_text, "chat": open_conversations, "translate": open_pairs, "classify": open_labelled}
    corpus = openers[task]([path])
    return {key: [name for name, _ in found] for key, found in corpus.roles.items()}


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("1,234.5", "numbers"),
        ("-3e5", "numbers"),
        ("12 %", "numbers"),
        ("https://a.example/b", "links"),
        ("www.a.example", "links"),
        ("a.b@c.example", "e-mail addresses"),
        ("2020-01-31T10:11:12Z", "dates or times"),
        ("Mon Apr 06 22:19:45 PDT 2009", "dates or times"),
        ("Mon 3 June", "dates or times"),
        ("3. März 2020", "dates or times"),
        ("2020年1月31日", "dates or times"),
        ("10:45 pm", "dates or times"),
        ("d41d8cd98f00b204e9800998ecf8427e", "identifiers"),
        ("user54", "identifiers"),
        ("clips/a.wav", "file names"),
        ('["a", "b"]', "lists"),
        ("...", "symbols without letters"),
        ("Go.", TEXT),
        ("positive", TEXT),
        ("我有3只猫", TEXT),
        ("See https://a.example/b for 3 reasons", TEXT),
        ("I saw 12 cats in May 2020", TEXT),
        ("ACGTACGTAC", TEXT),
        # long values, which patterns with much backtracking would take minutes to reject
        ("1" * 50_000 + " x", TEXT),
        ("a1" * 50_000 + " x", TEXT),
        ("a@" + "b." * 50_000 + " x", TEXT),
        ("a1" * 50_000, "identifiers"),
    ],
)
def test_kind_of_recognizes_values(value: str, kind: str) -> None:
    assert kind_of(value) == kind


@pytest.mark.parametrize(
    ("columns", "roles"),
    [
        ({"article_link": link, "headline": sentence, "is_joke": parity}, {"text": ["headline"], "label": ["is_joke"]}),
        ({"id": int, "text": sentence}, {"text": ["text"]}),
        ({"file": lambda i: f"clip{i}.wav", "transcript": sentence}, {"text": ["transcript"]}),
        (
            {"at": lambda i: f"2020-01-01 10:00:{i}", "reply": sentence, "spam": parity},
            {"text": ["reply"], "label": ["spam"]},
        ),
        ({"id": int, "text": sentence, "target": parity}, {"text": ["text"], "label": ["target"]}),
        ({"text": sentence, "label": lambda _: "x", "category": parity}, {"text": ["text"], "label": ["category"]}),
        ({"rating_label": parity, "x": sentence}, {"text": ["x"], "label": ["rating_label"]}),
        (
            {"premise": sentence, "hypothesis": short, "label": parity},
            {"text": ["premise", "hypothesis"], "label": ["label"]},
        ),
        ({"q1": sentence, "q2": short, "label": parity}, {"text": ["q1", "q2"], "label": ["label"]}),
        ({"text_a": sentence, "text_b": short, "label": parity}, {"text": ["text_a", "text_b"], "label": ["label"]}),
        ({"id": int, "title": short, "text": sentence, "url": link}, {"text": ["text"]}),
        (
            {"n": int, "left": sentence, "m": lambda i: 7 * i, "right": sentence},
            {"source": ["left"], "target": ["right"]},
        ),
        (
            {"instruction": short, "input": lambda _: "", "output": sentence},
            {"text": ["instruction", "input", "output"]},
        ),
        ({"source": link, "de": sentence, "en": sentence}, {"source": ["de"], "target": ["en"]}),
        ({"id": int, "en": sentence, "de": sentence}, {"source": ["en"], "target": ["de"]}),
        (
            {"Kommentar": sentence, "Bewertung": lambda i: ("gut", "schlecht")[i % 2]},
            {"text": ["Kommentar"], "label": ["Bewertung"]},
        ),
        ({"text": sentence, "labels": lambda i: [f"c{i % 2}"]}, {"text": ["text"], "label": ["labels"]}),
    ],
)
def test_columns_are_chosen_by_name_and_content(
    tmp_path: Path, columns: Mapping[str, Cell], roles: dict[str, list[str]]
) -> None:
    assert chosen(table(tmp_path, columns)) == roles


@pytest.mark.parametrize(
    ("columns", "roles"),
    [
        (
            {
                "label": lambda i: 4 * parity(i),
                "id": lambda i: 100_000 + i,
                "date": lambda _: "Mon 3 June",
                "query": lambda _: "NO_QUERY",
                "user": lambda i: f"user{i % 13}",
                "text": sentence,
            },
            {"text": ["6"], "label": ["1"]},
        ),
        ({"a": int, "b": sentence, "c": lambda i: 900_000 + i, "d": sentence}, {"source": ["2"], "target": ["4"]}),
        (
            {"a": sentence, "b": short, "c": lambda i: f"CC-BY 2.0 (France) Attribution: tatoeba.org #{i} (CM{i})"},
            {"source": ["1"], "target": ["2"]},
        ),
    ],
)
def test_unnamed_columns_are_chosen_by_content(
    tmp_path: Path, columns: Mapping[str, Cell], roles: dict[str, list[str]]
) -> None:
    assert chosen(table(tmp_path, columns, "a.tsv")) == roles


@pytest.mark.parametrize(
    ("columns", "settings"),
    [
        ({"x": sentence, "toxic": parity, "obscene": lambda i: i // 2 % 2}, {"data.label=toxic", "data.label=obscene"}),
        ({"x": sentence, "y2": sentence, "kind": parity}, {"data.text=x", "data.text=y2"}),
        ({"a": sentence, "b": sentence, "c": sentence}, {"data.source=a", "data.target=b", "data.source=c"}),
        ({"en": sentence, "de": sentence, "fr": sentence}, {"data.source=de", "data.target=fr"}),
        ({"en": sentence, "de": sentence, "category": parity}, {"task=translate", "task=classify"}),
        ({"text": sentence, "id": int, "author": lambda i: "ABC"[i % 3]}, {"task=generate", "data.label=author"}),
        ({"document": lambda i: sentence(i, 90), "summary": sentence}, {"data.text=document", "task=translate"}),
    ],
)
def test_ambiguous_columns_list_the_settings_that_decide(
    tmp_path: Path, columns: Mapping[str, Cell], settings: set[str]
) -> None:
    with pytest.raises(Undecided) as refused:
        chosen(table(tmp_path, columns))
    offered = {setting for option in refused.value.options for setting in option.settings}
    assert settings <= offered and refused.value.exit_code == 2
    for setting in offered:
        assert setting.removeprefix("task=") in str(refused.value)


def test_table_without_text_is_refused_with_its_column_kinds(tmp_path: Path) -> None:
    with pytest.raises(Undecided, match=r"'a' \(numbers.*'b' \(links"):
        chosen(table(tmp_path, {"a": lambda i: i * 7, "b": link, "c": lambda i: i * 1.5}))


def test_link_column_is_read_as_text_only_on_request(tmp_path: Path) -> None:
    path = table(tmp_path, {"url": link, "kind": parity})
    with pytest.raises(Undecided, match=r"--set data\.text=url"):
        open_labelled([path])
    assert open_labelled([path], ReadingOptions(Columns(text="url"))).n_training == 54


def test_requested_columns_override_the_choice_by_content(tmp_path: Path) -> None:
    path = table(tmp_path, {"url": link, "text": sentence, "n": lambda i: i % 30 / 7, "label": parity})
    corpus = open_labelled([path], ReadingOptions(Columns(text="url", label="n")))
    assert next(iter(corpus.training)).text.startswith("https://")


def test_unused_columns_are_noted_with_the_setting_to_add_text(tmp_path: Path) -> None:
    path = table(tmp_path, {"id": int, "title": short, "text": sentence, "label": parity})
    notes = "\n".join(open_labelled([path]).report.notes)
    assert "not used: 'id' (numbers, such as 0), 'title' (text" in notes
    assert """--set 'data.text=["title", "text"]'""" in notes


def test_continuous_numbers_are_refused_as_labels(tmp_path: Path) -> None:
    path = table(tmp_path, {"text": sentence, "sentiment": lambda i: i / N - 0.5})
    with pytest.raises(PenwrightError, match="'sentiment' holds numbers on a scale"):
        open_labelled([path])


def test_labels_are_found_in_a_file_sorted_by_label(tmp_path: Path) -> None:
    path = table(tmp_path, {"a": sentence, "b": lambda i: "xy"[i >= 1500]}, "a.tsv", n=3000)
    assert chosen(path) == {"text": ["1"], "label": ["2"]}


def test_labels_that_begin_after_the_first_rows_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiles, "MOST_ROWS", 1500)
    path = table(tmp_path, {"a": sentence, "sentiment": lambda i: "xy"[i >= 2000], "yes": parity}, n=4000)
    assert chosen(path)["label"] == ["sentiment"]


def test_further_rows_are_read_only_for_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiles, "MOST_ROWS", 1500)
    path = table(tmp_path, {"a": sentence, "page": lambda i: "xy"[i >= 2000], "yes": parity}, n=4000)
    assert [column.is_constant for column in profiles.profiles_of(open_table(examine(path)))] == [False, True, False]


def test_labels_that_alternate_in_a_long_table_are_found(tmp_path: Path) -> None:
    path = table(tmp_path, {"a": sentence, "b": lambda i: "xy"[i % 2]}, "a.tsv", n=4000)
    assert chosen(path) == {"text": ["1"], "label": ["2"]}


def test_conversations_without_an_answer_are_refused(tmp_path: Path) -> None:
    path = table(tmp_path, {"messages": lambda i: [{"role": "user", "content": sentence(i)}]})
    with pytest.raises(PenwrightError, match=r"no rows are left .* no answer from the assistant"):
        chosen(path)


@pytest.mark.parametrize("labels", [["a", "b"], '["a", "b"]', "['a', 'b']"])
def test_list_of_several_labels_is_refused_with_its_line(tmp_path: Path, labels: object) -> None:
    path = table(tmp_path, {"text": sentence, "labels": lambda i: labels if i == 7 else "ab"[i % 2]})
    with pytest.raises(PenwrightError, match=r"line 8 has several labels \(a, b\)"):
        open_labelled([path])


def test_cells_of_several_labels_are_split_unless_column_is_named(tmp_path: Path) -> None:
    kinds = ["action", "comedy", "action|comedy", "drama|action"]
    path = table(tmp_path, {"text": sentence, "label": lambda i: kinds[i % 4]})
    assert set(open_labelled([path]).labels) == {"action", "comedy", "drama"}
    assert set(open_labelled([path], ReadingOptions(Columns(label="label"))).labels) == set(kinds)


def test_comma_separated_labels_ask_for_a_separator(tmp_path: Path) -> None:
    kinds = ["action", "comedy", "action,comedy", "drama,action"]
    path = table(tmp_path, {"text": sentence, "label": lambda i: kinds[i % 4]})
    with pytest.raises(PenwrightError, match=r"'action,comedy' may combine several.*data\.label_separator=,"):
        open_labelled([path])


def test_many_labels_are_accepted_when_the_column_is_named(tmp_path: Path) -> None:
    path = table(tmp_path, {"text": sentence, "label": lambda i: f"c{i % 1100}"}, n=3300)
    with pytest.raises(PenwrightError, match=r"1,100 different labels.*--set data\.label=label"):
        open_labelled([path])
    assert len(open_labelled([path], ReadingOptions(Columns(label="label"))).labels) == 1100


@pytest.mark.parametrize(
    ("other", "remark"),
    [("cafe\u0301", "decomposed"), ("ca\u00adfé", "invisible"), ("Café", "look alike"), ("ca fé", "look alike")],
)
def test_lookalike_labels_are_merged_or_noted(tmp_path: Path, other: str, remark: str) -> None:
    names = ["café", "thé", other]
    corpus = open_labelled([table(tmp_path, {"text": sentence, "label": lambda i: names[i % 3]})])
    assert remark in " ".join(corpus.report.notes)
    assert len(corpus.labels) == (3 if remark == "look alike" else 2)


def test_advice_on_lookalike_labels_merges_all_of_them(tmp_path: Path) -> None:
    names = ["POS", "Pos", "neg", "pos"]
    path = table(tmp_path, {"text": sentence, "label": lambda i: names[i % 4]})
    (note,) = (each for each in open_labelled([path]).report.notes if "look alike" in each)
    advised = shlex.split(note)[-1].removeprefix("data.label_names=")
    merged = tomllib.loads(f"names = {advised}")["names"]
    assert len(open_labelled([path], ReadingOptions(Columns(label_names=merged))).labels) == 2


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ("Sci-Tech", "sci tech", True),
        ("level-1", "Level_1", True),
        ("1st__place", "1st place", True),
        ("11-1", "1-11", False),
        ("1__1", "11", False),
        ("2 1", "21", False),
    ],
)
def test_labels_look_alike_unless_digits_move(one: str, other: str, alike: bool) -> None:
    assert (label_key(one) == label_key(other)) == alike


@given(st.text())
def test_tidy_label_is_idempotent_and_every_label_has_a_key(label: str) -> None:
    assert tidy_label(tidy_label(label)) == tidy_label(label)
    assert label_key(label) or not label


@given(st.text(), st.integers(4, 20))
def test_shortened_text_is_one_printable_line(text: str, longest: int) -> None:
    assert shortened(text, longest).isprintable() and len(shortened(text, longest)) <= longest


LINES: Sequence[str] = [sentence(i) for i in range(40)]


@pytest.mark.parametrize("form", ["__label__{label} {text}", "{label},{text}", "{text}, {label}"])
def test_lines_with_labels_are_read_as_a_table(tmp_path: Path, form: str) -> None:
    path, few = tmp_path / "a.txt", tmp_path / "few.txt"
    lines = [form.format(label=("good", "bad")[i % 2], text=line) for i, line in enumerate(LINES)]
    path.write_text("\n".join(lines), encoding="utf-8")
    few.write_text("\n".join(lines[:2]), encoding="utf-8")
    assert detect_task([path])[0] == "classify"
    corpus = open_labelled([path])
    assert corpus.labels == ("bad", "good") and {example.text for example in corpus.held_out} <= set(LINES)
    assert [example.label for example in open_evaluation_labelled([few]).held_out] == ["good", "bad"]


def test_fasttext_lines_with_several_labels_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("__label__a one\n__label__a __label__b two\n__label__b three\n", encoding="utf-8")
    with pytest.raises(PenwrightError, match=r"line 2 has several labels \(a, b\)"):
        open_labelled([path])


def test_fasttext_lines_may_have_several_labels(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    lines = [f"__label__a __label__{'bc'[n % 2]} {line}" for n, line in enumerate(LINES)]
    path.write_text("\n".join(lines), encoding="utf-8")
    corpus = open_labelled([path])
    assert {example.labels for example in corpus.training} == {("a", "b"), ("a", "c")}


def test_text_without_labels_lists_the_accepted_formats(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("\n".join(LINES), encoding="utf-8")
    with pytest.raises(PenwrightError, match=r"no labels: pass a table.*__label__"):
        open_labelled([path])


def test_evaluation_table_uses_the_training_columns(tmp_path: Path) -> None:
    train = table(tmp_path, {"link": link, "headline": sentence, "is_joke": parity}, "train.jsonl")
    trained = ReadingOptions(Columns(as_trained=open_labelled([train]).roles))
    moved = table(
        tmp_path, {"is_joke": parity, "body": sentence, "Headline": short, "kind": parity}, "moved.jsonl", n=2
    )
    assert [example.text for example in open_evaluation_labelled([moved], trained).held_out] == [short(0), short(1)]
    numbered = table(tmp_path, {"a": link, "b": short, "c": parity}, "numbered.tsv", n=2)
    assert [example.text for example in open_evaluation_labelled([numbered], trained).held_out] == [short(0), short(1)]
    named = table(tmp_path, {"text": short, "label": parity}, "named.jsonl", n=2)
    assert [example.text for example in open_evaluation_labelled([named], trained).held_out] == [short(0), short(1)]
    other = table(tmp_path, {"a": short, "b": parity}, "other.jsonl", n=2)
    with pytest.raises(
        PenwrightError, match=r"no column 'headline', which was the text in training.*a, b.*data\.text="
    ):
        open_evaluation_labelled([other], trained)


def test_text_evaluation_uses_the_training_column(tmp_path: Path) -> None:
    train = table(tmp_path, {"id": int, "text": sentence, "title": short})
    trained = ReadingOptions(Columns(as_trained=open_text([train]).roles))
    test = table(tmp_path, {"title": lambda i: sentence(i, 50), "text": short}, "test.jsonl", n=2)
    assert open_evaluation_text([test], trained).roles == {"text": (("text", 2),)}
    assert open_text([train], ReadingOptions(Columns(text="title"))).roles == {"text": (("title", 3),)}


def test_empty_lists_are_no_text(tmp_path: Path) -> None:
    path = table(tmp_path, {"text": lambda i: [sentence(i)] if i % 3 else [], "label": parity})
    corpus = open_text([path], ReadingOptions(Columns(text=("text", "label"))))
    assert not any("[" in "".join(document.chunks) for document in corpus.training)
    assert not any("[" in example.text for example in open_labelled([path]).training)


@pytest.mark.parametrize("end", ["and she was happy.", "he said.”", "and the rain went on"])
def test_similar_line_endings_of_a_novel_are_not_labels(tmp_path: Path, end: str) -> None:
    path = tmp_path / "novel.txt"
    path.write_text("".join(f"On day {n} it rained, {end if n % 2 else 'no.'}\n" for n in range(100)), encoding="utf-8")
    assert detect_task([path])[0] == "generate"
