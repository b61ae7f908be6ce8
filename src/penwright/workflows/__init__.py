"""Workflows: plan, train, load, evaluate, optimize and export a model."""
