"""What the project promises about code, network, files and secrets: one test for each promise."""

import ast
import io
import json
import os
import re
import shutil
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import dagster as dg
import numpy as np
import pyarrow.parquet as pq
import pytest
from dagster.components.testing.utils import create_defs_folder_sandbox
from pydantic import ValidationError

from rl_assets import DataToRollout
from rl_assets.base.files import storage_root
from rl_assets.base.manifests import read_manifest
from rl_assets.base.tables import Table
from rl_assets.errors import InputError
from rl_assets.graph.dataset import GraphDataset
from rl_assets.media.decode import read_video
from rl_assets.media.store import MediaStore
from rl_assets.prompts.render import PromptRenderer
from rl_assets.prompts.tools import load_tool_schemas
from rl_assets.protocol.manifest import ShardManifest
from rl_assets.spec.credentials import carries_credentials
from rl_assets.spec.dataset import DataToRolloutSpec
from tests.build import POLICY, materialize, problem
from tests.contract.rows import accepted, errors, judge, png, said
from tests.project import attributes, make_project, run, write_defs
from tests.server import free_port, started, wait_for_server

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "rl_assets"

# --- no code out of data --------------------------------------------------------------------------------

UNSAFE_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "jsonpickle"}
UNSAFE_NAMES = {"eval", "exec", "compile", "__import__"}
UNSAFE_CALLS = {"read_pickle", "to_pickle", "unsafe_load", "full_load", "unsafe_load_all", "full_load_all"}


def unsafe(source: str) -> list[str]:
    """What in a Python file could run code out of data, by line."""
    found = []
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name.split(".")[0] in UNSAFE_MODULES]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module] if (node.module or "").split(".")[0] in UNSAFE_MODULES else []  # type: ignore[list-item]
        elif isinstance(node, ast.Call):
            names = _unsafe_call(node)
        found += [f"{node.lineno}: {name}" for name in names]
    return found


def _unsafe_call(node: ast.Call) -> list[str]:
    given = {word.arg: ast.unparse(word.value) for word in node.keywords}
    if isinstance(node.func, ast.Name):
        return [node.func.id] if node.func.id in UNSAFE_NAMES else []
    if not isinstance(node.func, ast.Attribute):
        return []
    name, owner = node.func.attr, ast.unparse(node.func.value)
    if name in UNSAFE_CALLS:
        return [name]
    if owner == "torch" and name == "load" and given.get("weights_only") != "True":
        return ["torch.load without weights_only"]
    if owner == "yaml" and name in ("load", "load_all") and "Safe" not in given.get("Loader", ""):
        return ["yaml.load"]
    if given.get("allow_pickle") == "True":
        return ["allow_pickle"]
    return ["shell=True"] if given.get("shell") == "True" else []


def test_no_code_of_the_package_runs_code_out_of_data() -> None:
    files = sorted(PACKAGE.rglob("*.py"))
    assert len(files) > 80
    assert {str(file): found for file in files if (found := unsafe(file.read_text()))} == {}


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "from joblib import load",
        "eval('1')",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "yaml.load(text, Loader=yaml.Loader)",
        "yaml.unsafe_load(text)",
        "np.load(path, allow_pickle=True)",
        "pd.read_pickle(path)",
        "subprocess.run(line, shell=True)",
    ],
)
def test_the_search_for_such_code_finds_it(code: str) -> None:
    assert len(unsafe(code)) == 1


