"""What inspection finds, as plain values: for JSON, and for pages that draw it."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from math import isfinite

import numpy as np


def as_record(found: object) -> object:
    """Dataclasses become tables, arrays nested lists, and numbers that JSON lacks (NaN, infinite) None."""
    if isinstance(found, np.ndarray | np.generic):
        found = _without_infinite(np.asarray(found)).tolist()  # its numbers are now Python's
    elif isinstance(found, Mapping):
        found = {str(key): as_record(value) for key, value in found.items()}
    elif is_dataclass(found) and not isinstance(found, type):
        found = {field.name: as_record(getattr(found, field.name)) for field in fields(found)}
    elif isinstance(found, list | tuple):
        found = [as_record(value) for value in found]
    return None if isinstance(found, float) and not isfinite(found) else found


def _without_infinite(array: np.ndarray) -> np.ndarray:
    if array.dtype.kind != "f" or np.isfinite(array).all():
        return array
    holed = array.astype(object)
    holed[~np.isfinite(array)] = None
    return holed
