"""From a trained model to text: sampling, beam search, and what they need of a model."""

from penwright.decoding.alignment import Aligner, Head, choose_head, pharaoh
from penwright.decoding.beam import beam_search
from penwright.decoding.choosing.sampling import Chances, Sampling
from penwright.decoding.classifier import Classification, Classifier
from penwright.decoding.decodable import Branching, Continuing, Decodable, Translating
from penwright.decoding.generate import Finish, Step, generate
from penwright.decoding.generator import Completion, Generator
from penwright.decoding.hypotheses import BeamSettings, Hypothesis
from penwright.decoding.obeying.demands import NO_DEMANDS, Demands, Outcome
from penwright.decoding.obeying.glossary import Entry, Glossary
from penwright.decoding.obeying.protection import Protection
from penwright.decoding.translations import Alternative, Candidate, Piece, Translation
from penwright.decoding.translator import Translator

__all__ = [
    "NO_DEMANDS",
    "Aligner",
    "Alternative",
    "BeamSettings",
    "Branching",
    "Candidate",
    "Chances",
    "Classification",
    "Classifier",
    "Completion",
    "Continuing",
    "Decodable",
    "Demands",
    "Entry",
    "Finish",
    "Generator",
    "Glossary",
    "Head",
    "Hypothesis",
    "Outcome",
    "Piece",
    "Protection",
    "Sampling",
    "Step",
    "Translating",
    "Translation",
    "Translator",
    "beam_search",
    "choose_head",
    "generate",
    "pharaoh",
]
