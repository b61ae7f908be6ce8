"""Settings of the documentation site (`make docs`): Markdown pages; reference.py and guide_directives.py add parts."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent / "guide")]

project = "Penwright"
language = "en"
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "guide_directives",
    "reference",
    "link_check",
]
exclude_patterns = ["build"]
myst_enable_extensions = ["attrs_inline", "colon_fence", "dollarmath"]
myst_heading_anchors = 3
smartquotes = False  # options keep their two hyphens, and quotes can be copied
default_role = "literal"  # docstrings have single backquotes
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
html_math_renderer = "mathml"
html_theme = "furo"
html_title = project
html_static_path = ["static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_copy_source = False
html_domain_indices = False
html_show_sphinx = False
html_show_copyright = False
html_theme_options = {"footer_icons": []}
pygments_style = "friendly"
