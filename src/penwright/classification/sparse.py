"""A sparse matrix with one row per text, and its products with dense matrices."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float32, Int32
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F


class SparseRows(NamedTuple):
    """A sparse matrix by rows (CSR): row i holds the `columns` and `values` from offsets[i] to offsets[i + 1]."""

    columns: Int32[Tensor, " entries"]
    values: Float32[Tensor, " entries"]
    offsets: Int32[Tensor, " rows_and_one"]

    @classmethod
    def of_dense(cls, matrix: Float[Tensor, "rows width"]) -> "SparseRows":
        """Return a dense matrix in this form, all entries included."""
        n, width = matrix.shape
        offsets = torch.arange(0, n * width + 1, width, dtype=torch.int32)
        return cls(torch.arange(width, dtype=torch.int32).repeat(n), matrix.float().flatten(), offsets)

    @property
    def n_rows(self) -> int:
        """The number of rows."""
        return len(self.offsets) - 1

    def dot(self, matrix: Float[Tensor, "columns width"]) -> Float[Tensor, "rows width"]:
        """Return the product with a dense matrix.

        The product is computed by a weighted embedding bag, which uses all cores on every platform. PyTorch's sparse
        matrices use several cores only with MKL.
        """
        return F.embedding_bag(
            self.columns,
            matrix,
            self.offsets,
            mode="sum",
            per_sample_weights=self.values,
            include_last_offset=True,
        )

    def transpose(self, n_columns: int) -> "SparseRows":
        """Return the transposed matrix."""
        order = torch.argsort(self.columns, stable=True)
        rows = torch.repeat_interleave(torch.arange(self.n_rows, dtype=torch.int32), self.offsets.diff().long())
        counts = torch.bincount(self.columns, minlength=n_columns)
        return SparseRows(rows[order], self.values[order], _offsets(counts))

    def take(self, rows: NDArray[np.int64]) -> "SparseRows":
        """Return a matrix with only these rows."""
        begins, lengths = self.offsets[:-1].long()[rows], self.offsets.diff().long()[rows]
        offsets = _offsets(lengths)
        places = torch.arange(int(offsets[-1])) + torch.repeat_interleave(begins - offsets[:-1], lengths)
        return SparseRows(self.columns[places], self.values[places], offsets)


def _offsets(counts: Tensor) -> Int32[Tensor, " rows_and_one"]:
    return F.pad(counts.cumsum(0), (1, 0)).to(torch.int32)


def stacked(parts: Sequence[SparseRows]) -> SparseRows:
    """Stack the rows of several sparse matrices into one matrix."""
    counts = torch.cat([part.offsets.diff() for part in parts])
    return SparseRows(
        torch.cat([part.columns for part in parts]), torch.cat([part.values for part in parts]), _offsets(counts)
    )
