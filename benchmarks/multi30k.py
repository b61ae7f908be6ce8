"""Where the parts of Multi30k lie."""

import gzip
from pathlib import Path


def files_of(data: Path, folder: Path, source: str, target: str) -> dict[str, tuple[Path, Path]]:
    """Train, dev and test of Multi30k as plain files; the training part is kept packed."""
    folder.mkdir(parents=True)
    train = []
    for language in (source, target):
        train.append(folder / f"train.{language}")
        train[-1].write_bytes(gzip.decompress((data / f"train.{language}.gz").read_bytes()))
    return {
        "train": (train[0], train[1]),
        "dev": (data / f"val.{source}", data / f"val.{target}"),
        "test": (data / f"test_2016_flickr.{source}", data / f"test_2016_flickr.{target}"),
    }
