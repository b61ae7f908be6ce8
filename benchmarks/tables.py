"""Compare readers of messy tables on a folder of CSV files with known contents: `python -m benchmarks.tables FOLDER`.

FOLDER has `csv/NAME` (the messy file) and `clean/NAME` (its contents as RFC 4180 CSV, header first), like the folders
`polluted_files` and `survey_sample` of https://github.com/HPI-Information-Systems/Pollock. Each reader gets only the
path of a file. Scores are means over files: the share of column names found, F1 of whole rows and of cells, all after
stripping spaces, and the share of files that are read without any difference.
"""

import argparse
import csv
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter

Rows = list[list[str]]


def duckdb_reader(**options: bool) -> Callable[[Path], Rows]:
    """Return a reader that detects the dialect with DuckDB and reads with these options."""
    import duckdb

    connection = duckdb.connect(config={"autoinstall_known_extensions": False, "autoload_known_extensions": False})
    told = "".join(f", {name} = {value}" for name, value in options.items())

    def read(path: Path) -> Rows:
        found = connection.execute(f"FROM read_csv(?, all_varchar = true{told})", [str(path)])
        header = [column[0] for column in found.description]
        return [header, *([cell or "" for cell in row] for row in found.fetchall())]

    return read


def polars_reader(path: Path) -> Rows:
    """Read with polars, which does not detect delimiters: all columns as text, ragged rows cut, errors ignored."""
    import polars

    frame = polars.read_csv(
        path,
        infer_schema=False,
        truncate_ragged_lines=True,
        ignore_errors=True,
        encoding="utf8-lossy",
        separator="\t" if path.suffix.lower() in (".tsv", ".tab") else ",",
    )
    return [frame.columns, *([cell or "" for cell in row] for row in frame.iter_rows())]


def python_reader(path: Path) -> Rows:
    """Read with the csv module and its Sniffer."""
    with open(path, encoding="utf-8-sig", errors="replace", newline="") as file:
        dialect = csv.Sniffer().sniff(file.read(1 << 16))
        file.seek(0)
        return list(csv.reader(file, dialect))


def clevercsv_reader(path: Path) -> Rows:
    """Read with CleverCSV."""
    import clevercsv

    return clevercsv.read_table(str(path))


def our_reader(path: Path) -> Rows:
    """Read as `penwright train` does."""
    from penwright.data.files import examine
    from penwright.data.readers.tables import open_table

    table = open_table(examine(path))
    rows = table.rows(range(len(table.columns)))
    return [list(table.columns), *(list(row) for row in rows if isinstance(row, tuple))]


READERS: dict[str, Callable[[], Callable[[Path], Rows]]] = {
    "penwright": lambda: our_reader,
    "duckdb": duckdb_reader,
    "duckdb, lenient": lambda: duckdb_reader(strict_mode=False, ignore_errors=True, null_padding=True),
    "polars": lambda: polars_reader,
    "csv.Sniffer": lambda: python_reader,
    "clevercsv": lambda: clevercsv_reader,
}


def score(found: Rows, right: Rows) -> dict[str, float]:
    """Return how much of the right table was found."""
    found, right = ([[cell.strip() for cell in row] for row in rows] for rows in (found, right))
    names = right[0] if right else []
    filled = [[row for row in rows[1:] if any(row)] for rows in (found, right)]
    scores = {
        "header": _recall(Counter(found[0] if found else []), Counter(name for name in names if is_name(name))),
        "rows": _f1(*(Counter(tuple(row) for row in rows) for rows in filled)),
        "cells": _f1(*(Counter(cell for row in rows for cell in row) for rows in filled)),
    }
    return scores | {"all": float(all(value == 1 for value in scores.values()))}


def is_name(name: str) -> bool:
    """Return whether a column has a name of its own. Pollock names the others "col_0" and so on."""
    return name != "" and not (name.startswith("col_") and name[4:].isdecimal())


def _recall(found: Counter[str], right: Counter[str]) -> float:
    return (found & right).total() / right.total() if right else 1.0


def _f1(found: Counter[object], right: Counter[object]) -> float:
    return 2 * (found & right).total() / (found.total() + right.total()) if found or right else 1.0


def measure(name: str, folder: Path, files: Sequence[Path], *, show: bool) -> None:
    """Print a reader's mean scores on all files, and its time."""
    read = READERS[name]()
    totals: Counter[str] = Counter()
    n_failed, seconds = 0, 0.0
    for file in files:
        with open(folder / "clean" / file.name, encoding="utf-8-sig", newline="") as clean:
            right = list(csv.reader(clean))
        begin = perf_counter()
        try:
            found = read(file)
        except Exception as error:  # each library has its own errors
            found, n_failed = [], n_failed + 1
            if show:
                print(f"  {file.name}: {str(error)[:100]!r}")
        seconds += perf_counter() - begin
        scores = score(found, right)
        totals.update(scores)
        if show and scores["all"] < 1:
            print(f"  {file.name}: " + ", ".join(f"{key} {value:.3f}" for key, value in scores.items()))
    means = " | ".join(f"{totals[key] / len(files):.4f}" for key in ("header", "rows", "cells", "all"))
    print(f"| {name} | {means} | {n_failed} | {1000 * seconds / len(files):.1f} |", flush=True)


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--readers", nargs="*", default=list(READERS), choices=list(READERS))
    parser.add_argument("--show", action="store_true", help="Print each file that was not read exactly.")
    arguments = parser.parse_args()
    csv.field_size_limit(sys.maxsize)
    files = sorted(
        file for file in (arguments.folder / "csv").iterdir() if (arguments.folder / "clean" / file.name).is_file()
    )
    print(f"{len(files)} files\n| reader | header | rows | cells | files without a difference | errors | ms per file |")
    for name in arguments.readers:
        measure(name, arguments.folder, files, show=arguments.show)


if __name__ == "__main__":
    main()