def policy_with_code(folder: Path, model_type: str) -> Path:
    """A copy of the demo policy that names Python code of its own, which leaves a trace where it is run.

    Its other files are symbolic links: a hard link would touch the demo policy, which a test beside may be
    reading.
    """
    shutil.copytree(POLICY, folder, copy_function=os.symlink)
    trace = folder / "code-was-run"
    code = f"from pathlib import Path\nPath({str(trace)!r}).touch()\n"
    (folder / "own.py").write_text(
        code + "from transformers import LlamaConfig\nclass Config(LlamaConfig): pass\n"
    )
    for name, keys in {
        "config.json": {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"},
        "tokenizer_config.json": {"AutoTokenizer": ["own.Tokenizer", None]},
    }.items():
        settings = json.loads((folder / name).read_text())
        (folder / name).unlink()
        settings["auto_map"] = keys
        if name == "config.json":
            settings["model_type"] = model_type
        (folder / name).write_text(json.dumps(settings))
    return trace


@pytest.mark.parametrize("model_type", ["llama", "unheard_of"])
def test_a_policys_own_code_is_not_run(tmp_path: Path, model_type: str) -> None:
    """A model that transformers knows is loaded without it; another is refused."""
    from rl_assets.rollout.policy import load_policy

    trace = policy_with_code(tmp_path / "policy", model_type)
    if model_type == "llama":
        PromptRenderer.load(tmp_path / "policy")
        load_policy(tmp_path / "policy", device="cpu").close()
    else:
        with pytest.raises(InputError, match="trust_remote_code"):
            load_policy(tmp_path / "policy", device="cpu")
    assert not trace.exists()
    assert not DataToRolloutSpec.model_validate(attributes()).data.trust_remote_code


def test_the_trace_is_left_where_the_yaml_trusts_the_code(tmp_path: Path) -> None:
    from rl_assets.rollout.policy import load_policy

    trace = policy_with_code(tmp_path / "policy", "unheard_of")
    with pytest.raises(InputError):  # the code has no model, but it was run
        load_policy(tmp_path / "policy", device="cpu", trust_remote_code=True)
    assert trace.exists()


class Command:
    """Runs a command when it is unpickled."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (self.command,)


def test_weights_that_are_a_pickle_run_no_code(tmp_path: Path) -> None:
    """Old checkpoints are read, as tensors and nothing else."""
    import torch

    from rl_assets.rollout.policy import load_policy

    folder, trace = tmp_path / "policy", tmp_path / "code-was-run"
    shutil.copytree(
        POLICY,
        folder,
        copy_function=os.symlink,
        ignore=shutil.ignore_patterns("*.safetensors", "*.index.json"),
    )
    torch.save({"lm_head.weight": Command(f"touch {trace}")}, folder / "pytorch_model.bin")
    with pytest.raises(InputError, match="Unpickling"):
        load_policy(folder, device="cpu")
    assert not trace.exists()
    torch.load(folder / "pytorch_model.bin", weights_only=False)
    assert trace.exists()


@pytest.mark.parametrize("place", [None, "text_config"])
def test_a_policy_that_asks_for_a_kernel_from_the_hub_is_refused(tmp_path: Path, place: str | None) -> None:
    """It would be fetched and run where the package `kernels` is installed."""
    from rl_assets.rollout.policy import load_policy

    shutil.copytree(POLICY, tmp_path / "policy", copy_function=os.symlink)
    config = tmp_path / "policy/config.json"
    settings, asks = json.loads(config.read_text()), {"_attn_implementation": "someone/kernel"}
    config.unlink()
    config.write_text(json.dumps({**settings, **({place: asks} if place else asks)}))
    with pytest.raises(
        InputError, match=r"config\.json: field `_attn_implementation`: found 'someone/kernel'"
    ):
        load_policy(tmp_path / "policy", device="cpu")


COMMAND = "!!python/object/apply:os.system ['touch {trace}']"


def test_yaml_that_asks_for_code_is_refused(tmp_path: Path) -> None:
    trace = tmp_path / "code-was-run"
    command = COMMAND.format(trace=trace)
    tools = tmp_path / "tools.yaml"
    tools.write_text(f"tools: {command}\n")
    with pytest.raises(InputError):
        load_tool_schemas(tools)
    project = make_project(tmp_path / "project")
    defs = project / "toy_project/defs/toy/defs.yaml"
    defs.write_text(defs.read_text().replace("dataset: toy", f"dataset: {command}"))
    assert command in defs.read_text()
    assert run(project, "dg", "check", "yaml", "toy_project/defs/toy").returncode == 1
    assert not trace.exists()


# --- chat templates -------------------------------------------------------------------------------------


def renderer(folder: Path, template: str) -> PromptRenderer:
    """The demo policy's tokenizer with another chat template."""
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        shutil.copy(POLICY / name, folder)
    (folder / "chat_template.jinja").write_text(template)
    return PromptRenderer.load(folder)


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "unsafe"),
        ("{{ messages.append({}) }}", "unsafe"),
        ("{{ cycler.__init__.__globals__.os.system('id') }}", "unsafe"),
        ("{% for i in range(1000000000) %}x{% endfor %}", "[Rr]ange"),
    ],
)
def test_a_chat_template_cannot_reach_python_or_loop_a_billion_times(
    tmp_path: Path, template: str, says: str
) -> None:
    (rendered,) = renderer(tmp_path / "policy", template).render([[{"role": "user", "content": "2 + 2?"}]])
    assert re.search(says, str(rendered.error))


