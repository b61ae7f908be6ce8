"""Compiled code is run only from a place that nobody else can write to."""

import os
from pathlib import Path

import pytest

from penwright.errors import PenwrightError, PenwrightWarning
from penwright.native import toolchain

OTHER_USER = 12345
NEEDS_ROOT = pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="only root can give files away")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the cache, with a compiled file in it."""
    monkeypatch.setenv("PENWRIGHT_CACHE", str(tmp_path / "cache"))
    folder = toolchain.trusted_folder()
    (folder / "step.pt2").write_bytes(b"code")
    return folder


def test_a_folder_of_ones_own_is_trusted_also_below_a_sticky_one(place: Path, tmp_path: Path) -> None:
    assert toolchain.why_not_trusted(place / "step.pt2") == ""
    tmp_path.chmod(0o1777)
    assert toolchain.why_not_trusted(place / "step.pt2") == ""


@pytest.mark.parametrize("which", [".", "cache", "cache/compiled", "cache/compiled/step.pt2"])
@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o757])
def test_what_others_can_write_to_is_not_trusted(place: Path, tmp_path: Path, which: str, mode: int) -> None:
    (tmp_path / which).chmod(mode)
    if mode == 0o1777 and not which.endswith(".pt2"):  # what is in a sticky folder can be replaced by its owner alone
        return
    assert f"other users can write to {tmp_path / which}" in toolchain.why_not_trusted(place / "step.pt2")


@NEEDS_ROOT
@pytest.mark.parametrize("which", ["cache", "cache/compiled", "cache/compiled/step.pt2"])
def test_what_belongs_to_others_is_not_trusted(place: Path, tmp_path: Path, which: str) -> None:
    os.chown(tmp_path / which, OTHER_USER, OTHER_USER)
    assert f"{tmp_path / which} belongs to another user" in toolchain.why_not_trusted(place / "step.pt2")


@NEEDS_ROOT
def test_the_groups_of_others_are_not_trusted(place: Path) -> None:
    os.chown(place, 0, OTHER_USER)
    place.chmod(0o770)
    assert "other users can write to" in toolchain.why_not_trusted(place)


@NEEDS_ROOT
def test_a_link_that_others_can_turn_elsewhere_is_not_trusted(place: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(place.parent)
    assert toolchain.why_not_trusted(tmp_path / "link" / "compiled") == ""
    os.chown(tmp_path / "link", OTHER_USER, OTHER_USER, follow_symlinks=False)
    assert "link belongs to another user" in toolchain.why_not_trusted(tmp_path / "link" / "compiled")


def test_nothing_is_compiled_into_a_folder_of_others_and_training_uses_one_of_its_own(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.chmod(0o777)
    with pytest.raises(PenwrightError, match=r"other users can write to .*chmod go-w .*PENWRIGHT_CACHE"):
        toolchain.trusted_folder()
    monkeypatch.setenv(toolchain.INDUCTOR_CACHE_VARIABLE, "")  # so that it is put back in the end
    monkeypatch.delenv(toolchain.INDUCTOR_CACHE_VARIABLE)
    with pytest.warns(PenwrightWarning, match="other users can write to"):
        toolchain.set_inductor_cache()
    own = Path(os.environ[toolchain.INDUCTOR_CACHE_VARIABLE])
    assert own != place and own.stat().st_mode & 0o777 == 0o700
