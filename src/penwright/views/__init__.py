"""Drawings of what happens inside a Transformer, for the page, for notebooks, and as HTML, SVG and PNG files.

The JavaScript in `modules/*.js` draws. Each view has a function `draw(element, data, options)`; the comment above it
describes `data`. `View` is such a drawing in Python: it displays itself in a notebook and saves itself to a file.
"""

from penwright.views.export import MODULES, STYLE, View, html
from penwright.views.packing import pack

__all__ = ["MODULES", "STYLE", "View", "html", "pack"]
