"""The choice of the source, target, text and label columns: set by the user, known from training, or guessed."""

from collections.abc import Sequence
from difflib import get_close_matches
from typing import NamedTuple

from penwright.data.corpus import Columns, Roles
from penwright.data.guesses import (
    Guess,
    advice_for_more_texts,
    guess_label,
    guess_pair,
    guess_texts,
    named_label,
    named_pair,
    named_text,
    rest_of_prompt,
    setting,
    unused,
)
from penwright.data.one_hot import description, one_hot_labels
from penwright.data.profiles import LISTS, NUMBERS, Profile, profiles_of
from penwright.data.readers.layout import LABEL_NAMES, RATING_NAMES
from penwright.data.readers.tables import Table
from penwright.errors import Option, PenwrightError, Undecided

KEYS = ("source", "target", "text", "label", "group")


class ColumnChoice(NamedTuple):
    """The columns chosen for each role, by index from 0, with a remark on the choice."""

    indices: dict[str, tuple[int, ...]]
    remark: str  # the reason for the choice, and the columns that are not used
    profiles: Sequence[Profile]

    def roles(self, table: Table) -> Roles:
        """Return the name and the number (counted from 1) of each chosen column, for storage in a run."""
        return {
            key: tuple((table.columns[index], index + 1) for index in indices) for key, indices in self.indices.items()
        }


def names_in(columns: Columns) -> list[str]:
    """Return the column names set by the user or used in training. A first row with one of them is a header."""
    requested = [name for key in KEYS for name in requested_columns(columns, key)]
    trained = [name for each in columns.as_trained.values() for name, _ in each]
    return [name for name in (*requested, *trained) if isinstance(name, str) and not name.isdecimal()]


def requested_columns(columns: Columns, key: str) -> tuple[str | int, ...]:
    """Return the columns that the settings specify for a role."""
    requested = getattr(columns, key)
    return requested if isinstance(requested, tuple) else () if requested is None else (requested,)


def find_column(table: Table, requested: str | int) -> int:
    """Return the index (from 0) of a column, given its name or its number (from 1).

    Raises PenwrightError, suggesting the closest name, if the table has no such column.
    """
    if requested in table.columns:
        return table.columns.index(str(requested))
    number = int(requested) if isinstance(requested, int) or requested.isdecimal() else None
    if number is not None and 1 <= number <= len(table.columns):
        return number - 1
    nearest = get_close_matches(str(requested), table.columns, n=1, cutoff=0.5)
    hint = f"did you mean '{nearest[0]}'?" if nearest else f"its columns are: {', '.join(table.columns)}"
    raise PenwrightError(f"{table.name} has no column '{requested}'; {hint}")


def pair_columns(table: Table, columns: Columns) -> ColumnChoice:
    """Choose the source and the target column."""
    if len(table.columns) < 2:
        raise PenwrightError(
            f"{table.name} has only one column. Sentence pairs need two columns, source and target, "
            "or two files with the same number of lines"
        )
    known = {key: _known(table, columns, key) for key in ("source", "target")}
    source, target = (indices[0] if indices else None for indices in known.values())
    guess, profiles, sources = Guess((), ""), profiles_of(table), known["source"]
    if source is None or target is None:
        guess = _other_side(table, profiles, source, target)
        source = guess.columns[0] if source is None else source
        target = guess.columns[1] if target is None else target
    if not sources:
        sources = (source, *rest_of_prompt(profiles, (source, target)))
    if target in sources:
        raise PenwrightError(f"{table.name}: source and target are the same column '{table.columns[target]}'")
    return _chosen(table, profiles, {"source": sources, "target": (target,)}, [guess.reason])


def _other_side(table: Table, profiles: Sequence[Profile], source: int | None, target: int | None) -> Guess:
    """Guess the source and target columns, or whichever of the two is unknown."""
    known = target if source is None else source
    if known is None:
        return guess_pair(table.name, profiles)
    others = [each for each in profiles if each.index != known]
    guess = Guess((others[0].index,), "only one column was left to choose") if len(others) == 1 else None
    if guess is None:
        both = guess_pair(table.name, _possible_sides(profiles, known))
        guess = Guess(tuple(index for index in both.columns if index != known)[:1], both.reason)
    return Guess((known, *guess.columns) if target is None else (*guess.columns, known), guess.reason)


def _possible_sides(profiles: Sequence[Profile], known: int) -> list[Profile]:
    """Return the columns that could be source or target: the text columns, and the column `known`."""
    return [each for each in profiles if each.is_text or each.index == known]


