"""What the page must know of the models before it asks them for anything."""

from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel

from penwright.inspection.heads import all_heads
from penwright.model import Model
from penwright.model.size import size_of
from penwright.run.folder import SAMPLES
from penwright.serving.fields import TheShelf
from penwright.serving.languages import languages_of
from penwright.serving.model_worker import Kind, ModelWorker
from penwright.serving.run_records import read_records

router = APIRouter()
N_EXAMPLES = 4
SAMPLE = 100  # characters


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
    heads: list[str]  # their names, as pictures of one head take them
    device: str
    step: int | None  # of training, that of its best checkpoint
    labels: list[str]  # a classifier's
    languages: list[str]  # a translator's two, as codes; see languages.py
    decoding: dict[str, Any]  # its own settings for being read out
    examples: list[str]  # texts it was tried on while it was trained
    sample: str  # something to look into: of a writer, with the beginning of what it wrote


class Models(BaseModel):
    """All of them; the first is the one that is meant where none is named."""

    models: list[ModelFacts]


@router.get("/models")
def models(shelf: TheShelf) -> Models:
    """What is served, with sizes, settings and examples."""
    return Models(models=[facts(served) for served in shelf])


def facts(served: ModelWorker) -> ModelFacts:
    """Return what is known of a model, from its weights and from its run folder as far as that is still there."""
    it, model = served.opened, served.application.model
    settings, samples = it.recipe.model, read_records(it.run.folder / SAMPLES).lines
    examples = list(dict.fromkeys(record["prompt"] for record in samples if record["prompt"].strip()))
    written = [record["prompt"] + record["completion"] for record in samples] if served.kind == "writer" else examples
    return ModelFacts(
        id=served.name,
        kind=served.kind,
        parameters=size_of(it.recipe.task, it.tokenizer.vocab_size, settings, n_labels=len(it.card.labels)).parameters,
        n_layers=settings.n_layers,
        n_heads=settings.n_heads,
        d_model=settings.d_model,
        vocab_size=it.tokenizer.vocab_size,
        context_length=settings.context_length,
        heads=[str(head) for head in all_heads(model)],
        device=device_of(model),
        step=served.best_step,
        labels=list(it.card.labels),
        languages=list(languages_of(served.name, it)) if served.kind == "translator" else [],
        decoding=it.recipe.decoding.model_dump(mode="json"),
        examples=examples[:N_EXAMPLES],
        sample=written[-1][:SAMPLE] if written else "",
    )


def device_of(model: Model) -> str:
    """Where a model computes."""
    return next(model.parameters()).device.type
