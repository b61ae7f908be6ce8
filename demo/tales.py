"""Short tales made by rules, for the writer of the demo: text that is pleasant to read and belongs to nobody.

Every tale keeps its own name, pronouns, gift and promise from the first sentence to the last. A model that learns the
tales must remember them, too.
"""

from random import Random
from typing import NamedTuple


class Hero(NamedTuple):
    """The main person of a tale."""

    name: str
    trade: str
    he: str
    him: str
    his: str


GIRLS = ("Mira", "Ida", "Tova", "Nell", "Agnes", "Rosa", "Livia", "Marta", "Odile", "Wren")
BOYS = ("Jonas", "Emil", "Tomas", "Bran", "Otto", "Felix", "Anselm", "Piet", "Hugo", "Levin")
TRADES = (
    "baker", "clockmaker", "ferryman", "shepherd", "lamplighter", "weaver", "beekeeper", "bell ringer", "potter",
    "fiddler", "gardener", "fisherman", "bookbinder", "miller", "tailor",
)  # fmt: skip
PLACES = (
    "by the grey sea", "at the edge of the great forest", "under the glass mountain", "in a town without a clock",
    "where three rivers meet", "on the island of gulls", "behind the last windmill", "in the valley of fog",
    "at the foot of the old lighthouse", "in a village that no map shows",
)  # fmt: skip
TREASURES = (
    "a silver key", "a blue lantern", "a wooden flute", "a letter without a name", "a brass compass",
    "a small green book", "a coat with nine pockets", "a bell that never rang", "a jar of honey",
    "a stone with a hole in it", "a red umbrella",
)  # fmt: skip
TROUBLES = (
    "the wind forgot how to blow", "all the bells of the town fell silent", "the river began to flow uphill",
    "the moon did not rise", "snow fell in the middle of summer", "every candle went out at once",
    "the birds flew away and did not come back", "nobody could remember a single song", "the well ran dry",
    "a fog came in and would not leave",
)  # fmt: skip
CREATURES = (
    "an old fox", "a very tall heron", "a hedgehog in spectacles", "a tired dragon", "a white owl", "a polite bear",
    "a goose with a limp", "a giant who was afraid of mice", "a talking pike", "a cat as black as ink",
)  # fmt: skip
TASKS = (
    "count the stars until one is missing", "carry water in a sieve", "tell a story that has no end",
    "find a door in the middle of a field", "make a stone laugh", "sing until the morning comes",
    "walk three times around the world, or around the house", "guess what the night is afraid of",
)  # fmt: skip
ANSWERS = (
    "thought for a long time, and then laughed", "did not sleep that night", "asked the rain, and the rain knew",
    "tried twice and failed twice", "sat down and shared the last piece of bread", "began at once",
)  # fmt: skip
ENDINGS = (
    "and nobody in that place was ever in a hurry again", "and the soup was still warm", "and that is why cats smile",
    "and on quiet evenings you can still hear it", "and the rest of the story belongs to the wind",
    "and all who were there say that it is true",
)  # fmt: skip
SEASONS = ("spring", "summer", "autumn", "winter")


def tale(random: Random) -> str:
    """Return a tale of three paragraphs."""
    pick = random.choice
    is_girl = random.random() < 0.5
    pronouns = ("she", "her", "her") if is_girl else ("he", "him", "his")
    hero = Hero(pick(GIRLS if is_girl else BOYS), pick(TRADES), *pronouns)
    treasure, creature, trouble, place, task = map(pick, (TREASURES, CREATURES, TROUBLES, PLACES, TASKS))
    the_treasure, the_creature = (f"the {each.partition(' ')[2]}" for each in (treasure, creature))
    he = hero.he.capitalize()
    opening = pick((
        f"Once upon a time, {place}, there lived a {hero.trade} whose name was {hero.name}.",
        f"There was once a {hero.trade} called {hero.name}, who lived {place}.",
        f"{place[0].upper()}{place[1:]}, long ago, lived {hero.name}, a {hero.trade}.",
    ))  # fmt: skip
    owning = pick((
        f"{he} owned nothing but {treasure}, and {hero.he} would not have sold it for a kingdom.",
        f"The only thing that {hero.he} had from {hero.his} grandmother was {treasure}.",
        f"Every evening {hero.he} took out {treasure}, looked at it, and put it away again.",
    ))  # fmt: skip
    setting_out = pick((
        f"One {pick(SEASONS)} morning {trouble}. \"Somebody must do something,\" said {hero.name}, and went.",
        f"Then, one night in {pick(SEASONS)}, {trouble}. So {hero.name} took {the_treasure} and set out.",
        f"But in the seventh {pick(SEASONS)} {trouble}, and {hero.name} was the only one who was not afraid.",
    ))  # fmt: skip
    meeting = pick((
        f"On the road {hero.he} met {creature}. \"Where are you going, {hero.name}?\" asked {the_creature}.",
        f"After three days {hero.he} came to a bridge, and on the bridge sat {creature}. \"Good evening,\" it said.",
        f"In the middle of the wood {hero.he} heard a voice. It was {creature}. \"Do not be frightened,\" it said.",
    ))  # fmt: skip
    bargain = pick((
        f"\"I can help you,\" said {the_creature}, \"but first you must {task}.\"",
        f"\"Give me {the_treasure},\" said {the_creature}, \"or else {task}.\"",
        f"\"There is only one way,\" said {the_creature}. \"You must {task}.\"",
    ))  # fmt: skip
    answer = f"{hero.name} {pick(ANSWERS)}."
    solution = pick((
        f"In the end {hero.he} gave {the_treasure} to {the_creature}, and at that moment everything was as before.",
        f"When the sun rose, it was done, and {the_creature} bowed so low that its nose touched the ground.",
        f"\"Nobody has ever done that,\" said {the_creature}, and wept a little, and opened the way.",
    ))  # fmt: skip
    homecoming = pick((
        f"So {hero.name} the {hero.trade} went home with {the_treasure}, {pick(ENDINGS)}.",
        f"They ate together, {hero.name} and {the_creature}, {pick(ENDINGS)}.",
        f"Since that day {the_creature} visits {hero.him} every {pick(SEASONS)}, {pick(ENDINGS)}.",
    ))  # fmt: skip
    return f"{opening} {owning}\n{setting_out} {meeting} {bargain}\n{answer} {solution} {homecoming}\n"
