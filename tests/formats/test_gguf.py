"""llama.cpp gets the same tokens and logits from our GGUF files."""

import json

import numpy as np
import pytest
import torch

from penwright.config import Table
from penwright.errors import PenwrightError
from penwright.formats.export import ModelMetadata
from penwright.formats.gguf import save_gguf
from penwright.formats.gguf_import import read_gguf
from penwright.generation.generator import Generator
from penwright.model import make_model
from penwright.model.transformer import DecoderOnly
from penwright.model.weights import load_weights
from penwright.tokenizers.chat_template import PLAIN_TEMPLATE, Message, plain_settings, template_of
from penwright.tokenizers.checks import FOREIGN
from penwright.tokenizers.foreign import ForeignTokenizer
from penwright.tokenizers.training import train_tokenizer

pytest.importorskip("gguf", reason="the extra penwright[gguf] is not installed")

YARN: Table = {"yarn": True, "factor": 4.0, "original_context": 8, "high_freq_factor": 2.0, "attention_factor": 1.3}
GPT2: Table = {"positions": {"type": "learned"}, "norm": {"type": "layer"}, "bias": True, "feed_forward": "gelu_tanh"}
VARIANTS: dict[str, Table] = {
    "modern": {},
    "untied": {"tie_embeddings": "none"},
    "scaled-embeddings": {"scale_embeddings": True},
    "grouped-base-eps": {
        "n_kv_heads": 2,
        "positions": {"type": "rotary", "base": 100.0},
        "norm": {"type": "rms", "eps": 0.01},
    },
    "wide-heads": {"d_head": 16},
    "llama-3": {
        "positions": {"type": "rotary", "base": 500_000.0, "scaling": {"factor": 8.0, "original_context": 8192}}
    },
    "linear": {"positions": {"type": "rotary", "scaling": {"factor": 4.0}}},
    "yarn": {"positions": {"type": "rotary", "scaling": YARN}},
    "qwen2": {"qkv_bias": True, "n_kv_heads": 2},
    "qwen2-linear": {"qkv_bias": True, "positions": {"type": "rotary", "scaling": {"factor": 4.0}}},
    "qwen3": {"qk_norm": True, "n_kv_heads": 2, "d_head": 16},
    "qwen3-yarn": {"qk_norm": True, "d_head": 16, "positions": {"type": "rotary", "scaling": YARN}},
    "gpt2": GPT2,
    "gpt2-scaled-eps": GPT2 | {"scale_embeddings": True, "norm": {"type": "layer", "eps": 0.01}},
    "gpt2-untied": GPT2 | {"tie_embeddings": "none"},
}


def our_log_probs(model: DecoderOnly, ids: list[int]) -> np.ndarray:
    with torch.no_grad():
        return model(torch.tensor([ids]))[0, -1].log_softmax(-1).numpy()


@pytest.mark.parametrize("variant", list(VARIANTS.values()), ids=list(VARIANTS))
def test_writer_has_the_same_log_probs_in_llama_cpp(variant, log_probs, random_model, bpe, tmp_path):
    model = random_model("generate", bpe, **variant)
    save_gguf(model, bpe, tmp_path)
    ids = torch.randint(bpe.vocab_size, (20,)).tolist()
    close = 4e-3 if "gelu" in str(variant) else 2e-4  # llama.cpp reads GELU from a table in float16
    np.testing.assert_allclose(
        log_probs(tmp_path / "model.gguf", ids, bpe.vocab_size), our_log_probs(model, ids), atol=close
    )


@pytest.mark.parametrize("variant", list(VARIANTS.values()), ids=list(VARIANTS))
def test_exported_model_round_trips(variant, random_model, bpe, tmp_path):
    model = random_model("generate", bpe, **variant)
    save_gguf(model, bpe, tmp_path)
    again = read_gguf(tmp_path / "model.gguf")
    tokens = torch.randint(bpe.vocab_size, (2, 20))
    read = make_model(*again.outline).eval()
    load_weights(read, again.weights, "the file")
    with torch.no_grad():
        torch.testing.assert_close(read(tokens), model(tokens), atol=1e-4, rtol=1e-4)
    assert again.tokenizer.prompt(again.tokenizer.encode("a cat")) == [bpe.start_id, *bpe.encode("a cat")]


@pytest.mark.parametrize(("precision", "close"), [("bfloat16", 0.05), ("int8", 0.3)])
def test_quantized_file_has_close_log_probs(precision, close, log_probs, random_model, bpe, tmp_path):
    model = random_model("generate", bpe, d_model=64, d_ff=96)
    (tmp_path / "whole").mkdir()
    save_gguf(model, bpe, tmp_path / "whole")
    save_gguf(model, bpe, tmp_path, precision)
    assert (tmp_path / "model.gguf").stat().st_size < 0.7 * (tmp_path / "whole/model.gguf").stat().st_size
    ids = torch.randint(bpe.vocab_size, (20,)).tolist()
    mean_difference = np.abs(log_probs(tmp_path / "model.gguf", ids, bpe.vocab_size) - our_log_probs(model, ids)).mean()
    assert 1e-4 < mean_difference < close


