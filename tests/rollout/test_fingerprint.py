"""A policy's fingerprint: the same for the same files anywhere, another for any change that counts."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rl_assets.errors import InputError
from rl_assets.policy.fingerprint import policy_fingerprint


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "policy"
    (folder / "additional_chat_templates").mkdir(parents=True)
    for name in (
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "additional_chat_templates/tools.jinja",
    ):
        (folder / name).write_text(f"content of {name}")
    return folder


def test_it_depends_on_the_files_and_not_on_where_they_lie(checkpoint: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(checkpoint, tmp_path / "elsewhere")
    assert policy_fingerprint(copy) == policy_fingerprint(str(checkpoint))


def test_every_file_that_counts_changes_it(checkpoint: Path) -> None:
    seen = {policy_fingerprint(checkpoint)}
    files = [path for path in sorted(checkpoint.rglob("*")) if path.is_file()]
    for number, file in enumerate(files, 2):
        file.write_text(file.read_text().swapcase())
        seen.add(policy_fingerprint(checkpoint))
        assert len(seen) == number, file.name
    (checkpoint / "added_tokens.json").write_text("{}")
    assert policy_fingerprint(checkpoint) not in seen


def test_files_that_transformers_does_not_read_do_not_count(checkpoint: Path) -> None:
    before = policy_fingerprint(checkpoint)
    for name in ("optimizer.pt", "README.md", "pytorch_model.bin", "training_args.bin"):
        (checkpoint / name).write_text("x")
    assert policy_fingerprint(checkpoint) == before


def test_weights_rewritten_in_place_are_noticed(checkpoint: Path) -> None:
    """Same size, same inode: the modification time tells."""
    weights = checkpoint / "model.safetensors"
    before, stat = policy_fingerprint(checkpoint), weights.stat()
    with weights.open("r+") as file:
        file.write("C")
    os.utime(weights, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    assert policy_fingerprint(checkpoint) != before


@pytest.mark.parametrize(
    ("removed", "found"), [("config.json", "no config.json"), ("model.safetensors", "no weights")]
)
def test_a_folder_that_is_no_checkpoint_is_refused(checkpoint: Path, removed: str, found: str) -> None:
    (checkpoint / removed).unlink()
    with pytest.raises(InputError, match=found) as refusal:
        policy_fingerprint(checkpoint)
    assert refusal.value.file == str(checkpoint)


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such folder"):
        policy_fingerprint(tmp_path / "nothing")


def test_a_hub_id_that_cannot_be_fetched_is_refused() -> None:
    with pytest.raises(InputError, match="neither a local folder nor a hub repository"):
        policy_fingerprint("rl-assets-tests/no-such-policy")


def test_it_needs_no_torch(checkpoint: Path) -> None:
    script = (
        "import sys; from rl_assets.rollout.params import SamplingParams;"
        "from rl_assets.policy.fingerprint import policy_fingerprint;"
        f"policy_fingerprint({str(checkpoint)!r}); SamplingParams();"
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=Path(__file__).parents[2])
