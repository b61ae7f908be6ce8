"""The requests and answers of the studio's routes."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from penwright.serving.fields import ModelRequest, Name, Text
from penwright.serving.texts import TextFile
from penwright.serving.training_queue import JobFacts

MAX_PART = 2_000_000  # maximum number of base64 characters in a part of an upload
Role = Literal["text", "label", "source", "target"]
Planned = Literal["tokenizer.type", "tokenizer.vocab_size", "model.size", "model.n_layers"]
Word = Annotated[Text, Field(max_length=40, pattern=r"^[a-z0-9-]+$")]
Column = Annotated[Text, Field(max_length=500, pattern=r"^[^\x00]*$")]  # no argument of a process can hold U+0000
Columns = Annotated[list[int | Column], Field(min_length=1, max_length=1000)]


class MachineFacts(BaseModel):
    """The load and the free resources of this machine."""

    load: float | None  # mean number of running processes; None on systems without a load average
    processors: int
    memory: int | None  # total memory in bytes; None if unknown
    free_memory: int | None
    free_disk: int


class StudioFacts(BaseModel):
    """The uploaded texts, the training queue, and the load of the machine."""

    folder: str
    texts: list[TextFile]
    text_bytes: int
    max_text_bytes: int
    max_upload_bytes: int
    jobs: list[JobFacts]
    planning: list[str | None]  # tickets of the pending requests for a plan, in the order of processing
    machine: MachineFacts


class Upload(ModelRequest):
    """A part of an upload, in base64."""

    name: Name
    ticket: Word | None = None  # any string that tells two uploads with the same name apart
    offset: Annotated[int, Field(ge=0)]
    total: Annotated[int, Field(ge=1)]  # size of the whole file in bytes
    data: Annotated[str, Field(max_length=MAX_PART)]


class Uploaded(BaseModel):
    """The number of bytes of an upload that have arrived."""

    bytes: int


class PlanRequest(ModelRequest):
    """The texts to train on, and the training budget. The planner chooses the fields that are left out."""

    texts: Annotated[list[Name], Field(min_length=1, max_length=1000)]
    task: Literal["generate", "chat", "translate", "classify"] | None = None
    columns: Annotated[
        dict[Role, int | Column | Columns], Field(default_factory=dict)
    ]  # number or name of the column for each role, or a list of several
    size: Word | None = None
    minutes: Annotated[float, Field(gt=0, le=100_000)] | None = None
    steps: Annotated[int, Field(gt=0, le=10**9)] | None = None
    ticket: Word | None = None  # any string by which the client recognizes its request in `planning`


class TrainRequest(PlanRequest):
    """The texts, the training budget and the other settings of a run, and its name."""

    name: Name
    choices: Annotated[dict[Planned, int | Word], Field(default_factory=dict)]  # settings that the planner chose


class ResumeRequest(ModelRequest):
    """A run to resume."""

    run: Name
    minutes: Annotated[float, Field(gt=0, le=100_000)] | None = None


class NameRequest(ModelRequest):
    """A request that names a text or a run."""

    name: Name


class Queued(BaseModel):
    """The name under which a run was queued."""

    name: str


class Done(BaseModel):
    """The response to a successful request that returns no data."""

    done: bool = True
