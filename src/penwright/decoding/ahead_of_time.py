"""Ahead-of-time compilation of the parts of a model, once for each model shape; later processes load the result."""

import hashlib
import json
import os
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor, nn

import penwright.decoding.sampling
import penwright.model
from penwright.decoding.sampling import topk
from penwright.devices import BackoffThreads, with_threads
from penwright.errors import PenwrightError, PenwrightWarning
from penwright.model import attention_kernels, quantized
from penwright.model.transformer import DecoderOnly, EncoderDecoder
from penwright.native import toolchain
from penwright.storage import MOST_IN_SMALL, UnsafeFile, cache_folder, read_bytes, sha256_of, write_atomically

OPERATORS = {  # custom C++ operators
    torch.ops.penwright.int8_product.default: quantized.SOURCE,
    torch.ops.penwright.stepping_attention.default: attention_kernels.SOURCE,
    torch.ops.penwright.masked_topk.default: topk.SOURCE,
}
HEADER = toolchain.SOURCES / "vectors.h"
KEY_LENGTH = 16  # length of a key, in hexadecimal digits
STEPS = ("one", "many")  # parts that append a token to each row
Input = Tensor | Sequence[Tensor] | None
Compiled = Callable[..., list[Tensor]]  # a compiled part of a model; takes only contiguous tensors, returns a list

_WARNED: set[str] = set()


class ModelPart(nn.Module):
    """A part of a model's computation, as a function of tensors."""

    def __init__(self, model: DecoderOnly | EncoderDecoder):
        super().__init__()
        self.model = model


def compile_ahead(
    part: ModelPart,
    name: str,
    n_threads: int,
    graph: torch.export.ExportedProgram,
    is_right: Callable[[Compiled], bool],
) -> None:
    """Compile the graph, check the code with `is_right`, and write it atomically to the file that load() reads.

    The file holds no weights; load() supplies them. Raises PenwrightError if the check fails.
    """
    toolchain.trusted_folder()
    toolchain.set_inductor_cache()
    path = _path(part, name, n_threads)
    unfinished = path.with_suffix(f".{os.getpid()}.pt2")
    used = {node.target for node in graph.graph.nodes}
    sources = {operator: [_source(path)] for operator, path in OPERATORS.items() if operator in used}
    options = {
        "aot_inductor.package_constants_in_so": False,
        # This option is meant for C++ declarations. Given full definitions, torch compiles them into the package.
        "aot_inductor.custom_ops_to_c_shims": sources,
    }
    try:
        with torch.no_grad(), with_threads(n_threads), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch._inductor.aoti_compile_and_package(graph, package_path=str(unfinished), inductor_configs=options)
        unfinished.chmod(0o600)
        try:
            is_same = is_right(_opened(unfinished, part, name, n_threads))
        except RuntimeError as error:
            raise PenwrightError(f"the code that torch compiled cannot be run: {error}") from error
        if not is_same:
            raise PenwrightError(
                "the code that torch compiled gives different results from the model, and was deleted: use the model "
                "without compiled steps, or try a different --precision"
            )
        write_atomically(_checksum(path), sha256_of(unfinished) + "\n")
        unfinished.rename(path)
    finally:
        unfinished.unlink(missing_ok=True)


def _checksum(path: Path) -> Path:
    """Return the path of the file that holds the checksum of a compiled file."""
    return path.with_suffix(".sha256")


def _why_not_loaded(path: Path) -> str:
    """Return why the compiled file must not be loaded, such as "other users can write to it"; "" if it is safe."""
    danger = toolchain.why_not_trusted(path)
    if danger:
        return danger
    again = f"delete {path} and run `penwright optimize` again"
    try:
        expected = read_bytes(_checksum(path), MOST_IN_SMALL).decode("ascii", "replace").strip()
        return "" if sha256_of(path) == expected else f"{path} is damaged: {again}"
    except OSError:
        return f"{path} has no checksum file: {again}"
    except UnsafeFile as error:
        return str(error)


