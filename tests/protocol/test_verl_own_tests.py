"""verl's own tests of its DataProto, run against ours: those that pass, and those that are left out."""

from pathlib import Path
from xml.etree import ElementTree

from tests.verl_wheel import ROOT, run_pytest, verl_site

_CODEC = "one of verl's functions for sending a batch through ray; shards are written to files instead"
LEFT_OUT = {
    "test_serialize_deserialize_single_tensor": _CODEC,
    "test_serialize_deserialize_tensordict_regular_tensors": _CODEC,
    "test_serialize_deserialize_tensordict_nested_tensors": _CODEC,
    "test_serialize_deserialize_tensordict_mixed_types": _CODEC,
    "test_serialize_deserialize_tensordict_with_device": _CODEC,
    "test_numpy_dataproto_serialization_skips_tensordict_consolidation": _CODEC,
    "test_torch_save_data_proto": "saves a batch as one archive; a shard is a folder here",
    "test_dataproto_fold_unfold": "folds object arrays to two dimensions; a column has one here",
    "test_dataproto_unfold_column_chunks": "wants lists of equal length to become a 2-D array; see above",
}


def test_verls_tests_pass_against_our_dataproto(tmp_path: Path) -> None:
    file = tmp_path / "test_protocol_on_cpu.py"
    file.write_bytes((verl_site() / "tests" / file.name).read_bytes())
    result = run_pytest(
        file.name,
        "--junit-xml=report.xml",
        path=[Path(__file__).parent / "verl_alias", ROOT],
        cwd=tmp_path,
    )
    assert (tmp_path / "report.xml").exists(), result.stdout + result.stderr
    cases = list(ElementTree.parse(tmp_path / "report.xml").iter("testcase"))
    failed = {case.attrib["name"] for case in cases if len(case)}
    assert failed == set(LEFT_OUT), result.stdout
    assert len(cases) == 38
    assert len(cases) - len(failed) == 29
