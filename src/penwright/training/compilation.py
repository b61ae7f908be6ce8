"""Compilation of a model's blocks with torch.compile. Steps take a third less time, which pays off in long runs."""

from contextlib import AbstractContextManager

import torch
from torch import nn
from torch.fx.experimental import _config as shapes

from penwright.errors import PenwrightError
from penwright.native import toolchain
from penwright.training.optimizers import blocks_of

# Minimum seconds of training for which compiling pays off. On a CPU, compiling took 22 s, 60 s if batch lengths vary,
# and twice as long on slow cores. GPUs were not measured.
PAYS_FROM = 240.0
# Minimum seconds of training with adapters for which compiling pays off. Compiling 30 blocks took one core a minute,
# and then saved a sixth of the time.
LORA_PAYS_FROM = 1200.0
GAIN = 1.45  # measured speedup of training on a CPU


def choose_compilation(device: torch.device, seconds: float, *, has_adapters: bool = False) -> tuple[bool, str]:
    """Decide whether to compile for about this many seconds of training. Return the decision and the reason."""
    if device.type not in ("cpu", "cuda"):
        return False, "untested on this device"
    if seconds < (LORA_PAYS_FROM if has_adapters else PAYS_FROM):
        return False, "compiling would take more time than it saves in such a short run"
    missing = toolchain.missing_requirement()
    if missing:
        return False, f"would save a third of the time, but {missing}"
    if device.type == "cuda":
        return True, "faster on a GPU"
    return True, "takes a minute or two the first time, then saves a third of the time"


def compile_blocks(model: nn.Module, device: torch.device, *, dynamic: bool) -> None:
    """Mark each block for compilation, which happens when the block first runs. Equal blocks share compiled code.

    Raises PenwrightError if torch.compile cannot work on this machine.
    """
    missing = toolchain.missing_requirement()  # GPUs need a C++ compiler, too: Triton compiles kernel launchers with it
    if missing:
        raise PenwrightError(f"training.compile is on, but {missing}. Add --set training.compile=off")
    toolchain.set_inductor_cache()
    shapes.use_duck_shape = False  # avoids a separate compilation for a batch whose length equals d_model
    torch._dynamo.config.optimize_ddp = False  # each block is a graph of its own, so DDP need not split it
    for block in blocks_of(model):
        block.compile(dynamic=dynamic)


def uncompiled() -> AbstractContextManager[None]:
    """Return a context without compiled code, for evaluation and decoding, whose shapes would cause recompilation."""
    return torch.compiler.set_stance("force_eager")
