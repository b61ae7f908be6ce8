"""Labels of texts: cleaning, counting, and warnings about doubtful labels."""

import ast
import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from math import isnan, nan
from shlex import quote
from unicodedata import category, normalize

from penwright.data.corpus import BETWEEN_LABELS, Broken, Columns, Corpus, LabelKind, Labelled
from penwright.data.readers.tables import Table, select
from penwright.data.rows import TwoSides
from penwright.data.scores import NUMBER, Comma, number_label
from penwright.errors import PenwrightError
from penwright.text import BETWEEN_TEXTS, count

JOINERS = "\u200c\u200d"  # invisible characters that are needed to write some languages and emoji
SEPARATORS = "|;,"
CLEAR_SEPARATORS = "|;"  # characters that hardly ever occur within a label
SEVERAL = 0.1  # assume several labels per cell if at least this share of the cells contains a separator
BLANK_IN_PAIR = Broken("one text of the pair is blank")
FEW_NUMBERS = 10  # more different numbers than this are probably measurements, not class names
# A string or number of a list in Python notation, and the space after it if no comma follows, as NumPy writes lists.
ITEM = re.compile(r"""('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[\w.+-]+)(\s+(?=['"\w+-]))?""")
# Spaces, hyphens and underscores that labels may be written without: not those of "1-11", between two digits.
JOINTS = re.compile(r"(?<!\d)\s+|\s+(?!\d)|(?<=\w)(?<![\d_-])[_-]+(?=\w)|(?<=\d)[_-]+(?=[^\W\d_-])")
PLACEHOLDERS = {"na", "n/a", "#n/a", "?", "-", "none", "nan", "null"}  # values that mean "no label", in lower case


def single_label(label: str, location: str) -> str:
    """Return a normalized label. A list of one label counts as that label. Raises PenwrightError for a longer list."""
    items = _items(label)
    if items is not None and len(items) > 1:
        raise PenwrightError(
            f"{location} has several labels ({', '.join(items)}), but each text should have one. Keep one of them, or "
            "learn any number of labels for each text: --set model.problem_type=multi_label_classification"
        )
    return tidy_label(label if items is None else "".join(items))


def with_tidy_labels(
    table: Table, texts: Sequence[int], label: int, columns: Columns, *, comma: Comma, unused: set[str]
) -> Iterator[TwoSides | Broken]:
    """Yield the text and the label of every row. Labels are normalized, and renamed as specified in the settings.

    `comma` is the meaning of the commas in scores, as in comma_in(). Names of labels that occur are removed from
    `unused`.
    """
    tidy: dict[str, str | Broken] = {}
    names, (problem_type, separator) = columns.label_names, columns.label_kind or LabelKind()
    for number, row in enumerate(select(table, texts, label, BETWEEN_TEXTS if columns.text_pairs else " ")):
        if isinstance(row, Broken):
            yield row
            continue
        text, raw_label = row
        if columns.text_pairs and text.count(BETWEEN_TEXTS) != 1 and text:
            yield BLANK_IN_PAIR
            continue
        text = text.replace("\t", " ") if columns.text_pairs else text  # in user input, a tab separates the two texts
        if raw_label in tidy:
            pass
        elif problem_type == "multi_label_classification":
            tidy[raw_label] = label_set(raw_label, separator, names, unused)
        elif problem_type == "regression":
            tidy[raw_label] = number_label(renamed(raw_label, names, unused), comma)
        else:
            label_read = raw_label if raw_label in names else single_label(raw_label, table.location(number))
            tidy[raw_label] = renamed(label_read, names, unused)
        target = tidy[raw_label]
        yield target if isinstance(target, Broken) else (text, target)


def label_set(cell: str, separator: str | None, names: Mapping[str, str], unused: set[str]) -> str:
    """Return the labels of a cell, normalized and sorted, in the format of `Labelled.label`.

    A blank cell has no label (""). An empty list means that none of the labels applies.
    """
    items = _items(cell)
    if items == []:
        return BETWEEN_LABELS
    if items is None:
        items = [cell] if separator is None else cell.split(separator)
    labels = {tidy_label(item.strip()) for item in items} - {""}
    return BETWEEN_LABELS.join(sorted({renamed(label, names, unused) for label in labels} - {""}))


