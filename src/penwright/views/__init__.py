"""Views of a Transformer's computations, for web pages, for notebooks, and as HTML, SVG and PNG files.

JavaScript in `modules/*.js` draws the views. Each view has a function `draw(element, data, options)`; the comment above
it describes `data`. `View` is a view in Python, which can be displayed in a notebook or saved to a file.
"""

from penwright.views.export import MODULES, STYLE, View, html
from penwright.views.packing import pack

__all__ = ["MODULES", "STYLE", "View", "html", "pack"]
