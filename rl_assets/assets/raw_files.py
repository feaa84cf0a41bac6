"""`raw_files`: which files there are, and what is in them."""

import dagster as dg

from rl_assets.assets.dataset import Dataset, refusals
from rl_assets.assets.display import table
from rl_assets.contract import RawManifest, scan_files

DESCRIPTION = """\
The manifest of the dataset's raw files: path, split, format, rows, bytes and digest of each.

Its data version is the digest of the files' digests, so everything below stays fresh until a byte of a
raw file changes. A missing file, a pattern that matches nothing, or a file that cannot be opened stops
the run here, by name."""


def build_raw_files(dataset: Dataset) -> dg.AssetsDefinition:
    """The asset `<dataset>/raw_files`."""
    data = dataset.spec.data

    @dg.asset(
        **dataset.describe(
            "raw_files", DESCRIPTION, "file", reads=data.model_dump(include={"train_files", "val_files"})
        )
    )
    def raw_files(context: dg.AssetExecutionContext) -> dg.MaterializeResult[RawManifest]:
        with refusals():
            manifest = scan_files(data.train_paths, data.val_paths, root=dataset.root)
        context.log.info(f"raw files: {len(manifest.files)} files, {manifest.rows:,} rows")
        return dg.MaterializeResult(
            value=manifest,
            data_version=dg.DataVersion(manifest.digest),
            metadata={
                "dagster/row_count": manifest.rows,
                "files": len(manifest.files),
                "bytes": sum(file.bytes for file in manifest.files),
                "manifest": table(
                    (file.model_dump() for file in manifest.files),
                    ["path", "split", "rows", "bytes"],
                ),
            },
        )

    return raw_files
