"""Batches of conversations, in which only the answers are targets."""

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from penwright.data.batches import IGNORED, LENGTH_STEP, Indices, Markers, TextBatch
from penwright.data.bucketing import Bucketed, Labels
from penwright.data.store import Column


class AnswerBatches(Bucketed[TextBatch]):
    """Batches of conversations of similar length. The targets are the answers, each with an end token.

    Each conversation begins with a start token, unless its template begins with one or the model has none. If a
    conversation is longer than the context, only its end is read.
    """

    def __init__(
        self,
        prompt: Column,
        answer: Column,
        turn: Labels,
        context_length: int,
        batch_tokens: int,
        markers: Markers,
        seed: int = 0,
    ):
        """Group the rows by conversation. `turn[i]` is the position of row i in its conversation, from 0."""
        self.prompt, self.answer, self.markers, self.most = prompt, answer, markers, context_length + 1
        # Index of the first row of each conversation, then the number of rows.
        self.begins = np.flatnonzero(np.append(turn, 0) == 0)
        ends = np.concatenate([[0], np.cumsum(prompt.lengths + answer.lengths + 1)])
        firsts = (prompt[row][:1].tolist() for row in self.begins[:-1].tolist())
        self.n_added = np.array([markers.begins and first != [markers.start] for first in firsts])
        lengths = self.n_added + np.diff(ends[self.begins])
        self.n_cut = int((lengths > self.most).sum())
        super().__init__([np.minimum(lengths, self.most)], batch_tokens, seed)

    def examples(self, rows: Indices) -> TextBatch:
        """Return these conversations as a batch."""
        read = [self._conversation(row) for row in rows.tolist()]
        width = -(-max(len(tokens) - 1 for tokens, _ in read) // LENGTH_STEP) * LENGTH_STEP
        tokens = np.full((len(read), width), self.markers.pad, dtype=np.int64)
        targets = np.full((len(read), width), IGNORED, dtype=np.int64)
        for place, (given, is_answer) in enumerate(read):
            tokens[place, : len(given) - 1] = given[:-1]
            targets[place, : len(given) - 1] = np.where(is_answer, given, IGNORED)[1:]
        n_targets = int((targets != IGNORED).sum())
        return TextBatch(n_targets, torch.from_numpy(tokens), torch.from_numpy(targets), None)

    def _conversation(self, number: int) -> tuple[Indices, NDArray[np.bool_]]:
        """Return the tokens of a conversation, and a mask of the tokens that belong to an answer."""
        added = [self.markers.start] * int(self.n_added[number])
        tokens, is_answer = list[ArrayLike]([added]), list[ArrayLike]([[False] * len(added)])
        for row in range(self.begins[number], self.begins[number + 1]):
            prompt, answer = self.prompt[row], self.answer[row]
            tokens += [prompt, answer, [self.markers.end]]
            is_answer += [[False] * len(prompt), [True] * (len(answer) + 1)]
        return np.concatenate(tokens)[-self.most :].astype(np.int64), np.concatenate(is_answer)[-self.most :].astype(
            np.bool_
        )
