"""How assets are kept: tables as Parquet, manifests as JSON, each put in place in one step."""

import functools
import sys
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
from pydantic import BaseModel
from upath import UPath

from rl_assets.base.files import damage_put_aside, publish_file, storage_root
from rl_assets.base.manifests import read_manifest, require_stored, write_manifest
from rl_assets.base.tables import Table

STORE = "rl_assets_store"
"""Key of the IO manager of every asset of a dataset, so that it works in any project beside others."""


def store_resources(root: Path) -> dict[str, dg.ConfigurableIOManager]:
    """What the assets of a project need as resources: the store of the project in the folder `root`.

    Of one project it is one object, so that the definitions of its datasets can be merged.
    """
    return {STORE: _store(str(storage_root(root)))}


class StoreIOManager(dg.ConfigurableIOManager):
    """Keeps an asset `<dataset>/<name>` at `<root>/<dataset>/<name>.parquet` or `….json`; a partition of one
    in a folder of the partition's key, at `<root>/<dataset>/<partition>/<name>.parquet` or `….json`.

    An asset returns a `Table` (a finished Parquet file in a staging folder, which is put in place) or a
    pydantic model. A consumer says by its annotation what it wants: `Table` to read in batches,
    `pyarrow.Table` or `pandas.DataFrame` to have it in memory, or the model's class.
    """

    root: str

    def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
        """Publish a staged table or a manifest, replacing what was there in one step.

        Raises:
            TypeError: the asset returned something else.
        """
        if isinstance(obj, Table):
            path = self._path(context, ".parquet")
            publish_file(Path(str(obj.path)), path)
        elif isinstance(obj, BaseModel):
            path = self._path(context, ".json")
            write_manifest(path, obj)
        else:
            raise TypeError(
                f"{context.asset_key.to_user_string()} returned {type(obj).__name__}: return a Table or a "
                "pydantic model, or a MaterializeResult without a value"
            )
        context.add_output_metadata({"path": dg.MetadataValue.path(str(path))})

    def load_input(self, context: dg.InputContext) -> Any:
        """The asset as the consumer's annotation asks for it.

        Raises:
            InputError: the asset was never materialised, or lies elsewhere.
            TypeError: the annotation is none of the kinds above.
        """
        wanted = context.dagster_type.typing_type
        if isinstance(wanted, type) and issubclass(wanted, BaseModel):
            with damage_put_aside():
                return read_manifest(wanted, self._existing(context, ".json"))
        if wanted not in (Table, pa.Table) and not _is_data_frame(wanted):
            raise TypeError(
                f"input {context.name}: found the annotation {wanted}, expected Table, pyarrow.Table, "
                "pandas.DataFrame or a manifest's class"
            )
        table = Table(self._existing(context, ".parquet"))
        if wanted is Table:
            return table
        return table.read() if wanted is pa.Table else table.read().to_pandas()

    def _path(self, context: dg.InputContext | dg.OutputContext, suffix: str) -> UPath:
        *folders, name = context.asset_key.path
        if context.has_asset_partitions:
            folders.append(context.asset_partition_key)
        return UPath(self.root).joinpath(*folders, name + suffix)

    def _existing(self, context: dg.InputContext, suffix: str) -> UPath:
        return require_stored(self._path(context, suffix), context.asset_key.to_user_string())


def _is_data_frame(wanted: Any) -> bool:
    """Whether `wanted` is `pandas.DataFrame`; pandas is slow to load, so it is not imported for it."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and wanted is pandas.DataFrame


@functools.cache
def _store(root: str) -> StoreIOManager:
    return StoreIOManager(root=root)
