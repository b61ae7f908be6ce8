"""A check of the Python on a page: it compiles, and its names, attributes and arguments exist. Nothing is run.

The blocks of a page share their names, as the cells of a notebook do. Only what Penwright defines is looked up. Types
are followed through assignments, calls, loops and subscripts, as far as annotations tell them.
"""

import ast
import builtins
import importlib
import inspect
import sys
from collections.abc import Sequence
from functools import cache, reduce
from operator import or_
from types import ModuleType, UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin, get_type_hints

import penwright.classification.classifier
import penwright.translation.translator

from .documentation import FENCE


class Instance(NamedTuple):
    """A value of a known type, given as an annotation."""

    annotation: Any


class Method(NamedTuple):
    """A bound method, called without `self`."""

    function: Any


UNKNOWN = object()  # an unknown value


def python_problems(text: str) -> list[str]:
    """Return what is wrong with the Python blocks of a page."""
    checker = PythonChecker()
    for match in FENCE.finditer(text):
        if match["language"] in ("python", "py"):
            try:
                checker.visit(ast.parse(match["body"]))
            except SyntaxError as error:
                checker.problems.append(f"{error}: {match['body'][:80]}")
    return checker.problems


class PythonChecker(ast.NodeVisitor):
    """A reader of the blocks of one page. Visiting an expression returns what is known about its value."""

    def __init__(self) -> None:
        self.names: dict[str, object] = {}
        self.problems: list[str] = []

    def generic_visit(self, node: ast.AST) -> object:
        super().generic_visit(node)
        return UNKNOWN

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            top = alias.name.split(".")[0]
            if top == "penwright":
                self._require(_module(alias.name) is not None, f"there is no module {alias.name}")
            self.names[alias.asname or top] = _module(alias.name if alias.asname else top) if _is_ours(top) else UNKNOWN

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            is_ours = node.module is not None and _is_ours(node.module)
            whole = f"{node.module}.{alias.name}"
            found = self._member(_module(str(node.module)), alias.name, whole) if is_ours else UNKNOWN
            self.names[alias.asname or alias.name] = found

    def visit_Assign(self, node: ast.Assign) -> None:
        value = self.visit(node.value)
        for target in node.targets:
            self._bind(target, value)

    def visit_For(self, node: ast.For) -> None:
        self._bind(node.target, _element(self.visit(node.iter)))
        for statement in [*node.body, *node.orelse]:
            self.visit(statement)

    def visit_withitem(self, node: ast.withitem) -> None:
        self.visit(node.context_expr)
        if node.optional_vars is not None:
            self._bind(node.optional_vars, UNKNOWN)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self.names |= dict.fromkeys((node.name, *(argument.arg for argument in node.args.args)), UNKNOWN)
        self.generic_visit(node)

    def visit_Lambda(self, node: ast.Lambda) -> object:
        self.names |= dict.fromkeys((argument.arg for argument in node.args.args), UNKNOWN)
        return self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.names[node.name] = UNKNOWN
        self.generic_visit(node)

    def visit_ListComp(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> object:
        for generator in node.generators:
            self._bind(generator.target, _element(self.visit(generator.iter)))
        return self.generic_visit(node)

    visit_SetComp = visit_GeneratorExp = visit_DictComp = visit_ListComp

    def visit_Name(self, node: ast.Name) -> object:
        self._require(node.id in self.names or hasattr(builtins, node.id), f"{node.id} is not defined")
        return self.names.get(node.id, UNKNOWN)

    def visit_Attribute(self, node: ast.Attribute) -> object:
        return self._member(self.visit(node.value), node.attr, ast.unparse(node))

    def visit_Subscript(self, node: ast.Subscript) -> object:
        self.visit(node.slice)
        return _element(self.visit(node.value))

    def visit_Call(self, node: ast.Call) -> object:
        called = self.visit(node.func)
        for argument in [*node.args, *node.keywords]:
            self.visit(argument)
        function = called.function if isinstance(called, Method) else called
        if not (inspect.isroutine(function) or inspect.isclass(function)) or not _is_ours(function.__module__):
            return UNKNOWN
        if not any(isinstance(each, ast.Starred) for each in node.args) and all(each.arg for each in node.keywords):
            try:
                self_argument = [None] if isinstance(called, Method) else []
                inspect.signature(function).bind(
                    *self_argument, *node.args, **{str(each.arg): each for each in node.keywords}
                )
            except TypeError as error:
                self._require(False, f"{ast.unparse(node.func)}(): {error}")
        return Instance(function if inspect.isclass(function) else _hints(function).get("return"))

    def _bind(self, target: ast.expr, value: object) -> None:
        if isinstance(target, ast.Name):
            self.names[target.id] = value
        elif isinstance(target, ast.Tuple | ast.List):
            for each in target.elts:
                self._bind(each.value if isinstance(each, ast.Starred) else each, UNKNOWN)
        else:
            self.visit(target)

    def _member(self, owner: object, name: str, whole: str) -> object:
        """Return what is known about an attribute. Record a problem if our own object lacks it."""
        if isinstance(owner, ModuleType):
            found = getattr(owner, name, None) or _module(f"{owner.__name__}.{name}")
            self._require(found is not None, f"there is no {whole}")
            return UNKNOWN if found is None else found
        if inspect.isclass(owner) and _is_ours(owner.__module__):
            self._require(_has(owner, name), f"there is no {whole}")
            return getattr(owner, name, UNKNOWN)
        kinds = _alternatives(owner.annotation) if isinstance(owner, Instance) else []
        if not kinds or not all(inspect.isclass(kind) and _is_ours(kind.__module__) for kind in kinds):
            return UNKNOWN
        having = [kind for kind in kinds if _has(kind, name)]
        self._require(bool(having), f"{' or '.join(kind.__name__ for kind in kinds)} has no {name}")
        return _attribute(having, name)

    def _require(self, is_right: bool, problem: str) -> None:
        if not is_right and problem not in self.problems:
            self.problems.append(problem)


def _is_ours(module: str) -> bool:
    return module.split(".", maxsplit=1)[0] == "penwright"


@cache
def _module(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        return None


def _has(kind: type, name: str) -> bool:
    return hasattr(kind, name) or any(name in getattr(base, "__annotations__", {}) for base in kind.__mro__)


def _alternatives(annotation: Any) -> list[Any]:
    """Return the members of a union, and the classes behind list[...] and the like."""
    if get_origin(annotation) in (Union, UnionType):
        return [kind for each in get_args(annotation) for kind in _alternatives(each)]
    return [] if annotation in (None, type(None)) else [get_origin(annotation) or annotation]


def _attribute(kinds: Sequence[type], name: str) -> object:
    """Return a method if only one class has it, else the type of an attribute or property of instances."""
    members = [inspect.getattr_static(kind, name, None) for kind in kinds]
    if len(kinds) == 1 and inspect.isfunction(members[0]):
        return Method(members[0])
    hints = [
        _hints(member.fget).get("return") if isinstance(member, property) else _hints(kind).get(name)
        for kind, member in zip(kinds, members, strict=True)
    ]
    return UNKNOWN if not hints or None in hints else Instance(reduce(or_, hints))


def _element(value: object) -> object:
    """Return what is known about the elements of an iterable."""
    annotation = value.annotation if isinstance(value, Instance) else None
    arguments = get_args(annotation)
    is_plain = get_origin(annotation) not in (Union, UnionType, dict)
    return Instance(arguments[0]) if arguments and is_plain else UNKNOWN


def _hints(value: Any) -> dict[str, Any]:
    """Return the annotations of our own function or class, or none if they cannot be resolved."""
    try:
        return get_type_hints(value, localns=_imported_for_types(value.__module__))
    except (NameError, TypeError):
        return {}


@cache
def _imported_for_types(module: str) -> dict[str, object]:
    """Return the names that a module imports for type checkers only."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    blocks = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    names: dict[str, object] = {"penwright": penwright}  # annotations name classes by their modules
    for statement in (statement for block in blocks for statement in block.body):
        exec(ast.unparse(statement), names)
    return names
