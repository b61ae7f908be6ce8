"""Settings of a Transformer: its sizes, and the variant of each component."""

from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from penwright.config.ranges import From0Below1
from penwright.config.settings import Settings, Table, merge

Precision = Literal["float32", "bfloat16", "int8"]  # number format of the weights at inference
FeedForwardKind = Literal["relu", "gelu", "gelu_tanh", "silu", "relu_squared", "swiglu", "geglu"]


class SinusoidalPositions(Settings):
    """Sines and cosines of decreasing frequency, added to the embeddings (Vaswani et al. 2017, section 3.5)."""

    type: Literal["sinusoidal"] = "sinusoidal"
    layout: Literal["interleaved", "halves", "tensor2tensor"] = (
        "interleaved"  # interleaved: sines and cosines alternate; halves and tensor2tensor: all sines, then all cosines
    )
    offset: NonNegativeInt = 0  # index of the first position (M2M100: 2)


class LearnedPositions(Settings):
    """A learned vector per position, added to the embeddings (Devlin et al. 2019; Radford et al. 2019)."""

    type: Literal["learned"] = "learned"


class RotaryScaling(Settings):
    """Scaling of RoPE frequencies, for contexts longer than in the original training (Llama 3.1, YaRN)."""

    factor: PositiveFloat  # low RoPE frequencies are divided by this
    low_freq_factor: PositiveFloat = (
        1.0  # RoPE frequencies with fewer rotations than this in the original context count as low
    )
    high_freq_factor: PositiveFloat = (
        4.0  # RoPE frequencies with more rotations than this are not scaled; between the limits, scaling is gradual
    )
    original_context: PositiveInt | None = (
        None  # context length before scaling, in tokens; None: all frequencies count as low (linear scaling)
    )
    yarn: bool = False  # YaRN (Peng et al. 2023): scale low frequencies, keep high ones, blend those between
    attention_factor: PositiveFloat = 1.0  # YaRN: queries and keys are multiplied by this


class RotaryPositions(Settings):
    """Rotary positions (RoPE): queries and keys are rotated by their position (Su et al. 2021)."""

    type: Literal["rotary"] = "rotary"
    base: PositiveFloat = 10_000.0  # base of the RoPE frequencies
    scaling: RotaryScaling | None = None  # scaling of the RoPE frequencies for longer contexts; None: off


class NoPositions(Settings):
    """No position encoding. A causal model still learns the order of its tokens; an encoder does not."""

    type: Literal["none"] = "none"


Positions = Annotated[
    SinusoidalPositions | LearnedPositions | RotaryPositions | NoPositions, Field(discriminator="type")
]


class NormSettings(Settings):
    """LayerNorm (Ba et al. 2016) or RMSNorm (Zhang and Sennrich 2019)."""

    type: Literal["rms", "layer"] = "rms"  # RMSNorm or LayerNorm
    eps: PositiveFloat = 1e-6  # constant added to the variance (LayerNorm) or the mean square (RMSNorm)


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
LLAMA3: Table = {  # Llama 3 (Dubey et al. 2024): grouped-query attention, SwiGLU, RMSNorm, rotary positions
    "norm": {"eps": 1e-5},
    "n_kv_heads": 8,
    "n_heads": 32,
    "positions": {"type": "rotary", "base": 500_000.0},
    "context_length": 8192,
}
SIZES["llama3-1b"] = merge(LLAMA3, {"d_model": 2048, "n_layers": 16, "d_ff": 8192})
SIZES["llama3-8b"] = merge(LLAMA3, {"d_model": 4096, "n_layers": 32, "d_ff": 14_336, "tie_embeddings": "none"})


ProblemType = Literal["single_label_classification", "multi_label_classification", "regression"]


