"""Folders that are published atomically: caches, checkpoints, exports and imports."""

import os
from pathlib import Path

import pytest

from penwright import storage
from penwright.errors import PenwrightError, UsageError
from penwright.formats.export import new_folder
from penwright.storage import saving, write_bytes_atomically


def test_published_folder_is_on_disk_with_its_subfolders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[str] = []
    monkeypatch.setattr(storage, "flush", lambda path: flushed.append(path.name))
    with saving(tmp_path / "run") as folder:
        (folder / "checkpoints").mkdir()
        (folder / "checkpoints" / "weights").touch(0o600)
    assert {"checkpoints", "weights"} <= set(flushed)
    assert flushed[-1] == tmp_path.name, "the entry of the folder itself"
    assert (tmp_path / "run" / "checkpoints" / "weights").stat().st_mode & 0o044
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_content_is_on_disk_before_it_replaces_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, replace, synced = tmp_path / "recipe.toml", Path.replace, list[int]()
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(os.fstat(file).st_ino) or fsync(file))

    def replace_if_synced(temporary: Path, target: Path) -> Path:
        assert temporary.stat().st_ino in synced and temporary.read_bytes() == b"new"
        return replace(temporary, target)

    monkeypatch.setattr(Path, "replace", replace_if_synced)
    write_bytes_atomically(path, b"new")
    assert path.read_bytes() == b"new"


def test_export_waits_until_its_files_are_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[str] = []
    monkeypatch.setattr(storage, "flush", lambda path: flushed.append(path.name))
    with new_folder(tmp_path / "export") as folder:
        (folder / "model.gguf").touch()
    assert "model.gguf" in flushed


def test_files_that_appear_during_an_export_are_kept(tmp_path: Path) -> None:
    mine = tmp_path / "export" / "mine.txt"
    with pytest.raises(UsageError, match="is not an empty folder"), new_folder(tmp_path / "export"):
        mine.parent.mkdir()
        mine.touch()
    assert mine.exists()
    assert [path.name for path in tmp_path.iterdir()] == ["export"]


def test_exports_delete_no_folders_of_others(tmp_path: Path) -> None:
    (tmp_path / "export.tmp-2026").mkdir()
    with pytest.raises(UsageError), new_folder(tmp_path / "export") as slow:
        with new_folder(tmp_path / "export") as quick:
            (quick / "model.gguf").touch()
        assert slow.exists()
    assert {path.name for path in tmp_path.iterdir()} == {"export", "export.tmp-2026"}


@pytest.mark.parametrize("is_link", [True, False])
def test_export_to_a_link_or_the_current_folder_is_refused(
    is_link: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    monkeypatch.chdir(tmp_path / "empty")
    output, message = (tmp_path / "link", "is a symbolic link") if is_link else (Path(), "Choose a new folder")
    with pytest.raises(PenwrightError, match=message), new_folder(output) as folder:
        (folder / "model.gguf").touch()
    assert not any((tmp_path / "empty").iterdir())
