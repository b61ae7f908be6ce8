"""What is known of a model class of transformers: when it can be held here, and what everything in it is called."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from penwright.config import Table, Task

Config = Mapping[str, object]  # a config.json
Tensors = dict[str, Tensor]


class Rename(NamedTuple):
    """A module of theirs and the same one here; {i} is the number of its layer."""

    theirs: str
    ours: tuple[str, ...]  # several where theirs holds them side by side
    transposed: bool = False


def _unchanged(tensors: Tensors) -> Tensors:
    return tensors


@dataclass(frozen=True)
class Architecture:
    """One model class of transformers: when we can hold it, and what everything in it is called here."""

    task: Task
    keys: tuple[tuple[str, str], ...]  # of config.json and of our settings; the values of two that meet must agree
    modules: tuple[Rename, ...]
    block: Table  # our settings that make the block theirs
    supported: Mapping[str, tuple[object, ...]]  # the values we can hold of further keys, the default first
    defaults: Config = field(default_factory=dict)  # of keys that a config.json may leave out; None leaves it to us
    prepare: Callable[[Tensors], Tensors] = _unchanged  # what is more than a new name


WORDS: dict[str, dict[object, object]] = {  # values that are called differently here
    "feed_forward": {
        "gelu": "gelu",
        "gelu_new": "gelu_tanh",
        "gelu_pytorch_tanh": "gelu_tanh",
        "relu": "relu",
        "silu": "silu",
        "swish": "silu",
    },
    "tie_embeddings": {True: "output", False: "none"},
}


def rename(theirs: str, *ours: str, transposed: bool = False) -> Rename:
    """For tables: a module under both of its names."""
    return Rename(theirs, ours, transposed)


def under(theirs: str, ours: str, *modules: Rename) -> tuple[Rename, ...]:
    """The modules of one layer, below their name of the layer and ours."""
    return tuple(
        Rename(f"{theirs}.{module.theirs}", tuple(f"{ours}.{name}" for name in module.ours), module.transposed)
        for module in modules
    )
