"""Fuzzing with schemathesis: requests generated from the OpenAPI description, valid and invalid."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from .conftest import StartServer

CHECKS = ("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance")


@pytest.mark.skipif(find_spec("schemathesis") is None, reason="schemathesis is not installed")
def test_fuzzed_requests_never_cause_a_server_error(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server(max_new_tokens=8, max_n=2, max_characters=200, build_seconds=0.5)
    options = {
        "phases": "coverage,fuzzing",
        "mode": "all",  # valid and invalid requests
        "checks": ",".join(CHECKS),
        "max-examples": "2",
        "generation-allow-x00": "true",
        "workers": "1",
        "seed": "1",
        "exclude-path-regex": "^/runs/stop$",  # it would stop training, if there were any
    }
    flags = [f"--{name}={value}" for name, value in options.items()]
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{server.address}/openapi.json", *flags]
    done = subprocess.run(
        [*command, "--generation-deterministic", "--no-color", "--continue-on-failure"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
