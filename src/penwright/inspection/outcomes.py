"""The outcomes of a model (the tokens of its vocabulary, or its labels), and the choice of one to explain."""

from collections.abc import Sequence

from penwright.errors import UsageError
from penwright.inspection.forward_pass import ForwardPass
from penwright.inspection.gradients import AttributionTarget, likeliest_outcome
from penwright.model import Model
from penwright.model.encoder_only import EncoderOnly


class Outcomes:
    """The outcomes that a model can predict, with a look-up by name."""

    def __init__(self, model: Model, names: Sequence[str]):
        self.model, self._names = model, names

    @property
    def names(self) -> Sequence[str]:
        """The labels or tokens that the model predicts; raises UsageError for an encoder without labels."""
        if not self._names:
            raise UsageError("this encoder has no labels, so it predicts nothing. Inspect its heads instead")
        if self.model.settings.problem_type != "single_label_classification":
            raise UsageError(
                "only models that predict one label per text can be explained. Inspect the heads of this model instead"
            )
        return self._names

    def index(self, name: str) -> int:
        """Return the index of a label or token; a token may be named without the space that begins a word."""
        labels = isinstance(self.model, EncoderOnly)
        for written in (name,) if labels else (name, f" {name}", f"▁{name}"):
            if written in self.names:
                return list(self.names).index(written)
        if labels:
            raise UsageError(f"there is no label '{name}': the labels are {', '.join(self.names)}")
        raise UsageError(f"'{name}' is not a single token of this model. Choose the token that it begins with")

    def label(self, target: str | None) -> int | None:
        """Return the index of a classifier's label; None for other models, or without a target."""
        return self.index(target) if isinstance(self.model, EncoderOnly) and target is not None else None

    def aim(
        self,
        reading: ForwardPass,
        target: str | None = None,
        position: int | None = None,
        outcome: str | None = None,
        against: str | None = None,
    ) -> AttributionTarget:
        """Return the outcome to explain: by default, the given label or the next token of the text.

        Without a label or a next token, it is the likeliest outcome. The default position is the last for a
        writer, and the first for a translator.
        """
        position = (0 if reading.source else len(reading.target) - 1) if position is None else position
        chosen = likeliest_outcome(self.model, reading, position)
        if outcome is not None:
            chosen = self.index(outcome)
        elif (label := self.label(target)) is not None:
            chosen = label
        elif position < len(reading.answers):
            chosen = reading.answers[position].id
        other = None if against is None else self.index(against)
        if other == chosen:
            raise UsageError(f"'{self.names[chosen]}' is compared with itself. Choose a different outcome")
        return AttributionTarget(position, chosen, other)
