"""The route that finds clusters and near-duplicates among texts of the client, or among the held-out texts of a run."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Annotated
from weakref import WeakKeyDictionary

import numpy as np
from fastapi import APIRouter
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field

from penwright.classification.classifier import is_blank
from penwright.classification.clusters import MOST_CLUSTERS, Vectors, find_clusters, near_duplicates, require_enough
from penwright.data.corpus import Document, Labelled
from penwright.errors import PenwrightError, UsageError
from penwright.serving.checks import Check
from penwright.serving.errors import ERROR_RESPONSES, RequestTooLarge, status_and_message
from penwright.serving.fields import MAX_ENTRIES, Limits, ModelRequest, Name, Registry, Text, check_lengths
from penwright.serving.model_worker import ModelWorker
from penwright.serving.writing import event
from penwright.tasks.context import AnyPart
from penwright.text import BETWEEN_TEXTS
from penwright.workflows.evaluate import open_corpus_of

router = APIRouter(responses=ERROR_RESPONSES)
MOST_TEXTS = 2000  # maximum number of texts to compare
MOST_CHARACTERS = 1000  # only the first characters of each text are read
STEP_CHARACTERS = 5000  # approximate number of characters to embed before other requests get a turn
MOST_DRAWN = 50_000  # the sample of held-out texts or lines is drawn from the first ones of a run
# The latest texts of each model, and their vectors: another number of clusters needs no new vectors.
_latest: "WeakKeyDictionary[ModelWorker, tuple[tuple[str, ...], Vectors]]" = WeakKeyDictionary()
_held_out: "WeakKeyDictionary[ModelWorker, list[str]]" = WeakKeyDictionary()  # the sample of each model


class ClustersRequest(ModelRequest):
    """A request to find clusters and near-duplicates."""

    model: Name | None = None  # name of a model; None for the first one that is not a translator
    texts: Annotated[list[Text], Field(min_length=1, max_length=MAX_ENTRIES)] | None = (
        None  # texts to compare; None for the held-out texts of the run
    )
    n: Annotated[int, Field(ge=2, le=MOST_CLUSTERS)] | None = None  # number of clusters; None to choose it


class EmbeddingProgress(BaseModel):
    """The number of texts that are embedded; the data of the event `progress`."""

    done: int
    total: int


class ClusterFacts(BaseModel):
    """A cluster of texts with similar vectors."""

    words: tuple[str, ...]  # typical words
    rows: tuple[int, ...]  # indices of the texts, the most central first
    similarities: tuple[float, ...]  # cosine similarity of each of these texts with the center


class NearDuplicateFacts(BaseModel):
    """A text that is nearly the same as an earlier one."""

    similarity: float
    row: int
    earlier: int


class ClustersAnswer(BaseModel):
    """The clusters, largest first, and the near-duplicates, most similar first; the data of the event `done`."""

    texts: list[str]  # the texts that were compared, shortened, without blank ones
    clusters: list[ClusterFacts]
    duplicates: list[NearDuplicateFacts]


@router.post("/clusters", response_class=StreamingResponse)
async def clusters(body: ClustersRequest, registry: Registry, limits: Limits) -> StreamingResponse:
    """Find clusters by topic and near-duplicates.

    The events are `progress`, then `done` (a ClustersAnswer) or `error`.
    """
    until = asyncio.get_running_loop().time() + limits.deadline_seconds
    worker, is_set = registry.embedder(body.model), "max_texts" in limits.model_fields_set
    # the default of max_texts is for whole texts; here only the first MOST_CHARACTERS of each are read
    most = min(MOST_TEXTS, limits.max_texts) if is_set else MOST_TEXTS
    if body.texts is not None and len(body.texts) > most:
        raise RequestTooLarge(f"the request has {len(body.texts):,} texts, but the limit is {most:,}. Send fewer")
    check_lengths(body.texts or [], limits)
    given = body.texts
    if given is None:
        given = await worker.build(partial(_held_out_texts, worker, most), limits.deadline_seconds)
    texts = tuple(text[:MOST_CHARACTERS] for text in given if not is_blank(text[:MOST_CHARACTERS]))
    require_enough(texts)
    return StreamingResponse(_events(worker, texts, body.n, until), media_type="text/event-stream")


def _held_out_texts(worker: ModelWorker, most: int, check: Check) -> list[str]:
    """Return a random sample of the held-out texts of a run, or of the lines of held-out running text, in order."""
    recipe, folder = worker.opened.recipe, worker.opened.run.folder
    if recipe.task not in ("classify", "encode", "generate"):
        raise UsageError(f"{folder.name} has no held-out texts to compare. Paste texts of your own")
    if worker not in _held_out:
        found = list(islice(_texts(open_corpus_of(worker.opened).held_out, check), MOST_DRAWN))
        kept = np.sort(np.random.default_rng(0).permutation(len(found))[:most])
        _held_out[worker] = [found[place] for place in kept.tolist()]
    return _held_out[worker]


def _texts(part: AnyPart, check: Check) -> Iterator[str]:
    """Yield the first MOST_CHARACTERS characters of each text or line."""
    for example in part:
        if isinstance(example, Labelled):
            yield example.text.replace(BETWEEN_TEXTS, " | ")[:MOST_CHARACTERS]
        elif isinstance(example, Document):
            yield from _lines(example.chunks, check)


def _lines(chunks: Iterable[str], check: Check) -> Iterator[str]:
    unfinished = ""
    for chunk in chunks:
        check()
        first, *others = chunk.split("\n")
        unfinished = (unfinished + first)[:MOST_CHARACTERS]
        for line in others:
            if unfinished.strip():
                yield unfinished
            unfinished = line[:MOST_CHARACTERS]
    if unfinished.strip():
        yield unfinished


async def _events(worker: ModelWorker, texts: tuple[str, ...], n: int | None, until: float) -> AsyncIterator[str]:
    """Yield the events of an answer. At time `until` of the event loop, the work stops."""
    try:
        known, vectors = _latest.get(worker, ((), None))
        if known != texts or vectors is None:
            parts = []
            for begin, end in _parts(texts):
                yield event("progress", EmbeddingProgress(done=begin, total=len(texts)).model_dump())
                async with asyncio.timeout_at(until):
                    parts.append(await worker.run(partial(_embed, worker, texts[begin:end])))
            vectors = np.concatenate(parts)
            _latest[worker] = texts, vectors
        async with asyncio.timeout_at(until):
            answer = await worker.build(partial(_answer, vectors, texts, n), worker.limits.deadline_seconds)
        yield event("done", answer.model_dump())
    except (PenwrightError, TimeoutError) as error:
        yield event("error", {"message": status_and_message(error)[1]})


def _parts(texts: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield the borders of consecutive parts with about STEP_CHARACTERS characters each."""
    begin, size = 0, 0
    for end, text in enumerate(texts, 1):
        size += len(text)
        if size >= STEP_CHARACTERS or end == len(texts):
            yield begin, end
            begin, size = end, 0


def _embed(worker: ModelWorker, texts: Sequence[str]) -> Vectors:
    embedder = worker.application
    assert embedder.kind != "translator"
    vectors: Vectors = embedder.embed(texts).numpy()
    return vectors


def _answer(vectors: Vectors, texts: Sequence[str], n: int | None, check: Check) -> ClustersAnswer:
    clusters = find_clusters(vectors, texts, n)
    check()
    return ClustersAnswer(
        texts=list(texts),
        clusters=[ClusterFacts.model_validate(each._asdict()) for each in clusters],
        duplicates=[NearDuplicateFacts(**each._asdict()) for each in near_duplicates(vectors, texts)],
    )
