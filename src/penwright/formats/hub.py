"""Model downloads from the Hugging Face Hub."""

from collections.abc import Sequence
from pathlib import Path

from penwright.errors import PenwrightError
from penwright.formats.huggingface_files import INDEX
from penwright.formats.huggingface_tokenizer import FILES
from penwright.formats.outside import optional_package

PREFIX = "hub:"
TOKENIZER = ("config.json", *FILES)
WANTED = ("config.json", INDEX, "*.safetensors", *FILES, "1_Pooling/config.json", "README.md", "LICENSE*")


def download(name: str, wanted: Sequence[str] = WANTED) -> Path:
    """Download these files of a model on the Hugging Face Hub, unless they are cached. Return the folder.

    Raises PenwrightError if the download fails.
    """
    hub = optional_package("huggingface_hub", "hub")
    try:
        return Path(hub.snapshot_download(name, allow_patterns=[*wanted]))
    except Exception as error:  # a network error, an error of the Hub, or a wrong name
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise PenwrightError(
            f"{PREFIX}{name} cannot be downloaded: {reason}. Check the name and the network, "
            "or download the folder by other means and import it"
        ) from None
