"""Types are checked at each call while the tests run: shapes with their dimensions, all others at less cost."""

from collections.abc import Callable, Iterable
from functools import wraps
from random import Random
from typing import Any, get_args

import jaxtyping
from beartype import beartype
from beartype._check.code import codemain
from jaxtyping import AbstractArray, install_import_hook

check_shapes = jaxtyping.jaxtyped
# beartype checks a random item of each list. hypothesis must not see the shared generator change in other threads.
vars(codemain)["getrandbits"] = Random(0).getrandbits


def check_types_of(package: str) -> None:
    """Have every function of a package that is yet to be imported checked."""
    jaxtyping.jaxtyped = check_types  # which the hook puts before every function and class
    install_import_hook(package, "beartype.beartype")


def check_types(*, typechecker: Callable[..., Any]) -> Callable[[Any], Any]:
    """jaxtyping's decorator, but for functions without shapes, where keeping dimensions would take most of the time."""

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
    """Whether there are any in them; a name that is not known yet may have some."""
    return any(
        isinstance(each, str)
        or (isinstance(each, type) and issubclass(each, AbstractArray))
        or has_shapes(each if isinstance(each, list) else get_args(each))
        for each in annotations
    )
