"""Tables of rows with named fields: JSON lines, other forms of JSON, and rows of Parquet files and of the Hub."""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, time
from decimal import Decimal
from functools import cached_property
from itertools import chain, islice
from math import isnan
from uuid import UUID

from penwright.data.corpus import Broken, Row
from penwright.data.files import BLOCK_BYTES, SourceFile
from penwright.data.paths import suffix_of
from penwright.data.readers.layout import SAMPLE_ROWS, TELLING_NAMES
from penwright.errors import PenwrightError

Record = Mapping[str, object]
FieldPath = tuple[str, ...]  # the keys that lead from a record to a field
BAD_JSON = Broken("bad JSON")
BLANK = Broken("blank line")
NO_RECORD = Broken("not a JSON object")
NO_TEXT = Broken("a field that holds an object, not a text")
EMPTY_LIST = "[ ]"  # the cell of an empty list; unlike "[]", it is not the text of an answer
SURROGATES = re.compile("[\ud800-\udfff]")
MOST_PATHS = 2000  # if more fields than this are found, the names of some are data
MOST_INNER = 200  # among more than MOST_PATHS fields, an object with more fields than this is one cell
LONGEST_LITERAL = 16  # no literal of JSON, such as -Infinity, is longer, in characters
SPACE = " \t\r\n,"  # characters that may separate the values of a JSON list


