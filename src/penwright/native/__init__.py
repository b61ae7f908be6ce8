"""Operators in C++, and the toolchain that compiles them. Each operator also has an implementation in PyTorch."""
