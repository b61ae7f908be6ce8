"""Batches of new text mixed with earlier training text, so that the model does not forget what it has learned."""

from collections.abc import Iterator

from penwright.data.batches import AnyBatch, Batches


class MixedBatches(Batches[AnyBatch]):
    """Batches of a new and an old corpus, in a fixed ratio, evenly mixed. Epochs count only the new corpus."""

    def __init__(self, new: Batches[AnyBatch], old: Batches[AnyBatch], share: float):
        self.new, self.old, self.share = new, old, share
        self.per_epoch = new.per_epoch / (1 - share)
        self.tokens_per_epoch = int(new.tokens_per_epoch / (1 - share))
        self.n_left_out, self.n_cut = new.n_left_out, new.n_cut

    def batch(self, number: int) -> AnyBatch:
        """Return the batch with this number, from the new or the old corpus."""
        n_old = int(number * self.share)  # number of batches of the old corpus before this batch
        return self.old.batch(n_old) if int((number + 1) * self.share) > n_old else self.new.batch(number - n_old)

    def in_order(self, one_in: int = 1) -> Iterator[AnyBatch]:
        """Yield the examples of the new corpus once."""
        yield from self.new.in_order(one_in)
