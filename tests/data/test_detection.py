"""Detection of the task from the files."""

import gzip
import json

import pytest

from penwright.data.detection import detect_task
from penwright.data.labelled import open_labelled
from penwright.data.parallel import open_pairs
from penwright.errors import PenwrightError, Undecided

PROSE = "Once upon a time there was a text.\nIt went on.\n"


def write(folder, files: dict[str, str]) -> list[str]:
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [str(folder / name) for name in files]


@pytest.mark.parametrize(
    ("files", "task"),
    [
        ({"a.txt": PROSE}, "generate"),
        ({"a.txt": PROSE, "b.txt": PROSE}, "generate"),
        ({"a.en": PROSE, "a.de": PROSE}, "translate"),
        ({"a.en": PROSE, "a.de": PROSE * 2}, "translate"),  # unequal numbers of lines: an error when the files are read
        ({"a.py": PROSE, "b.js": PROSE * 2}, "generate"),
        ({"en.txt": PROSE, "fr.txt": PROSE}, "translate"),
        ({"a.tmx": "<tmx/>"}, "translate"),
        ({"a.txt": "Go.\tVe.\nRun!\tCorre.\nWow!\tOrale.\n"}, "translate"),
        ({"a.csv": "en,de\nyes,ja\n"}, "translate"),
        ({"a.tsv": "label\tsentence\n0\tbad film\n1\tgood film\n"}, "classify"),
        ({"a.csv": "".join(f"a text that is number {i},{i % 2}\n" for i in range(20))}, "classify"),
        ({"a.jsonl": '{"text": "one"}\n{"text": "two"}\n'}, "generate"),
        ({"a.txt": '{"text": "one", "label": "x"}\n{"text": "two", "label": "y"}\n'}, "classify"),
        ({"chats": '[\n {"prompt": "one", "response": "two"},\n {"prompt": "three", "response": "four"}\n]\n'}, "chat"),
        ({"a.txt": '{"prompt": "one", "response": "two"}\n' + PROSE}, "generate"),
        ({"a.txt": "text,label\n" + "".join(f"one text number {i},{'xy'[i % 2]}\n" for i in range(20))}, "classify"),
        ({"a.txt": "Text, label\n" + PROSE}, "generate"),
        (
            {"a.jsonl": '{"text": "one", "label": "x", "meta": {}}\n{"text": "two", "label": "y", "meta": {}}\n'},
            "classify",
        ),
        ({"a.jsonl": '{"id": 1, "text": "one", "url": "x"}\n' * 9}, "generate"),
        ({"a.jsonl": '{"text": "one", "label": "x"}\n{"text": "two", "label": "y"}\n'}, "classify"),
    ],
)
def test_task_is_detected_from_the_files(tmp_path, files, task):
    assert detect_task(write(tmp_path, files))[0] == task


def test_several_pairs_of_files_are_translations_if_one_pair_differs_in_length(tmp_path):
    files = {"1_en.txt": PROSE, "1_es.txt": PROSE * 2, "2_en.txt": PROSE, "2_es.txt": PROSE}
    assert detect_task(write(tmp_path, files))[0] == "translate"
    assert (
        detect_task(write(tmp_path, {name: files[name] for name in sorted(files, key=lambda n: n[2:])}))[0]
        == "translate"
    )


VERSES = [f"This is verse number {i} of the book, and it goes on." for i in range(40)]
ANSWERS = ["Das ist gut.", "Ich weiß es nicht.", "Komm her!", "Wer ist da?"]


@pytest.mark.parametrize(
    ("files", "asked"),
    [
        ({"a.en.txt": "\n".join(f"GEN 1:{i}\t{verse}" for i, verse in enumerate(VERSES)), "a.es.txt": PROSE}, "sides"),
        (
            {"a.csv": "b,v,t\n" + "".join(f'{i % 3},{i % 4},"{v}"\n' for i, v in enumerate(VERSES))},
            "task generate .*=t",
        ),
        ({"a.tsv": "".join(f"{verse}\t{ANSWERS[i % 4]}\n" for i, verse in enumerate(VERSES))}, "task translate"),
    ],
)
def test_tables_that_may_not_be_what_they_seem_ask_for_the_task(tmp_path, files, asked):
    with pytest.raises(Undecided, match=f"(?s){asked}"):
        detect_task(write(tmp_path, files))


def test_poems_with_titles_are_text(tmp_path):
    rows = "".join(f'Title {i} of this poem,"{verse} And on it goes."\n' for i, verse in enumerate(VERSES))
    assert detect_task(write(tmp_path, {"a.csv": "Title,Poem\n" + rows}))[0] == "generate"


def test_a_folder_is_running_text(tmp_path):
    write(tmp_path, {"a.txt": PROSE})
    assert detect_task([tmp_path])[0] == "generate"


def test_detection_reason_names_the_column(tmp_path):
    paths = write(tmp_path, {"a.tsv": "label\tsentence\n0\tbad film\n1\tgood film\n"})
    assert detect_task(paths)[1] == f"{paths[0]} has a column 'label'"


