"""Scores of texts as numbers: decimal marks, separators of thousands, and signs."""

import re
from collections.abc import Collection
from math import nan
from typing import Literal

from penwright.data.corpus import Broken
from penwright.data.readers.tables import Grid, Table

Comma = Literal["decimal", "thousands", ""]
NO_NUMBER = Broken("the label is not a number")
LARGEST_NUMBER = 1e30  # larger numbers cannot be standardized in float32
MANY_COMMAS = 10  # if a comma were the decimal mark, one of this many numbers would have other than three decimals
NUMBER = re.compile(r"[-+]?\d+(\.\d+)?")
# A number with a decimal comma: not "1,234", whose comma may separate thousands.
DECIMAL_COMMA = re.compile(r"[-+]?(0,\d+|\d+,(?!\d{3}$)\d+|\d{1,3}(\.\d{3})+,\d+)")
THOUSANDS = re.compile(r"[-+]?\d{1,3}(,\d{3})+(\.\d*)?")  # commas that separate thousands
SPACES = re.compile(r"(?<=\d)(?<!\d{4})[ '’\u00a0\u202f](?=\d{3}(?!\d))")  # spaces or apostrophes between thousands
SIGNS = re.compile(r"^([-+]?)[$€£¥]\s?|\s?[%$€£¥]$")  # signs of currencies and of percent
POINTS = re.compile(r"[-+]?\d{1,3}(\.\d{3})+(,\d*)?")  # points that separate thousands, next to a decimal comma


def comma_in(table: Table, scores: Collection[str]) -> Comma:
    """Return what a comma means in a column of scores; "" if it has none, or if each cell tells by itself.

    If it is the decimal mark, 1,234 is less than 2. If not, and at least MANY_COMMAS numbers have three digits after
    each comma, while others have no comma, it separates thousands.
    """
    numbers = [_bare(score) for score in scores]
    with_comma = [number for number in numbers if "," in number]
    is_semicolon = isinstance(table, Grid) and table.delimiter == ";"  # written where a comma is the decimal mark
    is_english = any(number.find(".") > number.rfind(",") for number in with_comma)
    if with_comma and not is_english and (is_semicolon or any(map(DECIMAL_COMMA.fullmatch, with_comma))):
        return "decimal"
    are_some = any(NUMBER.fullmatch(number) for number in numbers)
    are_many = are_some and len(with_comma) >= MANY_COMMAS and all(map(THOUSANDS.fullmatch, with_comma))
    return "thousands" if is_english or are_many else ""


def number_label(cell: str, comma: Comma = "") -> str | Broken:
    """Return the number in a cell, in Python's notation; "" for a blank cell, or NO_NUMBER for any other cell.

    The decimal mark is a point or a comma, and 56% is 56. NO_NUMBER also stands for a number beyond LARGEST_NUMBER.
    """
    if not cell:
        return ""
    cell = _bare(cell)
    is_clear = comma == "thousands" or "." in cell or cell.count(",") > 1
    if comma == "decimal" or DECIMAL_COMMA.fullmatch(cell):
        cell = (cell.replace(".", "") if POINTS.fullmatch(cell) else cell).replace(",", ".")
    elif is_clear and THOUSANDS.fullmatch(cell):
        cell = cell.replace(",", "")
    try:
        number = float(cell)
    except ValueError:
        number = nan
    return repr(number) if abs(number) <= LARGEST_NUMBER else NO_NUMBER


def _bare(cell: str) -> str:
    """Return a number without a currency or percent sign, and without spaces between thousands."""
    return SPACES.sub("", SIGNS.sub(r"\1", cell.strip().replace("−", "-")))
