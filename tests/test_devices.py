"""Devices of torch, and tensors on an Apple GPU."""

from collections.abc import Sequence
from itertools import accumulate, chain
from typing import Any, get_args

import numpy as np
import pytest
import torch

from penwright import devices
from penwright.application import Application
from penwright.classification.classifier import Classifier
from penwright.config import DecodingSettings, ModelSettings, ProblemType, Table, Task
from penwright.decoding.sampling.sampler import RowRng, Sampling
from penwright.devices import (
    BackoffThreads,
    advise_on_out_of_memory,
    copy_to,
    limit_threads,
    usable_device,
    with_threads,
)
from penwright.errors import PenwrightError, UsageError
from penwright.generation.generator import Generator
from penwright.inspection import Inspector
from penwright.model import make_model
from penwright.tokenizers.training import train_tokenizer


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


def n_threads_of_steps(seconds: Sequence[float], monkeypatch: pytest.MonkeyPatch, n_alone: int = 0) -> list[int]:
    """Return the number of threads of each step, given the time that each step takes."""
    times = iter(accumulate(chain.from_iterable((0.0, each) for each in seconds)))
    monkeypatch.setattr(devices, "perf_counter", lambda: next(times))
    threads, found = BackoffThreads(2, n_alone), []
    with with_threads(3):
        for _ in seconds:
            with threads:
                found.append(torch.get_num_threads())
        assert torch.get_num_threads() == 3
    return found


def test_steps_that_other_programs_delay_run_in_one_thread_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = n_threads_of_steps([1.0, 1.0, 4.0] + [1.5] * 16 + [1.6] + [1.5] * 32 + [1.4, 1.0], monkeypatch)
    assert busy == [2, 2, 2] + [1] * 16 + [2] + [1] * 32 + [2, 2]


def test_steps_stay_in_one_thread_if_two_are_slower_from_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    assert n_threads_of_steps([1.0] * 3 + [1.2] + [1.0] * 16 + [0.9], monkeypatch, 3) == [1] * 3 + [2] + [1] * 16 + [2]


def test_steps_that_slowly_become_longer_keep_their_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    assert n_threads_of_steps([1.005**n for n in range(999)], monkeypatch) == [2] * 999


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


class AppleTensor(torch.Tensor):
    """A stand-in for a tensor on an Apple GPU: it cannot be float64, and NumPy cannot read it."""

    is_mps = True  # type: ignore[assignment]  # a property of real tensors

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.cpu:
            with torch._C.DisableTorchFunctionSubclass():
                return args[0].view_as(args[0]).as_subclass(torch.Tensor)
        result = super().__torch_function__(func, types, args, kwargs or {})
        if func is torch.Tensor.numpy or (isinstance(result, AppleTensor) and result.dtype == torch.float64):
            raise TypeError(f"{func} gives float64 or an array on an Apple GPU")
        return result


def application_on_apple(task: Task, n_labels: int = 0, **changes: object) -> Application:
    """Return a random model whose tensors seem to be on an Apple GPU."""
    tokenizer = train_tokenizer("characters", ["abcdefghij "])
    settings: Table = {"d_model": 12, "n_layers": 1, "n_heads": 2, "context_length": 16, **changes}
    model = make_model(task, tokenizer.vocab_size, ModelSettings.model_validate(settings), n_labels).eval()
    for module in model.modules():
        for tensors in (module._parameters, module._buffers):
            own = {name: tensor for name, tensor in tensors.items() if tensor is not None}
            tensors.update({name: tensor.detach().as_subclass(AppleTensor) for name, tensor in own.items()})
    labels = tuple("abc"[:n_labels])
    return Classifier(model, tokenizer, labels) if task == "classify" else Generator(model, tokenizer)


@pytest.mark.parametrize("problem", get_args(ProblemType))
def test_classifiers_need_no_float64_on_an_apple_gpu(problem: ProblemType) -> None:
    n_labels, balanced = 1 if problem == "regression" else 3, problem == "single_label_classification"
    classifier = application_on_apple("classify", n_labels, problem_type=problem, ngrams=True, balanced=balanced)
    assert isinstance(classifier, Classifier) and classifier.classify("abc bad")
    outputs = classifier.outputs([np.arange(4)])
    combined = classifier.combine(outputs, outputs)
    assert combined.dtype == torch.float64 and not combined.is_mps


@pytest.mark.parametrize("task", ["generate", "classify"])
def test_inspection_needs_no_float64_on_an_apple_gpu(task: Task) -> None:
    inspector = Inspector(application_on_apple(task, 3))
    text = "abc bad"
    assert inspector.lens(text) and inspector.token_nlls(text)
    assert inspector.attribution(text) and inspector.logit_attribution(text) and inspector.paths(text)
    assert inspector.arithmetic(text, inspector.heads[0]) and inspector.head_importance(text)
    assert task == "generate" or inspector.occlusion(text)
    assert inspector.positions() and inspector.ablate(text, inspector.heads[:1])


def test_filters_need_no_float64_on_an_apple_gpu() -> None:
    settings = DecodingSettings(temperature=1.0, top_p=0.9, typical_p=0.9, epsilon_cutoff=0.01, eta_cutoff=0.01)
    sampling, logits = Sampling(settings=settings), torch.randn(2, 9).as_subclass(AppleTensor)
    processed = sampling.process(logits)
    assert not processed.is_mps and sampling.sample(processed, RowRng(1, [0, 1])).shape == (2,)