# --- network --------------------------------------------------------------------------------------------

NO_NETWORK = """
import sys

def refuse(event, arguments):
    if event == "socket.connect" and isinstance(arguments[1], tuple) or event == "socket.getaddrinfo":
        address = arguments[1] if event == "socket.connect" else arguments[:2]
        if address[0] not in ("localhost", "127.0.0.1", "::1"):
            open(TRACE, "a").write(f"{event} {address}\\n")
            raise PermissionError("no network in this test")

sys.addaudithook(refuse)
"""


def test_a_whole_rebuild_opens_no_connection(tmp_path: Path) -> None:
    """In no process of it: each gets the guard by way of its `sitecustomize`."""
    project = make_project(tmp_path / "project")
    trace = tmp_path / "trace"
    (project / "sitecustomize.py").write_text(f"TRACE = {str(trace)!r}\n{NO_NETWORK}")
    with (project / "data/toy/train.jsonl").open("a") as file:
        for url in ("https://example.com/a.png", "http://169.254.169.254/latest/a.png"):
            content = "<image> What is this?"
            row = problem(9, prompt=[{"role": "user", "content": content}], images=[{"image": url}])
            file.write(json.dumps(row) + "\n")
    write_defs(project, attributes(checks={"reject_rate": {"max": 0.5}}))
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("HF_HUB_OFFLINE")
        launched = run(project, "dg", "launch", "--job", "toy_rebuild")
    assert launched.returncode == 0, launched.stdout[-4000:]
    assert not trace.exists(), trace.read_text()
    rejected = Table(project / "data/storage/toy/rejected_rows.parquet").rows()
    assert [row["code"] for row in rejected] == ["media.remote", "media.remote"]


def test_the_guard_sees_a_connection(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(f"TRACE = {str(tmp_path / 'trace')!r}\n{NO_NETWORK}")
    code = "import socket; socket.create_connection(('example.com', 80))"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    assert subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True).returncode == 1
    assert "example.com" in (tmp_path / "trace").read_text()


# --- files ----------------------------------------------------------------------------------------------


def test_media_lie_below_the_datasets_folder(tmp_path: Path) -> None:
    """Whatever way leads out of it, the row is refused and the file is not read."""
    folder = tmp_path / "set"
    folder.mkdir()
    (tmp_path / "secret.png").write_bytes(png())
    (folder / "inside.png").write_bytes(png())
    (folder / "link.png").symlink_to(tmp_path / "secret.png")
    (folder / "up").symlink_to(tmp_path)
    ways = ["../secret.png", str(tmp_path / "secret.png"), "link.png", "up/secret.png", "a/../../secret.png"]
    ways += [f"file://{tmp_path}/secret.png", f"file://{folder}/%2e%2e/secret.png"]
    rows = [said("<image> What is this?", images=[{"image": way}]) for way in ways]
    (folder / "hard.png").hardlink_to(tmp_path / "secret.png")  # is the folder's own file as well
    inside = [said("<image> What is this?", images=[{"image": name}]) for name in ("inside.png", "hard.png")]
    result = judge(folder, *rows, *inside)
    assert {code for code, _ in errors(result)} <= {"media.outside_folder", "media.file_missing"}
    assert result.rejected.num_rows == len(ways)
    assert len(accepted(result)) == 2


PLAYLIST = "#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:1,\n{file}\n#EXT-X-ENDLIST\n"
SESSION = "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=video 50000 RTP/AVP 32\n"


