"""Training settings: the optimizer, the budget, evaluation and checkpoints."""

from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    field_validator,
    model_validator,
)

from penwright.config.ranges import From0Below1
from penwright.config.settings import Settings


def zero_if_none(value: Any) -> Any:
    """Replace None with 0, since recipe.toml cannot hold None. Return any other value unchanged."""
    return 0 if value is None else value


Limit = Annotated[NonNegativeFloat, BeforeValidator(zero_if_none)]


class AdamW(Settings):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019), with a fused kernel if the device supports it."""

    type: Literal["adamw"] = "adamw"
    learning_rate: PositiveFloat = 1e-3  # peak learning rate
    weight_decay: NonNegativeFloat = 0.1  # weight decay of matrices; norms, biases and embeddings have none
    betas: tuple[From0Below1, From0Below1] = (0.9, 0.98)  # decay rates of running averages of gradient and its square
    eps: PositiveFloat = 1e-8  # constant added to the denominator of an update


class Muon(Settings):
    """Muon (Jordan et al. 2024) for the matrices inside the blocks; AdamW for all other parameters."""

    type: Literal["muon"] = "muon"
    learning_rate: PositiveFloat = 0.02  # peak learning rate
    momentum: From0Below1 = 0.95  # Nesterov momentum
    weight_decay: NonNegativeFloat = 0.0  # weight decay of the matrices inside the blocks
    adamw: AdamW = AdamW(learning_rate=3e-3, weight_decay=0.0, betas=(0.9, 0.95))

    @field_validator("adamw", mode="before")
    @classmethod
    def _fill_in(cls, data: Any) -> Any:
        """Fill in missing AdamW settings from the defaults for Muon, not from those of the AdamW class."""
        default = cls.model_fields["adamw"].default
        return default.model_dump() | data if isinstance(data, dict) else data


Optimizer = Annotated[AdamW | Muon, Field(discriminator="type")]
BUDGETS = ("steps", "epochs", "tokens", "minutes")


class TrainingSettings(Settings):
    """Budget, batches, evaluation, checkpoints and hardware. Set exactly one budget."""

    steps: PositiveInt | None = None  # budget in optimizer steps
    epochs: PositiveFloat | None = None  # budget in passes over the training data
    tokens: PositiveInt | None = None  # budget in target tokens
    minutes: PositiveFloat | None = None  # budget in minutes on this machine, evaluation included
    batch_tokens: PositiveInt = 4096  # tokens per batch, padding included (on average, for labelled texts)
    accumulate: PositiveInt = 1  # number of batches per optimizer step (gradient accumulation)
    max_grad_norm: Limit = 1.0  # maximum gradient norm (clipping); 0: off
    label_smoothing: From0Below1 = 0.0  # label smoothing: probability spread over all classes
    consistency: From0Below1 = 0.0  # weight of R-Drop in the second half of training; 0: off
    ema_decay: From0Below1 = 0.0  # decay of the moving average of the weights (EMA); 0: off
    evaluate_every: PositiveInt | None = None  # steps between evaluations; None: ten evaluations per run
    patience: PositiveInt | None = None  # stop after this many evaluations without a better score; None: never
    cooldown_on_overfitting: bool = False  # start the cooldown when the held-out loss rises; stop if it keeps rising
    keep: PositiveInt = 2  # number of newest checkpoints to keep, in addition to the best
    bigram_init: bool = False  # initialize from bigram counts (language models with tie_embeddings = "none")
    early: Annotated[int, Field(ge=0, le=9)] = 0  # number of early weight snapshots (after 1, 10, 100, ... seconds)
    prompts: tuple[str, ...] = ()  # prompts for samples at each evaluation; empty: from held-out text
    device: str = "auto"  # cpu, cuda, mps, ...
    precision: Literal["auto", "float32", "bfloat16"] = "auto"  # number format of the matrix products
    compile: Literal["auto", "on", "off"] = "auto"  # use torch.compile
    threads: NonNegativeInt = 0  # number of CPU threads; 0: all cores
    parallelism: Literal["auto", "ddp", "fsdp"] = "auto"  # fsdp: each process keeps only a part of the model
    activation_checkpointing: bool = False  # recompute activations instead of storing them: slower, but saves memory

    @model_validator(mode="after")
    def _one_budget(self) -> "TrainingSettings":
        budgets = [name for name in BUDGETS if getattr(self, name) is not None]
        if len(budgets) != 1:
            raise ValueError(
                f"give exactly one of steps, epochs, tokens and minutes (given: {', '.join(budgets) or 'none'})"
            )
        return self

    @property
    def tokens_at_once(self) -> int:
        """The number of tokens in one forward pass. With `consistency`, each batch passes through the model twice."""
        return (2 if self.consistency else 1) * self.batch_tokens
