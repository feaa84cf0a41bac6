"""Tasks done by worker processes of this machine, or of a Ray cluster."""
