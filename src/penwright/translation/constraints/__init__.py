"""Constraints on a translation: glossary terms, protected spans and a prefix."""
