import pytest
import torch

from penwright.devices import advise_on_out_of_memory, usable_device
from penwright.errors import PenwrightError, UsageError


def test_a_device_that_is_here_is_given() -> None:
    assert usable_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize("wanted", ["gpu", "cuda:77", "", "cpu:x"])
def test_one_that_is_not_is_refused_by_the_name_of_its_setting(wanted: str) -> None:
    with pytest.raises(UsageError, match=f"the setting: '{wanted}' cannot be used here: ."):
        usable_device(wanted, "the setting")


@pytest.mark.parametrize(
    ("wanted", "said"),
    [("mps", "PyTorch finds no Apple GPU"), ("gpu", "Choose cpu, cuda or mps"), ("cpu:x", "there is no such device")],
)
def test_the_reason_is_in_our_words(wanted: str, said: str) -> None:
    if wanted == "mps" and torch.backends.mps.is_available():
        pytest.skip("this machine has an Apple GPU")
    with pytest.raises(UsageError, match=said) as refused:
        usable_device(wanted)
    assert len(str(refused.value)) < 120 and "aten" not in str(refused.value)


def test_memory_that_does_not_suffice_is_told_with_advice() -> None:
    with pytest.raises(PenwrightError, match=r"smaller model\.size"), advise_on_out_of_memory():
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")


def test_other_errors_stay_as_they_are() -> None:
    with pytest.raises(RuntimeError, match="shapes"), advise_on_out_of_memory():
        raise RuntimeError("shapes do not match")
