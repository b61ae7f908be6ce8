"""A program that reads a PDF document from standard input and writes its text to standard output.

The program runs in its own process, because a malicious PDF could use up all memory, time or disk space.
Its exit code is 3 for a document with a password, and 4 for a document that cannot be read.
"""

import json
import sys


def main(settings: dict[str, int], paths: list[str]) -> int:
    """Write each page as a JSON string on a line of its own, and return the exit code.

    `settings` are resource limits by name. `paths` replaces `sys.path`.
    """
    try:
        import resource  # noqa: PLC0415 - missing on Windows
    except ImportError:
        pass
    else:
        for name, most in settings.items():
            _, hard = resource.getrlimit(getattr(resource, name))
            soft = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.setrlimit(getattr(resource, name), (soft, hard))
    sys.path[:] = paths
    import logging  # noqa: PLC0415 - needs the paths above

    import pypdf  # noqa: PLC0415 - needs the paths above

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
    sys.exit(main(json.loads(sys.argv[1]), json.loads(sys.argv[2])))
