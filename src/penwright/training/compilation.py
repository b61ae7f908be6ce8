"""Compiled blocks: a third quicker once compiled, which takes a while; so whether it pays depends on the run."""

from contextlib import AbstractContextManager

import torch
from torch import nn
from torch.fx.experimental import _config as shapes

from penwright.config import Task
from penwright.errors import PenwrightError
from penwright.native import toolchain
from penwright.training.optimizers import blocks_of

PAYS_FROM: dict[Task, float] = {"generate": 120.0, "translate": 240.0, "classify": 240.0}
# ... seconds of training: compiling for a CPU takes 22 s, for lengths that vary 60 s, on slow cores twice (measured;
# for a GPU not measured)
GAIN = 1.45  # times as quick as before, on a CPU (measured)


def choose_compilation(device: torch.device, task: Task, seconds: float) -> tuple[bool, str]:
    """Whether to compile for about so many seconds of training, and why."""
    if device.type not in ("cpu", "cuda"):
        return False, "untried on this device"
    if seconds < PAYS_FROM[task]:
        return False, "would take longer than it saves in so short a run"
    missing = toolchain.what_is_missing()
    if missing:
        return False, f"would save a third of the time, but {missing}"
    if device.type == "cuda":
        return True, "it pays on a GPU"
    return True, "takes a minute or two the first time, then saves a third of the time"


def compile_blocks(model: nn.Module, device: torch.device, *, dynamic: bool) -> None:
    """Have each block compiled when it first runs; all of one kind share what was compiled."""
    missing = toolchain.what_is_missing()  # on a GPU as well: Triton builds its launchers with a compiler
    if missing:
        raise PenwrightError(f"this run is to be compiled, but {missing}: give --set training.compile=off")
    toolchain.keep_what_is_compiled()
    shapes.use_duck_shape = False  # else a batch as long as the model is wide would be compiled for just that
    for block in blocks_of(model):
        block.compile(dynamic=dynamic)


def uncompiled() -> AbstractContextManager[None]:
    """Within it nothing runs compiled: evaluation and decoding have shapes of their own, each to be compiled anew."""
    return torch.compiler.set_stance("force_eager")