@dataclass(frozen=True)
class Records:
    """A table of rows with named fields. Nested fields are columns too, named by their last key if it is unique."""

    name: str
    files: tuple[SourceFile, ...]
    read: Callable[[], Iterator[Record | Broken | None]]
    unit: str = "row"

    @cached_property
    def _paths(self) -> tuple[FieldPath, ...]:
        paths_found: dict[FieldPath, None] = {}
        flat: set[str] = set()  # keys of objects that are one cell
        for record in islice(self.read(), SAMPLE_ROWS):
            if record and not isinstance(record, Broken):
                paths_found |= dict.fromkeys(_paths_in(record))
            if len(paths_found) >= MOST_PATHS:
                n_inner = Counter(path[0] for path in paths_found)
                flat |= {key for key, n in n_inner.items() if n > MOST_INNER} or {*n_inner}
                paths_found = dict.fromkeys(path[:1] if path[0] in flat else path for path in paths_found)
        return tuple(dict.fromkeys(path[:1] if path[0] in flat else path for path in paths_found))

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The names of all columns that occur in the first rows."""
        ends = Counter(path[-1] for path in self._paths)
        return tuple(path[-1] if ends[path[-1]] == 1 else ".".join(path) for path in self._paths)

    def rows(self, columns: Sequence[int], *, is_sample: bool = False) -> Iterator[Row | Broken]:
        """Yield the texts of the given columns (counted from 0) of every row, or the reason why a row is broken.

        In a sample, a cell without a text does not make its row broken: an object becomes JSON, other cells are blank.
        """
        paths = [self._paths[column] for column in columns]
        for record in self.read():
            if record is None or isinstance(record, Broken):
                yield record or BAD_JSON
                continue
            texts = [_text(_follow(record, path), is_sample=is_sample) for path in paths]
            broken = next((text for text in texts if isinstance(text, Broken)), None)
            yield broken or tuple(text for text in texts if isinstance(text, str))

    def location(self, row: int) -> str:
        """Describe the location of a row (counted from 0), for messages."""
        return f"{self.name} {self.unit} {row + 1:,}"


def json_table(file: SourceFile) -> Records:
    """Open JSON lines, a JSON list of objects, an object of columns, or an object of rows.

    Lines may also be lists of messages, each of them a conversation. Raises PenwrightError if the file has no rows.
    """
    lines = file.first_lines(SAMPLE_ROWS)
    first = next((line.strip() for line in lines if line.strip()), "")
    start = first[:1]
    is_single = file.n_lines < 2 and suffix_of(file.path) not in (".jsonl", ".ndjson")
    are_rows = start != "[" or isinstance(_record(first), dict)
    if are_rows and not is_single and any(isinstance(_record(line), dict) for line in lines):
        table = Records(file.path, (file,), lambda: map(_record, file.lines()), unit="line")
    else:
        table = Records(file.path, (file,), lambda: _values(file, is_list=start == "["))
    if not table.columns:
        raise PenwrightError(
            f"{file.path} has no rows. A .jsonl file has one JSON object per line, such as "
            '{"text": "..."}; a .json file may also contain one list of such objects, or an object of columns.'
        )
    return table


def _record(line: str) -> Record | Broken:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return BLANK if not line or line.isspace() else BAD_JSON
    return {"messages": record} if are_messages(record) else record if isinstance(record, dict) else NO_RECORD


def are_messages(value: object) -> bool:
    """Return whether a JSON value is a list of messages."""
    items = value if isinstance(value, list) else []
    keys = ({"role", "content"}, {"role", "tool_calls"}, {"from", "value"})
    return bool(items) and all(isinstance(each, dict) and any(some <= each.keys() for some in keys) for each in items)


def _values(file: SourceFile, *, is_list: bool) -> Iterator[Record | Broken]:
    """Yield the rows of a file that holds one JSON value, or several values that span lines."""
    values = _decoded(file, is_list=is_list)
    if is_list:
        yield from (value if isinstance(value, dict) else NO_RECORD for value in values)
        return
    first, second = next(values, None), next(values, None)
    if second is None and _rows_of(first) is None:
        raise PenwrightError(
            f"{file.path} is a single JSON object, not rows. Use JSON lines, one JSON list of objects, or an object of "
            "columns."
        )
    for value in chain(() if first is None else (first,), () if second is None else (second,), values):
        rows = _rows_of(value)
        yield from (value,) if rows is None and isinstance(value, dict) else rows or ()


def _decoded(file: SourceFile, *, is_list: bool) -> Iterator[object]:
    """Yield the JSON values of a file, or the items of its lists, keeping only one of them in memory."""
    decoder, blocks, text, position, n_read = json.JSONDecoder(), file.blocks(), "", 0, 0
    is_begun = not is_list
    while True:
        while position < len(text) and text[position] in SPACE:
            position += 1
        if not is_begun and text[position : position + 1] == "[":
            is_begun, position = True, position + 1
            continue
        if is_list and is_begun and text[position : position + 1] == "]":
            is_begun, position = False, position + 1
            continue
        try:
            value, position = decoder.raw_decode(text, position)
        except (ValueError, RecursionError) as error:
            # At least double the amount of text, so that a long value is parsed only a few times.
            n_more = 0 if _is_final(error, text) else 1 + (len(text) - position) // BLOCK_BYTES
            if more := "".join(islice(blocks, n_more)):
                text, position = text[position:] + more, 0
                continue
            if (is_list and is_begun) or text[position:]:
                problem = str(error).split(":")[0]
                raise PenwrightError(
                    f"{file.path} is neither JSON lines nor one JSON list: after {n_read:,} values, {problem}"
                ) from None
            return
        n_read += 1
        yield value


def _is_final(error: Exception, text: str) -> bool:
    """Return whether JSON is wrong whatever text follows: the error is neither near the end nor an open string."""
    if not isinstance(error, json.JSONDecodeError) or error.msg.startswith("Unterminated"):
        return False
    return error.pos + LONGEST_LITERAL < len(text)


def _rows_of(value: object) -> Iterable[Record | Broken] | None:
    """Return the rows stored in a JSON object (as columns, by row id or as a list); None if the object is a row."""
    if not isinstance(value, dict) or not value:
        return (NO_RECORD,)
    lists = [part for part in value.values() if isinstance(part, list)]
    heads, rows = value.get("columns"), value.get("data")
    if isinstance(heads, list) and isinstance(rows, list):  # the form that pandas writes with orient="split"
        return (_zipped(map(str, heads), row) if isinstance(row, list) else NO_RECORD for row in rows)
    of_rows = [part for part in lists if part and all(isinstance(row, dict) for row in part)]
    if len(of_rows) == 1:
        return of_rows[0]
    if len(lists) == len(value) and len(set(map(len, lists))) == 1:
        return (_zipped(value, row) for row in zip(*lists, strict=True))
    parts = [part for part in value.values() if isinstance(part, dict)]
    return _rows_of_parts(value, parts) if len(parts) == len(value) else None


def _rows_of_parts(value: Mapping[str, Mapping[str, object]], parts: Sequence[Record]) -> Iterable[Record]:
    if not _are_columns(value):
        return parts
    keys = dict.fromkeys(chain.from_iterable(parts))
    return ({column: part.get(key) for column, part in value.items()} for key in keys)


def _zipped(names: Iterable[str], row: Iterable[object]) -> Record:
    return dict(zip(names, row, strict=False))


def _are_columns(value: Mapping[str, Mapping[str, object]]) -> bool:
    """Return whether a JSON object maps column names to columns, and each column maps row ids to cells."""
    if any(name.lower() in TELLING_NAMES for name in value):
        return True
    inner = {key for part in islice(value.values(), SAMPLE_ROWS) for key in part}
    return all(key.isdecimal() for key in inner) and not all(name.isdecimal() for name in value)


def _paths_in(record: Record, above: FieldPath = ()) -> Iterator[FieldPath]:
    for key, value in record.items():
        if isinstance(value, dict) and value:
            yield from _paths_in(value, (*above, key))
        else:
            yield (*above, key)


def _follow(record: Record, path: FieldPath) -> object:
    value: object = record
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _text(value: object, *, is_sample: bool = False) -> str | Broken:
    """Return a value as text. In a sample, an object becomes JSON, and other values that are not text are blank."""
    if isinstance(value, str):
        # JSON can escape lone surrogates, which are invalid in text
        return value if value.isascii() or not SURROGATES.search(value) else SURROGATES.sub("\ufffd", value)
    if value is None or (isinstance(value, float) and isnan(value)):
        return ""
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    if isinstance(value, list):
        return _text_of_list(value, is_sample=is_sample)
    if isinstance(value, date | time | Decimal | UUID):
        return str(value).removesuffix(" 00:00:00")  # as in spreadsheets
    shown = json.dumps(value, ensure_ascii=False, default=str) if value and isinstance(value, dict) else ""
    return shown if is_sample else NO_TEXT


def _text_of_list(items: Sequence[object], *, is_sample: bool) -> str | Broken:
    """Return the text of a list of one item, or of strings and objects with a text. Other lists become JSON."""
    if len(items) == 1 and not isinstance(items[0], dict):
        return _text(items[0], is_sample=is_sample)
    return _joined(items) or (json.dumps(items, ensure_ascii=False, default=str) if items else EMPTY_LIST)


def _joined(items: Sequence[object]) -> str:
    """Return the text of a list of strings and objects with a text, as in exports of chats; "" for other lists."""
    texts = [item.get("text") if isinstance(item, dict) else item for item in items]
    is_text = any(isinstance(item, str) for item in items) and any(isinstance(item, dict) for item in items)
    return "".join(map(str, texts)) if is_text and all(isinstance(text, str) for text in texts) else ""
