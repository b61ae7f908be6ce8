"""Export of classifiers and encoders to ONNX, for onnxruntime."""

import inspect
import json
import logging
from pathlib import Path
from warnings import catch_warnings, simplefilter

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from penwright.classification import ngrams
from penwright.classification.linear import LinearClassifier
from penwright.config import Precision
from penwright.errors import PenwrightError, import_extra
from penwright.formats.export import NO_METADATA, ModelMetadata
from penwright.model import Model, evaluating
from penwright.model.transformer import EncoderOnly
from penwright.storage import let_others_read
from penwright.text import BETWEEN_TEXTS
from penwright.tokenizers import Tokenizer

FILE, NGRAMS, SCRIPT = "model.onnx", "ngrams.npz", "classify.py"
OPSET = 20
# sizes of the batch that is traced; the exported model accepts batches of any size
BATCH, LENGTH, N_NGRAMS = 2, 8, 5


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
        is_token = attention_mask.bool()
        hidden = self.model.hidden(input_ids, is_token)
        if self.is_encoder:
            return F.normalize(self.model.pool(hidden, is_token), dim=-1)
        return self._adjusted(self.model.label_logits(hidden, is_token))

    def _adjusted(
        self, logits: Float[Tensor, "batch n_labels"], n_priors: Tensor | float = 1.0
    ) -> Float[Tensor, "batch n_labels"]:
        """Return the score of a regression model, or logits for equally frequent labels if the model is balanced."""
        if self.model.settings.problem_type == "regression":
            return self.model.scale[0] + self.model.scale[1] * logits
        return logits - n_priors * self.model.log_prior if self.model.settings.balanced else logits


class _Mixture(_Inference):
    """The same for a classifier that is mixed with a linear classifier of n-grams.

    Every window of a long text gets the n-grams of the whole text. The mean of the logits of its windows differs from
    the log-probabilities of the text only by a constant.
    """

    weights: Tensor
    bias: Tensor

    def __init__(self, model: EncoderOnly, linear: LinearClassifier):
        super().__init__(model)
        weights, bias, *_ = linear.coefficients
        self.register_buffer("weights", F.pad(weights, (0, 0, 0, 1)))  # padding needs a row, even without any n-grams
        self.register_buffer("bias", bias)

    def forward(  # type: ignore[override]  # with two more inputs
        self,
        input_ids: Int[Tensor, "batch length"],
        attention_mask: Int[Tensor, "batch length"],
        ngram_ids: Int[Tensor, "batch ngrams"],
        ngram_values: Float[Tensor, "batch ngrams"],
    ) -> Float[Tensor, "batch n_labels"]:
        """Return the logits or the score of each text. N-grams with the value 0 are padding."""
        is_token, (first, second) = attention_mask.bool(), self.model.mixture
        encoder = self.model.label_logits(self.model.hidden(input_ids, is_token), is_token)
        linear = torch.bmm(ngram_values[:, None], F.embedding(ngram_ids, self.weights))[:, 0] + self.bias
        return self._adjusted(first * encoder + second * linear, first + second)


def save_onnx(
    model: Model,
    tokenizer: Tokenizer,
    folder: Path,
    precision: Precision = "float32",
    metadata: ModelMetadata = NO_METADATA,
) -> None:
    """Write an ONNX file of a classifier or an encoder, tokenizer.json and config.json into an empty folder.

    config.json holds the labels. For a classifier, also write classify.py, which runs the model without Penwright, and
    ngrams.npz if it is mixed with n-grams. Raises PenwrightError for a language model or a translator.
    """
    if not isinstance(model, EncoderOnly):
        raise PenwrightError(
            "onnx is for classifiers and encoders. Export language models to gguf, and translators to ctranslate2"
        )
    if precision != "float32":
        raise PenwrightError("onnx supports only float32")
    for package in ("onnx", "onnxscript"):
        import_extra(package, "onnx", "ONNX models")
    _save_graph(model, folder / FILE, metadata)
    (folder / "tokenizer.json").write_bytes(tokenizer.plain_content)
    _write_config(model, tokenizer, metadata.labels, folder / "config.json")
    if metadata.labels:
        (folder / SCRIPT).write_text(_script(), encoding="utf-8")
    if metadata.linear is not None:
        np.savez(folder / NGRAMS, **metadata.linear.vectorizer._asdict())


def _save_graph(model: EncoderOnly, path: Path, metadata: ModelMetadata) -> None:
    lengths = {"input_ids": LENGTH, "attention_mask": LENGTH}
    graph: _Inference = _Inference(model)
    if model.settings.ngrams and metadata.labels:
        assert metadata.linear is not None
        graph = _Mixture(model, metadata.linear)
        lengths |= {"ngram_ids": N_NGRAMS, "ngram_values": N_NGRAMS}
    # different tensors: the same tensor twice would become a single input
    examples = [torch.ones(BATCH, min(n, model.settings.context_length), dtype=torch.long) for n in lengths.values()]
    examples[3:] = [each.float() for each in examples[3:]]
    with evaluating(model), torch.inference_mode(False), torch.no_grad(), catch_warnings():
        simplefilter("ignore")  # hide deprecation warnings about torch's own code
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # and that torchvision is missing
        program = torch.onnx.export(
            graph,
            tuple(examples),
            dynamo=True,
            verbose=False,
            opset_version=OPSET,
            input_names=list(lengths),
            output_names=[graph.output_name],
            dynamic_shapes=({0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC},) * len(lengths),
        )
    assert program is not None
    program.model.metadata_props["labels"] = json.dumps(metadata.labels, ensure_ascii=False)
    program.save(str(path), external_data=False)
    let_others_read(path)


def _write_config(model: EncoderOnly, tokenizer: Tokenizer, labels: tuple[str, ...], path: Path) -> None:
    """Write the labels and the ids of the special tokens, under the names that transformers uses."""
    settings, thresholds = model.settings, getattr(model, "thresholds", None)
    config = {
        "bos_token_id": tokenizer.start_id,
        "eos_token_id": tokenizer.end_id,
        "pad_token_id": tokenizer.pad_id,
        "max_position_embeddings": settings.context_length,
        **({"problem_type": settings.problem_type, "text_pairs": settings.text_pairs} if labels else {}),
        "pair_ends": tokenizer.pair_ends,
        **({"id2label": dict(enumerate(labels))} if labels else {}),
        **({} if thresholds is None else {"thresholds": thresholds.tolist()}),
    }
    path.write_text(json.dumps(config, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


def _script() -> str:
    """Return the source of classify.py: onnx_classifier.py, with the code of Penwright in place of its imports."""
    script = Path(__file__).with_name("onnx_classifier.py").read_text(encoding="utf-8")  # imports onnxruntime
    script = script.replace("from penwright.classification.ngrams import NgramVectorizer\n", inspect.getsource(ngrams))
    line = "from penwright.text import BETWEEN_TEXTS\n"
    return script.replace(line, f"BETWEEN_TEXTS = {BETWEEN_TEXTS!r}\n", 1).replace(line, "")
