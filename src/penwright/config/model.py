"""The settings of a Transformer: its sizes, and for each part which variant it is."""

from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from penwright.config.settings import Settings, Table, merge

Probability = Annotated[float, Field(ge=0, lt=1)]
Precision = Literal["float32", "bfloat16", "int8"]  # of weights when a model is used
FeedForwardKind = Literal["relu", "gelu", "gelu_tanh", "silu", "relu_squared", "swiglu", "geglu"]


class SinusoidalPositions(Settings):
    """Sine and cosine waves of falling frequency, added to the embeddings (Vaswani et al. 2017, section 3.5)."""

    type: Literal["sinusoidal"] = "sinusoidal"
    layout: Literal["interleaved", "halves", "tensor2tensor"] = "interleaved"  # see model/positions.py
    offset: NonNegativeInt = 0  # the number of the first position (M2M100 begins at 2)


class LearnedPositions(Settings):
    """One learned vector for each position, added to the embeddings (Devlin et al. 2019; Radford et al. 2019)."""

    type: Literal["learned"] = "learned"


class RotaryPositions(Settings):
    """Queries and keys turned by an angle that grows with their position (Su et al. 2021)."""

    type: Literal["rotary"] = "rotary"
    base: PositiveFloat = 10_000.0


class NoPositions(Settings):
    """No positions: a causal model can still tell order, an encoder cannot."""

    type: Literal["none"] = "none"


Positions = Annotated[
    SinusoidalPositions | LearnedPositions | RotaryPositions | NoPositions, Field(discriminator="type")
]


class NormSettings(Settings):
    """LayerNorm (Ba et al. 2016) or RMSNorm (Zhang and Sennrich 2019)."""

    type: Literal["rms", "layer"] = "rms"
    eps: PositiveFloat = 1e-6


SIZES: dict[str, Table] = {
    "nano": {"d_model": 64, "n_layers": 4, "n_heads": 4},
    "tiny": {"d_model": 128, "n_layers": 4, "n_heads": 4},
    "mini": {"d_model": 192, "n_layers": 6, "n_heads": 3},
    "small": {"d_model": 256, "n_layers": 6, "n_heads": 4},
    "medium": {"d_model": 384, "n_layers": 6, "n_heads": 6},
    "base": {"d_model": 512, "n_layers": 6, "n_heads": 8},
    "large": {"d_model": 768, "n_layers": 12, "n_heads": 12},
}
CLASSIC: Table = {
    "norm": {"type": "layer", "eps": 1e-5},
    "feed_forward": "relu",
    "positions": {"type": "sinusoidal"},
    "bias": True,
    "qk_norm": False,
    "scale_embeddings": True,
    "dropout": 0.1,
    "zero_init_outputs": False,
}
SIZES["transformer-base"] = merge(SIZES["base"], CLASSIC, {"d_ff": 2048, "norm_position": "post"})
SIZES["transformer-big"] = merge(
    SIZES["transformer-base"], {"d_model": 1024, "n_heads": 16, "d_ff": 4096, "dropout": 0.3}
)
SIZES["gpt2"] = merge(
    SIZES["large"],
    CLASSIC,
    {"feed_forward": "gelu_tanh", "positions": {"type": "learned"}, "scale_embeddings": False},
    {"context_length": 1024},
)


class ModelSettings(Settings):
    """One Transformer. The defaults are the modern block; `size` fills in the numbers of a named size."""

    size: str | None = None  # a name of SIZES; keys given beside it win
    d_model: PositiveInt = 128
    n_layers: PositiveInt = 4  # of the only stack, or of the encoder
    n_decoder_layers: PositiveInt | None = None  # of the decoder beside an encoder; as many as n_layers unless given
    n_heads: PositiveInt = 4
    n_kv_heads: PositiveInt  # fewer than n_heads: query heads share keys and values; n_heads unless given
    d_head: PositiveInt  # d_model / n_heads unless given
    d_ff: PositiveInt  # 4 d_model, or 8/3 of it in steps of 32 with a gate, unless given
    context_length: PositiveInt = 256  # in tokens
    positions: Positions = RotaryPositions()
    norm: NormSettings = NormSettings()
    norm_position: Literal["pre", "post"] = "pre"
    embedding_norm: bool = False  # a norm on the sum of embeddings and positions (BERT)
    feed_forward: FeedForwardKind = "swiglu"
    bias: bool = False
    output_bias: bool = False  # a bias on the logits (Marian)
    qk_norm: bool = False  # queries and keys of self-attention normed per head (Qwen3)
    tie_embeddings: Literal["all", "output", "none"] = "all"  # source, target and output; target and output; none
    scale_embeddings: bool = False  # by sqrt(d_model)
    window: PositiveInt | None = None  # how many tokens back self-attention sees; None: all
    pooling: Literal["mean", "first"] = "mean"  # what a classifier reads: the mean of all tokens, or the first
    pooler: bool = False  # a dense layer with tanh between pooling and the labels (BERT)
    dropout: Probability = 0.0  # on embeddings and on what each sublayer adds
    attention_dropout: Probability = 0.0  # on attention weights
    feed_forward_dropout: Probability = 0.0  # on the hidden layer of the feed-forward
    token_dropout: Probability = 0.0  # share of a text's tokens, on average, that a classifier learns without
    zero_init_outputs: bool = True  # each sublayer begins by adding nothing

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        size = given.get("size")
        if size is not None and size not in SIZES:
            raise ValueError(f"there is no size '{size}'; the sizes are {', '.join(SIZES)}")
        table = merge(SIZES[size], given) if size else dict(given)
        d_model, n_heads = table.get("d_model", 128), table.get("n_heads", 4)
        if not (isinstance(d_model, int) and isinstance(n_heads, int) and n_heads > 0):
            d_model = n_heads = 1  # any valid number: the fields themselves say what is wrong
        if "d_head" not in table and d_model % n_heads:
            raise ValueError(f"d_model ({d_model}) must be a multiple of n_heads ({n_heads})")
        gated = table.get("feed_forward", "swiglu") in ("swiglu", "geglu")
        table.setdefault("n_kv_heads", n_heads)
        table.setdefault("d_head", d_model // n_heads)
        table.setdefault("d_ff", -(-8 * d_model // (3 * 32)) * 32 if gated else 4 * d_model)
        return table

    @model_validator(mode="after")
    def _check(self) -> "ModelSettings":
        if self.n_heads % self.n_kv_heads:
            raise ValueError(f"n_heads ({self.n_heads}) must be a multiple of n_kv_heads ({self.n_kv_heads})")
        if self.positions.type == "rotary" and self.d_head % 2:
            raise ValueError(f"rotary positions need an even d_head, this one is {self.d_head}")
        if self.positions.type == "sinusoidal" and self.d_model % 2:
            raise ValueError(f"sinusoidal positions need an even d_model, this one is {self.d_model}")
        return self
