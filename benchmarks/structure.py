"""Measure the structure of the package: sizes, duplicate names, import weight and call depth.

    python -m benchmarks.structure [RUN ...]

With runs (a writer, a translator), also count the frames between a command and the model's first forward pass.

The way of training: `penwright train` runs on a small text until the first call of `Tensor.backward`. The files of the
package on the way are those of the functions that are on the stack at that moment, and of the functions that these
have called directly. They are what one reads to follow a run from the command to the first gradient, one level deep.
The second figure also counts what any other function in a file of the stack has called.
"""

import ast
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import penwright

ROOT = Path(penwright.__file__).parent
LONGEST_MODULE, LONGEST_FUNCTION = 300, 50

LOADED = """
import json, sys, penwright
penwright.load(sys.argv[1])
print(json.dumps([name for name in sys.modules if name.split(".")[0] == "penwright"]))
"""

DEPTH = """
import json, sys, torch
from penwright.cli.main import app
found = []
def hook(module, inputs):
    if found or not type(module).__module__.startswith("penwright.model."):
        return
    frame, names = sys._getframe(), []
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name.startswith("penwright."):
            names.append(f"{name.removeprefix('penwright.')}:{frame.f_code.co_qualname}")
        frame = frame.f_back
    found.append(names[::-1])
torch.nn.modules.module.register_module_forward_pre_hook(hook)
try:
    app(sys.argv[1:], standalone_mode=False)
finally:
    print("\\n" + json.dumps(found[0] if found else []), file=sys.stderr)
"""

WAY = """
import json, sys, torch
from penwright.cli.main import app
calls = set()
def own(frame):
    while frame is not None and not frame.f_globals.get("__name__", "").startswith("penwright."):
        frame = frame.f_back
    return frame
def note(frame, event, argument):
    if event == "call" and frame.f_globals.get("__name__", "").startswith("penwright."):
        caller = own(frame.f_back)
        if caller is not None:
            calls.add((caller.f_code, caller.f_globals["__name__"], frame.f_globals["__name__"]))
class Reached(BaseException):
    pass
def backward(tensor, *arguments, **options):
    sys.setprofile(None)
    frame, codes, stack = own(sys._getframe()), [], []
    while frame is not None:
        codes.append(frame.f_code)
        stack.append(frame.f_globals["__name__"])
        frame = own(frame.f_back)
    called = {name for caller, _, name in calls if caller in codes}
    wider = {name for _, caller, name in calls if caller in stack}
    print("\\n" + json.dumps([sorted(each) for each in (set(stack), called - set(stack), wider)]), file=sys.stderr)
    raise Reached
torch.Tensor.backward = backward
sys.setprofile(note)
try:
    app(sys.argv[1:], standalone_mode=False)
except Reached:
    pass
"""


def modules() -> Iterator[tuple[Path, ast.Module, int]]:
    """Yield every module of the package: its path, its syntax tree and its number of lines."""
    for path in sorted(ROOT.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        yield path, ast.parse(source), source.count("\n")


def measure() -> dict[str, object]:
    """Return the static measures of the source tree."""
    sizes, classes, long_functions, long_modules = [], Counter[str](), [], []
    for path, tree, n_lines in modules():
        sizes.append(n_lines)
        name = path.relative_to(ROOT).as_posix()
        if n_lines > LONGEST_MODULE:
            long_modules.append(f"{name} ({n_lines})")
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                classes[node.name] += 1
            if isinstance(node, ast.FunctionDef) and (node.end_lineno or 0) - node.lineno >= LONGEST_FUNCTION:
                long_functions.append(f"{name}:{node.name} ({(node.end_lineno or 0) - node.lineno + 1})")
    return {
        "Python files": len(sizes),
        "lines": sum(sizes),
        "median lines": median(sizes),
        f"modules over {LONGEST_MODULE} lines": long_modules,
        f"functions over {LONGEST_FUNCTION} lines": long_functions,
        "class names defined twice": [name for name, n in classes.items() if n > 1],
    }


def loaded_by(run: str) -> list[str]:
    """Return the modules of the package that `penwright.load` imports for this run."""
    done = subprocess.run([sys.executable, "-c", LOADED, run], capture_output=True, text=True, check=True)
    return list(json.loads(done.stdout.splitlines()[-1]))


def call_stack(*arguments: str) -> list[str]:
    """Return the frames of the package between a command and the first forward pass of a part of its model."""
    done = subprocess.run([sys.executable, "-c", DEPTH, *arguments], capture_output=True, text=True, check=True)
    return list(json.loads(done.stderr.splitlines()[-1]))


def way_of_training() -> tuple[list[str], list[str], list[str]]:
    """Return the modules on the stack of the first gradient, those that it called, and those that its files called."""
    with TemporaryDirectory() as folder:
        text = Path(folder) / "novel.txt"
        text.write_text("".join(f"It was day {n} of a long voyage.\n" for n in range(500)), encoding="utf-8")
        size = ["--steps", "1", "--set", "model.d_model=16", "--set", "model.n_layers=1"]
        arguments = ["train", str(text), "--run", f"{folder}/run", *size]
        done = subprocess.run([sys.executable, "-c", WAY, *arguments], capture_output=True, text=True, check=True)
    stack, called, wider = json.loads(done.stderr.splitlines()[-1])
    return stack, called, wider


def main() -> None:
    """Print all measures."""
    for name, value in measure().items():
        shown = f"{len(value)}  {', '.join(map(str, value))}" if isinstance(value, list) else value
        print(f"{name}: {shown}")
    stack, called, wider = way_of_training()
    print(f"files from `train` to the first gradient: {len(stack) + len(called)} ({len({*stack, *wider})} by files)")
    print(f"  on the stack ({len(stack)}): {', '.join(stack)}")
    print(f"  called from it ({len(called)}): {', '.join(called)}")
    for run in sys.argv[1:]:
        names = loaded_by(run)
        heavy = [name for name in names if name.split(".")[1:2] in (["training"], ["data"], ["formats"])]
        print(f"{run}: load() imports {len(names)} modules; heavy ones: {', '.join(heavy) or 'none'}")
        task = {"Generator": "generate", "Translator": "translate", "Classifier": "classify"}[
            type(penwright.load(run)).__name__
        ]
        stack = call_stack(task, run, "a")
        print(f"{run}: {len(stack)} frames from `{task}` to the model: {' > '.join(stack)}")


if __name__ == "__main__":
    main()
