"""The journal: what was finished is found again, exactly, also after the process was killed."""

import os
import resource
import signal
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_assets.rollout.engine import RolloutStats, generate_rollouts
from rl_assets.rollout.journal import Journal
from rl_assets.rollout.params import SamplingParams
from rl_assets.rollout.policy import Policy, load_policy
from rl_assets.rollout.requests import Prompt, Response, response_keys
from tests.rollout import tiny

FLOATS = st.floats(width=32, allow_nan=False, max_value=0)
PROMPTS = tiny.text_ids(12, 30)
SAMPLING = SamplingParams(n=4, seed=1)


@st.composite
def responses(draw: st.DrawFn) -> Response:
    ids = draw(st.lists(st.integers(0, 200_000), max_size=20))
    values = st.lists(FLOATS, min_size=len(ids), max_size=len(ids))
    return Response(ids, draw(values), draw(values), draw(st.sampled_from(["stop", "length"])))


@given(made=st.dictionaries(st.text("0123456789abcdef", min_size=32, max_size=32), responses(), max_size=5))
@settings(max_examples=30, deadline=None)
def test_what_was_added_is_found_again(
    made: dict[str, Response], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("journal")
    with Journal(folder) as journal:
        for key, response in made.items():
            journal.add(key, response)
    again = Journal(folder)
    assert len(again) == len(made)
    assert {key: again.get(key) for key in made} == made


def test_a_key_that_was_never_added_is_not_found(tmp_path: Path) -> None:
    assert Journal(tmp_path / "none").get("0" * 32) is None


@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_a_torn_or_damaged_line_costs_only_itself(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("journal")
    kept = {f"{number:032x}": Response([number], [-1.0], [-2.0], "stop") for number in range(4)}
    with Journal(folder) as journal:
        for key, response in kept.items():
            journal.add(key, response)
    (file,) = folder.iterdir()
    lines = file.read_bytes().splitlines(keepends=True)
    at = data.draw(st.integers(0, len(lines[2]) - 2))
    if data.draw(st.booleans()):
        lines[2] = lines[2][:at] + bytes([lines[2][at] ^ 1]) + lines[2][at + 1 :]
        expected = {key: value for key, value in kept.items() if int(key, 16) != 2}
    else:
        lines = [*lines[:2], lines[2][:at]]
        expected = {key: value for key, value in kept.items() if int(key, 16) < 2}
    file.write_bytes(b"".join(lines))
    again = Journal(folder)
    assert {key: again.get(key) for key in kept if again.get(key)} == expected


def test_only_keys_and_places_are_in_memory(tmp_path: Path) -> None:
    """Of 200 responses of 1,024 tokens, less than a hundredth of the 20 MB that they take as lists."""
    ids, log_probs = list(range(1024)), [-float(number) for number in range(1024)]
    with Journal(tmp_path) as journal:
        for number in range(200):
            journal.add(f"{number:032x}", Response(ids, log_probs, log_probs, "stop"))
    tracemalloc.start()
    journal = Journal(tmp_path)
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert len(journal) == 200
    assert held < 200_000


def test_a_line_that_is_damaged_after_it_was_indexed_is_not_taken(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.add("1" * 32, Response([1], [-1.0], [-1.0], "stop"))
        (file,) = tmp_path.glob("*.jsonl")
        file.write_bytes(file.read_bytes().replace(b"stop", b"spot"))
        assert journal.get("1" * 32) is None


def test_a_file_that_is_gone_since_it_was_indexed_holds_nothing(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.add("1" * 32, Response([1], [-1.0], [-1.0], "stop"))
    reader = Journal(tmp_path)
    next(tmp_path.glob("*.jsonl")).unlink()
    assert reader.get("1" * 32) is None


def test_what_is_added_after_a_short_write_is_found(tmp_path: Path) -> None:
    """A write that a signal or a full disk cuts short is an error, and spoils no later line."""
    kept = Response([2], [-1.0], [-1.0], "stop")
    with Journal(tmp_path) as journal:
        journal.add("0" * 32, kept)
        size = next(tmp_path.glob("*.jsonl")).stat().st_size
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, before[1]))
        try:
            with pytest.raises(OSError, match=r"^\[Errno 27\] File too large: "):
                journal.add("1" * 32, kept)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        journal.add("2" * 32, kept)
        assert journal.get("2" * 32) == kept
    again = Journal(tmp_path)
    assert {key for key in ("0" * 32, "1" * 32, "2" * 32) if again.get(key) == kept} == {"0" * 32, "2" * 32}


def test_two_processes_share_a_folder(tmp_path: Path) -> None:
    one, other = Journal(tmp_path), Journal(tmp_path)
    one.add("1" * 32, Response([1], [-1.0], [-1.0], "stop"))
    other.add("2" * 32, Response([2], [-1.0], [-1.0], "stop"))
    one.close()
    other.close()
    assert len(Journal(tmp_path)) == 2


KEY = response_keys(Prompt("u", (1, 2, 3), 9), SamplingParams(n=2), {"fingerprint": "f"})


@pytest.mark.parametrize(
    ("prompt", "sampling", "policy"),
    [
        (Prompt("v", (1, 2, 3), 9), SamplingParams(n=2), {"fingerprint": "f"}),
        (Prompt("u", (1, 2, 4), 9), SamplingParams(n=2), {"fingerprint": "f"}),
        (Prompt("u", (1, 2, 3), 8), SamplingParams(n=2), {"fingerprint": "f"}),
        (Prompt("u", (1, 2, 3), 9, {"x": torch.ones(2)}), SamplingParams(n=2), {"fingerprint": "f"}),
        (Prompt("u", (1, 2, 3), 9), SamplingParams(n=2, seed=1), {"fingerprint": "f"}),
        (Prompt("u", (1, 2, 3), 9), SamplingParams(n=2), {"fingerprint": "g"}),
    ],
)
def test_a_key_covers_all_that_a_response_depends_on(
    prompt: Prompt, sampling: SamplingParams, policy: dict[str, str]
) -> None:
    assert not set(response_keys(prompt, sampling, policy)) & set(KEY)


def test_a_key_tells_media_apart_and_not_the_number_of_samples() -> None:
    def keys(value: float, n: int = 2) -> list[str]:
        media = {
            "pixel_values": torch.full((2, 3), value),
            "image_grid_thw": torch.ones(1, 3, dtype=torch.long),
        }
        return response_keys(Prompt("u", (1,), 9, media), SamplingParams(n=n), {})

    assert keys(1.0) == keys(1.0)
    assert keys(1.0)[0] != keys(1.5)[0]
    assert len(set(keys(1.0))) == 2
    assert keys(1.0, n=3)[:2] == keys(1.0)


def roll_out(
    policy: Policy, journal: Journal | None, stats: RolloutStats, sampling: SamplingParams = SAMPLING
):
    return generate_rollouts(
        policy,
        tiny.batch(PROMPTS),
        sampling,
        prompt_length=30,
        response_length=60,
        max_batch_size=4,
        log=lambda _: None,
        journal=journal,
        stats=stats,
    )


def test_an_unchanged_rebuild_generates_nothing_and_more_samples_only_those(
    llama: Policy, tmp_path: Path
) -> None:
    first, again, more = RolloutStats(), RolloutStats(), RolloutStats()
    with Journal(tmp_path) as journal:
        before = roll_out(llama, journal, first)
    after = roll_out(llama, Journal(tmp_path), again)
    roll_out(llama, Journal(tmp_path), more, SamplingParams(n=5, seed=1))
    assert (first.reused, again.reused, more.reused) == (0, 48, 48)
    assert again.generated_tokens == 0
    assert more.responses - more.reused == 12
    for name in before.batch.keys():  # noqa: SIM118 (a TensorDict is not iterable by key)
        assert torch.equal(before.batch[name], after.batch[name])


def test_a_changed_checkpoint_in_the_same_folder_is_noticed(llama_folder: Path, tmp_path: Path) -> None:
    stats = [RolloutStats(), RolloutStats()]
    with load_policy(llama_folder) as policy, Journal(tmp_path / "journal") as journal:
        roll_out(policy, journal, stats[0])
        with torch.no_grad():
            policy.model.lm_head.weight[7] += 1.0
        policy.model.save_pretrained(llama_folder)
    with load_policy(llama_folder) as policy, Journal(tmp_path / "journal") as journal:
        roll_out(policy, journal, stats[1])
    assert stats[1].reused == 0


KILLED = """
import sys
from pathlib import Path

import torch

from rl_assets.rollout.engine import RolloutStats
from rl_assets.rollout.journal import Journal
from rl_assets.rollout.policy import load_policy
from tests.rollout.test_journal import roll_out

torch.set_num_threads(1)
policy = load_policy(sys.argv[1])
print("ready", flush=True)
roll_out(policy, Journal(Path(sys.argv[2])), RolloutStats())
"""


def test_a_killed_run_resumes_to_the_same_result(llama_folder: Path, tmp_path: Path) -> None:
    """SIGKILL after a few responses; what had been journalled is not made again, and nothing differs."""
    folder = tmp_path / "journal"
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(llama_folder), str(folder)],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    deadline = time.monotonic() + 60
    while len(Journal(folder)) < 5 and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    kept = len(Journal(folder))
    assert 5 <= kept < 48
    undisturbed, resumed = RolloutStats(), RolloutStats()
    with load_policy(llama_folder) as policy:
        whole = roll_out(policy, None, undisturbed)
        after = roll_out(policy, Journal(folder), resumed)
    assert resumed.reused == kept
    assert 0 < resumed.generated_tokens < undisturbed.generated_tokens
    for name, tensor in whole.batch.items():
        assert torch.equal(tensor, after.batch[name]), name
    assert whole.non_tensor_batch["uid"].tolist() == after.non_tensor_batch["uid"].tolist()
