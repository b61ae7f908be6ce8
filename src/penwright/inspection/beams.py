"""The tree of a beam search: what was tried at each step, and what went on."""

from dataclasses import dataclass
from typing import NamedTuple

from penwright.decoding.hypotheses import Extension
from penwright.decoding.sampling.sampler import NEVER
from penwright.errors import UsageError
from penwright.tokenizers import Tokenizer
from penwright.translation.translator import Translator


class Node(NamedTuple):
    """A token that was among the best continuations at its step."""

    id: int
    parent: int | None
    token: str
    log_prob: float  # in nats, of all tokens up to this one
    step: int  # counted from 0
    kept: bool  # it went on, or ended a translation
    final: bool  # it ended one


class BeamTree:
    """Watches the search for one source. A search that begins anew forgets the one before, which was a draft."""

    def __init__(self) -> None:
        self._steps: list[Extension] = []

    def __call__(self, source: int, extension: Extension) -> None:
        """Note a step; `source` is always the same."""
        if extension.length == 1:
            self._steps.clear()
        self._steps.append(extension)

    def nodes(self, tokenizer: Tokenizer) -> list[Node]:
        """Step by step; the token of a node that is final has no text."""
        found: list[Node] = []
        before: dict[int, int] = {}  # the nodes of the beams of the step before
        for step, extension in enumerate(self._steps):
            beams: dict[int, int] = {}
            rows = zip(extension.parents, extension.tokens, extension.log_probs, strict=True)
            for beam, (parent, token, log_prob) in enumerate(rows):
                if log_prob > NEVER:
                    beams[beam] = len(found)
                    final = token == tokenizer.end_id
                    text = "" if final else tokenizer.token_text(token)
                    found.append(Node(len(found), before.get(parent), text, log_prob, step, final, final))
            before = beams
        went_on = {node.parent for node in found}
        return [node._replace(kept=node.final or node.id in went_on) for node in found]


@dataclass(frozen=True)
class Beams:
    """The tree of the search, step by step."""

    nodes: tuple[Node, ...]


def beams(translator: Translator, text: str, beam_size: int | None = None) -> Beams:
    """Raises UsageError for a text that is not translated in one go."""
    tree = BeamTree()

    def watch(source: int, extension: Extension) -> None:
        if source != 0:
            raise UsageError("a tree is drawn of one sentence: give a single line that is not too long")
        tree(source, extension)

    size = beam_size or translator.defaults.beam_size
    translator.translate([text], beam_size=size, n_best=size, watch=watch)
    return Beams(tuple(tree.nodes(translator.tokenizer)))
