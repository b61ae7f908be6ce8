"""Plans and their construction: the user's settings are kept, and each automatic choice is recorded with its reason."""

from collections.abc import Sequence
from typing import NamedTuple

from penwright.config import BUDGETS, Recipe, Table, merge
from penwright.model.size import Size
from penwright.text import amount


class Choice(NamedTuple):
    """A setting that was chosen automatically, with the reason."""

    key: str
    value: object
    reason: str


class Plan(NamedTuple):
    """A recipe, the choices behind it, and the size of its model."""

    recipe: Recipe
    choices: tuple[Choice, ...]
    size: Size
    epochs: float  # estimated passes over the corpus
    minutes_wanted: float | None = None  # minutes that this model needs if the budget is far too small, else None
    tokens: float = 0.0  # estimated number of target tokens in the budget
    vocab_size: int = 0  # size of the vocabulary; an estimate until the tokenizer is trained

    def __repr__(self) -> str:
        training = self.recipe.training
        budget = next((f"{value:g} {name}" for name in BUDGETS if (value := getattr(training, name)) is not None), "")
        size, epochs = f"{self.size.parameters:,} parameters", amount(self.epochs, "epoch")
        return f"<Plan to {self.recipe.task}: {size}, {budget}, {epochs}>"


class Choices:
    """A recipe under construction: its settings, and the reasons for the automatic choices."""

    def __init__(self, table: Table):
        self.table = table
        self.made: list[Choice] = []

    @property
    def is_new(self) -> bool:
        """Whether the model is trained from scratch, without teachers."""
        return not (self.section("finetuning") or self.section("distillation"))

    @property
    def is_pretrained(self) -> bool:
        """Whether the model starts from one that was imported from another project."""
        tokenizer = self.section("tokenizer")
        is_imported = tokenizer.get("type") == "imported" and not tokenizer.get("from")
        return is_imported and bool(self.section("finetuning"))

    def suggest(self, key: str, value: object, reason: str) -> None:
        """Set a value unless the setting already has one. The key is a dotted name, e.g. model.d_model."""
        path = key.split(".")
        subtable = self.table
        for table in path[:-1]:
            subtable = subtable.get(table, {})
        if path[-1] not in subtable:
            self.table = _filled_in(self.table, path, value)
            self.made.append(Choice(key, value, reason))

    def revise(self, key: str, value: object, reason: str) -> None:
        """Replace a suggested value. Keep a value that the user has set."""
        for index, choice in enumerate(self.made):
            if choice.key == key:
                self.table = _filled_in(self.table, key.split("."), value)
                self.made[index] = Choice(key, value, reason)

    def suggest_type(self, name: str, variant: Table, reason: str) -> None:
        """Add a type and its settings to a table of the recipe, unless the table has a type. Keep existing settings."""
        section = self.section(name)
        if "type" not in section:
            self.table = merge(self.table, {name: merge(variant, section)})
            self.made.append(Choice(f"{name}.type", variant["type"], reason))

    def withdraw(self, name: str, key: str) -> None:
        """Remove a setting, as if the user had not given it."""
        self.table = {**self.table, name: {each: value for each, value in self.section(name).items() if each != key}}

    def section(self, name: str) -> Table:
        """Return a table of the recipe with the settings chosen so far."""
        table_so_far: Table = self.table.get(name, {})
        return table_so_far

    def number(self, key: str, default: float = 0.0) -> float:
        """Return a numeric setting, or the default if the setting is missing or not a number."""
        name, _, inner = key.partition(".")
        value = self.section(name).get(inner, default)
        return float(value) if isinstance(value, int | float) else default


def _filled_in(table: Table, path: Sequence[str], value: object) -> Table:
    """Return the table with this value set. Unlike merge(), another `type` keeps all other settings of its table."""
    first, *rest = path
    return {**table, first: _filled_in(table.get(first, {}), rest, value) if rest else value}