def test_a_video_that_names_other_files_or_addresses_is_not_played(tmp_path: Path) -> None:
    """FFmpeg would open what a playlist names, and would wait for what a session description announces."""
    import av

    secret = tmp_path / "secret.ts"
    with av.open(str(secret), "w") as made:
        stream = made.add_stream("mpeg2video", rate=25, width=32, height=32, pix_fmt="yuv420p")
        frame = av.VideoFrame.from_ndarray(np.zeros((32, 32, 3), np.uint8), format="rgb24")
        made.mux([packet for one in [*[frame] * 25, None] for packet in stream.encode(one)])
    folder = tmp_path / "set"
    folder.mkdir()
    (folder / "clip.m3u8").write_text(PLAYLIST.format(file=secret))
    with av.open(str(folder / "clip.m3u8")) as played:
        assert len(list(played.decode(video=0))) == 25
    for medium in (folder / "clip.m3u8", io.BytesIO(SESSION.encode())):
        with pytest.raises((OSError, ValueError)):
            read_video(medium, lambda about: [0])
    assert read_video(secret, lambda about: [0])[0].shape == (1, 3, 32, 32)


@pytest.mark.parametrize("name", ["../other", "/etc/other", "a/../../other", "..", ".hidden", "", "a\\b"])
def test_a_manifest_names_no_place_outside_its_folder(name: str, tmp_path: Path) -> None:
    """Shards are written, read and deleted under the names that manifests give them."""
    ref = {"name": "train-00000", "path": "train-00000-0123456789ab", "digest": "0", "rows": 1, "bytes": 1}
    for changed in ({**ref, "name": name}, {**ref, "path": name}):
        (tmp_path / "rollouts.json").write_text(json.dumps({"format": 1, "shards": [changed]}))
        with pytest.raises(InputError, match=r"rollouts\.json: found no manifest"):
            read_manifest(ShardManifest, tmp_path / "rollouts.json")
    (tmp_path / "rollouts.json").write_text(json.dumps({"format": 1, "shards": [ref]}))
    assert read_manifest(ShardManifest, tmp_path / "rollouts.json").rows == 1
    for use in (MediaStore(tmp_path / "media").get, MediaStore(tmp_path / "media").__contains__):
        with pytest.raises(InputError, match="32 hex digits"):
            use(name)


# --- secrets --------------------------------------------------------------------------------------------

SECRET = "s3cr3t-of-the-environment"


@pytest.mark.parametrize(
    ("address", "carries"),
    [
        (f"https://ann:{SECRET}@example.com/rows.jsonl", True),
        (f"https://{SECRET}@huggingface.co/ann/rows", True),
        (f"s3://AKIA:{SECRET}@bucket/rows.parquet", True),
        (f"https://example.com/rows.jsonl?X-Amz-Signature={SECRET}", True),
        ("s3://bucket/rows-?.parquet", False),
        ("hub://ann/rows@0123abc#train", False),
        ("hf://datasets/ann/rows@0123abc/train.parquet", False),
        ("data/ann@example.com/rows.jsonl", False),
    ],
)
def test_an_address_with_credentials_is_told_from_others(address: str, carries: bool) -> None:
    assert carries_credentials(address) is carries


def load(**changes: Any) -> dg.Definitions:
    with create_defs_folder_sandbox() as sandbox:
        path = sandbox.scaffold_component(
            component_cls=DataToRollout,
            defs_yaml_contents={"type": "rl_assets.DataToRollout", "attributes": attributes(**changes)},
        )
        with sandbox.load_component_and_build_defs(defs_path=path) as (_, defs):
            return defs


ADDRESS = {
    "data": {"train_files": "{{ env('ADDRESS') }}"},
    "policy": {"path": "{{ env('ADDRESS') }}"},
    "curation": {"contamination_files": ["{{ env('ADDRESS') }}"]},
}


