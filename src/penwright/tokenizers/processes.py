"""Tokenization in several processes, each with its own cache of words."""

import json
import os
import struct
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from io import BufferedIOBase
from queue import SimpleQueue

import numpy as np

from penwright.errors import PenwrightError
from penwright.tokenizers.encoders import Ragged
from penwright.tokenizers.tokenizer import Tokenizer

HEADER = struct.Struct("<QQ")  # header of a message: number of texts, and number of bytes or tokens
PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from penwright.tokenizers.processes import serve; serve(sys.stdin.buffer, sys.stdout.buffer)"
)


class EncodingProcesses:
    """Processes that encode texts as `Tokenizer.encode_ragged` does. They end when this process ends."""

    def __init__(self, tokenizer: Tokenizer, n: int) -> None:
        command = [sys.executable, "-P", "-c", PROGRAM, json.dumps(sys.path)]
        environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
        session = os.name == "posix"  # Ctrl+C must interrupt only this process, which then stops its workers
        self._processes = [
            subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
                start_new_session=session,
            )
            for _ in range(n)
        ]
        self._idle: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
        self._dtype, self._threads = tokenizer.dtype, ThreadPoolExecutor(n, "tokenize")
        content = tokenizer.content
        for process in self._processes:
            self._idle.put(process)
            with suppress(BrokenPipeError):  # _encode() reports the error
                _pipes(process)[0].write(HEADER.pack(0, len(content)) + content)

    def submit(self, texts: Sequence[bytes]) -> Future[Ragged]:
        """Start encoding texts, given as UTF-8 bytes."""
        return self._threads.submit(self._encode, texts)

    def _encode(self, texts: Sequence[bytes]) -> Ragged:
        process = self._idle.get()
        try:
            given, answers = _pipes(process)
            _write(given, texts)
            n_texts, n_tokens = HEADER.unpack(answers.read(HEADER.size))
            lengths = np.frombuffer(answers.read(8 * n_texts), np.int64)
            return Ragged(np.frombuffer(answers.read(n_tokens * np.dtype(self._dtype).itemsize), self._dtype), lengths)
        except (OSError, struct.error, ValueError) as error:
            raise PenwrightError(
                f"a process that tokenizes the text has ended (exit code {process.poll()}), perhaps because memory "
                "ran out. Run the same command again: what was prepared so far is kept"
            ) from error
        finally:
            self._idle.put(process)

    def close(self) -> None:
        """Stop the encoding processes."""
        for process in self._processes:
            process.kill()
        self._threads.shutdown(cancel_futures=True)
        for process in self._processes:
            process.communicate()


def _pipes(process: "subprocess.Popen[bytes]") -> tuple[BufferedIOBase, BufferedIOBase]:
    assert isinstance(process.stdin, BufferedIOBase) and isinstance(process.stdout, BufferedIOBase)
    return process.stdin, process.stdout


def _write(pipe: BufferedIOBase, texts: Sequence[bytes]) -> None:
    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    pipe.write(HEADER.pack(len(texts), int(lengths.sum())) + lengths.tobytes())
    pipe.write(b"".join(texts))
    pipe.flush()


def serve(requests: BufferedIOBase, answers: BufferedIOBase) -> None:
    """Read a tokenizer, then encode texts until the requests end. Each encoding process runs this."""
    tokenizer = None
    while len(header := requests.read(HEADER.size)) == HEADER.size:
        n_texts, n_bytes = HEADER.unpack(header)
        if tokenizer is None:
            tokenizer = Tokenizer.of_content(requests.read(n_bytes))
            continue
        ends = np.cumsum(np.frombuffer(requests.read(8 * n_texts), np.int64)).tolist()
        content = requests.read(n_bytes)
        texts = [content[a:b].decode("utf-8", "surrogatepass") for a, b in zip([0, *ends], ends, strict=False)]
        tokens, lengths = tokenizer.encode_ragged(texts)
        try:
            answers.write(HEADER.pack(n_texts, len(tokens)) + lengths.astype(np.int64).tobytes() + tokens.tobytes())
            answers.flush()
        except BrokenPipeError:  # the parent process was killed
            os._exit(1)
