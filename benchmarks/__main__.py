"""List the benchmarks and how to run them: `python -m benchmarks`."""

import ast
from pathlib import Path

for path in sorted(Path(__file__).parent.glob("[a-z]*.py")):
    command = f"python -m benchmarks.{path.stem}"
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""  # an import would need the peers
    if command in text:
        print(f"{command:43} {text.splitlines()[0]}")
