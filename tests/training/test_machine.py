import pytest
import torch

from penwright.config import TrainingSettings
from penwright.errors import UsageError
from penwright.training.machine import choose_machine, measure_speed


def choose(**settings: object) -> tuple[object, ...]:
    machine = choose_machine(TrainingSettings.model_validate({"steps": 1, "threads": 1, **settings}))
    assert len(machine.reasons) == 2 and all(machine.reasons)
    return machine.device.type, machine.precision


def test_what_is_asked_for_is_taken() -> None:
    assert choose(device="cpu", precision="bfloat16") == ("cpu", torch.bfloat16)


@pytest.mark.parametrize("has_bfloat16", [True, False])
def test_a_cpu_computes_in_bfloat16_only_where_it_has_the_instructions(
    has_bfloat16: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: has_bfloat16)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    assert choose(device="cpu") == ("cpu", torch.bfloat16 if has_bfloat16 else torch.float32)


def test_the_number_of_threads_is_set() -> None:
    before = torch.get_num_threads()
    try:
        choose(threads=1)
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


def test_a_device_that_is_not_there_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match="'cuda:77' cannot be used here"):
        choose(device="cuda:77")


def test_speed_is_a_positive_number() -> None:
    assert measure_speed(torch.device("cpu")) > 0
