"""CTranslate2 computes the same from an export as our own models."""

from pathlib import Path

import numpy as np
import pytest
import torch

from penwright.config import Table
from penwright.decoding.batches import PromptBatch, TargetBatch
from penwright.decoding.beam_search import beam_search
from penwright.decoding.hypotheses import BeamSettings
from penwright.errors import PenwrightError
from penwright.formats.ctranslate2 import save_ctranslate2
from penwright.model.transformer import DecoderOnly, EncoderDecoder
from penwright.tokenizers import Tokenizer

ctranslate2 = pytest.importorskip("ctranslate2", reason="the extra penwright[ctranslate2] is not installed")

POST_NORM = {"norm_position": "post", "norm": {"type": "layer"}, "bias": True}
YARN = {"yarn": True, "factor": 4.0, "original_context": 16, "high_freq_factor": 3.0, "attention_factor": 1.14}
VARIANTS: dict[str, Table] = {
    "modern": {},
    "eps": {"norm": {"type": "rms", "eps": 0.01}},
    "base": {"positions": {"type": "rotary", "base": 100.0}},
    "llama-3": {"positions": {"type": "rotary", "scaling": {"factor": 8.0, "original_context": 16}}},
    "linear": {"positions": {"type": "rotary", "scaling": {"factor": 2.0}}},
    "yarn": {"positions": {"type": "rotary", "base": 8.0, "scaling": YARN}},
    "scaled-embeddings": {"scale_embeddings": True},
    "untied": {"tie_embeddings": "none"},
    "tied-output": {"tie_embeddings": "output"},
    "biases": {"bias": True, "output_bias": True},
    "geglu": {"feed_forward": "geglu"},
    "gelu-tanh": {"feed_forward": "gelu_tanh"},
    "silu": {"feed_forward": "silu"},
    "grouped": {"n_kv_heads": 2},
    "multi-query": {"n_kv_heads": 1},
    "wide-heads": {"d_head": 16, "n_kv_heads": 2},
    "qk-norm": {"qk_norm": True},
    "qk-norm-grouped": {"qk_norm": True, "n_kv_heads": 2, "norm": {"type": "rms", "eps": 0.01}},
    "layer-norm": {"norm": {"type": "layer"}},
    "post-rms": {"norm_position": "post"},
    "no-positions": {"positions": {"type": "none"}},
    "embedding-norm": {"embedding_norm": True, "positions": {"type": "learned"}},
    "gpt2": {"positions": {"type": "learned"}, "norm": {"type": "layer"}, "bias": True, "feed_forward": "gelu"},
    "vaswani": POST_NORM | {"positions": {"type": "sinusoidal"}, "feed_forward": "relu", "scale_embeddings": True},
    "marian": POST_NORM | {"positions": {"type": "sinusoidal", "layout": "halves"}, "output_bias": True},
    "m2m100": {"norm": {"type": "layer"}, "positions": {"type": "sinusoidal", "layout": "tensor2tensor", "offset": 2}},
}


@pytest.fixture(params=list(VARIANTS.values()), ids=list(VARIANTS))
def variant(request: pytest.FixtureRequest) -> Table:
    return request.param


def exported_generator(model: DecoderOnly, tokenizer: Tokenizer, folder: Path) -> "ctranslate2.Generator":
    save_ctranslate2(model, tokenizer, folder)
    return ctranslate2.Generator(str(folder), intra_threads=1)


def exported_translator(model: EncoderDecoder, tokenizer: Tokenizer, folder: Path) -> "ctranslate2.Translator":
    save_ctranslate2(model, tokenizer, folder)
    return ctranslate2.Translator(str(folder), intra_threads=1)


