"""A program that writes the text of the PDF document on its standard input to its standard output.

It runs in a process of its own, whose memory, time and output are bounded, since a PDF can ask for any of these.
Its exit code says what is wrong: 3 for a password, 4 for a document that cannot be read.
"""

import json
import sys


def main(settings: dict[str, int], paths: list[str]) -> int:
    """Write each page as one JSON string a line."""
    try:
        import resource  # noqa: PLC0415 - not on Windows
    except ImportError:
        pass
    else:
        for name, most in settings.items():
            _, hard = resource.getrlimit(getattr(resource, name))
            soft = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.setrlimit(getattr(resource, name), (soft, hard))
    sys.path[:] = paths
    import logging  # noqa: PLC0415 - found by the paths above

    import pypdf  # noqa: PLC0415 - found by the paths above

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
    except Exception as error:  # damage shows in many ways
        sys.stderr.write(f"{type(error).__name__}: {error}"[:300])
        return 4
    return 0


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1]), json.loads(sys.argv[2])))
