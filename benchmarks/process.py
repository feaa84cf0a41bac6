"""A function of a benchmark in a process of its own."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.verl_wheel import ROOT, verl_site


def call(function: str, *arguments: Any, verl: bool = False, quiet: bool = False) -> Any:
    """What `benchmarks.<function>` returns, through JSON, in a fresh process; its output is shown at once.

    Args:
        function: `<module>.<name>`.
        arguments: anything whose `repr` makes it again.
        verl: whether the process imports verl; its wheel is installed in a folder of its own on first use.
        quiet: whether what it writes to its standard error is shown only where it fails.

    Raises:
        RuntimeError: the process failed; its error stands in the output.
    """
    module, name = function.split(".")
    path = [verl_site(), ROOT] if verl else [ROOT]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path)), "HF_HUB_OFFLINE": "1"}
    with tempfile.TemporaryDirectory(prefix="rl-assets-") as folder:
        result = Path(folder) / "result.json"
        code = (
            f"import json, pathlib\nfrom benchmarks.{module} import {name}\n"
            f"result = {name}(*{arguments!r})\npathlib.Path({str(result)!r}).write_text(json.dumps(result))"
        )
        with (Path(folder) / "errors.txt").open("w+") as errors:
            done = subprocess.run(
                [sys.executable, "-c", code],
                env=environment,
                cwd=ROOT,
                check=False,
                stderr=errors if quiet else None,
            )
            if done.returncode:
                errors.seek(0)
                sys.stderr.write(errors.read()[-5000:])
        if done.returncode:
            raise RuntimeError(f"{function} ended with exit status {done.returncode}")
        return json.loads(result.read_text())
