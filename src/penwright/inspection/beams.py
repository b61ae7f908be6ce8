"""The tree of a beam search: the candidates at each step, and which of them are kept."""

from dataclasses import dataclass
from typing import NamedTuple

from penwright.decoding.hypotheses import Extension
from penwright.decoding.sampling.logits_process import NEG_INF
from penwright.errors import UsageError
from penwright.inspection.forward_pass import readable, with_bytes
from penwright.tokenizers import Tokenizer
from penwright.translation.translator import Translator


class Node(NamedTuple):
    """A token among the best continuations at one step of a beam search."""

    id: int
    parent: int | None
    token: str
    text: str  # text of all tokens up to this one
    log_prob: float  # cumulative log-probability up to this token, in nats
    step: int  # number of the search step, counted from 0
    kept: bool  # whether the search continued from the node, or the node ended a translation
    final: bool  # whether the node ended a translation


class BeamTree:
    """A recorder of the beam search for one source.

    If a second search begins, the nodes of the first one are discarded, since it only produced a draft translation.
    """

    def __init__(self) -> None:
        self._steps: list[Extension] = []

    def __call__(self, source: int, extension: Extension) -> None:
        """Record a step of the search. `source` is ignored, since there is only one source."""
        if extension.length == 1:
            self._steps.clear()
        self._steps.append(extension)

    def nodes(self, tokenizer: Tokenizer) -> list[Node]:
        """Return the nodes in the order of the search steps. The text of an end token is empty."""
        nodes: list[Node] = []
        written: list[bytes] = []  # the text of each node
        before: dict[int, int] = {}  # the previous step's nodes, by beam
        for step, extension in enumerate(self._steps):
            beams: dict[int, int] = {}
            rows = zip(extension.parents, extension.tokens, extension.log_probs, strict=True)
            for beam, (parent, token, log_prob) in enumerate(rows):
                if log_prob > NEG_INF:
                    beams[beam] = len(nodes)
                    final, above = token == tokenizer.end_id, before.get(parent)
                    own = "" if final else readable(tokenizer, token)
                    written.append((b"" if above is None else written[above]) + tokenizer.token_bytes(token))
                    text = with_bytes(written[-1])
                    nodes.append(Node(len(nodes), above, own, text, log_prob, step, final, final))
            before = beams
        continued = {node.parent for node in nodes}
        return [node._replace(kept=node.final or node.id in continued) for node in nodes]


@dataclass(frozen=True)
class Beams:
    """The tree of a beam search, step by step."""

    nodes: tuple[Node, ...]


def beams(translator: Translator, text: str, beam_size: int | None = None) -> Beams:
    """Return the beam search tree of a translated text. Raise UsageError if the model must split the text."""
    tree, line = BeamTree(), text.strip()
    if "\n" in line or len(translator.tokenizer.source(translator.tokenizer.encode(line))) > translator.reach:
        raise UsageError("a beam tree needs a single sentence: give one line that fits the context")
    size = beam_size or translator.defaults.beam_size
    translator.translate([text], beam_size=size, n_best=size, watch=tree)
    return Beams(tuple(tree.nodes(translator.tokenizer)))
