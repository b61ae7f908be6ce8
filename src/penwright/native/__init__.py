"""Compiled code: operators in C++ beside the PyTorch code that defines each, and steps compiled ahead of time."""
