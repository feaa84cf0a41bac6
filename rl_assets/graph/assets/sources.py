"""`policy`, `tokenizer`, `tool_schemas` and `reward_function`: what the graph reads beside the raw files.

They are assets of the graph, materialised by the job in one cheap step, and not observable source assets:
those are observed only by a sensor, or by hand, and never by the job that rebuilds the graph (`dg launch
--job` leaves them out), so that a rebuild would not notice that a checkpoint was replaced. As assets, they
are looked at first in every rebuild; one can be materialised alone, and then the UI shows as unsynced exactly
what depends on it. Nothing is copied: each asset is a manifest of files and digests, and its data version is
a digest of what they hold, wherever they lie.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import dagster as dg
from pydantic import BaseModel, ConfigDict

from rl_assets.base import markdown
from rl_assets.base.digests import digest_json
from rl_assets.base.manifests import last_manifest
from rl_assets.graph.dataset import GraphDataset, refusals
from rl_assets.graph.display import table
from rl_assets.graph.unchanged import step
from rl_assets.policy.fingerprint import file_digests, policy_files, policy_folder, rendering_files
from rl_assets.policy.readable import read_object

POLICY = """\
The checkpoint that answers the prompts: config, weights, tokenizer and template files. Its data version is
the policy's fingerprint, which is part of the name of every rollout shard: another checkpoint is rolled out
anew."""

TOKENIZER = """\
The files of the policy that decide how a prompt is rendered and a response is read: tokenizer, chat template,
processor, and `config.json`, which names their classes."""

TOOLS = """\
The tool schemas of `data.tool_config_path`, which are rendered into every prompt. The data version is a
digest of the schemas, so a comment in the file changes nothing."""

REWARD = """\
The function that scores: `reward.custom_reward_function`, or the built-in scorers. The data version is a
digest of its name, its arguments, its file and the local modules that the file imports, directly or by way of
others; installed packages and files that it reads do not count."""

_LONGEST_TEXT = 20_000


class Source(BaseModel):
    """A source as it was when it was looked at.

    Attributes:
        path: the folder, file, module or hub id that it was read from.
        digest: of what it holds.
        files: digest of each file, by name.
        bytes: of all files.
    """

    model_config = ConfigDict(frozen=True)

    path: str
    digest: str
    files: dict[str, str]
    bytes: int

    @classmethod
    def of(cls, path: Path | str, files: Mapping[str, Path], digest: str | None = None) -> "Source":
        """The source that consists of `files`; its digest is theirs where no other is given."""
        digests = file_digests(files)
        size = sum(file.stat().st_size for file in files.values())
        return cls(path=str(path), digest=digest or digest_json(digests), files=digests, bytes=size)


Look = Callable[[GraphDataset], tuple[Source, dict[str, Any]]]


def build_sources(dataset: GraphDataset) -> dg.AssetsDefinition:
    """The assets `policy`, `tokenizer` and `reward_function`, and `tool_schemas` where there are tools."""
    spec = dataset.spec
    assets: dict[str, tuple[Look, dict[str, Any]]] = {
        # The first: what is wrong with its files is said of the file, not of what is made of it.
        "policy": (_policy, dataset.describe("policy", POLICY, "huggingface", reads=spec.policy.path)),
        "reward_function": (
            _reward_function,
            dataset.describe(
                "reward_function", REWARD, "python", reads=spec.reward.custom_reward_function.model_dump()
            ),
        ),
        "tokenizer": (
            _tokenizer,
            dataset.describe("tokenizer", TOKENIZER, "huggingface", reads=spec.policy.path),
        ),
    }
    if spec.data.tool_config_path:
        described = dataset.describe("tool_schemas", TOOLS, "yaml", reads=spec.data.tool_config_path)
        assets["tool_schemas"] = _tool_schemas, described

    @dg.multi_asset(
        name=f"{dataset.name}__sources",
        outs={name: dg.AssetOut(**how, is_required=False) for name, (_, how) in assets.items()},
        can_subset=True,
        partitions_def=dataset.partitions,
    )
    @step(dataset, always=True)
    def sources(
        dataset: GraphDataset, context: dg.AssetExecutionContext
    ) -> Iterator[dg.MaterializeResult[Any]]:
        for name, (look, _) in assets.items():
            if name in context.op_execution_context.selected_output_names:
                with refusals():
                    source, metadata = look(dataset)
                yield dg.MaterializeResult(
                    asset_key=dataset.key(name),
                    value=source,
                    data_version=dg.DataVersion(source.digest),
                    metadata={
                        "source": dg.MetadataValue.path(source.path),
                        "bytes": source.bytes,
                        "digest": source.digest,
                        "files": table(
                            ({"name": file, "digest": digest} for file, digest in source.files.items()),
                            ["name", "digest"],
                        ),
                        **metadata,
                    },
                )

    return sources


def _policy(dataset: GraphDataset) -> tuple[Source, dict[str, Any]]:
    folder = policy_folder(dataset.policy)
    files = policy_files(folder)
    source = Source.of(dataset.policy, files)
    # Libraries are loaded for it; what could be loaded once is known by its digest.
    if source != last_manifest(Source, dataset.storage / "policy.json"):
        _require_usable(dataset, folder)
    config = read_object(files["config.json"])
    named = config.get("architectures") or [config.get("model_type")]
    parameters = _parameters(file for file in files.values() if file.suffix == ".safetensors")
    return source, {
        "architecture": ", ".join(map(str, named if isinstance(named, list) else [named])),
        **({"parameters": parameters} if parameters else {}),
        "config": dg.MetadataValue.json(config),
    }


def _require_usable(dataset: GraphDataset, folder: Path) -> None:
    """Refuse a policy that a later step would refuse, before rows are read and answered."""
    from rl_assets.policy.vocabulary import read_vocabulary, require_embedded
    from rl_assets.rollout.model import require_loadable

    data = dataset.spec.data
    embedded = require_loadable(folder, data.trust_remote_code)
    renderer = dataset.renderer()
    # The first that runs the chat template, which may have no end: this has a limit.
    (greeting,) = renderer.render([[{"role": "user", "content": "Hello"}]])
    read_vocabulary(folder, renderer.tokenizer, data.apply_chat_template_kwargs)
    if embedded is not None:
        require_embedded(folder, renderer.tokenizer, embedded, greeting.ids or ())


def _parameters(weights: Iterator[Path]) -> int:
    """How many numbers the weights are, read from the files' headers."""
    from safetensors import safe_open

    total = 0
    for path in weights:
        with safe_open(path, framework="numpy") as file:
            total += sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118
    return total


