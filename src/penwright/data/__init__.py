"""Examples from files: read, cleaned, split, stored as tokens, and put into batches."""
