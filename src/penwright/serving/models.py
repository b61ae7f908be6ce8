"""What the page must know of the models before it asks them for anything."""

from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel

from penwright.models import Model
from penwright.serving.fields import TheShelf
from penwright.serving.served import Kind, Served

router = APIRouter()
N_EXAMPLES = 4


class ModelFacts(BaseModel):
    """A model that is served."""

    id: str
    kind: Kind
    parameters: int
    n_layers: int
    n_heads: int
    d_model: int
    vocab_size: int
    context_length: int
    device: str
    step: int | None  # of training, that of its best checkpoint
    labels: list[str]  # a classifier's
    decoding: dict[str, Any]  # its own settings for being read out
    examples: list[str]  # texts it was tried on while it was trained


class Models(BaseModel):
    """All of them; the first is the one that is meant where none is named."""

    models: list[ModelFacts]


@router.get("/models")
def models(shelf: TheShelf) -> Models:
    """What is served, with sizes, settings and examples."""
    return Models(models=[facts(served) for served in shelf])


def facts(served: Served) -> ModelFacts:
    """What is known of a model, from its run folder and its weights."""
    it, model = served.opened, served.application.model
    settings = it.recipe.model
    return ModelFacts(
        id=served.name,
        kind=served.kind,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        n_layers=settings.n_layers,
        n_heads=settings.n_heads,
        d_model=settings.d_model,
        vocab_size=it.tokenizer.vocab_size,
        context_length=settings.context_length,
        device=device_of(model),
        step=it.run.best_step(),
        labels=list(it.card.labels),
        decoding=it.recipe.decoding.model_dump(mode="json"),
        examples=_examples(served),
    )


def device_of(model: Model) -> str:
    """Where a model computes."""
    return next(model.parameters()).device.type


def _examples(served: Served) -> list[str]:
    prompts = [record.get("prompt", "") for record in served.opened.run.records("samples.jsonl")]
    return list(dict.fromkeys(prompt for prompt in prompts if isinstance(prompt, str) and prompt.strip()))[:N_EXAMPLES]
