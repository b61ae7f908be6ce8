"""The machine that training runs on: its device and precision, and whether to compile, each chosen with a reason."""

import logging
import os
from contextlib import AbstractContextManager
from math import inf
from pathlib import Path
from time import perf_counter, sleep
from typing import NamedTuple
from warnings import warn

import torch
from torch import nn
from torch.fx.experimental import _config as shapes

from penwright.config import TrainingSettings
from penwright.devices import (
    available_memory,
    keep_freed_memory,
    limit_threads,
    n_allowed,
    n_processors,
    usable_device,
    with_threads,
)
from penwright.errors import Interrupted, PenwrightError, PenwrightWarning, UsageError
from penwright.model.attention import disable_cudnn_attention
from penwright.model.block import Stack
from penwright.native import toolchain
from penwright.text import count
from penwright.training.distributed.launcher import n_here
from penwright.training.distributed.ranks import ALONE, Ranks, joined
from penwright.training.optimizers import blocks_of

PROCESSORS = Path("/proc/stat")  # file that counts the busy and idle ticks of each processor
PAUSE = 0.1  # seconds over which to measure the load; the system's load average covers minutes, which is too long
BUSY = 0.5  # if other programs use at least this share of the processors, the plan says so
LEAST_GAIN = 1.2  # minimum speedup of matrix products for which training uses bfloat16; casts cost some of it
GAIN_ROUNDS = 20  # number of timed products in each precision, a fraction of a millisecond each
# Minimum seconds of training for which compiling pays off. On a CPU, compiling took 22 s, 60 s if batch lengths vary,
# and twice as long on slow cores. GPUs were not measured.
PAYS_FROM = 240.0
# Minimum seconds of training with adapters for which compiling pays off. Compiling 30 blocks took one core a minute,
# and then saved a sixth of the time.
LORA_PAYS_FROM = 1200.0
GAIN = 1.45  # measured speedup from compiling when training on a CPU


class Machine(NamedTuple):
    """The device, the precision and the ranks of a training run, with the reasons."""

    device: torch.device
    precision: torch.dtype  # dtype of matrix multiplications; weights stay in float32
    reasons: tuple[str, ...]
    ranks: Ranks = ALONE
    decoding_threads: int | None = None  # torch's number of threads before training, which decoding also uses


