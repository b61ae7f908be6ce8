"""Make samples.py importable, and skip these tests without a browser."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # samples.py
pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
