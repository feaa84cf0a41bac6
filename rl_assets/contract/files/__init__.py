"""Raw files: which are taken, and how their rows are read."""
