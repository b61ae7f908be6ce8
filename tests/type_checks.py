"""Runtime checks of types and shapes at each call while the tests run."""

from collections.abc import Callable, Iterable
from functools import wraps
from random import Random
from typing import Any, get_args

import jaxtyping
from beartype import beartype
from beartype._check.code import codemain
from jaxtyping import AbstractArray, install_import_hook

check_shapes = jaxtyping.jaxtyped
# beartype checks a random item of each list, from its own generator: hypothesis watches the global one.
vars(codemain)["getrandbits"] = Random(0).getrandbits


def check_types_of(package: str) -> None:
    """Check the calls of every function of a package, which must not have been imported yet."""
    jaxtyping.jaxtyped = check_types  # the import hook decorates every function and class with it
    install_import_hook(package, "beartype.beartype")


def check_types(*, typechecker: Callable[..., Any]) -> Callable[[Any], Any]:
    """Decorate as jaxtyping does, but skip its costly tracking of dimensions for functions without shapes."""

    def decorate(function: Any) -> Any:
        if isinstance(function, type) or has_shapes(function.__annotations__.values()):
            return check_shapes(function, typechecker=typechecker)
        checked = beartype(function)

        @wraps(function)
        def run(*arguments: Any, **named: Any) -> Any:
            return (function if jaxtyping.config.jaxtyping_disable else checked)(*arguments, **named)

        return run

    return decorate


def has_shapes(annotations: Iterable[Any]) -> bool:
    """Return whether annotations contain shapes. A forward reference may contain some."""
    return any(
        isinstance(each, str)
        or (isinstance(each, type) and issubclass(each, AbstractArray))
        or has_shapes(each if isinstance(each, list) else get_args(each))
        for each in annotations
    )
