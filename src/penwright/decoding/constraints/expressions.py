"""Regular expressions with "and" and "not", their derivatives (Brzozowski 1964), and the automaton that they form.

The method follows Owens, Reppy and Turon (2009, "Regular-expression derivatives re-examined"). Matching never
backtracks: the derivatives of an expression are the states of an automaton, which reads each character in one step.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Int32, Int64
from numpy.typing import NDArray

from penwright.errors import UsageError, do_nothing

Span = tuple[int, int]  # a range of code points: the first, and the one after the last
Expression = int  # an index into the Expressions object that made it; equal expressions have equal indices
N_CODE_POINTS = 0x110000
MOST_STATES, MOST_CELLS = 10_000, 4_000_000  # maximum number of states, and of cells in the transition table
TOO_MUCH = "the pattern and the words together are too complex: use smaller numbers in braces, or fewer words"
OFTEN = 200  # number of subexpressions visited between two calls of `check`


class TooLarge(Exception):
    """An error for an expression that takes too much work to process."""


class Expressions:
    """A factory of regular expressions and their derivatives; `limit` is the maximum number of subexpressions visited.

    `check` is called every few hundred subexpressions, and may raise an exception to abort.
    """

    def __init__(self, limit: int = 3_000_000, check: Callable[[], None] = do_nothing):
        self._work_left, self._check, self._until_check = limit, check, OFTEN
        self._nodes: list[tuple[Any, ...]] = []
        self._numbers: dict[tuple[Any, ...], Expression] = {}
        self._nullable: list[bool] = []
        self._derived: dict[tuple[Expression, int], Expression] = {}
        self._members: dict[Expression, frozenset[int]] = {}
        self.nothing = self._make("either", frozenset(), nullable=False)  # matches no text
        self.empty = self._make("empty", nullable=True)  # matches the empty text
        self.anything = self._make("unlike", self.nothing, nullable=True)  # matches every text

    def nullable(self, number: Expression) -> bool:
        """Return whether the expression matches the empty text."""
        return self._nullable[number]

    def one_of(self, spans: Iterable[Span]) -> Expression:
        """Return an expression that matches one character from these ranges of code points."""
        ranges = tuple(sorted(set(spans)))
        return self._make("one", ranges, nullable=False) if ranges else self.nothing

    def then(self, *parts: Expression) -> Expression:
        """Return the concatenation of `parts`: an expression that matches them one after another."""
        whole = self.empty
        for part in reversed(parts):
            self.work()
            whole = self._then(part, whole)
        return whole

    def work(self, n_parts: int = 1) -> None:
        """Add to the work counter, and call `check` occasionally; raise TooLarge if the limit is exceeded."""
        self._work_left -= n_parts
        self._until_check -= n_parts
        if self._work_left < 0:
            raise TooLarge
        if self._until_check < 0:
            self._until_check = OFTEN
            self._check()

    def either(self, *parts: Expression) -> Expression:
        """Return an expression that matches a text if any of `parts` does; without parts, it matches nothing."""
        options = self._flatten("either", parts) - {self.nothing}
        if self.anything in options:
            return self.anything
        if len(options) == 1:
            return next(iter(options))
        return self._make("either", options, nullable=any(map(self.nullable, options)))

    def both(self, *parts: Expression) -> Expression:
        """Return an expression that matches a text if all of `parts` do; without parts, it matches anything."""
        operands = self._flatten("both", parts) - {self.anything}
        if self.nothing in operands:
            return self.nothing
        if len(operands) <= 1:
            return next(iter(operands), self.anything)
        return self._make("both", operands, nullable=all(map(self.nullable, operands)))

    def unlike(self, part: Expression) -> Expression:
        """Return an expression that matches every text that `part` does not match."""
        kind, *inner = self._nodes[part]
        return inner[0] if kind == "unlike" else self._make("unlike", part, nullable=not self.nullable(part))

    def repeat(self, part: Expression, least: int, most: int | None = None) -> Expression:
        """Return an expression for `least` to `most` repetitions of `part`; if `most` is None, there is no limit."""
        if most == 0 or part == self.empty:
            return self.empty
        if part == self.nothing:
            return self.nothing if least else self.empty
        if (least, most) == (1, 1):
            return part
        if least == 0 and most is None and self._nodes[part] == ("one", ((0, N_CODE_POINTS),)):
            return self.anything
        least = 0 if self.nullable(part) else least
        return self._make("repeat", part, least, most, nullable=least == 0)

    def classes(self) -> "Classes":
        """Divide the characters into classes; no expression distinguishes two characters of the same class.

        Call this once all expressions have been built.
        """
        ones = {number: node[1] for number, node in enumerate(self._nodes) if node[0] == "one"}
        classes = Classes(list(ones.values()))
        self._members = {number: classes.within(spans) for number, spans in ones.items()}
        return classes

    def derive(self, number: Expression, of_class: int) -> Expression:
        """Return the derivative with respect to a character of this class; raise TooLarge if the limit is exceeded."""
        key = number, of_class
        known = self._derived.get(key)
        if known is None:
            self.work()
            known = self._derived[key] = self._derive(number, of_class)
        return known

    def _derive(self, number: Expression, of_class: int) -> Expression:
        derived = self.nothing  # the derivative of an expression that matches only the empty text
        match self._nodes[number]:
            case ("one", _) if of_class in self._members[number]:
                derived = self.empty
            case ("then", first, rest):
                derived = self._then(self.derive(first, of_class), rest)
                if self.nullable(first):
                    derived = self.either(derived, self.derive(rest, of_class))
            case ("either", parts):
                derived = self.either(*(self.derive(part, of_class) for part in parts))
            case ("both", parts):
                derived = self.both(*(self.derive(part, of_class) for part in parts))
            case ("unlike", part):
                derived = self.unlike(self.derive(part, of_class))
            case ("repeat", part, least, most):
                fewer = self.repeat(part, max(0, least - 1), None if most is None else most - 1)
                derived = self._then(self.derive(part, of_class), fewer)
        return derived

    def _then(self, first: Expression, rest: Expression) -> Expression:
        if self.nothing in (first, rest):
            return self.nothing
        if self.empty in (first, rest):
            return rest if first == self.empty else first
        kind, *inner = self._nodes[first]
        if kind == "then":
            return self._then(inner[0], self._then(inner[1], rest))
        return self._make("then", first, rest, nullable=self.nullable(first) and self.nullable(rest))

    def _flatten(self, kind: str, parts: Iterable[Expression]) -> frozenset[Expression]:
        flat: set[Expression] = set()
        for part in parts:
            node = self._nodes[part]
            inner = node[1] if node[0] == kind else [part]
            self.work(len(inner))
            flat.update(inner)
        return frozenset(flat)

    def _make(self, *node: Any, nullable: bool) -> Expression:
        number = self._numbers.setdefault(node, len(self._nodes))
        if number == len(self._nodes):
            self._nodes.append(node)
            self._nullable.append(nullable)
        return number


SURROGATES = 0xD800, 0xE000  # range of the surrogates, which no valid text contains


class Classes:
    """A partition of the code points into classes: each given set contains either all of a class or none of it."""

    def __init__(self, sets: Sequence[Sequence[Span]]):
        edges = {0, N_CODE_POINTS, *(edge for spans in sets for span in spans for edge in span)}
        self._borders = np.array(sorted(edges), dtype=np.int64)
        numbers = np.zeros(len(edges) - 1, dtype=np.int64)
        for spans in sets:  # each set may split the existing classes
            _, numbers = np.unique(2 * numbers + self._inside(spans), return_inverse=True)
        self._numbers: Int64[np.ndarray, " pieces"] = numbers.reshape(-1).astype(np.int64)
        self.count = int(self._numbers.max()) + 1

    def _inside(self, spans: Sequence[Span]) -> np.ndarray:
        change = np.zeros(len(self._borders), dtype=np.int64)
        indices = np.searchsorted(self._borders, np.array(spans, dtype=np.int64).reshape(-1, 2))
        np.add.at(change, indices[:, 0], 1)
        np.add.at(change, indices[:, 1], -1)
        return change.cumsum()[:-1] > 0

    def within(self, spans: Sequence[Span]) -> frozenset[int]:
        """Return the character classes that make up this set, which must be one of those passed to the constructor."""
        return frozenset(self._numbers[self._inside(spans)].tolist())

    def of(self, text: str) -> list[int]:
        """Return the class of each character."""
        points = np.fromiter(map(ord, text), dtype=np.int64, count=len(text))
        return self._numbers[np.searchsorted(self._borders, points, side="right") - 1].tolist()

    def between(self, first: int, last: int) -> list[int]:
        """Return the classes with a code point from `first` to `last`."""
        begin, end = np.searchsorted(self._borders, [first, last], side="right")
        return sorted(set(self._numbers[begin - 1 : end].tolist()))

    def cheapest(self) -> list[float]:
        """Return the UTF-8 length in bytes of the shortest character of each class; inf for a class of surrogates."""
        begins, ends = self._borders[:-1], self._borders[1:]
        begins = np.where((begins >= SURROGATES[0]) & (begins < SURROGATES[1]), SURROGATES[1], begins)
        sizes = 1.0 + (begins >= 0x80) + (begins >= 0x800) + (begins >= 0x10000)
        sizes = np.where(begins < ends, sizes, np.inf)
        cheapest = np.full(self.count, np.inf)
        np.minimum.at(cheapest, self._numbers, sizes)
        return cheapest.tolist()


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
        distances = np.where(self.accepts, 0.0, np.inf)
        settled = np.zeros(n_states, dtype=np.bool_)
        coming = {0.0} if self.accepts.any() else set()
        while coming:  # visit the nearest states first, those at equal distance together (Dijkstra 1959)
            distance = min(coming)
            coming.remove(distance)
            nearest = np.flatnonzero((distances == distance) & ~settled)
            settled[nearest] = True
            into = [edges[first[state] : first[state + 1]] for state in nearest.tolist()]
            sources, classes = np.divmod(np.concatenate([*into, np.zeros(0, dtype=np.int64)]), n_classes)
            lengths = distance + costs[classes]
            nearer = lengths < distances[sources]
            np.minimum.at(distances, sources[nearer], lengths[nearer])
            coming.update(np.unique(lengths[nearer]).tolist())
        return distances
