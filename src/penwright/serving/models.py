"""The route that describes the served models."""

from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel

from penwright.application import ModelKind
from penwright.classification.classifier import Classifier
from penwright.inspection.attention_maps import all_heads
from penwright.model import Model
from penwright.model.size import size_of
from penwright.run.records import SAMPLES
from penwright.serving.fields import Registry
from penwright.serving.libretranslate import languages_of
from penwright.serving.model_worker import ModelWorker
from penwright.serving.run_records import records_of

router = APIRouter()
N_EXAMPLES = 4
SAMPLE = 100  # maximum number of characters of a sample


class ModelFacts(BaseModel):
    """A model that is served."""

    id: str
    kind: ModelKind
    parameters: int
    n_layers: int
    n_heads: int
    d_model: int
    vocab_size: int
    tokenizer: str  # type of the tokenizer, such as "characters" or "bpe"
    context_length: int
    heads: list[str]  # names of the heads, for requests about a single head
    device: str
    step: int | None  # training step of the weights
    is_learning: bool  # whether the run is being trained, so that newer weights may follow
    labels: list[str]  # the labels of a classifier
    has_linear: bool  # whether a classifier also uses n-gram counts, which the views of its Transformer do not show
    languages: list[str]  # the two language codes of a translator, as `languages_of` returns them
    decoding: dict[str, Any]  # default decoding settings of the model
    examples: list[str]  # sample prompts from the training of the model
    sample: str  # sample text to inspect; for a language model, a prompt and the start of its completion


class Models(BaseModel):
    """All served models; the first is the default."""

    models: list[ModelFacts]
    has_studio: bool = False  # whether the server can train new models


class ModelStep(BaseModel):
    """The number of the training step at which the weights of a model were saved."""

    step: int | None
    is_learning: bool


class Steps(BaseModel):
    """The training step of each model, by model name."""

    models: dict[str, ModelStep]


@router.get("/models")
def models(registry: Registry) -> Models:
    """List the served models with their sizes, settings and examples."""
    return Models(models=[facts(worker) for worker in registry], has_studio=registry.home is not None)


@router.get("/models/steps")
def steps(registry: Registry) -> Steps:
    """Return the training step of each model. The page polls this route to notice newer weights."""
    known = {each.name: ModelStep(step=each.step, is_learning=each.is_learning) for each in registry}
    return Steps(models=known)


def facts(worker: ModelWorker) -> ModelFacts:
    """Describe a model, based on its weights and its run folder. If the samples were deleted, there are no examples."""
    opened, model = worker.opened, worker.application.model
    settings, samples = opened.recipe.model, records_of(opened.run, SAMPLES).lines
    examples = list(dict.fromkeys(record["prompt"] for record in samples if record["prompt"].strip()))
    written = [record["prompt"] + record["completion"] for record in samples] if worker.kind == "writer" else examples
    return ModelFacts(
        id=worker.name,
        kind=worker.kind,
        parameters=size_of(
            opened.recipe.task, opened.tokenizer.vocab_size, settings, n_labels=len(opened.card.labels)
        ).parameters,
        n_layers=settings.n_layers,
        n_heads=settings.n_heads,
        d_model=settings.d_model,
        vocab_size=opened.tokenizer.vocab_size,
        tokenizer=opened.recipe.tokenizer.type,
        context_length=settings.context_length,
        heads=[str(head) for head in all_heads(model)],
        device=device_of(model),
        step=worker.step,
        is_learning=worker.is_learning,
        labels=list(opened.card.labels),
        has_linear=isinstance(worker.application, Classifier) and worker.application.linear is not None,
        languages=list(languages_of(worker.name, opened)) if worker.kind == "translator" else [],
        decoding=opened.recipe.decoding.model_dump(mode="json"),
        examples=examples[:N_EXAMPLES],
        sample=written[-1][:SAMPLE] if written else "",
    )


def device_of(model: Model) -> str:
    """Return the type of the device that holds a model."""
    return next(model.parameters()).device.type
