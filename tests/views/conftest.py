"""Where the samples are found, and a browser without which these tests are skipped."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # samples.py
pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
