import os
import shutil
from pathlib import Path

import pytest
import torch
import torch._inductor.runtime.cache_dir_utils

from penwright.errors import PenwrightError
from penwright.native import toolchain
from penwright.training.auto.machine import PAYS_FROM, choose_compilation, compile_blocks, uncompiled

CPU = torch.device("cpu")


@pytest.mark.parametrize("missing", ["", "there is no C++ compiler"])
def test_long_cpu_run_is_compiled_if_a_compiler_is_available(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "missing_requirement", lambda: missing)
    compiled, reason = choose_compilation(CPU, PAYS_FROM)
    assert compiled == (not missing) and missing in reason
    assert not choose_compilation(CPU, PAYS_FROM - 1)[0]


def test_gpu_run_is_compiled_if_possible_and_other_devices_never(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "missing_requirement", lambda: "")
    assert choose_compilation(torch.device("cuda"), PAYS_FROM)[0]
    assert not choose_compilation(torch.device("cuda"), 1.0)[0]
    assert not choose_compilation(torch.device("mps"), 1e6)[0]
    monkeypatch.setattr(toolchain, "missing_requirement", lambda: "there is no C++ compiler")
    assert not choose_compilation(torch.device("cuda"), 1e6)[0]


def test_missing_compiler_is_named_in_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain.sys, "platform", "linux")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert "C++ compiler" in choose_compilation(CPU, 1e6)[1]
    with pytest.raises(PenwrightError, match="compile=off"):
        compile_blocks(torch.nn.Linear(1, 1), dynamic=False)


def test_evaluation_runs_uncompiled() -> None:
    ran: list[str] = []

    def note_and_return(graph: torch.fx.GraphModule, inputs: object) -> object:
        ran.append("compiled")
        return graph.forward

    compiled = torch.compile(lambda x: x + 1, backend=note_and_return)
    with uncompiled():
        assert compiled(torch.zeros(1)) == 1 and not ran
    assert compiled(torch.zeros(1)) == 1 and ran


@pytest.mark.parametrize("chosen", ["by default", "by torch", "by the user"])
def test_inductor_cache_is_ours_unless_torch_or_the_user_chose_one(
    chosen: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PENWRIGHT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv(toolchain.INDUCTOR_CACHE_VARIABLE, "")  # so that monkeypatch restores it
    monkeypatch.delenv(toolchain.INDUCTOR_CACHE_VARIABLE)
    if chosen == "by torch":
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        torch._inductor.runtime.cache_dir_utils.cache_dir()
        assert toolchain.INDUCTOR_CACHE_VARIABLE in os.environ
    elif chosen == "by the user":
        monkeypatch.setenv(toolchain.INDUCTOR_CACHE_VARIABLE, str(tmp_path / "mine"))
    toolchain.set_inductor_cache()
    assert os.environ[toolchain.INDUCTOR_CACHE_VARIABLE] == str(
        tmp_path / ("mine" if chosen == "by the user" else f"cache/compiled/{toolchain.processor_key()}")
    )
