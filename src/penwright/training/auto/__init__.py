"""Automatic settings: sizes, budget and schedule, chosen for the text and the machine."""
