"""Models of transformers as models of Penwright, without a run folder or a tokenizer."""

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from penwright.errors import PenwrightError
from penwright.formats.architectures import Config
from penwright.formats.huggingface import weights_from_huggingface
from penwright.formats.huggingface_files import read_config, read_tensors
from penwright.model import Model, make_model
from penwright.model.weights import load_weights


def model_from_huggingface(config: Config, tensors: Mapping[str, Tensor]) -> Model:
    """Build the model that config.json describes, with these weights, in evaluation mode."""
    outline, weights = weights_from_huggingface(config, tensors)
    model = make_model(*outline)
    load_weights(model, weights, "the checkpoint")
    return model.eval()


def load_huggingface(folder: Path) -> Model:
    """Load a model from a folder that transformers' save_pretrained wrote or that comes from the Hugging Face Hub."""
    try:
        return model_from_huggingface(read_config(folder), read_tensors(folder))
    except PenwrightError as error:
        raise PenwrightError(f"{folder}: {error}") from None
