"""How good a model is: on the whole held-out part, beside a baseline that any model must beat."""
