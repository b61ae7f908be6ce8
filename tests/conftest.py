"""Every shape annotation is checked while the tests run; fixtures that several files share."""

from pathlib import Path

import pytest
import torch
from jaxtyping import install_import_hook

install_import_hook("penwright", "beartype.beartype")
torch.set_num_threads(1)  # the models of the tests are too small to share out


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Random weights and inputs are the same in every run, whatever the order of the tests."""
    torch.manual_seed(0)


SHARED_DATA = Path(__file__).parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real corpora beside the checkout; tests that want them are skipped where they are absent."""
    if not SHARED_DATA.is_dir():
        pytest.skip(f"the corpora of {SHARED_DATA} are not on this machine")
    return SHARED_DATA
