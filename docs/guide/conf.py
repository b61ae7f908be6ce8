"""How the guide is built: `make docs`. Its pages are Markdown; what they show comes from `on_your_run.py`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

project = "A Transformer from its parts"
language = "en"
extensions = ["myst_parser", "on_your_run"]
myst_enable_extensions = ["dollarmath", "colon_fence"]
html_math_renderer = "mathml"
html_theme = "furo"
html_title = project
html_static_path = ["static"]
html_css_files = ["guide.css"]
html_js_files = ["guide.js"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
html_theme_options = {"footer_icons": []}
pygments_style = "friendly"
