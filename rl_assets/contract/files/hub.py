"""A dataset of the Hugging Face hub, by name and pinned revision, as a list of raw files."""

from pathlib import Path

from rl_assets.errors import InputError, first_line

SCHEME = "hub://"
_FORM = "hub://<owner>/<name>@<revision>#<split>"


def hub_files(entry: str, root: Path, setting: str) -> list[str]:
    """The data files behind a ``hub://`` entry, found by `datasets` and read by the contract itself.

    Args:
        entry: ``hub://owner/name@revision#split``; the split is `train` where it is left out. In place of
            the name, a local dataset folder (relative to `root`) is taken too; it needs no revision.
        root: folder of the project or dataset.
        setting: the setting that the entry stands in, for messages.

    Returns:
        Absolute paths, or ``hf://`` URLs that name the revision's commit.

    Raises:
        InputError: no revision is given, the dataset cannot be reached, or it has no such split.
    """
    name, _, split = entry.removeprefix(SCHEME).partition("#")
    name, _, revision = name.partition("@")
    folder = root / Path(name).expanduser()
    local = folder.is_dir()
    if not local and not revision:
        raise InputError(
            file=entry,
            field=setting,
            found="a hub dataset without a revision",
            expected=_FORM,
            remedy="Pin a commit or tag, so that the same rows come tomorrow.",
        )
    from datasets import load_dataset_builder

    try:
        builder = load_dataset_builder(str(folder) if local else name, revision=None if local else revision)
    except Exception as error:  # The hub client raises errors of many libraries.
        raise InputError(
            file=entry,
            field=setting,
            found=f"a dataset that cannot be opened ({type(error).__name__}: {first_line(error)})",
            expected=_FORM,
            remedy="Check name, revision, network and access.",
        ) from error
    files = builder.config.data_files or {}
    split = split or "train"
    if split not in files:
        raise InputError(
            file=entry,
            field=setting,
            found=f"no split {split!r}",
            expected="one of " + ", ".join(map(repr, files)),
            remedy="Name the split after `#`.",
        )
    return [str(path) for path in files[split]]