def labelled_columns(table: Table, columns: Columns) -> ColumnChoice:
    """Choose the text columns, the label columns and, if the settings or the run name one, the group column."""
    texts, labels = (_known(table, columns, key) for key in ("text", "label"))
    groups = tuple(find_column(table, each) for each in requested_columns(columns, "group"))
    if not groups:  # files to evaluate need no group column
        trained = columns.as_trained.get("group", ())
        groups = tuple(table.columns.index(name) for name, _ in trained if name in table.columns)
    reasons, profiles = [], profiles_of(table)
    if not labels and columns.label_kind and columns.label_kind.problem_type == "regression":
        guess = _score_column(table.name, [each for each in profiles if each.index not in (*texts, *groups)])
        labels, reasons = guess.columns, [guess.reason]
    elif not labels and (one_hot := one_hot_labels(profiles, without=(*texts, *groups))):
        labels, reasons = tuple(column.index for column in one_hot), [description(one_hot)]
    elif not labels:
        guess = guess_label(table.name, profiles, without=(*texts, *groups))
        labels, reasons = guess.columns, [guess.reason]
    if not texts:
        guess = guess_texts(table.name, profiles, without=(*labels, *groups))
        texts, reasons = guess.columns, [*reasons, guess.reason]
    if set(labels) & set(texts):
        raise PenwrightError(f"{table.name}: text and label are the same column '{table.columns[labels[0]]}'")
    if set(groups) & {*texts, *labels}:
        raise PenwrightError(
            f"{table.name}: '{table.columns[groups[0]]}' cannot be both the group and the text or label"
        )
    own = {"group": groups} if groups else {}
    return _chosen(table, profiles, {"text": texts, "label": labels, **own}, reasons)


def _score_column(table: str, profiles: Sequence[Profile]) -> Guess:
    """Choose the score column: the only column of numbers, or the one with a suitable name or with fractions."""
    numbers = [each for each in profiles if each.kind == NUMBERS and not each.is_constant]
    named = [each for each in numbers if each.key in ("score", *LABEL_NAMES, *RATING_NAMES)]
    for some, why in ((named[:1], "is a common name for scores"), (numbers, "is the only column of numbers")):
        if len(some) == 1:
            return Guess((some[0].index,), f"'{some[0].name}' {why}")
    scales = [each for each in numbers if each.is_scale]
    if len(scales) == 1:
        return Guess((scales[0].index,), f"'{scales[0].name}' is the only column with fractional numbers")
    options = [Option((setting("label", each),), each.described()) for each in numbers or profiles]
    raise Undecided(f"{table}: which column is the score?", options)


def text_columns(table: Table, columns: Columns) -> ColumnChoice:
    """Choose the columns that hold running text."""
    if not table.columns:
        raise PenwrightError(f"{table.name} has no rows")
    texts, reasons, profiles = _known(table, columns, "text"), [], profiles_of(table)
    if not texts:
        is_only = len(profiles) == 1 and profiles[0].kind != LISTS
        guess = Guess((0,), "") if is_only else guess_texts(table.name, profiles)
        texts, reasons = guess.columns, [guess.reason]
    return _chosen(table, profiles, {"text": texts}, reasons)


def _known(table: Table, columns: Columns, key: str) -> tuple[int, ...]:
    """Return the columns in the settings or, failing that, those used in training; () if they must be guessed."""
    requested = requested_columns(columns, key)
    if requested:
        return tuple(find_column(table, each) for each in requested)
    return _as_trained(table, columns.as_trained.get(key, ()), key)


def _as_trained(table: Table, trained: Sequence[tuple[str, int]], key: str) -> tuple[int, ...]:
    """Return the columns used in training, by name if this table has a header, and otherwise by number.

    Raises PenwrightError if only some of them are there, or if none is and no name suggests another.
    """
    without_header = table.columns == tuple(str(number) for number in range(1, len(table.columns) + 1))
    lowered = [name.casefold() for name in table.columns]
    found, missing = [], []
    for name, number in trained:
        if name in table.columns:
            found.append(table.columns.index(name))
        elif name.casefold() in lowered:
            found.append(lowered.index(name.casefold()))
        elif (without_header or name.isdecimal()) and number <= len(table.columns):
            found.append(number - 1)
        else:
            missing.append(name)
    if missing and (found or not _is_clear_by_name(table, key)):
        which, was = ("column", "was") if len(missing) == 1 else ("columns", "were")
        raise PenwrightError(
            f"{table.name} has no {which} {', '.join(map(repr, missing))}, which {was} the {key} in training; "
            f"its columns are: {', '.join(table.columns)}. Choose the {key} column: --set data.{key}=..."
        )
    return tuple(found)


def _is_clear_by_name(table: Table, key: str) -> bool:
    """Return whether the column names alone identify the column for this role."""
    find_named = {"text": named_text, "label": named_label}.get(key, named_pair)
    return find_named(profiles_of(table)) is not None


def _chosen(
    table: Table, profiles: Sequence[Profile], indices: dict[str, tuple[int, ...]], reasons: Sequence[str]
) -> ColumnChoice:
    """Return the chosen columns, with a remark on the choice."""
    why = "; ".join(filter(None, reasons))
    used = {index for each in indices.values() for index in each}
    rest = unused(profiles, used)
    if "text" in indices and (advice := advice_for_more_texts(profiles, indices["text"], used)):
        rest += f"; {advice}"
    remarks = [f"{table.name}: {why}" if why else "", f"{table.name}: {rest}" if rest else ""]
    return ColumnChoice(indices, "\n".join(filter(None, remarks)), profiles)