def _source(path: Path) -> str:
    """Return the source of an operator, with absolute include paths, since torch compiles it in a different folder."""
    return path.read_text("utf-8").replace('#include "', f'#include "{HEADER.parent}/')


def is_compiled(part: ModelPart, name: str, n_threads: int) -> bool:
    """Return whether this part of a model has a compiled file for the current code and the installed torch."""
    return _path(part, name, n_threads).exists()


def load(part: ModelPart, name: str, n_threads: int) -> Compiled | None:
    """Load the compiled part of a model; return None if there is none.

    Return None with a warning if the file is unsafe or damaged.
    """
    path = _path(part, name, n_threads)
    if not path.exists():
        return None
    if danger := _why_not_loaded(path):
        if danger not in _WARNED:  # warn only once, since the reason is usually the same for all parts of a model
            _WARNED.add(danger)
            warnings.warn(f"compiled steps are not used: {danger}", PenwrightWarning, stacklevel=2)
        return None
    try:
        return _opened(path, part, name, n_threads)
    except RuntimeError:  # the file is incomplete, perhaps because the disk was full; continue without it
        damaged = f"{path} is damaged: delete it and run `penwright optimize` again"
        warnings.warn(damaged, PenwrightWarning, stacklevel=2)
        return None


def _opened(path: Path, part: ModelPart, name: str, n_threads: int) -> Compiled:
    """Load a compiled file, and give it the weights of the part.

    This calls torch's C++ loader, since its Python wrapper takes two seconds to import and parses JSON at each step.
    """
    loader = torch._C._aoti.AOTIModelPackageLoader(str(path), "model", True, 1, -1)
    tensors = dict(part.named_parameters(remove_duplicate=False)) | dict(part.named_buffers(remove_duplicate=False))
    loader.load_constants({name: tensors[name] for name in loader.get_constant_fqns()}, False, True, True)
    threads = defaultdict[torch.Size, BackoffThreads](partial(BackoffThreads, n_threads))  # by shape of the tokens

    def run(*inputs: Input) -> list[Tensor]:
        flat = _flat(inputs)
        if not all(x.is_contiguous() for x in flat):  # compiled code ignores strides
            raise ValueError(f"{name}: a compiled function takes only contiguous tensors")
        with threads[flat[0].shape] if name in STEPS else with_threads(n_threads):
            outputs: list[Tensor] = loader.run(flat)
            return outputs

    return run


def _flat(inputs: Sequence[Input]) -> list[Tensor]:
    flat = list[Tensor]()
    for value in inputs:
        if isinstance(value, Tensor):
            flat.append(value)
        elif value is not None:
            flat += value
    return flat


def _path(part: ModelPart, name: str, n_threads: int) -> Path:
    return cache_folder("compiled") / f"step-{name}-{key_of(part, n_threads)}.pt2"


def key_of(part: ModelPart, n_threads: int) -> str:
    """Hash what compiled code depends on: its source, the machine, and the weights' shapes and types (not values)."""
    shapes = [(name, str(x.dtype), list(x.shape)) for name, x in part.state_dict().items()]
    paths = [Path(__file__), Path(str(sys.modules[type(part).__module__].__file__))]
    packages = (penwright.model, penwright.decoding.sampling)
    paths += [HEADER, *OPERATORS.values(), *(path for package in packages for path in _modules_of(package))]
    code = [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths]
    machine = (torch.backends.cpu.get_cpu_capability(), toolchain.processor_key(), n_threads)
    description = json.dumps([part.model.settings.model_dump(mode="json"), shapes, code, torch.__version__, machine])
    return hashlib.sha256(description.encode()).hexdigest()[:KEY_LENGTH]


def _modules_of(package: ModuleType) -> list[Path]:
    return sorted(Path(str(package.__file__)).parent.glob("*.py"))
