"""A finite automaton for regular expressions: a table of the next state for each state and character class."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float64, Int32
from numpy.typing import NDArray

from penwright.decoding.constraints.expressions import Classes, Expression, Expressions, TooLarge
from penwright.errors import UsageError

MOST_STATES, MOST_CELLS = 10_000, 4_000_000  # limits of the table: one row per state, one cell per character class
TOO_MUCH = "the pattern and the words together are too complex: use smaller numbers in braces, or fewer words"
DEAD = 0  # the state from which no text is accepted


class Automaton:
    """An automaton that reads texts character by character.

    Each state is a regular expression for the rest of the text. State 0 matches nothing; the start states follow.
    """

    def __init__(self, expressions: Expressions, starts: Sequence[Expression]):
        """Compute the states; raise UsageError if there are more than 10,000 or if they take too much work."""
        self.classes: Classes = expressions.classes()
        self._most = min(MOST_STATES, MOST_CELLS // self.classes.count)
        self._numbers: dict[Expression, int] = {}
        self._states: list[Expression] = []
        self._number(expressions.nothing)
        rows: list[list[int]] = []
        try:
            self.starts = [self._number(start) for start in starts]
            for state in self._states:  # the loop also appends new states to this list
                expressions.work(self.classes.count // 4)
                rows.append([self._number(expressions.derive(state, c)) for c in range(self.classes.count)])
        except (TooLarge, RecursionError):
            raise UsageError(TOO_MUCH) from None
        self.table: Int32[np.ndarray, "states classes"] = np.array(rows, dtype=np.int32)
        self.accepts: Bool[np.ndarray, " states"] = np.array([expressions.nullable(state) for state in self._states])

    def _number(self, state: Expression) -> int:
        number = self._numbers.setdefault(state, len(self._states))
        if number == len(self._states):
            self._states.append(state)
        if number > self._most:
            raise TooLarge
        return number

    def distances(self, costs: NDArray[np.float64]) -> Float64[np.ndarray, " states"]:
        """Return the lowest cost of completing a text from each state; inf if no text can be completed.

        `costs` gives the cost of a character of each class.
        """
        n_states, n_classes = self.table.shape
        edges = np.argsort(self.table, axis=None, kind="stable")  # transitions, sorted by target state
        first = np.searchsorted(self.table.ravel()[edges], np.arange(n_states + 1))
        found = np.where(self.accepts, 0.0, np.inf)
        settled = np.zeros(n_states, dtype=np.bool_)
        coming = {0.0} if self.accepts.any() else set()
        while coming:  # visit the nearest states first, those at equal distance together (Dijkstra 1959)
            distance = min(coming)
            coming.remove(distance)
            nearest = np.flatnonzero((found == distance) & ~settled)
            settled[nearest] = True
            into = [edges[first[state] : first[state + 1]] for state in nearest.tolist()]
            sources, classes = np.divmod(np.concatenate([*into, np.zeros(0, dtype=np.int64)]), n_classes)
            lengths = distance + costs[classes]
            nearer = lengths < found[sources]
            np.minimum.at(found, sources[nearer], lengths[nearer])
            coming.update(np.unique(lengths[nearer]).tolist())
        return found
