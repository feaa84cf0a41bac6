"""Work that is not done twice: a step, or a check, of which nothing that it reads has changed.

Beside every asset lies a record, `<asset>.build.json`, written when all that the asset wrote is in place. It
holds the asset's recipe, that is a digest of everything it was made from, and a mark of every file that it
stands for. When a step comes to an asset whose recipe is still the same and whose files are still those,
it says so and emits the recorded materialisation again, with the same data version; its body does not run.

Nothing is inferred from the event log: a store that is moved to another Dagster instance stays as fresh as
it was. A file of the store is known by its size and modification time (on an object store: by the object's
properties), since only the store writes there. What lies outside (raw files, policy, tool file, reward
function, media, benchmarks) is read and digested in every run. To have an asset made again, delete its
record.
"""

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import dagster as dg

from rl_assets.base.digests import digest_file, digest_json
from rl_assets.base.manifests import write_record
from rl_assets.dataset.records import ADDRESSED, RECORD, Record, marks, read_record, versions
from rl_assets.graph.checks.gate import require_passed
from rl_assets.graph.dataset import GraphDataset, refusals
from rl_assets.graph.provenance import code_digest, git_commit, package_version

UNCHANGED = "unchanged"
"""Metadata key of a materialisation that was emitted again: which run made the asset, and when."""

Results = Iterable[dg.MaterializeResult[Any]] | dg.MaterializeResult[Any]
World = Callable[[GraphDataset], Any]


def step(
    dataset: GraphDataset,
    *,
    always: bool = False,
    world: World | None = None,
    work: Mapping[str, Any] | None = None,
) -> Callable[[Callable[..., Results]], Callable[..., Iterator[dg.MaterializeResult[Any]]]]:
    """Make a Dagster step of a body that runs only where something that it reads has changed.

    The body is called as `body(dataset, context, **inputs)` with the dataset bound to the run's partition,
    and returns or yields `MaterializeResult`s, each with its data version. What it reads is known from the
    definition: the data versions, as stored, of the assets it depends on; the code version, which holds the
    part of the YAML it reads; the code that its module uses; and `previews`, which its metadata obey.

    Args:
        dataset: the dataset as its YAML says, bound to no partition.
        always: run the body every time, since what it reads lies outside the store.
        world: what else it reads from outside the store, as a JSON-like value made anew for every run.
        work: metadata that tell of the work and not of the data, with their value where no work was done
            (None leaves the entry out).
    """

    def decorate(body: Callable[..., Results]) -> Callable[..., Iterator[dg.MaterializeResult[Any]]]:
        @functools.wraps(body)
        def run(context: dg.AssetExecutionContext, **inputs: Any) -> Iterator[dg.MaterializeResult[Any]]:
            here = dataset.of(context)
            build = _Build(here, context, world, always, body.__module__)
            with refusals():
                require_passed(here, build.inputs)
                before = build.records()
                if not always and before and {record.recipe for record in before.values()} == {build.recipe}:
                    context.log.info(f"{', '.join(before)}: unchanged, nothing to do")
                    for name, record in before.items():
                        yield _again(here, name, record, work or {})
                    return
                made = body(here, context, **inputs)
                for result in [made] if isinstance(made, dg.MaterializeResult) else made:
                    # The asset is stored before the line after the yield runs.
                    yield (result := build.noted(result, before))
                    build.stored(result)
                build.write(before)

        own, *others = inspect.signature(body).parameters.values()
        assert own.name == "dataset", f"{body.__name__}: the first parameter is the bound dataset"
        run.__signature__ = inspect.Signature(others)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in others}
        return run

    return decorate


def _again(
    dataset: GraphDataset, asset: str, record: Record, work: Mapping[str, Any]
) -> dg.MaterializeResult[Any]:
    """The materialisation that is recorded, said to be unchanged."""
    metadata = {**dg.deserialize_value(record.metadata, dict), **work, UNCHANGED: _since(record)}
    metadata["path"] = dg.MetadataValue.path(str(dataset.storage / next(iter(record.files))))
    return dg.MaterializeResult(
        asset_key=dataset.key(asset),
        data_version=dg.DataVersion(record.data_version),
        metadata={key: value for key, value in metadata.items() if value is not None},
    )


def _is_shown(record: Record) -> bool:
    """Whether this Dagster can read the metadata: a newer one may have written them."""
    try:
        dg.deserialize_value(record.metadata, dict)
    except Exception:  # whatever its reader says of text that is not its own
        return False
    return True


