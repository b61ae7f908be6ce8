"""Make the corpora of the demo: tales, the help texts of Python, and German dates and numbers with translations.

The pairs come from locale data, so every translation is exact. Word order, number words and month names differ between
the languages, and there are more pairs than a model can memorize.
"""

import random
import sys
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path
from pydoc_data.topics import topics

from babel.dates import format_date
from num2words import num2words
from tales import tale

TALES, PAIRS = 1_500, 20_000
FIRST_DAY, LAST_DAY = date(1900, 1, 1), date(2099, 12, 31)


def a_day(random: random.Random) -> tuple[str, str]:
    """Return a date, sometimes inside a phrase: Sonntag, 9. Februar 1986 -> Sunday, February 9, 1986."""
    day = FIRST_DAY + timedelta(random.randrange((LAST_DAY - FIRST_DAY).days))
    if random.random() < 0.5:
        return format_date(day, "full", "de"), format_date(day, "full", "en")
    german = f"am {format_date(day, 'EEEE', 'de')}, dem {format_date(day, 'long', 'de')}"
    return german, f"on {format_date(day, 'EEEE', 'en')}, {format_date(day, 'long', 'en')}"


def a_number(random: random.Random) -> tuple[str, str]:
    """Return a number (tens and units swap places): siebenhundertdreiundvierzig -> seven hundred and forty-three."""
    number = random.randrange(10 ** random.randint(2, 6))
    return num2words(number, lang="de"), num2words(number, lang="en")


def an_ordinal(random: random.Random) -> tuple[str, str]:
    """Return a day of a month: der vierundzwanzigste März -> the twenty-fourth of March."""
    day = date(2024, 1, 1) + timedelta(random.randrange(366))
    german = f"der {num2words(day.day, lang='de', to='ordinal')} {format_date(day, 'MMMM', 'de')}"
    return german, f"the {num2words(day.day, lang='en', to='ordinal')} of {format_date(day, 'MMMM', 'en')}"


def main(folder: Path) -> None:
    """Write the corpora into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "python-topics.txt").write_text("\n\n".join(topics.values()), encoding="utf-8")
    chance = random.Random(1)
    (folder / "tales.txt").write_text(
        "\n".join(tale(random.Random(number)) for number in range(TALES)), encoding="utf-8"
    )
    kinds: list[Callable[[random.Random], tuple[str, str]]] = [a_day, a_number, an_ordinal]
    pairs = {chance.choice(kinds)(chance) for _ in range(PAIRS)}
    lines = "".join(f"{german}\t{english}\n" for german, english in sorted(pairs))
    (folder / "german-english.tsv").write_text(f"de\ten\n{lines}", encoding="utf-8")
    print(f"{folder}: {TALES:,} tales, {len(topics)} Python help texts, {len(pairs):,} German-English pairs")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
