"""A reader of GGUF files: metadata with bounded sizes, and tensors that the gguf package dequantizes."""

import struct
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from penwright.errors import PenwrightError
from penwright.formats.outside import optional_package
from penwright.tokenizers.checks import MOST_PIECES

MAGIC, VERSIONS = b"GGUF", (2, 3)
MOST_KEYS, MOST_TENSORS, MOST_DIMENSIONS, LONGEST = 1 << 16, 1 << 20, 4, 1 << 24
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9


class StoredTensor(NamedTuple):
    """The shape, type number and offset of a tensor in a file."""

    shape: tuple[int, ...]
    type: int
    offset: int


class GGUFFile:
    """An open GGUF file: its `metadata`, and its tensors (`stored`), which are read on demand."""

    def __init__(self, path: Path):
        """Read the header; raises PenwrightError if the file is damaged or has implausible sizes."""
        try:
            self._content = np.memmap(path, mode="r")
            self._at = 0
            self.metadata, self.stored = self._read_header()
        except (OSError, ValueError, struct.error, UnicodeDecodeError) as error:
            raise PenwrightError(f"the file cannot be read as GGUF: {error}. Download it again") from None

    def tensor(self, name: str) -> Tensor:
        """Return a tensor in float16 or bfloat16 if it is stored in that type, otherwise dequantized to float32."""
        gguf, stored = optional_package("gguf", "gguf"), self.stored[name]
        try:
            kind = gguf.GGMLQuantizationType(stored.type)
        except ValueError:
            raise PenwrightError(
                f"the tensor {name} is of type {stored.type}, which the gguf package does not know"
            ) from None
        block, size = gguf.GGML_QUANT_SIZES[kind]
        *rows, width = stored.shape
        shape = (*rows, width // block * size)
        end = stored.offset + prod(shape)
        if width % block or end > len(self._content):
            raise PenwrightError(f"the tensor {name} is incomplete or damaged. Download the file again")
        content = np.array(self._content[stored.offset : end])
        if kind.name in ("F16", "BF16"):
            dtype = torch.float16 if kind.name == "F16" else torch.bfloat16
            return torch.from_numpy(content).view(dtype).reshape(stored.shape)
        try:
            return torch.from_numpy(gguf.quants.dequantize(content.reshape(shape), kind)).reshape(stored.shape)
        except NotImplementedError:
            raise PenwrightError(
                f"the tensor {name} is of type {kind.name}, which the gguf package cannot dequantize"
            ) from None

    def _read_header(self) -> tuple[Mapping[str, Any], Mapping[str, StoredTensor]]:
        version, n_tensors, n_keys = self._start()
        if version not in VERSIONS or n_keys > MOST_KEYS or n_tensors > MOST_TENSORS:
            raise ValueError(f"version {version} with {n_keys:,} keys and {n_tensors:,} tensors")
        metadata = {self._string(): self._value(self._number("I")) for _ in range(n_keys)}
        found = {self._string(): self._tensor_info() for _ in range(n_tensors)}
        alignment = metadata.get("general.alignment", 32)
        if type(alignment) is not int or not 0 < alignment <= LONGEST:
            raise ValueError(f"general.alignment = {alignment!r}")
        begin = -(-self._at // alignment) * alignment
        return metadata, {name: stored._replace(offset=begin + stored.offset) for name, stored in found.items()}

    def _start(self) -> tuple[int, int, int]:
        if self._take(4) != MAGIC:
            raise ValueError("it does not begin with GGUF")
        return self._number("I"), self._number("Q"), self._number("Q")

    def _take(self, n_bytes: int) -> bytes:
        if n_bytes > len(self._content) - self._at:
            raise ValueError("it is incomplete")
        self._at += n_bytes
        return self._content[self._at - n_bytes : self._at].tobytes()

    def _number(self, form: str) -> Any:
        return struct.unpack(f"<{form}", self._take(struct.calcsize(form)))[0]

    def _string(self) -> str:
        length = self._number("Q")
        if length > LONGEST:
            raise ValueError(f"it has a string of {length:,} bytes")
        return self._take(length).decode()

    def _value(self, kind: int) -> Any:
        if kind == STRING:
            return self._string()
        if kind == ARRAY:
            inner, length = self._number("I"), self._number("Q")
            if length > MOST_PIECES or inner == ARRAY:
                raise ValueError(f"it has an array of {length:,} values")
            if inner == STRING:
                return [self._string() for _ in range(length)]
            form = self._form(inner)
            return list(struct.unpack(f"<{length}{form}", self._take(length * struct.calcsize(form))))
        return self._number(self._form(kind))

    def _form(self, kind: int) -> str:
        if kind not in SCALARS:
            raise ValueError(f"it has a value of type {kind}")
        return SCALARS[kind]

    def _tensor_info(self) -> StoredTensor:
        n_dimensions = self._number("I")
        if not 0 < n_dimensions <= MOST_DIMENSIONS:
            raise ValueError(f"it has a tensor of {n_dimensions} dimensions")
        shape = tuple(self._number("Q") for _ in range(n_dimensions))[::-1]
        return StoredTensor(shape, self._number("I"), self._number("Q"))
