"""Operators in C++, and the toolchain that compiles them. PyTorch code elsewhere defines what each one computes."""
