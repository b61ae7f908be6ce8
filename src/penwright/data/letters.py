"""Guesses at the encoding of a text from its letters."""

import re
from collections import Counter
from collections.abc import Callable, Set

from charset_normalizer import from_bytes

CANDIDATES = [
    *("cp1252", "cp1250", "iso8859_2", "cp1253", "cp1254"),
    *("cp1251", "koi8_r", "koi8_u", "iso8859_5", "cp866"),  # Cyrillic
    *("cp1255", "iso8859_8", "cp1256", "iso8859_6", "cp874"),  # Hebrew, Arabic, Thai
    *("cp932", "euc_jp", "gb18030", "big5", "big5hkscs", "cp949"),
]
CARONS = b"\x8a\x8e\x9a\x9e"  # Š, Ž, š, ž in Windows-1250 and Windows-1252; rare in the languages of the latter
TURKISH = 0xFD  # ı in Windows-1254: 40 % of Turkish non-ASCII letters; ý in Windows-1252: rare even in Icelandic
# Letters and signs of Hungarian in Windows-1250 and ISO 8859-2.
HUNGARIAN = "ÁÉÍÓÖŐÚÜŰáéíóöőúüű„”“–—…’‚§°«»\u00a0".encode("cp1250")
# Bytes in words that are letters only in encodings of DOS and Mac; elsewhere, they are signs or capital letters.
OLD_LETTERS = re.compile(
    rb"(?<=[A-Za-z])[\x80-\x84\x86\x87\x89\x8b\x98\x9b\xa1-\xa4\xa7\xd5](?=[a-z])|(?<=[a-z])[\x88\x8a\x8c-\x90]"
)
OLD = {  # encodings of DOS and Mac, and their common letters and signs
    "cp850": "àáâãäåæçèéêëìíîñòóôõöøùúûüß",
    "mac_roman": "àáâãäåæçèéêëìíîïñòóôõöøùúûüß“”’",
    "cp852": "áäąćčďéěęíľłńňóôöőřśšťúůüűýźžżß",
}
MAC_YA = re.compile(rb"[\xe0-\xfe]\xdf"), re.compile(rb"[\xe0-\xfe]\xff")  # я in a word, on a Mac and in Windows-1251
KATAKANA = re.compile("[ァ-ヺー]{2}")
MAX_STRANGENESS = 0.4  # maximum mess ratio (as charset_normalizer defines it); pangrams stay below it


def guess_encoding(sample: bytes) -> str:
    """Return the likeliest encoding of lines that are not UTF-8. The sample must end with a complete character."""
    matches = from_bytes(sample, cp_isolation=CANDIDATES, enable_fallback=False, threshold=MAX_STRANGENESS)
    best = matches.best()
    if best is None:
        return _old_encoding(sample) or "cp1252"
    if best.encoding == "cp1251" and len(MAC_YA[0].findall(sample)) > len(MAC_YA[1].findall(sample)):
        return "mac_cyrillic"
    if best.encoding == "cp932" and KATAKANA.search(sample.decode("cp932", "replace")):
        return "cp932"  # even if most of the text is in Latin letters
    as_good = [match for match in matches if match.chaos <= best.chaos and match.coherence >= best.coherence]
    alike = {name for match in as_good for name in match.could_be_from_charset}
    return _old_encoding(sample) or _western_encoding(sample, alike) or best.encoding


def _western_encoding(sample: bytes, alike: Set[str]) -> str | None:
    """Return the encoding of a text in Latin letters. `alike` are the encodings that fit equally well."""
    if alike & {"cp1252", "cp1254"} and _is_turkish(sample):
        return "cp1254"
    if alike.isdisjoint(("cp1252", "cp1250", "iso8859_2")):
        return None
    if _is_baltic(sample):
        return "cp1257"
    is_central = _is_hungarian(sample) or _is_romanian(sample)
    if "cp1252" in alike and not is_central and not any(byte in sample for byte in CARONS):
        return "cp1252"  # the most common of several encodings that fit equally well
    quotes = b"\xab\xbb" if is_central else b""  # letters in ISO 8859-2 that Hungarian and Romanian do not have
    if (is_central or "iso8859_2" in alike) and not any(0x80 <= byte < 0xA0 or byte in quotes for byte in sample):
        return "iso8859_2"  # ISO 8859-2 has no letters in 0x80-0x9F, unlike Windows-1250
    return "cp1250" if is_central else None


def _old_encoding(sample: bytes) -> str | None:
    """Return the encoding of DOS or Mac that suits a text in Latin letters, or None if it has no sign of one."""
    n_beyond = _shares(sample)[1]
    n_pairs, n_ascii = len(re.findall(rb"[\x80-\xff]{2}", sample)), len(re.findall(rb"[A-Za-z]", sample))
    is_latin = 2 * n_beyond < n_ascii and 3 * n_pairs < n_beyond  # unlike Japanese, some bytes of which are letters
    if not is_latin or 20 * len(OLD_LETTERS.findall(sample)) < n_beyond:
        return None
    texts = {name: sample.decode(name, "replace") for name in OLD}
    return max(OLD, key=lambda name: sum(map(texts[name].count, OLD[name])))


def _shares(sample: bytes) -> tuple[Callable[[int], float], int]:
    """Return a function from a byte to its share of the non-ASCII bytes, and their number."""
    counts = Counter(byte for byte in sample if byte > 127)
    n = counts.total()
    return lambda byte: counts[byte] / max(1, n), n


def _is_turkish(sample: bytes) -> bool:
    """Return whether ı makes up more than a fifth of the non-ASCII bytes, as in Turkish."""
    return _shares(sample)[0](TURKISH) > 0.2


def _is_baltic(sample: bytes) -> bool:
    """Return whether a text has letters of Lithuanian (š, ė, ų) or Latvian (š, ē, ā, ī) in Windows-1257.

    No language that is written in Windows-1252 uses ð, ë and ø together, or ð, ç, â and î.
    """
    share = _shares(sample)[0]
    is_lithuanian = min(share(0xEB), share(0xF8)) > 0.05
    is_latvian = share(0xE7) > 0.05 and share(0xE2) + share(0xEE) > 0.2
    return share(0xF0) > 0.03 and (is_lithuanian or is_latvian)


def _is_hungarian(sample: bytes) -> bool:
    """Return whether nearly all letters are Hungarian, and as many of them ő or ű as in Hungarian."""
    share = _shares(sample)[0]
    has_common = share(0xF5) + share(0xFB) > 0.03 and min(share(0xE1), share(0xE9)) > 0  # ő and ű, á and é
    is_portuguese = 2 * sample.count(b"\xf5es") > sample.count(b"\xf5")  # the plural -ões in Windows-1252
    return has_common and not is_portuguese and sum(map(share, HUNGARIAN)) > 0.98


def _is_romanian(sample: bytes) -> bool:
    """Return whether ă, ş and ţ are as common as in Romanian. Portuguese has ã and º in their place, but no þ."""
    share = _shares(sample)[0]
    return share(0xE3) > 0.1 and share(0xFE) > 0 and share(0xFE) + share(0xBA) > 0.1
