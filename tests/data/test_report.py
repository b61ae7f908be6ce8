"""Reports of what was read, as lines and as JSON."""

import json

from penwright.data.cleaning import Dropped, Report
from penwright.data.files import SourceFile

FILE = SourceFile("a.txt", 1234, "00", n_lines=3, n_replaced=2, first_replaced=17, n_nul=1, n_crlf=1)
REPORT = Report("pair", (FILE,), 1001, 998, (Dropped("exact duplicates", 3, "a.txt line 9"),), "held out: 100 pairs")


def test_report_lines_give_read_dropped_and_held_out_counts():
    assert REPORT.lines() == [
        "a.txt: 1,234 bytes, UTF-8, 3 lines, 2 invalid byte sequences replaced by U+FFFD, the first at byte 17, "
        "1 NUL character removed, 1 line ended in CRLF",
        "998 of 1,001 pairs kept; 3 dropped: exact duplicates (first: a.txt line 9)",
        "held out: 100 pairs",
    ]


def test_report_of_many_files_describes_the_first_and_unusual_ones():
    plain = SourceFile("b.txt", 10, "00", n_lines=1)
    lines = Report("document", (*[plain] * 20, FILE), 21, 21, (), "").lines()
    assert lines[8] == "and 13 more files, 1,354 bytes"
    assert lines[9].startswith("a.txt")


def test_report_is_json_serializable():
    assert json.loads(json.dumps(REPORT.as_dict()))["dropped"][0]["count"] == 3