class ModelSettings(Settings):
    """A Transformer. The defaults describe a modern block; `size` selects a preset."""

    size: str | None = None  # preset: nano, tiny, mini, small, medium, base, ...; other keys of this table override it
    d_model: PositiveInt = 128  # width of the embeddings and of all layers
    n_layers: PositiveInt = 4  # number of layers; in an encoder-decoder, number of encoder layers
    n_decoder_layers: PositiveInt | None = None  # decoder layers of an encoder-decoder; None: n_layers
    n_heads: PositiveInt = 4  # attention heads per layer
    n_kv_heads: PositiveInt  # key and value heads per layer (default: n_heads); fewer give grouped-query attention
    d_head: PositiveInt  # width of an attention head; default: d_model / n_heads
    d_ff: PositiveInt  # feed-forward width; default: 4 d_model; with a gate, 8/3 d_model rounded up to a multiple of 32
    context_length: PositiveInt = 256  # longest sequence, in tokens
    positions: Positions = RotaryPositions()
    norm: NormSettings = NormSettings()
    norm_position: Literal["pre", "post"] = "pre"  # pre: norm before each sublayer; post: norm after the residual sum
    embedding_norm: bool = False  # norm on the sum of embeddings and positions (BERT)
    feed_forward: FeedForwardKind = "swiglu"  # activation; swiglu and geglu add a gate
    bias: bool = False  # biases in linear layers and LayerNorm
    qkv_bias: bool | None = None  # biases of queries, keys and values (Qwen2: true); None: same as bias
    output_bias: bool = False  # bias added to the logits (Marian)
    qk_norm: bool = False  # norm on the queries and keys of self-attention, per head (Qwen3)
    tie_embeddings: Literal["all", "output", "none"] = (
        "all"  # which embedding matrices are shared; output: the target embedding is also the output layer
    )
    scale_embeddings: bool = False  # multiply the embeddings by sqrt(d_model)
    window: PositiveInt | None = None  # sliding-window self-attention over this many tokens; None: all tokens
    pooling: Literal["mean", "first"] = "mean"  # input to the classifier head: mean of all tokens, or first token
    text_pairs: bool = False  # classify pairs of texts, such as premise and hypothesis, separated by an end token
    token_types: Literal[1, 2] = 1  # 2: add a token-type embedding to the second text of a pair (BERT)
    problem_type: ProblemType = (
        "single_label_classification"  # classifier output for a text: one label, any number of labels, or a score
    )
    ngrams: bool = False  # combine a classifier with a linear classifier of word and character n-grams
    balanced: bool = False  # treat all labels as equally frequent, so a classifier finds rare ones more often
    pooler: bool = False  # dense layer between pooling and output layer (BERT)
    pooler_activation: Literal["tanh", "relu"] = "tanh"  # activation of the pooler (DistilBERT: relu)
    dropout: From0Below1 = 0.0  # dropout on the embeddings and on the output of each sublayer
    attention_dropout: From0Below1 = 0.0  # dropout on the attention weights
    feed_forward_dropout: From0Below1 = 0.0  # dropout on the hidden layer of the feed-forward network
    token_dropout: From0Below1 = 0.0  # average share of tokens that are dropped from a classifier's training texts
    zero_init_outputs: bool = True  # initialize the output weights of each sublayer to zero

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        size = data.get("size")
        if size is not None and size not in list(SIZES):  # a list, since an invalid size may be unhashable
            raise ValueError(f"there is no size '{size}'; the sizes are {', '.join(SIZES)}")
        table = merge(SIZES[size], data) if size else dict(data)
        d_model, n_heads = table.get("d_model", 128), table.get("n_heads", 4)
        if not (isinstance(d_model, int) and isinstance(n_heads, int) and n_heads > 0):
            d_model = n_heads = 1  # placeholders: field validation will report the invalid values
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
            raise ValueError(f"rotary positions need an even d_head, not {self.d_head}")
        if self.positions.type == "sinusoidal" and self.d_model % 2:
            raise ValueError(f"sinusoidal positions need an even d_model, not {self.d_model}")
        return self
