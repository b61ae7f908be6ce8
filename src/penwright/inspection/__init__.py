"""Inspection of a Transformer's computation on a text: functions that return arrays, and an `Inspector` for texts.

Results are frozen dataclasses of NumPy arrays and strings. `as_record` converts a result to JSON values, `view` makes a
view of it, `overview` yields the views of a whole page, and `whole_model` returns the picture of a whole model.
"""

from penwright.inspection.inspector import Inspector
from penwright.inspection.pages import as_record, overview, whole_model
from penwright.inspection.views import view

__all__ = ["Inspector", "as_record", "overview", "view", "whole_model"]
