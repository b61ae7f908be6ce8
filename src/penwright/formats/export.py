"""The entry point to all export formats."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Literal

from penwright.config import Precision
from penwright.errors import PenwrightError, UsageError
from penwright.formats.ctranslate2 import save_ctranslate2
from penwright.formats.gguf import save_gguf
from penwright.formats.huggingface_export import save_huggingface
from penwright.formats.onnx import save_onnx
from penwright.formats.outside import NO_METADATA, ModelMetadata
from penwright.model import Model
from penwright.tokenizers import Tokenizer

Format = Literal["ctranslate2", "gguf", "huggingface", "onnx"]
SAVERS: dict[Format, Callable[[Model, Tokenizer, Path, Precision, ModelMetadata], None]] = {
    "ctranslate2": save_ctranslate2,
    "gguf": save_gguf,
    "huggingface": save_huggingface,
    "onnx": save_onnx,
}


def save_as(
    to: Format,
    model: Model,
    tokenizer: Tokenizer,
    folder: Path,
    precision: Precision = "float32",
    metadata: ModelMetadata = NO_METADATA,
) -> None:
    """Export a model to a new folder in the format of an engine. The folder is created only if the export succeeds.

    Raises PenwrightError for a classifier that is mixed with an n-gram classifier, which other engines cannot run.
    """
    if to in ("huggingface", "onnx") and metadata.labels and model.settings.ngrams:
        raise PenwrightError(
            f"this classifier cannot be exported to {to}: it is mixed with an n-gram classifier, which other engines "
            "cannot run. Train a classifier without n-grams: --set model.ngrams=false"
        )
    with new_folder(folder) as unfinished:
        SAVERS[to](model, tokenizer, unfinished, precision, metadata)
        write_card(metadata, unfinished)


def write_card(metadata: ModelMetadata, folder: Path) -> None:
    """Write README.md with the origin of an imported model. For other models, write nothing."""
    if metadata.card:
        (folder / "README.md").write_text(metadata.card, encoding="utf-8")


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder, which is renamed to `folder` on success and deleted on failure.

    Raises UsageError if the folder already exists and is not empty.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} already exists and is not an empty folder. Choose a new folder for the export")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(mkdtemp(prefix=f"{folder.name}.tmp-", dir=folder.parent))
    except OSError as error:
        raise PenwrightError(f"{folder} cannot be created: {error.strerror}") from error
    try:
        yield unfinished
        unfinished.chmod(0o755)
        unfinished.replace(folder)
    except OSError as error:
        raise PenwrightError(f"{folder} cannot be written: {error}") from error
    finally:
        rmtree(unfinished, ignore_errors=True)
