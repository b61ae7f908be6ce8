"""Programs with limited resources, which see nothing of the environment of their parent."""

import json
import subprocess
from pathlib import Path

import pytest

from penwright.sandbox import run_limited

resource = pytest.importorskip("resource", reason="the system has no resource limits")
PROGRAM = """
import json, os, resource, sys
limits = [resource.getrlimit(getattr(resource, name))[0] for name in ("RLIMIT_CPU", "RLIMIT_NOFILE")]
print(json.dumps([sorted(os.environ), limits, sys.flags.isolated]))
"""


def test_program_is_isolated_and_obeys_the_lower_of_two_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_SECRET", "a key")
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")

    def lower() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (40, 40))

    limits = {"RLIMIT_CPU": 50, "RLIMIT_NOFILE": 60}
    done = run_limited(str(tmp_path / "program.py"), limits, 60, stdout=subprocess.PIPE, preexec_fn=lower)
    names, found, is_isolated = json.loads(done.stdout)
    assert "A_SECRET" not in names and is_isolated
    assert found == [40, 60]
