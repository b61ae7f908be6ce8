"""What a beam search tried."""

from collections.abc import Callable

import pytest

from penwright.config import DecodingSettings
from penwright.inspection.beams import BeamTree, Node
from penwright.model.encoder_decoder import EncoderDecoder
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
def test_the_tree_holds_what_was_found_with_its_log_probability(translator: Translator, source: str) -> None:
    tree = BeamTree()
    (translation,) = translator.translate([source], n_best=BEAMS, watch=tree)
    nodes = tree.nodes(translator.tokenizer)
    ends = [node for node in nodes if node.final] or [node for node in nodes if node.step == nodes[-1].step]
    found = {text_to(node, nodes): node.log_prob for node in ends}
    best = translation.candidates[0]
    assert found[best.text] == pytest.approx(best.log_prob)
    assert all(node.log_prob <= nodes[node.parent].log_prob + 1e-9 for node in nodes if node.parent is not None)
    assert {sum(other.step == node.step for other in nodes) for node in nodes} <= set(range(1, BEAMS + 1))


def test_what_led_nowhere_has_no_child_and_what_was_kept_has_one_or_ended(translator: Translator) -> None:
    tree = BeamTree()
    translator.translate(["a bad cab"], watch=tree)
    nodes = tree.nodes(translator.tokenizer)
    parents = {node.parent for node in nodes}
    assert {node.id for node in nodes if node.kept} == {n.id for n in nodes if n.final} | (parents - {None})
    assert any(not node.kept for node in nodes)


def test_of_a_draft_and_the_search_with_the_words_it_missed_the_second_is_kept(translator: Translator) -> None:
    tree = BeamTree()
    demands = Constraints(Glossary((Entry("cab", ("Beg",)),)))
    (translation,) = translator.translate(["a bad cab"], constraints=demands, watch=tree)
    assert translation.candidates[0].outcomes[0].state == "forced"
    nodes = tree.nodes(translator.tokenizer)
    assert any("beg" in text_to(node, nodes).lower() for node in nodes)


def test_who_watches_can_end_the_search(translator: Translator) -> None:
    class Enough(Exception):
        pass

    seen = []

    def stop(source: int, extension: object) -> None:
        seen.append(source)
        raise Enough

    with pytest.raises(Enough):
        translator.translate(["abc", "a bad cab"], watch=stop)
    assert len(seen) == 1