def choose_machine(settings: TrainingSettings) -> Machine:
    """Choose the fastest safe device and precision, unless the settings name others, and set the number of threads."""
    limit_threads()
    ranks, decoding_threads = joined(), torch.get_num_threads()
    torch.set_num_threads(settings.threads or max(1, n_processors() // (n_here() if ranks.size > 1 else 1)))
    device, device_reason = _device(settings.device)
    if ranks.size > 1:
        _require_one_each(device)
    if device.type == "cpu":
        keep_freed_memory()
    disable_cudnn_attention()
    precision, precision_reason = _precision(settings.precision, device)
    together = (f"{ranks.size} processes: each computes its share of every batch",) if ranks.size > 1 else ()
    reasons = (device_reason, precision_reason, *together, *_other_load())
    return Machine(device, precision, reasons, ranks, decoding_threads)


def memory_of_rank(device: torch.device) -> float:
    """Return the bytes of memory that each rank has on this device."""
    if device.type == "cuda":
        return float(torch.cuda.get_device_properties(device).total_memory)
    return available_memory() / n_here()


def _other_load() -> tuple[str, ...]:
    """Return a notice if other programs keep much of this machine busy now, which slows down training."""
    before = _processor_ticks()
    sleep(PAUSE)
    idle, every = (after - earlier for after, earlier in zip(_processor_ticks(), before, strict=True))
    n, share = n_processors(), idle / every if every > 0 else 1.0
    n_idle = min(n, share * n_allowed())
    if n_idle > (1 - BUSY) * n:
        return ()
    has = f"other programs leave {n_idle:.1f} of {count(n, 'processor')} idle"
    return (f"busy: {has}, so training may be slower than planned",)


def _processor_ticks() -> tuple[int, int]:
    """Return the idle ticks and all ticks of the processors that this process may use; (0, 0) except on Linux."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ()
    try:
        lines = [line.split() for line in PROCESSORS.read_text(encoding="ascii").splitlines()]
    except OSError:
        return 0, 0
    # columns: user, nice, system, idle, iowait, irq, softirq, steal; user and nice include the guest columns
    times = [[int(ticks) for ticks in fields[1:9]] for fields in lines if fields[0] in {f"cpu{n}" for n in allowed}]
    return sum(sum(fields[3:5]) for fields in times), sum(map(sum, times))


def _device(requested: str) -> tuple[torch.device, str]:
    if requested != "auto":
        return usable_device(requested, "[training] device"), f"{requested}, as requested"
    if torch.cuda.is_available():
        n_gpus = torch.cuda.device_count()
        alone = n_gpus > 1 and joined().size == 1
        more = f", one of {n_gpus} (to use all of them for large batches: --processes {n_gpus})" if alone else ""
        return torch.device("cuda"), f"GPU {torch.cuda.get_device_name()}{more}"
    if torch.backends.mps.is_available() and joined().size == 1:
        return torch.device("mps"), "Apple GPU"
    return torch.device("cpu"), f"CPU with {count(torch.get_num_threads(), 'thread')}: no GPU was found"


def _require_one_each(device: torch.device) -> None:
    """Raise UsageError if several processes would share a device that only one can use."""
    if device.type == "mps" or device.index is not None:
        raise UsageError(f"[training] device: '{device}' is for a single process. Use 'cuda' or 'cpu'")
    if device.type == "cuda" and torch.cuda.device_count() < n_here():
        has = count(torch.cuda.device_count(), "GPU")
        raise UsageError(
            f"--processes: each process needs its own GPU, but this machine has {has}. Use fewer processes, "
            "or add --set training.device=cpu"
        )


def _precision(requested: str, device: torch.device) -> tuple[torch.dtype, str]:
    if requested != "auto":
        return getattr(torch, requested), f"{requested}, as requested"
    if device.type == "cuda":
        supported = torch.cuda.is_bf16_supported(including_emulation=False)
        return (
            (torch.bfloat16, "bfloat16: this GPU supports it")
            if supported
            else (torch.float32, "float32: this GPU does not support bfloat16")
        )
    if device.type == "mps":
        return torch.float32, "float32: the safe choice on an Apple GPU"
    if not (torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()):
        return torch.float32, "float32: this CPU has no instructions for bfloat16"
    gain = _gain_of_bfloat16()
    if gain < LEAST_GAIN:
        return torch.float32, "float32: bfloat16 is hardly faster or even slower on this CPU"
    return torch.bfloat16, f"bfloat16: matrix products are {gain:.1f} times as fast as in float32 on this CPU"


def _gain_of_bfloat16() -> float:
    """Return how many times as fast one thread multiplies matrices in bfloat16 as in float32.

    Both are timed in turn, and the fastest of several timings counts, so that other programs hardly change the result.
    Without instructions for bfloat16, the CPU emulates it, and a busy machine may hide this.
    """
    matrices = [torch.ones(256, 256, dtype=dtype) for dtype in (torch.float32, torch.bfloat16)]
    fastest = [inf, inf]
    with with_threads(1):
        for _ in range(GAIN_ROUNDS):
            for number, matrix in enumerate(matrices):
                begin = perf_counter()
                matrix @ matrix
                fastest[number] = min(fastest[number], perf_counter() - begin)
    return fastest[0] / fastest[1]


def measure_speed(device: torch.device, precision: torch.dtype = torch.float32) -> float:
    """Return the measured FLOP/s of matrix multiplications whose size is typical of training."""
    size = 512 if device.type == "cpu" else 4096  # on a GPU, the matmul must take longer than the synchronization
    matrix = torch.ones(size, size, device=device, dtype=precision)
    best = 0.0
    for _ in range(20):
        begin = perf_counter()
        float((matrix @ matrix)[0, 0])  # reading the result synchronizes with the device
        best = max(best, 2 * size**3 / (perf_counter() - begin))
    return best


def choose_compilation(device: torch.device, seconds: float, *, has_adapters: bool = False) -> tuple[bool, str]:
    """Decide whether to compile for about this many seconds of training. Return the decision and the reason."""
    if device.type not in ("cpu", "cuda"):
        return False, "untested on this device"
    if seconds < (LORA_PAYS_FROM if has_adapters else PAYS_FROM):
        return False, "compiling would take more time than it saves in such a short run"
    missing = toolchain.missing_requirement()
    if missing:
        return False, f"compiling would save a third of the time, but {missing}"
    if device.type == "cuda":
        return True, "faster on a GPU"
    return True, "saves a third of the time, after a minute or two of compilation the first time"


def compile_blocks(model: nn.Module, *, dynamic: bool) -> None:
    """Mark each block for compilation when it first runs. Identical blocks share compiled code.

    Set `dynamic` if batches vary in shape.

    Raises PenwrightError if torch.compile cannot work on this machine.
    """
    missing = toolchain.missing_requirement()  # GPUs need a C++ compiler, too: Triton compiles kernel launchers with it
    if missing:
        raise PenwrightError(f"training.compile is on, but {missing}. Add --set training.compile=off")
    toolchain.set_inductor_cache()
    # torch logs the whole output of a C++ compiler that fails; `is_failed_compilation` recognizes the error
    logging.getLogger("torch._functorch._aot_autograd.graph_compile").setLevel(logging.ERROR)
    shapes.use_duck_shape = False  # avoids a separate compilation for a batch whose length equals d_model
    torch._dynamo.config.optimize_ddp = False  # each block is compiled as a separate graph, so DDP need not split any
    for module in model.modules():
        if isinstance(module, Stack):
            module.is_compiled, module.has_fixed_shapes = True, not dynamic
    for block in blocks_of(model):
        block.compile(dynamic=dynamic)


def is_failed_compilation(error: RuntimeError) -> bool:
    """Return whether this error of a step means that its code could not be compiled."""
    return isinstance(error, torch._dynamo.exc.TorchDynamoException)


def undo_compilation(model: nn.Module, error: RuntimeError, ranks: Ranks, *, is_stopping: bool) -> None:
    """Undo `compile_blocks`, since compilation failed with this error, so that the step can be repeated without it.

    Ctrl+C also ends a running compiler, so with `is_stopping` the failure is expected and is not reported.

    Raises PenwrightError if nothing was compiled, or if there are other ranks, which cannot repeat the step.
    """
    stacks = [module for module in model.modules() if isinstance(module, Stack) and module.is_compiled]
    if ranks.size > 1 and is_stopping:
        raise Interrupted("stopped during compilation; everything saved so far is intact") from None
    reason = str(getattr(error, "inner_exception", error)).strip().partition("\n")[0]
    if ranks.size > 1 or not stacks:
        raise PenwrightError(f"compilation failed: {reason}. Add --set training.compile=off") from error
    for stack in stacks:
        stack.is_compiled = False
    for block in blocks_of(model):
        block._compiled_call_impl = None
    if not is_stopping:
        warn(
            f"compilation failed, so training continues without it, more slowly: {reason}",
            PenwrightWarning,
            stacklevel=3,
        )


def uncompiled() -> AbstractContextManager[None]:
    """Return a context that disables compiled code, since evaluation and decoding would often cause recompilation."""
    return torch.compiler.set_stance("force_eager")
