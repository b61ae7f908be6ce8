"""Programs with limited time, memory and output, for files and templates that may be malicious.

Each such program starts by running this module, which therefore imports only the standard library.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from runpy import run_path
from typing import Any

# Environment variables that Python may need to start.
PASSED_ON = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT")


def run_limited(
    program: str, limits: Mapping[str, int], seconds: int, **streams: Any
) -> subprocess.CompletedProcess[bytes]:
    """Run a Python file in a process with a minimal environment and the given resource limits, such as RLIMIT_AS.

    `streams` are arguments of `subprocess.run`. Raises TimeoutExpired after `seconds`.
    """
    command = [sys.executable, "-I", "-X", "utf8", __file__, json.dumps(limits), json.dumps(sys.path), program]
    environment = {key: os.environ[key] for key in PASSED_ON if key in os.environ}
    return subprocess.run(command, env=environment, timeout=seconds, check=False, **streams)


def main(limits: Mapping[str, int], paths: Sequence[str], program: str) -> None:
    """Apply the resource limits, replace `sys.path`, and run the program."""
    try:
        import resource  # noqa: PLC0415 - missing on Windows
    except ImportError:
        pass
    else:
        for name, most in limits.items():
            _, hard = resource.getrlimit(getattr(resource, name))
            soft = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.setrlimit(getattr(resource, name), (soft, hard))
    sys.path[:] = paths
    run_path(program, run_name="__main__")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3])
