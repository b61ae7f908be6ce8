"""A parallel corpus as plain text files, which every translator of the benchmarks can read."""

import gzip
from pathlib import Path

Parts = dict[str, tuple[Path, Path]]  # train, dev and test, each the source and the target file
MULTI30K = ("train", "val", "test_2016_flickr")
N_DEV, N_TEST = 200, 1000  # lines: some peers translate only ten sentences per second


def parts_of(data: Path, folder: Path, languages: tuple[str, str], names: tuple[str, ...] = MULTI30K) -> Parts:
    """Copy the files NAME.LANGUAGE or NAME.LANGUAGE.gz of three names to `folder`, uncompressed."""
    folder.mkdir(parents=True)
    parts: Parts = {}
    for part, name, n_lines in zip(("train", "dev", "test"), names, (None, N_DEV, N_TEST), strict=True):
        copies = [folder / f"{part}.{language}" for language in languages]
        for language, copy in zip(languages, copies, strict=True):
            lines = _read(data / f"{name}.{language}").split("\n")
            copy.write_text("\n".join(lines[:n_lines]).rstrip("\n") + "\n", encoding="utf-8")
        parts[part] = (copies[0], copies[1])
    return parts


def _read(path: Path) -> str:
    packed = path.with_name(f"{path.name}.gz")
    return (gzip.decompress(packed.read_bytes()) if packed.exists() else path.read_bytes()).decode("utf-8")
