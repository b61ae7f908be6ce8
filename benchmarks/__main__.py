"""List the benchmarks and how to run them: `python -m benchmarks`."""

from importlib import import_module
from pathlib import Path

for path in sorted(Path(__file__).parent.glob("[a-z]*.py")):
    module = import_module(f"benchmarks.{path.stem}")
    if not hasattr(module, "main"):
        continue
    print(f"python -m benchmarks.{path.stem:24} {(module.__doc__ or '').splitlines()[0]}")
