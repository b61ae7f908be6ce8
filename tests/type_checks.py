"""Runtime checks of types and shapes at each call while the tests run."""

from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from inspect import iscoroutinefunction, isgeneratorfunction
from random import Random
from typing import Any, Literal, get_args, get_origin

import jaxtyping
from beartype import beartype
from beartype._check.code import codemain
from jaxtyping import AbstractArray, install_import_hook
from jaxtyping._storage import pop_shape_memo, push_shape_memo

check_with_jaxtyping = jaxtyping.jaxtyped
# beartype checks a random item of each list, from its own generator: hypothesis watches the global one.
vars(codemain)["getrandbits"] = Random(0).getrandbits


def check_types_of(package: str) -> None:
    """Check the calls of every function of a package, which must not have been imported yet."""
    jaxtyping.jaxtyped = check_types  # the import hook decorates every function and class with it
    install_import_hook(package, "beartype.beartype")


def check_types(*, typechecker: Callable[..., Any]) -> Callable[[Any], Any]:
    """Decorate as jaxtyping does, but at a third of its cost per call.

    Each argument is checked once, by beartype; jaxtyping checks it again with the result, for the sake of its messages.
    Dimensions are tracked only for functions with shapes.
    """

    def decorate(function: Any) -> Any:
        if isinstance(function, type) or needs_jaxtyping(function):
            return check_with_jaxtyping(function, typechecker=typechecker)
        checked, has_shapes = beartype(function), any(map(is_shape, parts(function.__annotations__.values())))

        @wraps(function)
        def run(*arguments: Any, **named: Any) -> Any:
            return (function if jaxtyping.config.jaxtyping_disable else checked)(*arguments, **named)

        @wraps(function)
        def run_with_dimensions(*arguments: Any, **named: Any) -> Any:
            if jaxtyping.config.jaxtyping_disable:
                return function(*arguments, **named)
            push_shape_memo({})
            try:
                return checked(*arguments, **named)
            finally:
                pop_shape_memo()

        return run_with_dimensions if has_shapes else run

    return decorate


def needs_jaxtyping(function: Any) -> bool:
    """Return whether annotations contain a forward reference, or shapes of a function that outlives its call."""
    annotated = list(parts(function.__annotations__.values()))
    outlives = isgeneratorfunction(function) or iscoroutinefunction(function)
    return any(isinstance(each, str) for each in annotated) or (outlives and any(map(is_shape, annotated)))


def is_shape(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, AbstractArray)


def parts(annotations: Iterable[Any]) -> Iterator[Any]:
    """Yield annotations and everything in their brackets except literals."""
    for each in annotations:
        yield each
        if get_origin(each) is not Literal:
            yield from parts(each if isinstance(each, list) else get_args(each))
