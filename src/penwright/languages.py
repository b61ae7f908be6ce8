"""Detection of the languages of sentence pairs from the names of files and columns.

If one side should be English, common English words in the texts show which side it is.
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from penwright.config import DataSettings


def split_words(text: str) -> tuple[str, ...]:
    """Split a text at white space."""
    return tuple(text.split())


LANGUAGE_NAMES = frozenset(
    split_words("""
    english german french spanish polish czech italian russian chinese
    af ar be bg bn bs ca cs cy da de el en eo es et eu fa fi fr ga gl gu he hi hr hu hy id is it ja ka kk ko lt lv mk ml
    mn mr ms mt nb ne nl nn no pl pt ro ru sk sl sq sr sv sw ta te th tl tr uk ur uz vi zh
    """)
)
CODES = dict(
    word.split("=")
    for word in split_words("""
    english=en german=de french=fr spanish=es polish=pl czech=cs italian=it russian=ru chinese=zh
    eng=en deu=de ger=de fra=fr fre=fr spa=es pol=pl ces=cs cze=cs ita=it rus=ru zho=zh chi=zh cmn=zh por=pt nld=nl
    dut=nl jpn=ja kor=ko ara=ar arb=ar tur=tr ukr=uk swe=sv dan=da nor=no nob=nb nno=nn fin=fi hun=hu ron=ro rum=ro
    bul=bg hrv=hr srp=sr slk=sk slo=sk slv=sl est=et lav=lv lvs=lv lit=lt ell=el gre=el heb=he hin=hi ben=bn tam=ta
    tel=te urd=ur fas=fa per=fa pes=fa vie=vi tha=th ind=id msa=ms may=ms tgl=tl cat=ca glg=gl eus=eu baq=eu gle=ga
    cym=cy wel=cy isl=is ice=is sqi=sq alb=sq mkd=mk mac=mk bos=bs bel=be kat=ka geo=ka kaz=kk uzb=uz afr=af swa=sw
    epo=eo guj=gu mar=mr mal=ml
    """)
)  # maps language names and three-letter codes to two-letter codes
CODE = re.compile(r"[a-z]{2,3}(-[A-Za-z]{2,4})?")
PAIR = re.compile(r"(?:^|[^A-Za-z])([a-z]{2,3})-([a-z]{2,3})(?:[^A-Za-z]|$)")
FORMAT_SUFFIXES = {".gz", ".xz", ".bz2", ".zst", ".txt", ".tsv", ".csv", ".json", ".jsonl", ".tmx"}
FORMAT_SUFFIXES |= {".srt", ".vtt", ".ass", ".sgm", ".sgml"}
PACKED = re.compile(r"\.(gz|xz|bz2|zst)$")
# Splits a path into words. A language code such as pt_BR counts as one word.
PART = re.compile(r"[a-z]{2,3}[-_](?:[A-Z]{2}|[A-Z][a-z]{3}|419)(?![A-Za-z])|[^\W_]+")
ENGLISH = frozenset(split_words("the of and is are was you it that this have with"))
SOURCES, TARGETS = {"source", "src", "input"}, {"target", "tgt", "trg", "ref", "reference", "output"}


class Languages(NamedTuple):
    """The codes of the source and the target language."""

    source: str
    target: str


class Sides(NamedTuple):
    """The languages in the names of two files, and whether the target file comes first."""

    names: tuple[str, str]  # language codes; "" if the names only distinguish source and target
    is_target_first: bool


def languages_between(names: Sequence[str]) -> Languages | None:
    """Return the languages of a corpus, given the names of its source and target; None if one is unknown."""
    codes = [_code(name) for name in names]
    return Languages(*codes) if len(codes) == 2 and all(codes) else None


def _code(name: str) -> str:
    """Return the code of a language (de for German and deu, pt-br for pt_BR), or "" for any other word."""
    language, *region = name.lower().replace("_", "-").split("-")
    language = CODES.get(language, language)
    return "-".join([language, *region]) if language in LANGUAGE_NAMES else ""


def without_region(code: str) -> str:
    """Return a language without its region or script: de for de-CH, German, deu and deu_Latn."""
    language = re.split("[-_]", code.lower())[0]
    return CODES.get(language, language)


def same_languages(first: Languages, second: Languages) -> bool:
    """Return whether two language pairs are the same if regions and scripts are ignored."""
    return [*map(without_region, first)] == [*map(without_region, second)]


def are_reversed(first: Languages, second: Languages) -> bool:
    """Return whether one language pair is the other in reverse, if regions and scripts are ignored."""
    return not same_languages(first, second) and same_languages(first, Languages(second.target, second.source))


def side_names(first: str, second: str) -> Sides | None:
    """Return the languages of two files, and which of them is the source, judging by their paths.

    Return None if the paths differ in anything but languages and roles (such as source and target).

    Examples: a.en a.de, train.en.txt train.de.txt, src-train.txt tgt-train.txt, en/a.txt de/a.txt.
    """
    parts = [PART.findall(PACKED.sub("", path)) for path in (first, second)]
    if len(parts[0]) != len(parts[1]):
        return None
    different = {(a, b) for a, b in zip(*parts, strict=True) if a != b}
    roles = {pair for pair in different if _roles(*pair) is not None}
    languages = different - roles
    if not different or len(roles) > 1 or len(languages) > 1:
        return None
    codes = [(_code(a), _code(b)) for a, b in languages]
    if any(not (a and b) for a, b in codes):
        return None
    return Sides(codes[0] if codes else ("", ""), any(_roles(*pair) == (False, True) for pair in roles))


def are_named_in_pairs(paths: Sequence[str]) -> bool:
    """Return whether files are named like both sides of a translation: a.en a.de b.en b.de, or a.en b.en a.de b.de."""
    half = len(paths) // 2
    orders = (zip(paths[::2], paths[1::2], strict=False), zip(paths[:half], paths[half:], strict=False))
    return len(paths) % 2 == 0 and any(all(side_names(*pair) for pair in pairs) for pairs in orders)


def _roles(first: str, second: str) -> tuple[bool, bool] | None:
    """Return, for each word, whether it names the source ("src"); None unless the other names the target ("tgt")."""
    words = first.lower(), second.lower()
    if (words[0] in SOURCES and words[1] in TARGETS) or (words[0] in TARGETS and words[1] in SOURCES):
        return words[0] in SOURCES, words[1] in SOURCES
    return None


def languages_in(name: str) -> Languages | None:
    """Return the languages in a name like de-en or wmt14.de-en.tsv; None if there are none."""
    match = PAIR.search(name)
    return Languages(*match.groups()) if match else None


def requested_languages(data: DataSettings) -> Languages | None:
    """Return the languages in the column settings or the file names; None if they are unknown."""
    if isinstance(data.source, str) and isinstance(data.target, str):
        codes = [column.lower() for column in (data.source, data.target)]
    else:
        codes = list(dict.fromkeys(map(side_name, data.train)))
    if len(codes) == 2 and all(map(CODE.fullmatch, codes)):
        return Languages(*codes)
    pairs = {languages for path in data.train if (languages := languages_in(Path(path).name))}
    return pairs.pop() if len(pairs) == 1 else None


def checked_languages(named: Languages | None, pairs: Iterable[tuple[str, str]]) -> Languages | None:
    """Return the languages in the order of the texts: swap them if English words show that `named` is reversed.

    A file name such as spa-eng.tsv has the names of the languages, but not always in the order of the columns.
    """
    if named is None or (_code(named.source) == "en") == (_code(named.target) == "en"):
        return named
    counts = [0, 0]
    for pair in pairs:
        for side, text in enumerate(pair):
            counts[side] += sum(word in ENGLISH for word in text.lower().split())
    of_english, of_other = counts if _code(named.source) == "en" else reversed(counts)
    return Languages(named.target, named.source) if of_other > 2 * of_english else named


def side_name(path: str) -> str:
    """Return the part of a file name that may be a language (`de` for train.de.gz and news-de.txt), or ""."""
    suffixes = [suffix[1:] for suffix in Path(path).suffixes if suffix not in FORMAT_SUFFIXES]
    if suffixes:
        return suffixes[-1]
    last = re.split("[-_]", Path(path).name.partition(".")[0].lower())[-1]
    return last if last in LANGUAGE_NAMES else ""
