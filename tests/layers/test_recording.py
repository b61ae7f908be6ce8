"""Recording of attention weights, which must not change the outputs."""

import torch

from penwright.config import ModelSettings
from penwright.model.attention_kernels import record_attention
from penwright.model.transformer import EncoderDecoder

SETTINGS = ModelSettings.model_validate({"d_model": 16, "n_layers": 2, "n_heads": 2, "zero_init_outputs": False})


def test_recorded_attention_rows_sum_to_one_and_leave_outputs_unchanged() -> None:
    torch.manual_seed(3)
    model = EncoderDecoder(30, SETTINGS).double().eval()
    source, target = torch.randint(4, 30, (2, 7)), torch.randint(4, 30, (2, 5))
    padding = torch.arange(7)[None] < torch.tensor([7, 4])[:, None]
    plain = model(source, padding, target)
    with record_attention(model) as maps:
        seen = model(source, padding, target)
    torch.testing.assert_close(seen, plain)
    assert len(maps) == 6  # two encoder layers; two decoder layers with self- and cross-attention
    for name, (weights,) in maps.items():
        shape = (7, 7) if name.startswith("encoder") else (5, 7) if name.endswith("cross_attention") else (5, 5)
        assert weights.shape == (2, 2, *shape)
        torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))
    assert maps["decoder.blocks.0.cross_attention"][0][1, :, :, 4:].abs().max() == 0  # no attention to padding
    with record_attention(model) as maps:
        pass
    torch.testing.assert_close(model(source, padding, target), plain, rtol=0, atol=0)
    assert not any(maps.values())  # nothing is recorded afterwards