def pieces_of(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    return [tokenizer.pieces[token] for token in ids]


def test_writer_has_the_same_logits(random_model, bpe, variant, tmp_path):
    model = random_model("generate", bpe, **variant)
    engine = exported_generator(model, bpe, tmp_path)
    tokens = torch.randint(bpe.vocab_size - 3, (3, 20))
    theirs = np.array(engine.forward_batch([pieces_of(bpe, row) for row in tokens.tolist()]))
    with torch.no_grad():
        np.testing.assert_allclose(theirs, model(tokens).numpy(), atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("prompt", ["", "The cat", "nul \0 \u2028"])
def test_writer_generates_the_same(prompt, random_model, tokenizer, tmp_path):
    model = random_model("generate", tokenizer)
    engine = exported_generator(model, tokenizer, tmp_path)
    ids = [tokenizer.start_id, *tokenizer.encode(prompt)]
    with torch.inference_mode():
        batch, tokens, score = PromptBatch(model, [ids], 12), list[int](), 0.0
        logits = batch.first()
        while len(tokens) < 12 and tokens[-1:] != [tokenizer.end_id]:
            best = logits.log_softmax(-1).max(-1)
            tokens, score = [*tokens, int(best.indices)], score + float(best.values)
            logits = batch.step(best.indices)
    (result,) = engine.generate_batch(
        [pieces_of(tokenizer, ids)],
        max_length=12,
        include_prompt_in_result=False,
        return_scores=True,
        return_end_token=True,
        length_penalty=0,
    )
    assert result.sequences_ids[0] == tokens
    assert result.scores[0] == pytest.approx(score, abs=1e-3)


def test_translator_scores_the_same_with_any_padding(random_model, bpe, variant, tmp_path):
    model = random_model("translate", bpe, n_decoder_layers=1, **variant)
    engine = exported_translator(model, bpe, tmp_path)
    sources = [torch.randint(bpe.vocab_size - 3, (n,)).tolist() for n in (7, 1, 20)]
    targets = [torch.randint(bpe.vocab_size - 3, (n,)).tolist() for n in (5, 11, 3)]
    theirs = engine.score_batch(
        [pieces_of(bpe, source) for source in sources], [pieces_of(bpe, target) for target in targets]
    )
    for source, target, result in zip(sources, targets, theirs, strict=True):
        read = torch.tensor([[*source, bpe.end_id]])
        with torch.no_grad():
            logits = model(read, torch.ones_like(read, dtype=torch.bool), torch.tensor([[bpe.start_id, *target]]))[0]
        logits[:, bpe.pad_id] = -torch.inf  # the exported model never writes padding
        wanted = logits.log_softmax(-1).gather(1, torch.tensor([[*target, bpe.end_id]]).T)[:, 0]
        np.testing.assert_allclose(result.log_probs, wanted.numpy(), atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("beam_size", [1, 4])
def test_translator_translates_the_same(beam_size, random_model, tokenizer, awkward, tmp_path):
    """Force a fixed length, since the engines' stopping rules for beam search differ."""
    model = random_model("translate", tokenizer, output_bias=True)
    with torch.no_grad():
        model.output.bias[[tokenizer.end_id, tokenizer.pad_id]] = -50.0
    engine = exported_translator(model, tokenizer, tmp_path)
    sources = [tokenizer.encode(text)[:20] for text in awkward]
    read = [[*ids, tokenizer.end_id] for ids in sources]
    writing = TargetBatch(model, read, start_id=tokenizer.start_id, max_new_tokens=15)
    ours = beam_search(writing, [15] * len(sources), BeamSettings(beam_size), end_id=tokenizer.end_id)
    theirs = engine.translate_batch(
        [pieces_of(tokenizer, ids) for ids in sources], beam_size=beam_size, max_decoding_length=15, return_scores=True
    )
    for hypotheses, result in zip(ours, theirs, strict=True):
        assert result.hypotheses[0] == pieces_of(tokenizer, list(hypotheses[0].tokens))
        assert result.scores[0] == pytest.approx(hypotheses[0].score, abs=1e-3)


def test_exported_vocabulary_matches_the_tokenizer_file(random_model, tokenizer, awkward, tmp_path):
    exported_generator(random_model("generate", tokenizer), tokenizer, tmp_path)
    exported_tokenizer = Tokenizer.load(tmp_path / "tokenizer.json")
    assert len(set(exported_tokenizer.pieces)) == tokenizer.vocab_size
    for text in awkward:
        assert exported_tokenizer.encode(text) == tokenizer.encode(text)


@pytest.mark.parametrize("precision", ["int8", "bfloat16"])
def test_quantized_export_is_close_and_leaves_the_model_unchanged(precision, random_model, bpe, tmp_path):
    model = random_model("generate", bpe)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    for name, kind in (("whole", "float32"), ("small", precision)):
        (tmp_path / name).mkdir()
        save_ctranslate2(model, bpe, tmp_path / name, kind)
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    assert (tmp_path / "small/model.bin").stat().st_size < 0.6 * (tmp_path / "whole/model.bin").stat().st_size
    # Compute in float32: without VNNI, the engine's int8 products are far off (0.93 instead of 0.07).
    engine = ctranslate2.Generator(str(tmp_path / "small"), intra_threads=1, compute_type="float32")
    tokens = torch.randint(bpe.vocab_size - 3, (1, 20))
    theirs = torch.from_numpy(np.array(engine.forward_batch([pieces_of(bpe, tokens[0].tolist())]))).log_softmax(-1)
    with torch.no_grad():
        ours = model(tokens).log_softmax(-1)
    assert 0 < (theirs - ours).abs().mean() < 0.2


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"window": 5}, "model.window = 5"),
        ({"feed_forward": "relu_squared"}, "model.feed_forward = 'relu_squared'"),
        ({"qk_norm": True, "norm": {"type": "layer"}}, "model.norm.type = 'layer'"),
    ],
)
def test_unsupported_settings_are_refused_by_name(changes, named, random_model, bpe, tmp_path):
    with pytest.raises(PenwrightError, match=named):
        save_ctranslate2(random_model("generate", bpe, **changes), bpe, tmp_path)
    assert not list(tmp_path.iterdir())


def test_classifier_is_refused(random_model, bpe, tmp_path):
    with pytest.raises(PenwrightError, match="Export classifiers and encoders to onnx"):
        save_ctranslate2(random_model("classify", bpe), bpe, tmp_path)


def test_missing_package_is_named_with_its_install_command(random_model, bpe, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ctranslate2.specs", None)
    with pytest.raises(PenwrightError, match=r"pip install 'penwright\[ctranslate2\]'"):
        save_ctranslate2(random_model("generate", bpe), bpe, tmp_path)
