"""Next-token sampling: penalties, filters and the draw."""
