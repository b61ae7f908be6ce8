"""Hugging Face data sets, from local folders in their formats."""

import json

import pytest

from penwright.data.corpus import ReadingOptions
from penwright.data.detection import detect_task
from penwright.data.labelled import open_labelled
from penwright.data.parallel import open_pairs
from penwright.data.readers import hub
from penwright.data.text import open_text
from penwright.errors import PenwrightError

datasets = pytest.importorskip("datasets", reason="the extra `hub` is not installed")


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)


def saved(folder, splits: dict[str, list[dict]], features=None) -> str:
    data = {name: datasets.Dataset.from_list(rows, features=features) for name, rows in splits.items()}
    with hub._quiet():
        datasets.DatasetDict(data).save_to_disk(folder / "saved")
    return f"hub:{folder / 'saved'}"


def test_translation_column_of_a_saved_data_set_yields_pairs(tmp_path):
    rows = [{"translation": {"de": f"Hund {i}", "en": f"dog {i}"}} for i in range(40)]
    corpus = open_pairs([saved(tmp_path, {"train": rows})])
    assert {(pair.source, pair.target) for part in (corpus.training, corpus.held_out) for pair in part} == {
        (f"Hund {i}", f"dog {i}") for i in range(40)
    }


def test_class_labels_become_names_and_splits_can_be_named(tmp_path):
    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["bad", "good"])}
    )
    splits = {name: [{"text": f"{name} text {i}", "label": i % 2} for i in range(20)] for name in ("train", "test")}
    name = saved(tmp_path, splits, features)
    corpus = open_labelled([name], ReadingOptions(validation=[f"{name}@test"]))
    assert corpus.labels == ("bad", "good")
    assert {example.text[:4] for example in corpus.held_out} == {"test"}


def test_a_folder_of_json_lines_is_a_data_set(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    lines = [json.dumps({"text": f"Document number {i}."}) for i in range(30)]
    (folder / "train.jsonl").write_text("\n".join(lines), encoding="utf-8")
    corpus = open_text([f"hub:{folder}"])
    assert corpus.n_training + len(corpus.held_out) == 30


def test_fingerprint_depends_on_the_content(tmp_path):
    hashes = [
        open_text([saved(tmp_path / name, {"train": [{"text": f"{name} {i}"} for i in range(30)]})]).files[0].sha256
        for name in ("a", "b")
    ]
    assert hashes[0] != hashes[1]


def test_facts_about_a_large_data_set_are_cached(tmp_path, monkeypatch):
    monkeypatch.setenv("PENWRIGHT_CACHE", str(tmp_path / "facts"))
    monkeypatch.setattr(hub, "MANY", 1)
    name = saved(tmp_path, {"train": [{"text": f"text {i}"} for i in range(30)]})
    first = open_text([name])
    monkeypatch.setattr(hub, "_as_file", None)
    assert open_text([name]).files == first.files


def test_unknown_split_lists_the_available_ones(tmp_path):
    name = saved(tmp_path, {"train": [{"text": "a"}], "test": [{"text": "b"}]})
    with pytest.raises(PenwrightError, match=r"no split 'tset'.*: train, test"):
        open_text([f"{name}@tset"])


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(PenwrightError, match=r"folder .*nowhere does not exist"):
        open_text([f"hub:{tmp_path}/nowhere"])


def test_unreachable_data_set_suggests_name_or_connection():
    with pytest.raises(PenwrightError, match=r"cannot be loaded.*network connection"):
        open_pairs(["hub:penwright/none/de-en"])


def test_missing_extra_error_gives_the_install_command(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with pytest.raises(PenwrightError, match=r"pip install 'penwright\[hub\]'"):
        open_text(["hub:some/name"])


@pytest.mark.parametrize(("first", "rest"), [("user/name", "name"), ("user/name/config", "config")])
def test_hub_name_is_tried_as_user_and_name_first(monkeypatch, first, rest):
    asked = []

    def load(*name: str):
        asked.append(name)
        raise datasets.exceptions.DatasetNotFoundError("not found")

    monkeypatch.setattr(datasets, "load_dataset", load)
    with pytest.raises(PenwrightError):
        open_text([f"hub:{first}"])
    assert asked == ([("user/name",), ("user", "name")] if rest == "name" else [("user/name", "config")])


def test_first_rows_of_a_data_set_are_streamed_once(monkeypatch):
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["no", "yes"])})
    read, loaded = [], []

    def rows():
        for i in range(10**6):
            read.append(i)
            yield {"text": f"Text number {i}.", "label": i % 2}

    def load(*name: str, streaming: bool):
        loaded.append(name)
        data = datasets.IterableDataset.from_generator(rows, features=features)
        return datasets.IterableDatasetDict({"train": data, "test": data})

    monkeypatch.setattr(datasets, "load_dataset", load)
    for _ in range(2):
        corpus = open_labelled(["hub:some/name@train[:50]"])
        assert corpus.n_training + len(corpus.held_out) == 50 and set(corpus.labels) == {"no", "yes"}
    assert len(read) <= 1000 and loaded == [("some/name",)]
    with pytest.raises(PenwrightError, match="has no split 'other'"):
        open_text(["hub:some/name@other[:50]"])


def test_first_rows_of_a_folder_are_its_first_rows(tmp_path):
    name = saved(tmp_path, {"train": [{"text": f"Document number {i}."} for i in range(60)]})
    corpus = open_text([f"{name}@train[:30]"])
    assert corpus.n_training + len(corpus.held_out) == 30


def test_task_is_detected_from_a_data_set(tmp_path):
    rows = [{"translation": {"de": f"Hund {i}", "en": f"dog {i}"}} for i in range(4)]
    assert detect_task([saved(tmp_path, {"train": rows})])[0] == "translate"
