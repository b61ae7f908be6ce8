"""A Sphinx extension for the guide: its pages run code, and what they say about models is computed or checked.

    {execute}  shows Python code and what it prints
    {check}    runs assertions, which do not appear; a false one fails the build. Those marked `ours` are about the
               models of make_run.py, and those marked `trained` about these models with all their steps
    {look}     shows a line of Python and the interactive view of its result
    {value}    inserts the value of an expression into a sentence
    {diagram}  draws a diagram (diagrams.py)
    {answer}   folds the answer to a question
    {try}      shows commands; RUN, TRANSLATOR and CLASSIFIER become the folders of the runs

The code of a page shares its names; a page starts with those of on_your_run.py. Formulas become MathML, which browsers
draw without a script. Options (-D): `runs` is the folder that make_run.py filled; `trained=0` says that it took only a
few steps; `run` and `text` are a reader's own run and a text for it.
"""

import io
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from make_run import THREADS
from on_your_run import names
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxDirective, SphinxRole
from sphinx.writers.html5 import HTML5Translator

from penwright.inspection import view
from penwright.views import View


def _is_trained(env: BuildEnvironment) -> bool:
    """Return whether the pages show the guide's own models, with all of their steps."""
    return bool(env.config.trained) and not env.config.run


def _namespace(env: BuildEnvironment) -> dict[str, Any]:
    """Return the names of the current page."""
    config = env.config
    if "guide" not in env.temp_data:
        torch.set_num_threads(THREADS)  # the order of sums, and so the last digit, depends on it
        env.temp_data["guide"] = dict(names(config.runs, config.run, config.text, _is_trained(env)))
    found: dict[str, Any] = env.temp_data["guide"]
    return found


class _Asking(SphinxDirective):
    """Base of the directives: runs code with the names of the page."""

    has_content = True

    @property
    def code(self) -> str:
        return "\n".join(self.content)

    def evaluate(self, expression: str) -> Any:
        return eval(expression, _namespace(self.env))

    def execute(self) -> str:
        """Run the content; return what it printed. An exception fails the build."""
        printed = io.StringIO()
        try:
            with redirect_stdout(printed):
                exec(compile(self.code, "<page>", "exec"), _namespace(self.env))
        except Exception as error:
            raise ExtensionError(f"{self.env.docname}.md:{self.lineno}: {self._problem(error)}") from error
        return printed.getvalue()

    def _problem(self, error: Exception) -> str:
        line = error.__traceback__.tb_next.tb_lineno if error.__traceback__ and error.__traceback__.tb_next else 1
        source = self.content[line - 1].strip() if line <= len(self.content) else ""
        if isinstance(error, AssertionError):
            return f"the page states what does not hold: {error or source}"
        return f"{type(error).__name__}: {error} (in: {source})"


class Execute(_Asking):
    """Show code and what it prints."""

    def run(self) -> list[nodes.Node]:
        printed = self.execute()
        shown: list[nodes.Node] = [nodes.literal_block(self.code, self.code, language="python", classes=["executed"])]
        if printed:
            shown.append(nodes.literal_block(printed, printed, language="text", classes=["printed"]))
        return shown


class Check(_Asking):
    """Run assertions."""

    optional_arguments = 1

    def run(self) -> list[nodes.Node]:
        applies = {"": True, "ours": not self.env.config.run, "trained": _is_trained(self.env)}
        (about,) = self.arguments or [""]
        if about not in applies:
            raise self.error(f"a check is marked ours, trained or not at all, but not {about}")
        if applies[about]:
            self.execute()
        return []


class Look(_Asking):
    """Show an expression and the view of its result. Its argument sets an option of the view, such as shape=circle."""

    optional_arguments = 1

    def run(self) -> list[nodes.Node]:
        found = self.evaluate(self.code)
        drawn = found if isinstance(found, View) else view(found)
        pairs = (option.split("=") for option in self.arguments)
        given = {name: float(value) if value[0].isdigit() else value for name, value in pairs}
        drawn = replace(drawn, options={**drawn.options, **given})
        shown = nodes.literal_block(self.code, self.code, language="python", classes=["asked"])
        return [shown, nodes.raw("", drawn._repr_mimebundle_()["text/html"], format="html", classes=["look"])]


class Diagram(_Asking):
    """Draw the result of an expression, which is SVG. The argument is the caption."""

    optional_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        figure = nodes.figure("", nodes.raw("", self.evaluate(self.code), format="html"), classes=["diagram"])
        if self.arguments:
            caption, messages = self.state.inline_text(self.arguments[0], self.lineno)
            figure += nodes.caption("", "", *caption)
            return [figure, *messages]
        return [figure]


class Answer(SphinxDirective):
    """Fold the answer to a question."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        inside = nodes.container(classes=["answer"])
        self.state.nested_parse(self.content, self.content_offset, inside)
        opening, closing = "<details><summary>Answer</summary>", "</details>"
        return [nodes.raw("", opening, format="html"), inside, nodes.raw("", closing, format="html")]


class Try(_Asking):
    """An exercise with commands that name the runs of this build."""

    def run(self) -> list[nodes.Node]:
        folders, text = self.evaluate("folders"), self.code
        for placeholder, name in (("TRANSLATOR", "translator"), ("CLASSIFIER", "classifier"), ("RUN", "writer")):
            text = text.replace(placeholder, str(folders[name]))
        box = nodes.admonition("", nodes.title("", "Try it"), classes=["tip"])
        self.state.nested_parse(type(self.content)(text.split("\n"), source="try"), 0, box)
        return [box]


def _readable(found: Any) -> str:
    if isinstance(found, float):
        return f"{found:,.0f}" if abs(found) >= 1000 else f"{found:.3g}"
    return f"{found:,}" if isinstance(found, int) else str(found)


class Value(SphinxRole):
    """The value of an expression, as text."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        try:
            found = eval(self.text, _namespace(self.env))
        except Exception as error:
            raise ExtensionError(f"{self.env.docname}.md:{self.lineno}: {self.text}: {error}") from error
        text = _readable(found)
        return [nodes.inline("", text, support_smartquotes=False)], []  # the text of a model stays unchanged


def inline_formula(writer: HTML5Translator, node: nodes.math) -> None:
    """Write a formula inside a sentence."""
    writer.body.append(tex2mathml(node.astext()))
    raise nodes.SkipNode


def formula(writer: HTML5Translator, node: nodes.math_block) -> None:
    """Write a formula on a line of its own."""
    writer.body.append(f'<div class="formula">{tex2mathml(node.astext(), as_block=True)}</div>')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directives, the role and the options."""
    app.add_config_value("runs", str(Path(__file__).parents[1] / "build" / "runs"), "env")
    app.add_config_value("trained", True, "env")
    app.add_config_value("run", "", "env")
    app.add_config_value("text", "", "env")
    for directive in (Execute, Check, Look, Diagram, Answer, Try):
        app.add_directive(directive.__name__.lower(), directive)
    app.add_role("value", Value())
    app.add_html_math_renderer("mathml", (inline_formula, None), (formula, None))
    return {"parallel_read_safe": True}
