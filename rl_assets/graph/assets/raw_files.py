"""`raw_files`: which files there are, and what is in them."""

import dagster as dg

from rl_assets.contract.files.manifest import RawManifest
from rl_assets.contract.files.scan import scan_files
from rl_assets.graph.columns import column_metadata
from rl_assets.graph.dataset import GraphDataset, refusals
from rl_assets.graph.display import table
from rl_assets.graph.unchanged import step

DESCRIPTION = """\
The manifest of the dataset's raw files: path, split, format, rows, bytes and digest of each.

Its data version is the digest of the files' digests, so everything below stays fresh until a byte of a
raw file changes. A missing file, a pattern that matches nothing, or a file that cannot be opened stops
the run here, by name."""


_TYPES = {
    **dict.fromkeys(("path", "split", "format"), "string"),
    "rows": "int64",
    "bytes": "int64",
    "digest": "string",
}


def build_raw_files(dataset: GraphDataset) -> dg.AssetsDefinition:
    """The asset `<dataset>/raw_files`."""
    reads = dataset.spec.data.model_dump(include={"train_files", "val_files", "follow_links"})

    @dg.asset(
        **dataset.describe("raw_files", DESCRIPTION, "file", reads=reads), partitions_def=dataset.partitions
    )
    @step(dataset, always=True)
    def raw_files(
        dataset: GraphDataset, context: dg.AssetExecutionContext
    ) -> dg.MaterializeResult[RawManifest]:
        data = dataset.spec.data
        with refusals():
            manifest = scan_files(
                data.train_paths, data.val_paths, root=dataset.root, follow_links=data.follow_links
            )
        context.log.info(f"raw files: {len(manifest.files)} files, {manifest.rows:,} rows")
        for note in manifest.notes:
            context.log.info(note)
        return dg.MaterializeResult(
            value=manifest,
            data_version=dg.DataVersion(manifest.digest),
            metadata={
                "dagster/row_count": manifest.rows,
                **column_metadata(dataset, "raw_files", _TYPES),
                "files": len(manifest.files),
                "bytes": sum(file.bytes for file in manifest.files),
                **({"notes": "\n".join(manifest.notes)} if manifest.notes else {}),
                "manifest": table(
                    (file.model_dump() for file in manifest.files),
                    ["path", "split", "rows", "bytes"],
                ),
            },
        )

    return raw_files
