"""Serve runs to many clients at once, most of them hostile, and check that the server stays healthy.

    python -m benchmarks.hostile_clients WRITER TRANSLATOR CLASSIFIER --seconds 120 --clients 32

Prints status codes, the slowest answer of /health, and the server's memory before and after. Fails if a status is 5xx,
/health takes more than a second, or the server holds more than 1.5 times its idle memory afterwards.
"""

import argparse
import json
import os
import random
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from time import monotonic, sleep

LETTERS = "".join(map(chr, range(0x430, 0x450))) + "abcdefghijklmnopqrstuvwxyz"
FRIENDLY: Sequence[tuple[str, object]] = (
    ("/v1/completions", {"prompt": "It was", "max_tokens": 16}),
    ("/translate", {"q": "eins zwei", "target": "target"}),
    ("/classify", {"texts": ["a fine film", "a dull film"]}),
    ("/write", {"text": "It was", "settings": {"max_new_tokens": 8, "pattern": "[a-z ]{4,40}"}}),
    ("/translating/sentences", {"sentences": [{"text": "eins zwei"}]}),
    ("/inspect/tokens", {"model": "writer", "text": "It was"}),
)
HOSTILE: Sequence[tuple[str, object]] = (
    ("/write", {"text": "a", "settings": {"pattern": "(?i)" + LETTERS * 16}}),
    ("/write", {"text": "a", "settings": {"pattern": "(a{1,500}){1,500}"}}),
    ("/write", {"text": "a", "settings": {"pattern": "(.*a.{0,20}){3}"}}),
    ("/write", {"text": "a", "settings": {"required_words": [f"word{n}" for n in range(50)]}}),
    ("/write", {"text": "a", "settings": {"banned_words": ["word"] * 20_000}}),
    ("/write", {"text": "a", "settings": {"dry_multiplier": 1, "dry_breakers": ["x"] * 20_000}}),
    ("/write", {"text": "a", "settings": {"dry_multiplier": 1, "dry_allowed_length": 10**30}}),
    ("/write", {"text": "a", "settings": {"temperature": "0.5"}}),
    ("/next", {"text": "a", "settings": {"top_k": True}}),
    ("/next", {"text": "a", "tokens": [2**62] * 50_000}),
    ("/score", {"text": "ab " * 1000}),
    ("/v1/completions", {"prompt": ["ab " * 4000] * 40, "max_tokens": 1}),
    ("/v1/completions", {"prompt": "a", "n": 16, "max_tokens": 4096, "logprobs": 20}),
    ("/v1/completions", {"prompt": [[]] * 100_000}),
    ("/v1/completions", {"logit_bias": {str(n): "x" for n in range(100_000)}}),
    ("/v1/chat/completions", {"messages": []}),
    ("/classify", {str(n): n for n in range(100_000)}),
    ("/classify", {"texts": ["\ud800"]}),
    ("/classify", {"texts": ["a"] * 200_000}),
    ("/translating/cut", {"text": "\n" * 50_000}),
    ("/translating/cut", {"text": "一" * 50_000}),
    ("/translating/sentences", {"sentences": [{"text": "a " * 4000}]}),
    ("/translating/sentences", {"sentences": [{"text": "a " * 24_000}]}),
    ("/translating/sentences", {"sentences": [1] * 500_000}),
    ("/translating/links", {"text": "eins " * 290, "target": "one " * 290}),
    ("/translate", {"q": "<b>" * 10_000, "target": "target", "format": "html"}),
    ("/translate", {"q": "1 2,5 km " * 300, "target": "target"}),
    ("/inspect/heads?format=json", {"model": "writer", "text": "ab " * 3000}),
    ("/inspect/compared/tokens", {"model": "writer", "text": "ab" * 400, "other_text": "ba a" * 200}),
)
BODIES: dict[int, bytes] = {}


@dataclass
class Seen:
    """The answers that the clients have got so far."""

    statuses: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    slowest_health: float = 0.0


Attack = Callable[[int, Seen], None]


def ask(port: int, seen: Seen, path: str, body: object, **headers: str) -> None:
    """Send a request, read its answer, and count its status."""
    content = body if isinstance(body, bytes) else encoded(body)
    with closing(HTTPConnection("127.0.0.1", port, timeout=300)) as connection:
        try:
            given = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request("POST", path, content, {"Content-Type": "application/json", **given})
            answer = connection.getresponse()
            said = answer.read()
        except (OSError, HTTPException) as error:
            seen.statuses[type(error).__name__] += 1
            return
    seen.statuses[str(answer.status)] += 1
    if answer.status >= 500 or b"the server failed" in said[-2000:]:
        seen.failures.append(f"{answer.status} {path} {content[:80]!r} {said[-200:]!r}")


def encoded(body: object) -> bytes:
    """Return the body as JSON. It is cached, because clients that compute would disturb the measurement."""
    if id(body) not in BODIES:
        BODIES[id(body)] = json.dumps(body).encode()
    return BODIES[id(body)]


