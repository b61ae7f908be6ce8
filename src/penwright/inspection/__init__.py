"""Seeing what a Transformer does with a text: functions from a model to arrays, and `Inspector`, which asks by text.

Results are frozen dataclasses of NumPy arrays and strings; `as_record` makes JSON of them.
"""

from penwright.inspection.inspector import Inspector
from penwright.inspection.records import as_record

__all__ = ["Inspector", "as_record"]
