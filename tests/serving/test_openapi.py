"""What no client would send: schemathesis reads the description of the interfaces and tries its borders, and beyond."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from .conftest import Serving

CHECKS = ("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance")


@pytest.mark.skipif(find_spec("schemathesis") is None, reason="schemathesis is not installed")
def test_nothing_that_can_be_sent_breaks_the_server(serving: Serving, tmp_path: Path) -> None:
    server = serving(max_new_tokens=32, max_n=2, max_characters=200, build_seconds=0.5)
    options = {
        "phases": "coverage,fuzzing",
        "mode": "all",  # also what the description does not allow
        "checks": ",".join(CHECKS),
        "max-examples": "2",
        "generation-allow-x00": "true",
        "workers": "1",
        "seed": "1",
        "exclude-path-regex": "^/runs/stop$",  # it would stop training, if there were any
    }
    given = [f"--{name}={value}" for name, value in options.items()]
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{server.address}/openapi.json", *given]
    done = subprocess.run(
        [*command, "--generation-deterministic", "--no-color", "--continue-on-failure"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
