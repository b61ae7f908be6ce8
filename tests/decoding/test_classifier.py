from collections.abc import Callable

import numpy as np
import pytest
import torch

from penwright.classification.classifier import Classifier
from penwright.classification.linear import LinearClassifier
from penwright.errors import PenwrightError
from penwright.model.transformer import EncoderOnly
from penwright.tokenizers import Tokenizer

LABELS = ("bad", "fair", "good")


@pytest.fixture
def classifier(classifying_model: Callable[..., EncoderOnly], characters: Tokenizer) -> Classifier:
    return Classifier(classifying_model(characters.vocab_size), characters, LABELS)


def log_probs(classifier: Classifier, text: str) -> torch.Tensor:
    tokenizer = classifier.tokenizer
    tokens = torch.tensor([[tokenizer.start_id, *tokenizer.encode(text), tokenizer.end_id]])
    return classifier.model(tokens, torch.ones_like(tokens, dtype=torch.bool)).log_softmax(-1)[0]


@pytest.mark.parametrize("text", ["a", "abc de", "j" * 14])
def test_scores_are_the_probabilities_of_the_model(classifier: Classifier, text: str) -> None:
    (found,) = classifier.classify(text)
    expected = dict(zip(LABELS, log_probs(classifier, text).exp().tolist(), strict=True))
    assert found.scores == pytest.approx(expected, abs=1e-5)
    assert found.label == max(expected, key=lambda label: expected[label]) == next(iter(found.scores))
    assert found.warnings == ()


def test_text_is_classified_alone_as_in_a_batch(classifier: Classifier) -> None:
    texts = ["abc", "", "abcdefghij" * 5, "h, A", "abc"]
    for text, found in zip(texts, classifier.classify(texts), strict=True):
        assert found.scores == pytest.approx(classifier.classify([text])[0].scores, abs=1e-5)


def test_long_text_averages_the_log_probabilities_of_its_windows(classifier: Classifier) -> None:
    (found,) = classifier.classify("abcdefghij" + "CBA, .jih")
    average = (log_probs(classifier, "abcdefghij") + log_probs(classifier, "CBA, .jih")) / 2
    assert list(found.scores.values()) == pytest.approx(average.softmax(-1).sort(descending=True).values.tolist())
    assert found.warnings == ("the text is longer than the model's context, so it was processed in 2 windows",)


def test_unknown_characters_are_named_in_a_warning(classifier: Classifier) -> None:
    assert classifier.classify("aΩ")[0].warnings == ("characters the model does not know: Ω",)


@pytest.mark.parametrize("text", ["", " ", "\t\n", "\x00", "\u3000", "\u200b\ufeff"])
def test_blank_text_gets_no_label(classifier: Classifier, text: str) -> None:
    before, found, after = classifier.classify(["abc", text, "de"])
    assert found.label is None and found.scores == {} and "empty" in found.warnings[0]
    assert [before, after] == classifier.classify(["abc", "de"])


@pytest.mark.parametrize("text", ["a\ud800b", "a\x00"])
def test_unusual_texts_get_scores_that_sum_to_one(classifier: Classifier, text: str) -> None:
    assert sum(classifier.classify(text)[0].scores.values()) == pytest.approx(1)


def test_empty_list_of_texts_gives_no_results(classifier: Classifier) -> None:
    assert classifier.classify([]) == []


def test_context_too_short_for_a_token_is_refused(
    classifying_model: Callable[..., EncoderOnly], characters: Tokenizer
) -> None:
    with pytest.raises(PenwrightError, match="have room"):
        Classifier(classifying_model(characters.vocab_size, context_length=2), characters, LABELS)


def test_diverged_model_is_reported(classifier: Classifier) -> None:
    torch.nn.init.constant_(classifier.model.output.weight, float("nan"))
    with pytest.raises(PenwrightError, match="diverged"):
        classifier.classify("a")


def test_training_mode_of_the_model_is_restored(classifier: Classifier) -> None:
    classifier.model.train()
    classifier.classify("a")
    assert classifier.model.training


def test_token_ids_are_scored_like_their_texts(classifier: Classifier) -> None:
    texts = ["abc", "d", "abcdefghij" * 5]
    found = classifier.outputs([np.array(classifier.tokenizer.encode(text), dtype=int) for text in texts])
    for row, given in zip(found.exp().tolist(), classifier.classify(texts), strict=True):
        assert dict(zip(LABELS, row, strict=True)) == pytest.approx(given.scores)
    assert classifier.outputs([]).shape == (0, len(LABELS))


def test_linear_classifier_is_mixed_with_the_model_weights(
    classifying_model: Callable[..., EncoderOnly], characters: Tokenizer
) -> None:
    model = classifying_model(characters.vocab_size, ngrams=True)
    linear = LinearClassifier.fit(["abc"] * 3 + ["def"] * 3 + ["hij"] * 3, torch.arange(3).repeat_interleave(3), 3)
    mixture = Classifier(model, characters, LABELS, linear)
    alone = Classifier(model, characters, LABELS).classify("abc")[0]
    expected = dict(zip(LABELS, linear.outputs(["abc"])[0].exp().tolist(), strict=True))
    assert mixture.classify("abc")[0].scores == pytest.approx(expected)  # initial mixture weights: 0 and 1
    model.mixture.copy_(torch.tensor([1.0, 0.0]))
    assert mixture.classify("abc")[0].scores == pytest.approx(alone.scores)


def test_balanced_classifier_divides_by_the_label_shares(
    classifying_model: Callable[..., EncoderOnly], characters: Tokenizer
) -> None:
    model, shares = classifying_model(characters.vocab_size, balanced=True), torch.tensor([0.7, 0.2, 0.1])
    model.log_prior.copy_(shares.log())
    plain = Classifier(model, characters, LABELS).outputs([np.array(characters.encode("abc"))])[0].exp()
    expected = plain / shares
    (found,) = Classifier(model, characters, LABELS).classify("abc")
    assert [found.scores[label] for label in LABELS] == pytest.approx((expected / expected.sum()).tolist())


def test_balanced_classifier_mixes_balanced_probabilities(
    classifying_model: Callable[..., EncoderOnly], characters: Tokenizer
) -> None:
    model, shares = classifying_model(characters.vocab_size, balanced=True, ngrams=True), torch.tensor([0.7, 0.2, 0.1])
    model.log_prior.copy_(shares.log())
    model.mixture.copy_(torch.tensor([0.0, 2.0]))
    linear = LinearClassifier.fit(["abc"] * 7 + ["def"] * 2 + ["hij"], torch.tensor([0] * 7 + [1] * 2 + [2]), 3)
    expected = (linear.outputs(["abc"])[0].exp() / shares) ** 2
    (found,) = Classifier(model, characters, LABELS, linear).classify("abc")
    assert [found.scores[label] for label in LABELS] == pytest.approx((expected / expected.sum()).tolist())
