"""Inspection of what a Transformer does with a text: functions from a model to arrays, and `Inspector` for texts.

Results are frozen dataclasses of NumPy arrays and strings. `as_record` converts them to JSON values, `view` makes a
picture of one, and `overview` yields the pictures of a whole page.
"""

from penwright.inspection.inspector import Inspector
from penwright.inspection.pages import as_record, overview
from penwright.inspection.views import view

__all__ = ["Inspector", "as_record", "overview", "view"]
