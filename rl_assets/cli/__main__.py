"""`python -m rl_assets.cli` is `rl-assets`."""

from rl_assets.cli import app

app()
