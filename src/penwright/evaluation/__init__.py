"""Evaluation of models on held-out data, with baselines for comparison."""
