"""Compiled code is loaded only from folders that no other user can write to."""

import os
from pathlib import Path

import pytest

from penwright.errors import PenwrightError, PenwrightWarning
from penwright.native import toolchain

OTHER_USER = 12345
NEEDS_ROOT = pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="only root can give files away")


@pytest.fixture
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache folder, with a compiled file in it."""
    monkeypatch.setenv("PENWRIGHT_CACHE", str(tmp_path / "cache"))
    folder = toolchain.trusted_folder()
    (folder / "step.pt2").write_bytes(b"code")
    return folder


def test_own_folder_is_trusted_even_in_a_sticky_one(cache_folder: Path, tmp_path: Path) -> None:
    assert toolchain.why_not_trusted(cache_folder / "step.pt2") == ""
    tmp_path.chmod(0o1777)
    assert toolchain.why_not_trusted(cache_folder / "step.pt2") == ""


@pytest.mark.parametrize("which", [".", "cache", "cache/compiled", "cache/compiled/step.pt2"])
@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o757])
def test_paths_writable_by_others_are_not_trusted(cache_folder: Path, tmp_path: Path, which: str, mode: int) -> None:
    (tmp_path / which).chmod(mode)
    if mode == 0o1777 and not which.endswith(".pt2"):  # only its owner can replace a file in a sticky folder
        assert toolchain.why_not_trusted(cache_folder / "step.pt2") == ""
        return
    assert f"other users can write to {tmp_path / which}" in toolchain.why_not_trusted(cache_folder / "step.pt2")


@NEEDS_ROOT
@pytest.mark.parametrize("which", ["cache", "cache/compiled", "cache/compiled/step.pt2"])
def test_paths_owned_by_others_are_not_trusted(cache_folder: Path, tmp_path: Path, which: str) -> None:
    os.chown(tmp_path / which, OTHER_USER, OTHER_USER)
    assert f"{tmp_path / which} belongs to another user" in toolchain.why_not_trusted(cache_folder / "step.pt2")


@NEEDS_ROOT
def test_paths_writable_by_a_foreign_group_are_not_trusted(cache_folder: Path) -> None:
    os.chown(cache_folder, 0, OTHER_USER)
    cache_folder.chmod(0o770)
    assert "other users can write to" in toolchain.why_not_trusted(cache_folder)


@NEEDS_ROOT
def test_symlink_owned_by_others_is_not_trusted(cache_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(cache_folder.parent)
    assert toolchain.why_not_trusted(tmp_path / "link" / "compiled") == ""
    os.chown(tmp_path / "link", OTHER_USER, OTHER_USER, follow_symlinks=False)
    assert "link belongs to another user" in toolchain.why_not_trusted(tmp_path / "link" / "compiled")


def test_untrusted_cache_is_refused_and_training_uses_its_own(
    cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache_folder.chmod(0o777)
    with pytest.raises(PenwrightError, match=r"other users can write to .*chmod go-w .*PENWRIGHT_CACHE"):
        toolchain.trusted_folder()
    monkeypatch.setenv(toolchain.INDUCTOR_CACHE_VARIABLE, "")  # registers the variable to be restored
    monkeypatch.delenv(toolchain.INDUCTOR_CACHE_VARIABLE)
    with pytest.warns(PenwrightWarning, match="other users can write to"):
        toolchain.set_inductor_cache()
    own = Path(os.environ[toolchain.INDUCTOR_CACHE_VARIABLE])
    assert own != cache_folder and own.stat().st_mode & 0o777 == 0o700
