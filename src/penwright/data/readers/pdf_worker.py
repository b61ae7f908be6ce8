"""A program that reads a PDF document from standard input and writes its text to standard output.

The program runs in its own process, because a malicious PDF could use up all memory, time or disk space.
Its exit code is 3 for a document with a password, and 4 for a document that cannot be read.
"""

import json
import logging
import sys

import pypdf


def main() -> int:
    """Write each page as a JSON string on a line of its own, and return the exit code."""
    logging.disable(logging.CRITICAL)
    try:
        reader = pypdf.PdfReader(sys.stdin.buffer)
        if reader.is_encrypted and not reader.decrypt(""):
            return 3
        for page in reader.pages:
            sys.stdout.write(json.dumps(page.extract_text()) + "\n")
        sys.stdout.flush()
    except pypdf.errors.DependencyError:
        return 3
    except Exception as error:  # a damaged file raises many kinds of errors
        sys.stderr.write(f"{type(error).__name__}: {error}"[:300])
        return 4
    return 0


if __name__ == "__main__":
    sys.exit(main())
