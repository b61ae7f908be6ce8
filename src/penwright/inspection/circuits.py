"""The base class of `Inspector`: it reads texts, and finds the parts of the model that cause an outcome."""

from collections.abc import Sequence
from typing import Literal

from penwright.classification.classifier import Classifier
from penwright.inspection.forward_pass import ForwardPass
from penwright.inspection.logit_attribution import LogitAttribution, logit_attribution
from penwright.inspection.model_map import ModelMap, PlaceDetail, model_map, place_detail
from penwright.inspection.outcomes import Outcomes
from penwright.inspection.patching import Patching, PatchKind, patching, preferences
from penwright.inspection.paths import Paths, paths
from penwright.inspection.text_reader import Inspected, TextReader
from penwright.inspection.tokens import vocabulary
from penwright.model import Model
from penwright.tokenizers import Tokenizer

Shape = Literal["writer", "translator", "classifier"]


class CircuitInspector:
    """An inspector of the parts of a model and of the paths between them."""

    def __init__(self, application: Inspected):
        self.application = application
        self.model: Model = application.model
        self.tokenizer: Tokenizer = application.tokenizer
        self.reader = TextReader(application)
        self.words = vocabulary(self.tokenizer)  # readable text of each token
        self.outcomes = list(application.labels) if isinstance(application, Classifier) else self.words
        self.outcome = Outcomes(self.model, self.outcomes)

    def __repr__(self) -> str:
        return f"<Inspector of {self.application!r}>"

    @property
    def shape(self) -> Shape:
        """The kind of model: `"writer"`, `"translator"` or `"classifier"`."""
        return self.application.kind

    def read(self, text: str, target: str | None = None) -> ForwardPass:
        """Return the tokens of a text that the model reads, cut to fit the context."""
        return self.reader.read(text, target)

    def model_map(self, text: str, target: str | None = None, *, position: int | None = None, k: int = 10) -> ModelMap:
        """Return the overview of a whole forward pass, with the attention and prediction at one position.

        The default position is the last for a writer, and the first for a translator or classifier.
        """
        reading = self.read(text, target)
        return model_map(self.model, reading, self.outcome.names, self._position(reading, position), k)

    def place_detail(
        self, text: str, place: str, target: str | None = None, *, position: int | None = None, k: int = 10
    ) -> PlaceDetail:
        """Return the vectors at a place in the model, for one position.

        Places are "decoder.embedding", blocks such as "decoder.2", and "output".
        """
        reading = self.read(text, target)
        return place_detail(self.model, reading, self.outcome.names, place, self._position(reading, position), k)

    def logit_attribution(
        self,
        text: str,
        target: str | None = None,
        *,
        position: int | None = None,
        outcome: str | None = None,
        against: str | None = None,
    ) -> LogitAttribution:
        """Split the logit of an outcome into what each head, feed-forward network and embedding adds to it directly.

        `position` and `outcome` have the same defaults as in `attribution`. `against` is an outcome to compare with;
        the default is the mean of all outcomes.
        """
        reading = self.read(text, target)
        aim = self.outcome.aim(reading, target, position, outcome, against)
        return logit_attribution(self.model, reading, aim, self.outcome.names)

    def patching(
        self,
        text: str,
        other: str,
        target: str | None = None,
        *,
        kind: PatchKind = "residual",
        positions: Sequence[int] | None = None,
        position: int | None = None,
        outcome: str | None = None,
        against: str | None = None,
    ) -> tuple[Patching, ...]:
        """Return how much of the prediction for `text` each activation restores if copied into a pass over `other`.

        `kind` is "residual", "attention", "feed_forward" or "heads"; `positions` are the positions to patch. By
        default, `outcome` is the model's prediction for `text` at `position`, and `against` is its prediction for
        `other`. A translator reads the same `target` with both texts; its default `position` is the first at which the
        predictions differ.
        """
        reading = self.read(text, target)
        texts = reading, self.reader.with_source(other, reading)
        chosen = [None if name is None else self.outcome.index(name) for name in (outcome, against)]
        aim = preferences(self.model, texts, position, chosen, last=self.shape == "writer")
        return patching(self.model, texts, aim, self.outcome.names, kind, positions)

    def paths(
        self,
        text: str,
        target: str | None = None,
        *,
        position: int | None = None,
        outcome: str | None = None,
        n_edges: int = 20,
    ) -> Paths:
        """Return the strongest paths between parts, with the effect of each path on an outcome.

        `position` and `outcome` have the same defaults as in `attribution`. Only the `n_edges` edges with the largest
        estimates are measured.
        """
        reading = self.read(text, target)
        aim = self.outcome.aim(reading, target, position, outcome)
        return paths(self.model, reading, aim, self.outcome.names, n_edges)

    def _position(self, reading: ForwardPass, position: int | None) -> int:
        usual = len(reading.target) - 1 if self.shape == "writer" else 0
        return usual if position is None else position