@pytest.mark.parametrize(
    ("precision", "name"), [("float32", "ALL_F32"), ("bfloat16", "MOSTLY_BF16"), ("int8", "MOSTLY_Q8_0")]
)
def test_file_names_its_precision(precision, name, random_model, bpe, tmp_path):
    gguf = pytest.importorskip("gguf")
    save_gguf(random_model("generate", bpe, d_model=64, d_ff=96), bpe, tmp_path, precision)
    found = gguf.GGUFReader(tmp_path / "model.gguf").fields["general.file_type"]
    assert gguf.LlamaFileType(found.contents()).name == name


def test_rows_that_q8_0_cannot_divide_stay_exact(log_probs, random_model, bpe, tmp_path):
    model = random_model("generate", bpe, d_model=24, d_ff=40)
    save_gguf(model, bpe, tmp_path, "int8")
    np.testing.assert_allclose(
        log_probs(tmp_path / "model.gguf", [1, 2, 3], bpe.vocab_size), our_log_probs(model, [1, 2, 3]), atol=2e-4
    )


def test_llama_cpp_tokenizes_as_we_do(log_probs, random_model, bpe, awkward, tmp_path):
    """llama.cpp parses names of special tokens in a text, so these are removed."""
    model = random_model("generate", bpe, context_length=256)
    save_gguf(model, bpe, tmp_path)
    texts = [text.replace("</s><pad><s>", "") for text in awkward]
    for text in [*texts, "", " ", "\n\n", "unseen: ő Ж 🦜", "1234567 3.14 don't we'll I'VE"]:
        ids = [bpe.start_id, *bpe.encode(text)]
        np.testing.assert_allclose(
            log_probs(tmp_path / "model.gguf", text, bpe.vocab_size), our_log_probs(model, ids), atol=2e-4, err_msg=text
        )


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"positions": {"type": "none"}}, "model.positions.type = 'none'"),
        (GPT2 | {"norm": {"type": "rms"}}, "model.norm.type = 'rms'"),
        (GPT2 | {"feed_forward": "gelu"}, "model.feed_forward = 'gelu'"),
        (GPT2 | {"qk_norm": True}, "model.qk_norm = True"),
        (GPT2 | {"n_kv_heads": 2}, "model.n_kv_heads = 2"),
        ({"norm": {"type": "layer"}}, "model.norm.type = 'layer'"),
        ({"norm_position": "post"}, "model.norm_position = 'post'"),
        ({"feed_forward": "geglu"}, "model.feed_forward = 'geglu'"),
        ({"bias": True}, "model.bias = True"),
        ({"output_bias": True}, "model.output_bias = True"),
        ({"embedding_norm": True}, "model.embedding_norm = True"),
        ({"window": 4}, "model.window = 4"),
        (
            {"qkv_bias": True, "positions": {"type": "rotary", "scaling": {"factor": 2.0, "original_context": 9}}},
            "scaling =",
        ),
    ],
)
def test_unsupported_settings_are_refused_by_name(changes, named, random_model, bpe, tmp_path):
    with pytest.raises(PenwrightError, match=f"Penwright cannot write .*{named}.*convert_hf_to_gguf"):
        save_gguf(random_model("generate", bpe, **changes), bpe, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["characters", "bytes", "unigram"])
def test_unsupported_tokenizers_are_refused(kind, random_model, awkward, tmp_path):
    tokenizer = train_tokenizer(kind, awkward, 300 if kind == "unigram" else None)
    with pytest.raises(PenwrightError, match=f"tokenizer of type {kind}"):
        save_gguf(random_model("generate", tokenizer), tokenizer, tmp_path)


def test_tokenizer_that_joins_vowel_signs_is_refused(random_model, tmp_path):
    tokenizer = train_tokenizer("bpe", ["ฉันรักน้ำที่นี่ " * 50], 300)
    with pytest.raises(PenwrightError, match="vowel signs"):
        save_gguf(random_model("generate", tokenizer), tokenizer, tmp_path)


@pytest.mark.parametrize("normalizer", [{"type": "Lowercase"}, {"type": "NFC"}])
def test_tokenizer_that_normalizes_texts_is_refused(normalizer, random_model, bpe, tmp_path):
    ends = {"pad": bpe.pad_id, "start": bpe.start_id, "end": bpe.end_id}
    tokenizer = ForeignTokenizer({**json.loads(bpe.library.to_str()), "normalizer": normalizer, FOREIGN: ends})
    with pytest.raises(PenwrightError, match=f"normalize texts .*{normalizer['type']}"):
        save_gguf(random_model("generate", tokenizer), tokenizer, tmp_path)


def test_plain_chat_template_is_written_with_its_special_tokens(random_model, bpe, tmp_path):
    model, talk = (
        random_model("generate", bpe),
        [Message("user", "The"), Message("assistant", "cat"), Message("user", "")],
    )
    save_gguf(model, bpe, tmp_path, metadata=ModelMetadata(chat=plain_settings(bpe)))
    read = read_gguf(tmp_path / "model.gguf")
    again = Generator(model, read.tokenizer, template=template_of(read.chat))
    assert read.chat is not None
    assert again.chat_tokens(talk) == Generator(model, bpe, template=PLAIN_TEMPLATE).chat_tokens(talk)


def test_translator_is_refused(random_model, bpe, tmp_path):
    with pytest.raises(PenwrightError, match="ctranslate2"):
        save_gguf(random_model("translate", bpe), bpe, tmp_path)
