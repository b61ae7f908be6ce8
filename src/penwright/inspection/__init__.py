"""Inspection of a Transformer's computation on a text: functions that return arrays, and an `Inspector` for texts.

Results are frozen dataclasses of NumPy arrays and strings. `as_record` converts a result to JSON values, `view` makes a
view of it, and `overview` yields the views of a whole page.
"""

from penwright.inspection.inspector import Inspector
from penwright.inspection.pages import as_record, overview
from penwright.inspection.views import view

__all__ = ["Inspector", "as_record", "overview", "view"]
