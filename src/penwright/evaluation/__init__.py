"""Evaluation of models on held-out data, with baselines that any model must beat."""
