"""What a completion must and must not hold, as one regular language."""
