"""Readers for file formats. Each turns a file into rows or running text."""
