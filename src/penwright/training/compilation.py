"""Compilation of the blocks with torch.compile: steps take a third less time, which pays off in long runs only."""

from contextlib import AbstractContextManager

import torch
from torch import nn
from torch.fx.experimental import _config as shapes

from penwright.config import Task
from penwright.errors import PenwrightError
from penwright.native import toolchain
from penwright.training.optimizers import blocks_of

# Seconds of training from which compiling pays off. On a CPU, compiling takes 22 s, or 60 s for varying lengths, and
# twice as long on slow cores (measured; not measured on a GPU).
PAYS_FROM: dict[Task, float] = {"generate": 120.0, "chat": 240.0, "translate": 240.0, "classify": 240.0}
GAIN = 1.45  # speedup of training on a CPU (measured)


def choose_compilation(device: torch.device, task: Task, seconds: float) -> tuple[bool, str]:
    """Decide whether to compile for about this many seconds of training. Return the decision and the reason."""
    if device.type not in ("cpu", "cuda"):
        return False, "untested on this device"
    if seconds < PAYS_FROM[task]:
        return False, "compiling would take longer than it saves in so short a run"
    missing = toolchain.missing_requirement()
    if missing:
        return False, f"would save a third of the time, but {missing}"
    if device.type == "cuda":
        return True, "faster on a GPU"
    return True, "takes a minute or two the first time, then saves a third of the time"


def compile_blocks(model: nn.Module, device: torch.device, *, dynamic: bool) -> None:
    """Mark each block for compilation when it first runs. Blocks of the same kind share the compiled code.

    Raises PenwrightError if torch.compile cannot work on this machine.
    """
    missing = toolchain.missing_requirement()  # GPUs need the toolchain, too: Triton compiles launchers
    if missing:
        raise PenwrightError(f"training.compile is on, but {missing}. Add --set training.compile=off")
    toolchain.set_inductor_cache()
    shapes.use_duck_shape = False  # otherwise a batch whose length equals the model's width is compiled separately
    for block in blocks_of(model):
        block.compile(dynamic=dynamic)


def uncompiled() -> AbstractContextManager[None]:
    """Return a context in which no compiled code runs. Evaluation and decoding use other shapes and would recompile."""
    return torch.compiler.set_stance("force_eager")
