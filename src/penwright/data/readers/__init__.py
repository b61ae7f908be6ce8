"""Readers of file formats: each turns a file into rows or running text."""
