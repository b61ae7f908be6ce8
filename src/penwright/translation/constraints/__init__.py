"""Constraints on a translation: a glossary, protected spans, a given beginning."""