def renamed(label: str, names: Mapping[str, str], unused: set[str]) -> str:
    """Return the new name of a label, or the label itself. Other notations of a number, true or false match.

    The key of `names` that is used is removed from `unused`.
    """
    if label not in names and (NUMBER.fullmatch(label) or label.lower() in ("true", "false")):
        label = next((name for name in names if label_key(name) == label_key(label)), label)
    unused.discard(label)
    return names.get(label, label)


def _items(text: str) -> list[str] | None:
    """Return the items of a list in JSON or in the notation of Python or NumPy, or None."""
    if not (text.startswith("[") and text.endswith("]")):
        return None
    with_commas = ITEM.sub(lambda item: item[1] + (", " if item[2] else ""), text)
    for parse, notation in ((json.loads, text), (ast.literal_eval, with_commas)):
        try:
            items = parse(notation)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        return [item if isinstance(item, str) else json.dumps(item, default=str) for item in items]
    return None


def kind_of_labels(table: str, labels: Collection[str], *, is_named: bool) -> LabelKind:
    """Return the kind of labels in a column: several labels per text if cells are lists or have a clear separator.

    If the settings name the column (`is_named`), cells are not split at separators. Raises PenwrightError in doubtful
    cases.
    """
    if sum(len(_items(label) or ()) > 1 for label in labels) >= max(2, SEVERAL * len(labels)):
        return LabelKind("multi_label_classification")
    separator = None if is_named else find_separator(labels)
    if separator is None:
        return LabelKind()
    if separator in CLEAR_SEPARATORS:
        return LabelKind("multi_label_classification", separator)
    example = min(label for label in labels if separator in label.strip(separator))
    raise PenwrightError(
        f"{table}: labels such as '{example}' may combine several labels. To learn any number of labels for each text: "
        f"--set data.label_separator={quote(separator)}. To learn each combination as a class of its own, name the "
        "column: --set data.label=..."
    )


def find_separator(labels: Collection[str]) -> str | None:
    """Return the separator in labels such as `action|comedy` if the parts occur in several labels, or else None.

    If all parts are labels themselves, a single such label is enough.
    """
    for separator in SEPARATORS:
        joined = [label for label in labels if separator in label.strip(separator)]
        parts = {part.strip() for label in joined for part in label.split(separator)}
        recur = len(parts) < len(joined) or 2 * len(parts & set(labels)) >= len(parts)
        least = 1 if parts <= set(labels) else 2
        if len(joined) >= max(least, SEVERAL * len(labels)) and recur:
            return separator
    return None


def tidy_label(label: str) -> str:
    """Return a label on one line, without invisible characters, with plain spaces and composed accents (NFC)."""
    if label.isascii():
        return " ".join(label.split())
    visible = (c for c in normalize("NFC", label) if category(c) != "Cf" or c in JOINERS)
    return " ".join("".join(visible).split())


def label_cleaning_remark(table: str, labels: Iterable[str]) -> str:
    """Return a remark on labels that `tidy_label` changes; "" if there are none."""
    changed = sorted(label for label in labels if tidy_label(label) != label)
    if not changed:
        return ""
    first = changed[0].encode("unicode_escape").decode("ascii")
    return (
        f"{table}: {count(len(changed), 'label')} with decomposed accents, extra spaces or invisible characters, such "
        f"as {first}, read as {tidy_label(changed[0])}"
    )


def _look_alikes(labels: Iterable[str]) -> Iterator[str]:
    """Yield warnings about labels that differ only in case, spaces, look-alike characters or number format."""
    for group in _by_key(labels).values():
        if len(group) > 1:
            *others, last = (json.dumps(label, ensure_ascii=False) for label in group)
            names = ", ".join(f"{other}={last}" for other in others)
            yield (
                f"the labels {', '.join(map(repr, group))} look alike and are learned as different classes; to merge "
                f"them: --set {quote(f'data.label_names={{{names}}}')}"
            )


