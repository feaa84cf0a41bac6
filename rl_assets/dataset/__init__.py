"""One dataset: where its assets are stored, and what its YAML asks for."""