def _since(record: Record) -> str:
    return f"since {record.built:%Y-%m-%d %H:%M} UTC, run {record.run_id}"


class _Build:
    """One execution of a step: its recipe, and the records of what it makes."""

    def __init__(
        self,
        dataset: GraphDataset,
        context: dg.AssetExecutionContext,
        world: World | None,
        always: bool,
        module: str,
    ) -> None:
        self._dataset = dataset
        self._always = always
        self._run_id = context.run.run_id
        self._world = world
        self._module = module
        definition = context.assets_def
        outputs = [
            key
            for output, key in definition.keys_by_output_name.items()
            if output in context.op_execution_context.selected_output_names
        ]
        self._names = [key.path[-1] for key in outputs]
        self._versions = {key.path[-1]: definition.code_versions_by_key[key] for key in outputs}
        inputs = {dep for key in outputs for dep in definition.asset_deps[key]} - set(outputs)
        self.inputs = sorted(key.path[-1] for key in inputs)
        self._results: dict[str, tuple[dg.MaterializeResult[Any], dict[str, str]]] = {}
        self.recipe = self._recipe()

    def _recipe(self) -> str | None:
        """Digest of what the step reads now; None where a version of an input is not known."""
        dataset = self._dataset
        inputs = versions(dataset, self.inputs)
        if inputs is None:
            return None
        return digest_json(
            {
                "inputs": inputs,
                "code": [self._versions, code_digest(self._module)],
                "previews": dataset.spec.previews,
                "world": self._world and self._world(dataset),
            }
        )

    def records(self) -> dict[str, Record]:
        """The records of what the step makes, or nothing where one is missing or does not fit."""
        found = {name: read_record(self._dataset, name) for name in self._names}
        whole = {
            name: record for name, record in found.items() if record and record.recipe and _is_shown(record)
        }
        return whole if whole.keys() == found.keys() else {}

    def noted(
        self, result: dg.MaterializeResult[Any], before: Mapping[str, Record]
    ) -> dg.MaterializeResult[Any]:
        """The result with what made it; said to be unchanged where it holds what it held before."""
        name = self._name(result)
        commit = git_commit(self._dataset.root)
        metadata = {
            **(result.metadata or {}),
            "code_version": self._versions[name],
            "rl_assets": package_version(self._module),
            **({"git_commit": commit} if commit else {}),
        }
        if self._is_same(result, before.get(name)):
            metadata[UNCHANGED] = _since(before[name])
        return result._replace(metadata=metadata)

    def _is_same(self, result: dg.MaterializeResult[Any], record: Record | None) -> bool:
        """Whether a body that always runs made again what is recorded."""
        assert result.data_version is not None
        return self._always and record is not None and result.data_version.value == record.data_version

    def stored(self, result: dg.MaterializeResult[Any]) -> None:
        """Take marks of the files of a result that has just been stored."""
        name = self._name(result)
        self._results[name] = result, dict(marks(self._dataset, name, result.value))

    def write(self, before: Mapping[str, Record]) -> None:
        """Write the records of all results: the last thing that a step does."""
        # What lies outside may have been looked up by the body (the media that rows refer to).
        recipe = self._recipe() if self._world else self.recipe
        for name, (result, files) in self._results.items():
            assert result.data_version is not None
            old = before.get(name)
            kept = old if old and self._is_same(result, old) else None
            shown: Mapping[str, Any] = result.metadata or {}
            metadata = {key: value for key, value in shown.items() if key != UNCHANGED}
            record = Record(
                recipe=recipe,
                data_version=result.data_version.value,
                run_id=kept.run_id if kept else self._run_id,
                built=kept.built if kept else datetime.now(UTC),
                metadata=dg.serialize_value(metadata),
                files=files,
                digests=self._digests(files, old),
            )
            write_record(self._dataset.storage / f"{name}{RECORD}", record)

    def _digests(self, files: Mapping[str, str], before: Record | None) -> dict[str, str]:
        """The digests that a record keeps; those of files that were not written again are in the last one."""
        same = {name for name, mark in files.items() if before and before.files.get(name) == mark}
        known = {name: digest for name, digest in before.digests.items() if name in same} if before else {}
        storage = self._dataset.storage
        return known | {
            name: digest_file(storage / name)
            for name in files
            if name not in known and not name.startswith(ADDRESSED)
        }

    def _name(self, result: dg.MaterializeResult[Any]) -> str:
        return result.asset_key.path[-1] if result.asset_key else self._names[0]