@pytest.mark.parametrize("block", ADDRESS)
def test_credentials_in_an_address_are_refused_and_not_repeated(
    block: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the address comes from the environment."""
    monkeypatch.setenv("ADDRESS", f"https://ann:{SECRET}@example.com/rows.jsonl")
    with pytest.raises(Exception, match=r"defs\.yaml") as refused:
        load(**{block: ADDRESS[block]})
    shown = "".join(traceback.format_exception(refused.value))
    assert "credentials in its address" in shown
    assert SECRET not in shown


def test_a_value_of_the_environment_is_not_repeated_where_it_is_no_setting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SEED", SECRET)
    with pytest.raises(Exception, match=r"defs\.yaml") as refused:
        load(rollout={"seed": "{{ env('SEED') }}"})
    shown = "".join(traceback.format_exception(refused.value))
    assert "rollout.seed" in shown
    assert SECRET not in shown
    with pytest.raises(ValidationError, match=r"rollout\.seed") as refused:
        DataToRolloutSpec.model_validate(attributes(rollout={"seed": SECRET}))
    assert SECRET not in str(refused.value)


def test_credentials_in_the_storages_address_are_refused_and_not_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RL_ASSETS_STORAGE", f"s3://key:{SECRET}@bucket/storage")
    with pytest.raises(InputError, match="RL_ASSETS_STORAGE") as refused:
        storage_root(ROOT)
    assert SECRET not in str(refused.value)


JUDGE = """
def compute_score(data_source, solution_str, ground_truth, extra_info, api_key, strictness):
    raise ConnectionError("401 from https://judge.example.com?key=" + api_key)
"""


def test_a_reward_functions_key_is_in_no_event_and_no_table(
    toy: GraphDataset, caplog: pytest.LogCaptureFixture
) -> None:
    """Even where the function's own error repeats it."""
    (toy.root / "judge.py").write_text(JUDGE)
    custom = {"path": "judge.py", "reward_kwargs": {"api_key": SECRET, "strictness": 3}}
    settings = {**toy.spec.model_dump(exclude_unset=True), "reward": {"custom_reward_function": custom}}
    dataset = GraphDataset(DataToRolloutSpec.model_validate(settings), toy.root)
    with dg.instance_for_test() as instance:
        result = materialize(dataset, "reward_function", "reward_scores", instance=instance)
        told = [event.to_json() for event in instance.all_logs(result.run_id)]
    assert any("strictness" in event for event in told)
    assert any("401 from https://judge.example.com" in event for event in told)
    assert not any(SECRET in event for event in told)
    assert SECRET not in caplog.text
    stored = [path for path in dataset.storage.rglob("*") if path.is_file()]
    assert len(stored) > 10
    for path in stored:
        content = path.read_bytes()
        if path.suffix == ".parquet":
            content = str(pq.read_table(str(path)).to_pylist()).encode()
        assert SECRET.encode() not in content, path


# --- the web UI -----------------------------------------------------------------------------------------


def test_make_ui_says_that_it_is_for_this_machine() -> None:
    (line,) = [line for line in (ROOT / "Makefile").read_text().splitlines() if "dg dev" in line]
    assert "--host 127.0.0.1" in line


def test_the_docs_put_a_login_and_tls_in_front_of_it() -> None:
    (server,) = re.findall(r"```nginx\n(.*?)```", (ROOT / "docs/operations.md").read_text(), re.S)
    assert re.search(r"^    auth_basic \S", server, re.M)
    assert re.search(r"^    auth_basic_user_file \S", server, re.M)
    assert re.search(r"^    listen 443 ssl;", server, re.M)
    assert re.findall(r"proxy_pass (\S+);", server) == ["http://127.0.0.1:3000"]


def test_a_web_server_that_is_told_nothing_listens_on_loopback(tmp_path: Path) -> None:
    port = free_port()
    environment = {**os.environ, "DAGSTER_HOME": str(tmp_path)}
    (tmp_path / "dagster.yaml").touch()
    command = ["dagster-webserver", "--empty-workspace", "-p", str(port)]
    with started(command, folder=tmp_path, environment=environment, log=tmp_path / "log") as server:
        wait_for_server(server, f"http://127.0.0.1:{port}", tmp_path / "log")
        assert listening(port) == {"0100007F"}  # 127.0.0.1, its bytes in the machine's order


def listening(port: int) -> set[str]:
    """The addresses on which somebody listens on a port, as the kernel writes them."""
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *_ = line.split()
            address, _, number = local.partition(":")
            if state == "0A" and int(number, 16) == port:
                found.add(address)
    return found