def _by_key(labels: Iterable[str]) -> dict[str, list[str]]:
    """Return groups of labels that look alike, by their keys."""
    groups: dict[str, list[str]] = {}
    for label in labels:
        groups.setdefault(label_key(label), []).append(label)
    return groups


def label_key(label: str) -> str:
    """Return a key that is the same for all labels that look alike."""
    if NUMBER.fullmatch(label):
        return str(float(label))
    visible = "".join(c for c in normalize("NFKC", label).casefold() if category(c) != "Cf")
    return JOINTS.sub("", visible) or label


def label_matcher(labels: Iterable[str]) -> Callable[[str], str | None]:
    """Return a function that returns the label that a text means, in the notation of `labels`, or None.

    Labels that differ only in notation (1 and 1.0) match.
    """
    keys = _by_key(labels)

    def match(label: str) -> str | None:
        known = keys.get(label_key(label), [])
        return label if label in known else known[0] if len(known) == 1 else None

    return match


def count_labels(corpus: Corpus[Labelled], held_out: Set[str]) -> dict[str, int]:
    """Return the labels of the training set in order, with their counts.

    Raises PenwrightError if there are fewer than two labels, or if a held-out text has a label that no training text
    has.
    """
    counts = Counter(label for example in corpus.training for label in example.labels)
    labels = sorted(counts, key=_label_order)
    if len(labels) < 2:
        columns = ", ".join(name for name, _ in corpus.roles.get("label", ()))
        found = f"all texts have the label '{labels[0]}'" if labels else "no training text has a label"
        where = f" (label columns: {columns})" if columns and not labels else ""
        raise PenwrightError(
            f"{corpus.files[0].path}: {found}{where}; a classifier needs at least two different labels"
        )
    match = label_matcher(labels)
    if unknown := sorted((label for label in held_out if match(label) is None), key=_label_order):
        raise PenwrightError(
            f"the held-out texts have labels that no training text has: {', '.join(unknown[:5])}; "
            f"training labels are: {', '.join(labels[:10])}. Use the same labels in all files."
        )
    return {label: counts[label] for label in labels}


def _label_order(label: str) -> tuple[bool, float, str]:
    """Return a sort key: numbers by value, then other labels alphabetically."""
    try:
        number = float(label)
    except ValueError:
        number = nan
    return (False, number, label) if not isnan(number) else (True, 0.0, label)


def notes_on_labels(counts: Mapping[str, int], held_out: Set[str]) -> list[str]:
    """Describe the labels to learn, with their counts; add warnings about doubtful labels."""
    shown = [f"{label} ({n:,})" for label, n in counts.items()]
    more = f" and {len(shown) - 20} more" if len(shown) > 20 else ""
    learned = f"{count(len(counts), 'label')} to learn: {', '.join(shown[:20])}{more}"
    return [learned, *_warnings_about(counts, held_out), *_placeholders(counts), *_look_alikes(counts)]


def _placeholders(counts: Mapping[str, int]) -> Iterator[str]:
    """Yield a warning if some labels are common markers of a missing value."""
    placeholders = [label for label in counts if label.lower() in PLACEHOLDERS]
    if placeholders:
        names = ", ".join(f'{json.dumps(label, ensure_ascii=False)}=""' for label in placeholders)
        n_texts = count(sum(counts[label] for label in placeholders), "training text")
        yield (
            f"{n_texts} with the label {' or '.join(map(repr, placeholders))}, which may mean that the label is "
            f"missing; to drop these texts: --set {quote(f'data.label_names={{{names}}}')}"
        )


def _warnings_about(counts: Mapping[str, int], held_out: Set[str]) -> Iterator[str]:
    """Yield warnings about labels that no held-out text has, or that may be numbers."""
    seen = set(map(label_matcher(counts), held_out))
    unseen = [label for label in counts if label not in seen]
    if unseen:
        names = ", ".join(unseen[:5]) + (", ..." if len(unseen) > 5 else "")
        yield f"no scores for {count(len(unseen), 'label')} without held-out texts: {names}"
    if len(counts) > FEW_NUMBERS and all(NUMBER.fullmatch(label) for label in counts):
        yield f"labels such as {next(iter(counts))} are read as class names, not as numbers"
