"""The command line of the project: one file per command."""

import typer

from rl_assets.cli.check import check
from rl_assets.cli.codes import codes
from rl_assets.cli.configuration import configuration
from rl_assets.cli.gc import gc
from rl_assets.cli.init import init
from rl_assets.cli.trace import trace
from rl_assets.cli.verify import verify

app = typer.Typer(
    help="Check, start, follow and tidy RL post-training datasets in verl's row schema.",
    no_args_is_help=True,
    add_completion=False,
)
for command in (init, check, codes, configuration, trace, verify, gc):
    app.command()(command)
