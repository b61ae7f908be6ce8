"""transformers computes from our export what we do, and we read it back."""

from pathlib import Path

import pytest
import torch
import transformers

from penwright.config import Table
from penwright.errors import PenwrightError
from penwright.formats.huggingface import load_huggingface
from penwright.formats.huggingface_export import save_huggingface
from penwright.tokenizers import Tokenizer

GPT2 = {"positions": {"type": "learned"}, "norm": {"type": "layer"}, "bias": True}
VARIANTS: dict[str, Table] = {
    "llama": {},
    "llama-untied": {"tie_embeddings": "none"},
    "llama-biases": {"bias": True},
    "llama-grouped": {"n_kv_heads": 2, "d_head": 16, "positions": {"type": "rotary", "base": 100.0}},
    "qwen3": {"qk_norm": True, "norm": {"type": "rms", "eps": 0.01}},
    "gpt2": GPT2 | {"feed_forward": "gelu_tanh"},
    "gpt2-relu": GPT2 | {"feed_forward": "relu", "dropout": 0.2},
}


@pytest.fixture(params=list(VARIANTS.values()), ids=list(VARIANTS))
def variant(request: pytest.FixtureRequest) -> Table:
    return request.param


def test_transformers_has_the_same_logits(variant, random_model, bpe, tmp_path):
    model = random_model("generate", bpe, **variant)
    save_huggingface(model, bpe, tmp_path)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    tokens = torch.randint(bpe.vocab_size, (3, 20))
    with torch.no_grad():
        torch.testing.assert_close(theirs(tokens).logits, model(tokens), atol=1e-4, rtol=1e-4)


def test_what_is_read_back_is_the_same(variant, random_model, bpe, tmp_path):
    model = random_model("generate", bpe, **variant)
    save_huggingface(model, bpe, tmp_path)
    again = load_huggingface(tmp_path)
    tokens = torch.randint(bpe.vocab_size, (3, 20))
    with torch.no_grad():
        assert torch.equal(again(tokens), model(tokens))


def test_its_tokenizer_begins_a_prompt_as_training_did(random_model, tokenizer, awkward, tmp_path):
    save_huggingface(random_model("generate", tokenizer), tokenizer, tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in [*awkward, "", " "]:
        assert theirs(text)["input_ids"] == [tokenizer.start_id, *tokenizer.encode(text)]
    assert Tokenizer.load(tmp_path / "tokenizer.json").encode(awkward[0]) == tokenizer.encode(awkward[0])


def test_bfloat16_is_half_as_large(random_model, bpe, tmp_path):
    model = random_model("generate", bpe)
    sizes: list[int] = []
    for precision in ("float32", "bfloat16"):
        folder = Path(tmp_path / precision)
        folder.mkdir()
        save_huggingface(model, bpe, folder, precision)
        sizes.append((folder / "model.safetensors").stat().st_size)
    assert sizes[1] < 0.6 * sizes[0]
    assert transformers.AutoModelForCausalLM.from_pretrained(folder).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"norm_position": "post"}, "model.norm_position = 'post'"),
        ({"scale_embeddings": True}, "model.scale_embeddings = True"),
        ({"window": 5}, "model.window = 5"),
        ({"feed_forward": "relu_squared"}, "feed_forward"),
        ({"positions": {"type": "none"}}, "positions"),
    ],
)
def test_what_no_class_has_is_named(changes, named, random_model, bpe, tmp_path):
    with pytest.raises(PenwrightError, match=named):
        save_huggingface(random_model("generate", bpe, **changes), bpe, tmp_path)
    assert not list(tmp_path.iterdir())


def test_what_is_no_writer_is_refused(random_model, bpe, tmp_path):
    with pytest.raises(PenwrightError, match="ctranslate2"):
        save_huggingface(random_model("translate", bpe), bpe, tmp_path)


def test_int8_is_refused(random_model, bpe, tmp_path):
    with pytest.raises(PenwrightError, match="int8"):
        save_huggingface(random_model("generate", bpe), bpe, tmp_path, "int8")
