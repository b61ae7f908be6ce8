import pytest
import torch

from penwright import devices
from penwright.devices import advise_on_out_of_memory, copy_to, limit_threads, usable_device, with_threads
from penwright.errors import PenwrightError, UsageError


def test_available_device_is_returned() -> None:
    assert usable_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize("wanted", ["gpu", "cuda:77", "", "cpu:x"])
def test_unavailable_device_is_refused_naming_the_setting(wanted: str) -> None:
    with pytest.raises(UsageError, match=f"the setting: '{wanted}' cannot be used here: ."):
        usable_device(wanted, "the setting")


@pytest.mark.parametrize(
    ("wanted", "message"),
    [("mps", "PyTorch finds no Apple GPU"), ("gpu", "Choose cpu, cuda or mps"), ("cpu:x", "there is no such device")],
)
def test_unavailable_device_is_explained_in_plain_words(wanted: str, message: str) -> None:
    if wanted == "mps" and torch.backends.mps.is_available():
        pytest.skip("this machine has an Apple GPU")
    with pytest.raises(UsageError, match=message) as refused:
        usable_device(wanted)
    assert len(str(refused.value)) < 120 and "aten" not in str(refused.value)


@pytest.mark.parametrize(("n_processors", "n_threads"), [(1, 1), (2, 2), (64, 2)])
def test_torch_gets_no_more_threads_than_processors(
    n_processors: int, n_threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "n_processors", lambda: n_processors)
    with with_threads(2):
        limit_threads()
        assert torch.get_num_threads() == n_threads


@pytest.mark.parametrize(("device", "is_asynchronous"), [("cpu", False), ("cuda", True), ("mps", False)])
def test_only_copies_to_nvidia_gpus_are_asynchronous(
    device: str, is_asynchronous: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = []

    def to(tensor: torch.Tensor, device: torch.device, *, non_blocking: bool) -> torch.Tensor:
        given.append((device.type, non_blocking))
        return tensor

    monkeypatch.setattr(torch.Tensor, "to", to)
    copy_to(torch.zeros(2), torch.device(device))
    assert given == [(device, is_asynchronous)]


def test_out_of_memory_error_gives_advice() -> None:
    with pytest.raises(PenwrightError, match=r"smaller model\.size"), advise_on_out_of_memory():
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")


def test_other_runtime_errors_are_unchanged() -> None:
    with pytest.raises(RuntimeError, match="shapes"), advise_on_out_of_memory():
        raise RuntimeError("shapes do not match")
