"""`penwright serve` before it listens; the server itself is tested in tests/serving."""

import sys
from pathlib import Path

import pytest

from .conftest import Command

PACKAGES = {
    "fastapi": "fastapi",
    "uvicorn": "uvicorn",
    "python_multipart": "python-multipart",
    "prometheus_client": "prometheus-client",
}


@pytest.mark.parametrize(
    ("given", "folder", "name"),
    [
        ("runs/lr=0.1", "runs/lr=0.1", None),
        ("name=runs/lr=0.1", "runs/lr=0.1", "name"),
        ("de-en=runs/pairs", "runs/pairs", "de-en"),
        ("a=b=runs/pairs", "runs/pairs", "a=b"),
        ("runs/pairs", "runs/pairs", None),
        ("name=nowhere", "nowhere", "name"),
        ("runs/x=1", "runs/x=1", None),
        ("nowhere", "nowhere", None),
    ],
)
def test_run_folder_may_contain_an_equals_sign(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, folder: str, name: str | None
) -> None:
    from penwright.serving.server import named_run

    monkeypatch.chdir(tmp_path)
    for each in ("lr=0.1", "pairs"):
        (tmp_path / "runs" / each).mkdir(parents=True)
    assert named_run(given) == (Path(folder), name)


@pytest.mark.parametrize("module", PACKAGES)
def test_missing_serve_extra_is_named_with_its_install_command(
    penwright: Command, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    for loaded in list(sys.modules):
        if loaded.partition(".")[0] == module or loaded.startswith("penwright.serving"):
            monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, module, None)  # Python treats it as not installed
    done = penwright("serve", "runs/novel")
    assert done.returncode == 1
    assert done.stderr == f"penwright: serving needs {PACKAGES[module]}. Install with: pip install 'penwright[serve]'\n"


def test_internal_import_error_is_not_reported_as_a_missing_extra(
    penwright: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "penwright.serving.server", None)
    with pytest.raises(ModuleNotFoundError, match=r"penwright\.serving\.server"):
        penwright("serve", "runs/novel")
