"""Drawing what goes on in a Transformer: the same pictures in the page, in a notebook, as HTML, SVG and PNG.

`modules/*.js` draw; each has a `draw(element, data, options)` whose `data` the comment above it names. `View` is such a
picture on the Python side: it shows itself in a notebook and saves itself to a file.
"""

from penwright.views.export import MODULES, STYLE, View, html
from penwright.views.packing import pack

__all__ = ["MODULES", "STYLE", "View", "html", "pack"]
