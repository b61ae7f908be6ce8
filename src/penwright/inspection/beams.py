"""What a beam search tried, for one sentence."""

from dataclasses import dataclass

from penwright.decoding.hypotheses import Extension
from penwright.errors import UsageError
from penwright.translation.beam_tree import BeamTree, Node
from penwright.translation.translator import Translator


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