def _tokenizer(dataset: GraphDataset) -> tuple[Source, dict[str, Any]]:
    files = rendering_files(policy_folder(dataset.policy))
    template = _chat_template(files)
    return Source.of(dataset.policy, files), {
        **({"chat_template": _code(template, "jinja")} if template else {}),
        **_classes(files),
    }


def _chat_template(files: Mapping[str, Path]) -> str | None:
    """The chat template's text, from the file of its own or from the tokenizer's settings."""
    if "chat_template.jinja" in files:
        return files["chat_template.jinja"].read_text("utf-8", errors="replace")
    for name in ("chat_template.json", "tokenizer_config.json"):
        template = _settings(files, name).get("chat_template")
        if template:
            return template if isinstance(template, str) else json.dumps(template, indent=2)
    return None


def _classes(files: Mapping[str, Path]) -> dict[str, str]:
    named = {
        "tokenizer_class": _settings(files, "tokenizer_config.json").get("tokenizer_class"),
        "processor_class": next(
            (
                found
                for name in ("processor_config.json", "preprocessor_config.json")
                if (found := _settings(files, name).get("processor_class"))
            ),
            None,
        ),
    }
    return {key: str(value) for key, value in named.items() if value}


def _settings(files: Mapping[str, Path], name: str) -> dict[str, Any]:
    return read_object(files[name]) if name in files else {}


def _tool_schemas(dataset: GraphDataset) -> tuple[Source, dict[str, Any]]:
    from rl_assets.prompts.tools import load_tool_schemas

    assert dataset.spec.data.tool_config_path is not None
    path = dataset.root / dataset.spec.data.tool_config_path
    schemas = load_tool_schemas(path)
    functions = [schema["function"] for schema in schemas]
    return Source.of(path, {path.name: path}, digest_json(schemas)), {
        "tools": table(
            ({"name": f.get("name"), "description": f.get("description")} for f in functions),
            ["name", "description"],
        ),
        "schemas": _code(json.dumps(schemas, indent=2, ensure_ascii=False), "json"),
    }


def _reward_function(dataset: GraphDataset) -> tuple[Source, dict[str, Any]]:
    function = dataset.reward_function
    files = function.files
    source = Source.of(function.path or "the built-in scorers", files, function.digest)
    if function.path is None:
        return source, {}
    # The code runs, in a process of its own; what could be loaded once is known by its digest.
    if not files or source != last_manifest(Source, dataset.storage / "reward_function.json"):
        dataset.score_pool.require_loadable()
    # Text may be a key of a service, such as comes from the environment.
    arguments = {
        name: value if dataset.spec.previews and isinstance(value, (bool, int, float)) else "(not shown)"
        for name, value in function.kwargs.items()
    }
    return source, {
        "function": function.name,
        "arguments": dg.MetadataValue.json(arguments),
        "code": _code(next(iter(files.values())).read_text(errors="replace") if files else "", "python"),
    }


def _code(text: str, language: str) -> dg.MarkdownMetadataValue:
    """Text as a code block, cut where it would burden the event log."""
    cut = text if len(text) <= _LONGEST_TEXT else text[:_LONGEST_TEXT] + "\n…"
    return dg.MetadataValue.md(markdown.code_block(cut, language))
