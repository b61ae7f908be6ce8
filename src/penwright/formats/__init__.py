"""Models in the formats of other programs: one file for each, its names and ours side by side as data."""
