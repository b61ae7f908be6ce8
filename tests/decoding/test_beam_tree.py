"""The tree of hypotheses that a beam search explored."""

from collections.abc import Callable

import pytest

from penwright.config import DecodingSettings
from penwright.inspection.beams import BeamTree, Node
from penwright.model.transformer import EncoderDecoder
from penwright.tokenizers import Tokenizer
from penwright.translation.constraints.glossary import Entry, Glossary
from penwright.translation.constraints.requirements import Constraints
from penwright.translation.translator import Translator

BEAMS = 3


@pytest.fixture
def translator(translating_model: Callable[..., EncoderDecoder], characters: Tokenizer) -> Translator:
    model = translating_model(characters.vocab_size, context_length=32).double()
    return Translator(model, characters, DecodingSettings(beam_size=BEAMS, max_new_tokens=9))


def text_to(node: Node, nodes: list[Node]) -> str:
    return (text_to(nodes[node.parent], nodes) if node.parent is not None else "") + node.token


@pytest.mark.parametrize("source", ["abc", "a bad cab", "j"])
def test_tree_holds_the_best_translation_with_its_log_probability(translator: Translator, source: str) -> None:
    tree = BeamTree()
    (translation,) = translator.translate([source], n_best=BEAMS, watch=tree)
    nodes = tree.nodes(translator.tokenizer)
    ends = [node for node in nodes if node.final] or [node for node in nodes if node.step == nodes[-1].step]
    found = {text_to(node, nodes): node.log_prob for node in ends}
    best = translation.candidates[0]
    assert found[best.text] == pytest.approx(best.log_prob)
    assert all(node.log_prob <= nodes[node.parent].log_prob + 1e-9 for node in nodes if node.parent is not None)
    assert {sum(other.step == node.step for other in nodes) for node in nodes} <= set(range(1, BEAMS + 1))


def test_kept_nodes_are_those_with_children_or_final(translator: Translator) -> None:
    tree = BeamTree()
    translator.translate(["a bad cab"], watch=tree)
    nodes = tree.nodes(translator.tokenizer)
    parents = {node.parent for node in nodes}
    assert {node.id for node in nodes if node.kept} == {n.id for n in nodes if n.final} | (parents - {None})
    assert any(not node.kept for node in nodes)


def test_tree_shows_the_constrained_search_after_the_draft(translator: Translator) -> None:
    tree = BeamTree()
    constraints = Constraints(Glossary((Entry("cab", ("Beg",)),)))
    (translation,) = translator.translate(["a bad cab"], constraints=constraints, watch=tree)
    assert translation.candidates[0].outcomes[0].state == "forced"
    nodes = tree.nodes(translator.tokenizer)
    assert any("beg" in text_to(node, nodes).lower() for node in nodes)


def test_exception_of_the_watcher_ends_the_search(translator: Translator) -> None:
    class Enough(Exception):
        pass

    seen = []

    def stop(source: int, extension: object) -> None:
        seen.append(source)
        raise Enough

    with pytest.raises(Enough):
        translator.translate(["abc", "a bad cab"], watch=stop)
    assert len(seen) == 1
