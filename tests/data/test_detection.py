"""The task is told from the files."""

import pytest

from penwright.data.corpora import detect_task
from penwright.errors import PenwrightError

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
        ({"a.en": PROSE, "a.de": PROSE * 2}, "translate"),  # whose lines do not fit: said when it is read
        ({"a.py": PROSE, "b.js": PROSE * 2}, "generate"),
        ({"en.txt": PROSE, "fr.txt": PROSE}, "translate"),
        ({"a.tmx": "<tmx/>"}, "translate"),
        ({"a.txt": "Go.\tVe.\nRun!\tCorre.\nWow!\tOrale.\n"}, "translate"),
        ({"a.csv": "en,de\nyes,ja\n"}, "translate"),
        ({"a.tsv": "label\tsentence\n0\tbad film\n1\tgood film\n"}, "classify"),
        ({"a.csv": "".join(f"a text that is number {i},{i % 2}\n" for i in range(20))}, "classify"),
        ({"a.jsonl": '{"text": "one"}\n{"text": "two"}\n'}, "generate"),
        ({"a.jsonl": '{"id": 1, "text": "one", "url": "x"}\n' * 9}, "generate"),
        ({"a.jsonl": '{"text": "one", "label": "x"}\n{"text": "two", "label": "y"}\n'}, "classify"),
    ],
)
def test_files_tell_their_task(tmp_path, files, task):
    assert detect_task(write(tmp_path, files))[0] == task


def test_a_folder_is_running_text(tmp_path):
    write(tmp_path, {"a.txt": PROSE})
    assert detect_task([tmp_path])[0] == "generate"


def test_the_reason_names_the_column(tmp_path):
    paths = write(tmp_path, {"a.tsv": "label\tsentence\n0\tbad film\n1\tgood film\n"})
    assert detect_task(paths)[1] == f"{paths[0]} has a column 'label'"


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(PenwrightError, match="no file"):
        detect_task([tmp_path / "none.txt"])
