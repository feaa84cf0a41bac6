"""The field contract: every raw row is accepted whole or rejected with a reason."""

from rl_assets.contract.codes import CODES, Code, Finding
from rl_assets.contract.files import SPLITS, RawFile, RawManifest
from rl_assets.contract.gate import ContractResult, Counts, Warned, apply_contract
from rl_assets.contract.options import ContractOptions
from rl_assets.contract.scan import scan_files
from rl_assets.contract.schema import MEDIA_COLUMNS, REJECT_SCHEMA, ROW_SCHEMA, decode_row, reject

__all__ = [
    "CODES",
    "MEDIA_COLUMNS",
    "REJECT_SCHEMA",
    "ROW_SCHEMA",
    "SPLITS",
    "Code",
    "ContractOptions",
    "ContractResult",
    "Counts",
    "Finding",
    "RawFile",
    "RawManifest",
    "Warned",
    "apply_contract",
    "decode_row",
    "reject",
    "scan_files",
]
