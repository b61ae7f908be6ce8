"""Beam search on a Marian model equals transformers."""

from math import inf
from pathlib import Path

import pytest
import torch
import transformers

from penwright.decoding.batches import TargetBatch
from penwright.decoding.beam_search import beam_search
from penwright.decoding.hypotheses import BeamSettings
from penwright.model.transformer import EncoderDecoder

from .huggingface_models import load_huggingface

PAD, END, MAX_TOKENS = 1, 2, 20
SOURCES = [[7, 8, 9, 2], [20, 21, 22, 23, 24, 2], [5, 2]]


@pytest.mark.parametrize(("beam_size", "length_penalty"), [(1, 1.0), (4, 1.0), (4, 0.0), (5, 0.6)])
def test_beam_search_equals_transformers(beam_size: int, length_penalty: float, tmp_path: Path) -> None:
    torch.manual_seed(beam_size)
    config = transformers.MarianConfig(
        vocab_size=40,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        max_position_embeddings=32,
        bos_token_id=0,
        eos_token_id=END,
        pad_token_id=PAD,
        decoder_start_token_id=PAD,
        forced_eos_token_id=None,
    )
    theirs = transformers.MarianMTModel(config).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            if parameter.requires_grad and parameter.dim() > 1:  # skips the fixed sinusoids
                parameter.mul_(8.0)
        theirs.final_logits_bias[0, END] = 5.0  # all hypotheses end: transformers ranks truncated ones differently
    theirs.save_pretrained(tmp_path)
    ours = load_huggingface(tmp_path)
    assert isinstance(ours, EncoderDecoder)
    rows = TargetBatch(ours.eval(), SOURCES, start_id=PAD, max_new_tokens=MAX_TOKENS)
    settings = BeamSettings(beam_size, beam_size, length_penalty, beam_patience=inf)
    found = beam_search(rows, [MAX_TOKENS] * len(SOURCES), settings, end_id=END)
    for source, hypotheses in zip(SOURCES, found, strict=True):
        generated = theirs.generate(
            torch.tensor([source]),
            num_beams=beam_size,
            num_return_sequences=beam_size,
            length_penalty=length_penalty,
            max_new_tokens=MAX_TOKENS,
            do_sample=False,
            early_stopping="never",
            return_dict_in_generate=True,
            output_scores=True,
        )
        texts = [[token for token in row[1:].tolist() if token != PAD] for row in generated.sequences]
        best, first = hypotheses[0], texts[0]
        assert [*best.tokens, *([END] if best.finish == "end" else [])] == first
        if beam_size > 1:
            assert best.score == pytest.approx(float(generated.sequences_scores[0]), abs=1e-4)
