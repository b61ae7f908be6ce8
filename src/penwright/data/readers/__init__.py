"""Readers for file formats. Each reader turns a file into rows or running text."""
