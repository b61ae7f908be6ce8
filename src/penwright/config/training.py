"""The settings of training: the optimizer, the budget, and what is done on the way."""

from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    field_validator,
    model_validator,
)

from penwright.config.settings import Settings

Momentum = Annotated[float, Field(ge=0, lt=1)]


class AdamW(Settings):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019), fused where the device allows."""

    type: Literal["adamw"] = "adamw"
    learning_rate: PositiveFloat = 1e-3
    weight_decay: NonNegativeFloat = 0.1  # of matrices; never of norms, biases and embeddings
    betas: tuple[Momentum, Momentum] = (0.9, 0.98)
    eps: PositiveFloat = 1e-8


class Muon(Settings):
    """Muon (Jordan et al. 2024) for the matrices inside the blocks, AdamW for all other parameters."""

    type: Literal["muon"] = "muon"
    learning_rate: PositiveFloat = 0.02
    momentum: Momentum = 0.95
    weight_decay: NonNegativeFloat = 0.0
    adamw: AdamW = AdamW(learning_rate=3e-3, weight_decay=0.0, betas=(0.9, 0.95))

    @field_validator("adamw", mode="before")
    @classmethod
    def _fill_in(cls, given: Any) -> Any:
        """What is not given is as above, not as where AdamW is for all."""
        own = cls.model_fields["adamw"].default
        return own.model_dump() | given if isinstance(given, dict) else given


Optimizer = Annotated[AdamW | Muon, Field(discriminator="type")]
BUDGETS = ("steps", "epochs", "tokens", "minutes")


class TrainingSettings(Settings):
    """How long to train, in what portions, and how often to look up from it."""

    steps: PositiveInt | None = None  # the budget is exactly one of steps,
    epochs: PositiveFloat | None = None  # passes over the training part,
    tokens: PositiveInt | None = None  # target tokens,
    minutes: PositiveFloat | None = None  # or minutes of this machine, evaluation included
    batch_tokens: PositiveInt = 4096  # tokens of one batch, padding included; of labelled texts, on average
    accumulate: PositiveInt = 1  # batches of one step
    max_grad_norm: PositiveFloat | None = 1.0
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    average: Annotated[float, Field(ge=0, lt=1)] = 0.0  # decay of the running average of the weights; 0: none
    evaluate_every: PositiveInt | None = None  # in steps; None: ten times a run
    patience: PositiveInt | None = None  # evaluations without a better score before stopping; None: never
    mind_over_fitting: bool = False  # cool down as soon as held-out examples surprise the model more and more
    keep: PositiveInt = 2  # how many of the last checkpoints stay, beside the best
    prompts: tuple[str, ...] = ()  # what the samples of each evaluation continue; taken from held-out text when empty
    device: str = "auto"
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    compile: Literal["auto", "on", "off"] = "auto"
    threads: NonNegativeInt = 0  # of the CPU; 0: as many as there are

    @model_validator(mode="after")
    def _one_budget(self) -> "TrainingSettings":
        given = [name for name in BUDGETS if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(
                f"give exactly one of steps, epochs, tokens and minutes (given: {', '.join(given) or 'none'})"
            )
        return self
