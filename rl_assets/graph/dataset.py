"""A dataset as Dagster sees it: keys, partitions, and what all of its assets share."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import dagster as dg

from rl_assets.base.digests import digest_json
from rl_assets.base.files import damage_put_aside
from rl_assets.dataset.dataset import Dataset
from rl_assets.errors import InputError
from rl_assets.graph.display import wide_table
from rl_assets.graph.io import STORE

PRIVATE = frozenset({"prompt", "response", "solution_str", "ground_truth", "error", "message"})
HIDDEN = "(hidden: previews is false)"


@dataclass(frozen=True)
class GraphDataset(Dataset):
    """A dataset with the names that its assets have in the graph."""

    def of(self, context: dg.AssetExecutionContext | dg.AssetCheckExecutionContext) -> Self:
        """The dataset bound to the partition that a step runs for; itself where it has no partitions.

        Raises:
            dagster.Failure: it has partitions, and the run is for none, or for a range of them.
        """
        if self.spec.partition_by is None:
            return self
        if not context.has_partition_key:
            raise dg.Failure(
                description=f"{self.name} has partitions, and this run is not for one of them: launch it for "
                "one (`dg launch --partition KEY`), or as a backfill for several, a run each.",
                allow_retries=False,
            )
        return self.at(context.partition_key)

    @property
    def partitions(self) -> dg.PartitionsDefinition | None:
        """The partitions that all assets of the dataset share, where it has any."""
        axis = self.spec.partition_by
        if axis is None:
            return None
        if axis.start is not None:
            return dg.DailyPartitionsDefinition(axis.start.isoformat(), timezone=self.spec.schedule.timezone)
        return dg.StaticPartitionsDefinition(axis.values)

    def preview(self, rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> dg.MarkdownMetadataValue:
        """Rows as a table for the UI, without private text where the YAML says `previews: false`."""
        if self.spec.previews:
            return wide_table(rows, columns)
        return wide_table(({**row, **dict.fromkeys(PRIVATE & row.keys(), HIDDEN)} for row in rows), columns)

    def key(self, asset: str) -> dg.AssetKey:
        """Asset key `<dataset>/<asset>`."""
        return dg.AssetKey([self.name, asset])

    def describe(self, asset: str, description: str, *kinds: str, reads: Any = None) -> dict[str, Any]:
        """Arguments that every asset definition of this dataset shares.

        Args:
            asset: the asset's name.
            description: what it holds, in Markdown.
            kinds: at most three labels for the graph.
            reads: the part of the YAML that the asset depends on; a change of it changes the code version.
        """
        version = digest_json({"layout": 1, "reads": reads})[:8]
        return {
            "key": self.key(asset),
            "group_name": self.name,
            "description": description,
            "kinds": set(kinds),
            "owners": list(self.spec.owners),
            "code_version": version,
            "io_manager_key": STORE,
        }

    def depends(self, *assets: str) -> list[dg.AssetKey]:
        """Keys of assets of this dataset, for `deps` of a step that reads them without loading them."""
        return [self.key(asset) for asset in assets]


@contextmanager
def refusals() -> Iterator[None]:
    """Show a user's error as the step's failure: its message, without retries and without our traceback.

    What it finds damaged in the store is put aside.
    """
    try:
        with damage_put_aside():
            yield
    except InputError as error:
        raise dg.Failure(description=str(error), allow_retries=False) from None


@contextmanager
def device_retries() -> Iterator[None]:
    """Ask for another try after an error of the accelerator; finished responses are in the journal."""
    import torch

    try:
        yield
    except torch.AcceleratorError as error:
        raise dg.RetryRequested(max_retries=2, seconds_to_wait=30) from error
