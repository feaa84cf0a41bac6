"""What verl's own tests import as `verl`, answered by this project (see test_verl_own_tests.py)."""

from rl_assets.protocol.dataproto import DataProto

__all__ = ["DataProto"]