def drip(port: int, seen: Seen) -> None:
    """Send request headers byte by byte, then disconnect."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        for byte in b"POST /classify HTTP/1.1\r\nHost: x\r\n":
            connection.send(bytes([byte]))
            sleep(0.02)
    seen.statuses["dripped"] += 1


def hold(port: int, seen: Seen) -> None:
    """Open many connections, and send nothing."""
    found = []
    with suppress(OSError):
        for _ in range(100):
            found.append(socket.create_connection(("127.0.0.1", port), timeout=5))
    sleep(0.2)
    for connection in found:
        connection.close()
    seen.statuses["held"] += 1


def leave(port: int, seen: Seen) -> None:
    """Ask for a long completion and disconnect, or announce a body that never comes."""
    head = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: "
    body = json.dumps({"prompt": "It", "max_tokens": 4000, "n": 8, "stream": True})
    for content in (f"{len(body)}\r\n\r\n{body}", "1999999\r\n\r\n{", "99999999999\r\n\r\n{"):
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
            connection.sendall((head + content).encode())
            sleep(0.1)
    seen.statuses["left"] += 1


def garble(port: int, seen: Seen) -> None:
    """Send data that is not HTTP, not JSON or not UTF-8."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        connection.sendall(b"\x16\x03\x01" + os.urandom(200) + b"\r\n\r\n")
    for body in (b"[" * 100_000, b"\xff\xfe", b"\xed\xa0\x80", b'{"texts": NaN}', b"1" * 10_000, b""):
        ask(port, seen, random.choice(("/classify", "/translate", "/v1/completions", "/write")), body)
    ask(port, seen, "/classify", b'{"texts": "a"}', Origin="http://[")
    ask(port, seen, "/classify", b'{"texts": "a"}', Authorization="Basic \xff\xff")


ATTACKS: Sequence[Attack] = (drip, hold, leave, garble)


def client(port: int, seen: Seen, until: float, number: int) -> None:
    """Send friendly and hostile requests at random until the time is over."""
    dice = random.Random(number)
    while monotonic() < until:
        kind = dice.random()
        if kind < 0.4:
            ask(port, seen, *dice.choice(FRIENDLY))
        elif kind < 0.85:
            ask(port, seen, *dice.choice(HOSTILE))
        else:
            dice.choice(ATTACKS)(port, seen)


def watch_health(port: int, seen: Seen, until: float) -> None:
    """Request /health ten times per second."""
    while monotonic() < until:
        start = monotonic()
        try:
            with closing(HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
                connection.request("GET", "/health")
                if connection.getresponse().status != 200:
                    seen.failures.append("/health did not answer 200")
        except (OSError, HTTPException) as error:
            seen.failures.append(f"/health: {error!r}")
        seen.slowest_health = max(seen.slowest_health, monotonic() - start)
        sleep(0.1)


def resident(pid: int) -> float:
    """Return the memory of a process in MB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1000


def soak(
    runs: Sequence[str], seconds: float, n_clients: int, options: Sequence[str] = (), pause: float = 3.0
) -> tuple[Seen, float, float, int]:
    """Return the answers, the idle server's memory before and after in MB, and the length of its log.

    Memory is read after a pause, in seconds, in which the server ends its work.
    """
    command = [sys.executable, "-m", "penwright", "serve", *runs, "--port", "0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        log: list[str] = []
        threading.Thread(target=lambda: log.extend(process.stderr or ()), daemon=True).start()
        port = int(process.stdout.readline().split(": ")[0].rpartition(":")[2])
        try:
            warm = Seen()
            for _, body in HOSTILE:
                encoded(body)
            for question in [*FRIENDLY] * 3:
                ask(port, warm, *question)
            before, seen, until = resident(process.pid), Seen(), monotonic() + seconds
            workers = [threading.Thread(target=client, args=(port, seen, until, n)) for n in range(n_clients)]
            workers.append(threading.Thread(target=watch_health, args=(port, seen, until)))
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
            for question in FRIENDLY:
                ask(port, seen, *question)
            sleep(pause)
            after = resident(process.pid)
        finally:
            process.terminate()
            process.wait(30)
        return seen, before, after, sum(map(len, log))


def main() -> int:
    """Run the benchmark; return 1 if the server failed, else 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", help="run folders; one must be named writer")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--clients", type=int, default=32)
    given = parser.parse_args()
    seen, before, after, n_logged = soak(given.runs, given.seconds, given.clients)
    print(f"answers: {dict(seen.statuses.most_common())}")
    print(f"slowest /health: {seen.slowest_health:.2f} s")
    print(f"memory: {before:.0f} MB idle, {after:.0f} MB afterwards ({after / before:.2f} times)")
    print(f"log: {n_logged:,} characters")
    for failure in seen.failures[:10]:
        print(f"failed: {failure}")
    return int(bool(seen.failures) or seen.slowest_health > 1 or after > 1.5 * before)


if __name__ == "__main__":
    sys.exit(main())
