"""One process that sends raw files through scan and contract, one by one, and says what became of each.

    python -m tests.fuzz.child FOLDER NAME…        (names on standard input where there are none)

Prints a line of JSON per file: its name, the seconds, the peak of resident memory so far in MiB, and either
the refusal's message or how many rows were accepted and rejected. A limit of the address space ends the
process before it harms the machine.
"""

import faulthandler
import json
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.memory import peak_bytes
from rl_assets.contract.files.scan import scan_files
from rl_assets.contract.gate import apply_contract
from rl_assets.contract.rules.codes import CODES
from rl_assets.contract.rules.options import ContractOptions
from rl_assets.errors import InputError

ADDRESS_SPACE = 12 << 30
SECONDS = 60


def fate(name: str, folder: Path) -> dict[str, Any]:
    """What scan and contract make of one file.

    Raises:
        AssertionError: a row is lost or doubled, or one was rejected without a known code.
    """
    try:
        manifest = scan_files(name, root=folder)
        with tempfile.TemporaryDirectory() as out:
            result = apply_contract(manifest, ContractOptions(), root=folder, folder=Path(out))
            codes: dict[str, int] = {}
            seen = bytearray(manifest.rows)
            for table in (result.accepted, result.rejected):
                for batch in table.batches(("source_row",)):
                    for position in batch.column(0).to_pylist():
                        seen[position] += 1
            assert set(seen) <= {1}, "a row is lost or doubled"
            for record in result.rejected.rows(("code", "message")):
                assert record["code"] in CODES, record["code"]
                assert record["message"], record["code"]
                codes[record["code"]] = codes.get(record["code"], 0) + 1
            return {"accepted": result.accepted_rows, "rejected": result.rejected_rows, "codes": codes}
    except InputError as error:
        return {"refused": str(error)}


def main() -> None:
    """Judge the files that are named."""
    folder, *names = sys.argv[1:]
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    faulthandler.enable()
    for name in names or sys.stdin.read().splitlines():
        faulthandler.dump_traceback_later(SECONDS, exit=True)
        start = time.perf_counter()
        found = fate(name, Path(folder))
        seconds = round(time.perf_counter() - start, 2)
        line = {"name": name, "seconds": seconds, "peak": peak_bytes() >> 20, **found}
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
