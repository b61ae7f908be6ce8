"""Benchmarks of speed and quality: one script each, with dated results in `results/`.

Decoding steps are not compiled in the background, so that nothing else runs beside what is timed. To measure that, too,
set PENWRIGHT_COMPILE=on.
"""

import os

os.environ.setdefault("PENWRIGHT_COMPILE", "off")