def test_header_of_a_text_file_is_no_example(tmp_path):
    (path,) = write(tmp_path, {"a.txt": "text,label\n" + "".join(f"text {i},{'xy'[i % 2]}\n" for i in range(20))})
    corpus = open_labelled([path])
    assert corpus.n_training + len(corpus.held_out) == 20 and set(corpus.label_counts) == {"x", "y"}


def test_objects_named_by_ids_are_cells_and_ask_for_the_task(tmp_path):
    rows = [
        {"title": f"Talk {n}", "map": {f"{n}-{i}": {"content": f"words {i}"} for i in range(100)}} for n in range(30)
    ]
    (path,) = write(tmp_path, {"a.json": json.dumps(rows)})
    with pytest.raises(Undecided, match=r"'title', but far more text .*'map'") as refused:
        detect_task([path])
    assert len(str(refused.value)) < 1000


def test_json_in_a_cell_of_a_csv_file_is_metadata(tmp_path):
    meta = '"{' + ", ".join(f'""key {i}"": ""some value {i}""' for i in range(60)) + '}"'
    lines = [f"some words about thing {n},{meta.replace('value', f'value {n}')}" for n in range(30)]
    assert detect_task(write(tmp_path, {"a.csv": "\n".join(["title,meta", *lines])}))[0] == "generate"


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(PenwrightError, match="no file"):
        detect_task([tmp_path / "none.txt"])


SOURCE_LINES = [" ".join(["word"] * (i * 7 % 11 + 1)) + f" {i}" for i in range(30)]
TARGET_LINES = [" ".join(["Wort"] * (i * 7 % 11 + 1)) + f", {i}" for i in range(30)]


@pytest.mark.parametrize(
    ("first", "second", "names"),
    [
        ("train.en.txt", "train.de.txt", ("en", "de")),
        ("train.de.txt", "train.en.txt", ("de", "en")),
        ("en/train.txt", "de/train.txt", ("en", "de")),
        ("corpus.de-en.de", "corpus.de-en.en", ("de", "en")),
        ("x.eng", "x.deu", ("en", "de")),
        ("news-english.txt", "news-german.txt", ("en", "de")),
        ("a.pt_BR.txt", "a.pt_PT.txt", ("pt-br", "pt-pt")),
        ("news.src.en", "news.ref.de", ("en", "de")),
        ("train.en", "train.de", ("en", "de")),
    ],
)
def test_files_named_after_two_languages_are_pairs_in_given_order(tmp_path, first, second, names):
    for name in (first, second):
        (tmp_path / name).parent.mkdir(exist_ok=True)
    paths = write(tmp_path, {first: "\n".join(SOURCE_LINES), second: "\n".join(TARGET_LINES)})
    assert detect_task(paths)[0] == "translate"
    corpus = open_pairs(paths)
    assert corpus.names == names and next(iter(corpus.training)).source.startswith("word")


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("src-train.txt", "tgt-train.txt"),
        ("source.txt", "target.txt"),
        ("train.src", "train.tgt"),
        ("a.src.txt", "a.trg.txt"),
        ("source/a.txt", "target/a.txt"),
        ("src.txt.gz", "ref.txt"),
    ],
)
@pytest.mark.parametrize("is_target_first", [False, True])
def test_files_named_source_and_target_are_pairs_in_either_order(tmp_path, source, target, is_target_first):
    for name, lines in ((source, SOURCE_LINES), (target, TARGET_LINES)):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        text = "\n".join(lines).encode()
        path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    paths = [str(tmp_path / name) for name in ((target, source) if is_target_first else (source, target))]
    assert detect_task(paths)[0] == "translate"
    assert next(iter(open_pairs(paths).training)).source.startswith("word")


def test_paired_files_of_unequal_length_are_refused_with_both_counts(tmp_path):
    paths = write(tmp_path, {"a.en.txt": "\n".join(SOURCE_LINES), "a.de.txt": "\n".join(TARGET_LINES[:-3])})
    assert detect_task(paths)[0] == "translate"
    with pytest.raises(PenwrightError, match=r"3 lines .* no counterpart.*30.*27"):
        open_pairs(paths)


def test_parallel_files_without_language_names_ask_for_the_task(tmp_path):
    paths = write(tmp_path, {"one.txt": "\n".join(SOURCE_LINES), "two.txt": "\n".join(TARGET_LINES)})
    with pytest.raises(Undecided, match=r"(?s)--task translate.*--task generate"):
        detect_task(paths)
    alike = write(tmp_path, {"one.txt": "\n".join(SOURCE_LINES), "two.txt": "\n".join(SOURCE_LINES)})
    assert detect_task(alike)[0] == "generate"


def test_folders_named_after_two_languages_ask_for_file_pairs(tmp_path):
    for name in ("en", "de"):
        (tmp_path / name).mkdir()
        write(tmp_path / name, {"a.txt": PROSE})
    with pytest.raises(Undecided, match="pass the files in pairs"):
        detect_task([tmp_path / "en", tmp_path / "de"])
