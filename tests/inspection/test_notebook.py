"""A notebook with views, executed and exported as by `jupyter nbconvert --execute --to html`."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penwright.views import notebook

CELLS = [
    """
import penwright
from penwright.inspection import view

settings = {
    "training": {"steps": 3, "batch_tokens": 128, "threads": 1},
    "model": {"d_model": 16, "n_layers": 2, "n_heads": 2, "context_length": 32},
}
text = "It was day 7 🦊 <script>alert(1)</script>"
open("novel.txt", "w", encoding="utf-8").write(f"{text}, and the rain fell on house 5.\\n" * 40)
writer = penwright.train("novel.txt", settings=settings, quiet=True)
inspector = penwright.inspect(writer)
""",
    "view(inspector.token_scores(text))",
    "view(inspector.attention(text))",
    "view(inspector.lens(text))",
    "view(inspector.arithmetic(text, '0.1'))",
    "for each in inspector.rollout(text): display(view(each))",
    "view(inspector.positions())",
]
DRAWN = ["text", "attention", "lens", "arithmetic", "rollout", "positions"]
REMOTE_SCRIPTS = re.compile(
    r'<script[^>]*\bsrc="https:[^>]*>\s*</script>|<script type="module">.*?</script>', re.DOTALL
)


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The exported notebook, without the scripts that nbconvert loads for formulas and diagrams."""
    nbformat = pytest.importorskip("nbformat", reason="no notebooks are installed")
    pytest.importorskip("ipykernel", reason="no kernel is installed to run notebooks in")
    exporters = pytest.importorskip("nbconvert.exporters", reason="nbconvert is not installed")
    preprocessors = pytest.importorskip("nbconvert.preprocessors")
    for name in ("JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR", "IPYTHONDIR", "PENWRIGHT_CACHE"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell.strip()) for cell in CELLS])
    preprocessors.ExecutePreprocessor(timeout=120, kernel_name="python3").preprocess(
        book, {"metadata": {"path": str(tmp_path)}}
    )
    outputs = [output for cell in book.cells for output in cell.outputs]
    assert [output.output_type for output in outputs if output.output_type in ("error", "stream")] == [], outputs
    for output in outputs:
        assert len(json.dumps(output).encode()) <= notebook.LIMIT
    source, _ = exporters.HTMLExporter().from_notebook_node(book)
    return REMOTE_SCRIPTS.sub("", source)


def test_every_view_is_drawn_in_an_exported_notebook(page: str, open_html: Callable[..., Any]) -> None:
    shown = open_html(page)
    frames = shown.query_selector_all("iframe[title=Penwright]")
    assert len(frames) == len(DRAWN)
    for element, name in zip(frames, DRAWN, strict=True):
        frame = element.content_frame()
        frame.wait_for_selector("main[data-ready]")
        assert frame.query_selector(f"section[data-view={name}] :is(canvas, svg, table, .pw-passage)"), name
    assert "🦊 <script>alert(1)</script>" in frames[0].content_frame().inner_text("main")
