"""Constraints on a completion (patterns, banned and required words) as one regular language."""
