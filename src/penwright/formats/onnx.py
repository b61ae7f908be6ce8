"""Export of classifiers and encoders to ONNX, for onnxruntime."""

import json
from pathlib import Path
from warnings import catch_warnings, simplefilter

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from penwright.config import Precision
from penwright.errors import PenwrightError, import_extra
from penwright.formats.export import NO_METADATA, ModelMetadata
from penwright.model import Model, evaluating
from penwright.model.transformer import EncoderOnly
from penwright.storage import let_others_read
from penwright.tokenizers import Tokenizer

FILE = "model.onnx"
OPSET = 20
BATCH, LENGTH = 2, 8  # size of the batch that is traced; the exported model accepts batches of any size


class _Inference(nn.Module):
    """A module that computes the output of the exported file: logits of the labels, a score, or a unit vector."""

    def __init__(self, model: EncoderOnly):
        super().__init__()
        self.model = model
        self.is_encoder = isinstance(model.output, nn.Identity)

    @property
    def output_name(self) -> str:
        """The name of the output in the file."""
        if self.is_encoder:
            return "sentence_embedding"
        return "score" if self.model.settings.problem_type == "regression" else "logits"

    def forward(
        self, input_ids: Int[Tensor, "batch length"], attention_mask: Int[Tensor, "batch length"]
    ) -> Float[Tensor, "batch width"]:
        """Return the output for each text. The attention mask is 1 for tokens, and 0 for padding."""
        padding, settings = attention_mask.bool(), self.model.settings
        hidden = self.model.hidden(input_ids, padding)
        if self.is_encoder:
            return F.normalize(self.model.pool(hidden, padding), dim=-1)
        logits = self.model.label_logits(hidden, padding)
        if settings.problem_type == "regression":
            return self.model.scale[0] + self.model.scale[1] * logits
        return logits - self.model.log_prior if settings.balanced else logits


def save_onnx(
    model: Model,
    tokenizer: Tokenizer,
    folder: Path,
    precision: Precision = "float32",
    metadata: ModelMetadata = NO_METADATA,
) -> None:
    """Write an ONNX file of a classifier or an encoder, tokenizer.json and config.json into an empty folder.

    config.json holds the labels. Raises PenwrightError for a language model or a translator.
    """
    if not isinstance(model, EncoderOnly):
        raise PenwrightError(
            "onnx is for classifiers and encoders. Export language models to gguf, and translators to ctranslate2"
        )
    if precision != "float32":
        raise PenwrightError("onnx supports only float32")
    for package in ("onnx", "onnxscript"):
        import_extra(package, "onnx", "ONNX models")
    graph = _Inference(model)
    example = torch.ones(BATCH, min(LENGTH, model.settings.context_length), dtype=torch.long)
    axes = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    with evaluating(model), torch.inference_mode(False), torch.no_grad(), catch_warnings():
        simplefilter("ignore")  # hide deprecation warnings about torch's own code
        program = torch.onnx.export(
            graph,
            (example, example.clone()),  # two different tensors: the same tensor twice would become a single input
            dynamo=True,
            verbose=False,
            opset_version=OPSET,
            input_names=["input_ids", "attention_mask"],
            output_names=[graph.output_name],
            dynamic_shapes=(axes, axes),
        )
    assert program is not None
    program.model.metadata_props["labels"] = json.dumps(metadata.labels, ensure_ascii=False)
    program.save(str(folder / FILE), external_data=False)
    let_others_read(folder / FILE)
    tokenizer.save(folder / "tokenizer.json")
    _write_config(model, tokenizer, metadata.labels, folder / "config.json")


def _write_config(model: EncoderOnly, tokenizer: Tokenizer, labels: tuple[str, ...], path: Path) -> None:
    """Write the labels and the ids of the special tokens, under the names that transformers uses."""
    thresholds = getattr(model, "thresholds", None)
    config = {
        "bos_token_id": tokenizer.start_id,
        "eos_token_id": tokenizer.end_id,
        "pad_token_id": tokenizer.pad_id,
        "max_position_embeddings": model.settings.context_length,
        **({"problem_type": model.settings.problem_type} if labels else {}),
        **({"id2label": dict(enumerate(labels))} if labels else {}),
        **({} if thresholds is None else {"thresholds": thresholds.tolist()}),
    }
    path.write_text(json.dumps(config, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
