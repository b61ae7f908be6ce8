"""A server under attack for some seconds; benchmarks/hostile_clients.py does it for minutes."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "hostile_clients.py"


@pytest.fixture
def hostile(monkeypatch: pytest.MonkeyPatch) -> Any:
    spec = spec_from_file_location("hostile_clients", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "hostile_clients", module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_hostile_clients_do_not_break_the_server(hostile: Any, runs: Path) -> None:
    folders = [str(runs / kind) for kind in ("writer", "translator", "classifier")]
    options = ("--set", "build_seconds=0.5", "--set", "max_connections=80", "--set", "read_seconds=2")
    seen, _, _, n_logged = hostile.soak(folders, 3.0, 6, options, pause=0)
    assert not seen.failures
    assert seen.statuses["200"] > 0
    assert n_logged < 20_000
