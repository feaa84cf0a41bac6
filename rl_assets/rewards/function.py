"""A reward function: where it is, what it depends on, and how it is loaded."""

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rl_assets.errors import InputError
from rl_assets.rewards.hidden import Hidden
from rl_assets.rewards.local_modules import (
    imports_its_own_name,
    local_modules,
    package_root,
    uses_relative_imports,
)
from rl_assets.rewards.outcome import words

_PACKAGE, _FILE = "pkg://", "file://"
_FIELD = "reward.custom_reward_function"
_ARGUMENTS = ("data_source", "solution_str", "ground_truth", "extra_info")
_EXPECTED = f"a function ({', '.join(_ARGUMENTS)})"
_loaded: set[str] = set()


@dataclass(frozen=True)
class RewardFunction:
    """Where `compute_score` is, and what it is given besides a response.

    Attributes:
        path: a Python file, or `pkg://` and a module's name, as in verl; None takes the built-in scorers.
        name: the function's name there.
        kwargs: further keyword arguments of every call; they win over the call's own. They may be secret.
    """

    path: str | None = None
    name: str = "compute_score"
    kwargs: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def files(self) -> dict[str, Path]:
        """The Python files that it is made of, those that are there, by the names of their modules: its own
        first, then what this imports from local files (see `local_modules`). Of the built-in scorers, theirs
        and that of their table.

        No code is run for it, but that of a package that holds the module.
        """
        if self.path is None:
            from rl_assets.contract.rules import scorers
            from rl_assets.rewards import builtin

            return {module.__name__: Path(str(module.__file__)) for module in (builtin, scorers)}
        file = self._source()
        if file is None or not file.is_file():
            return {}
        name, path = self._place(file)
        return {name: file, **local_modules(file, name, path)}

    @property
    def digest(self) -> str:
        """Changes with the function's name and arguments and with the bytes of its `files`, not with where
        they are; for the built-in scorers, with the version of math-verify too."""
        from importlib.metadata import version

        from rl_assets.base.digests import digest_file, digest_json

        library = version("math-verify") if self.path is None else None
        digests = {name: digest_file(file) for name, file in self.files.items()}
        return digest_json([self.name, dict(self.kwargs), digests, library])

    def load(self) -> Callable[..., Any]:
        """The function itself; a file's code is run for it, as a module of its own name.

        The file's folder becomes the first place to import from, as it is for a program. So helpers beside it
        are found, and another process can unpickle what the file defines.

        Raises:
            InputError: there is no such file, module or function, its code fails, or it takes other
                arguments than it is given.
        """
        if self.path is None:
            from rl_assets.rewards import builtin

            return builtin.compute_score
        if not self.path.startswith(_PACKAGE) and not self._file().is_file():
            raise InputError(
                file=self.path,
                field=f"{_FIELD}.path",
                found="no such file",
                expected="the Python file of the reward function, relative to the project's top folder",
                remedy="Correct the path, or put the file there.",
            )
        try:
            module = self._module()
        except BaseException as error:  # a file may end the program that imports it
            raise InputError(
                file=self.path,
                field=f"{_FIELD}.path",
                found=f"code that cannot be loaded ({Hidden(self.kwargs).message(words(error))})",
                expected="a Python file, or pkg:// and the name of a module",
                remedy="Correct the path or the code.",
            ) from None
        function = getattr(module, self.name, None)
        if not callable(function):
            raise InputError(
                file=self.path,
                field=f"{_FIELD}.name",
                found=f"no function {self.name!r}",
                expected=_EXPECTED,
                remedy=f"Correct the name. The functions there are: {_functions(module)}.",
            )
        self._require_arguments(function)
        return function

    def _require_arguments(self, function: Callable[..., Any]) -> None:
        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError):  # a function that is not written in Python need not have one
            return
        try:
            signature.bind(**dict.fromkeys([*_ARGUMENTS, *self.kwargs]))
        except TypeError as error:
            more = f" and {', '.join(self.kwargs)} of reward_kwargs" if self.kwargs else ""
            raise InputError(
                file=self.path,
                field=f"{_FIELD}.name",
                found=f"the function {self.name}{signature}, which cannot be called as scorers are ({error})",
                expected=_EXPECTED + more,
                remedy="Let it take these arguments by name; `**_` takes those that it does not use.",
            ) from None

    def _file(self) -> Path:
        return Path((self.path or "").removeprefix(_FILE))

    def _source(self) -> Path | None:
        if not (self.path or "").startswith(_PACKAGE):
            return self._file()
        try:
            found = importlib.util.find_spec(self._module_name())
        except (ImportError, ValueError):
            return None
        return Path(found.origin) if found and found.origin else None

    def _module_name(self) -> str:
        return (self.path or "").removeprefix(_PACKAGE).replace("/", ".")

    def _place(self, file: Path) -> tuple[str, list[str]]:
        """The name of the module, and the folders that it imports from before all others."""
        if (self.path or "").startswith(_PACKAGE):
            return self._module_name(), []
        folder = file.resolve().parent
        root = package_root(folder / file.name)
        if root != folder and uses_relative_imports(file):
            return ".".join([*folder.relative_to(root).parts, file.stem]), [str(folder), str(root)]
        return file.stem.replace(".", "_"), [str(folder)]  # a dot would say that it is in a package

    def _module(self) -> Any:
        assert self.path is not None
        if self.path.startswith(_PACKAGE):
            return importlib.import_module(self._module_name())
        file = self._file().resolve()
        if file.suffix != ".py":
            raise ImportError("the name of a Python file ends in .py")
        name, path = self._place(file)
        new = [folder for folder in path if folder not in sys.path]
        if own := imports_its_own_name(file):  # it means an installed package of this name
            sys.path += new
        else:
            sys.path[:0] = new
        importlib.invalidate_caches()
        if package := name.rpartition(".")[0]:
            importlib.import_module(package)
        if own or name in sys.stdlib_module_names or (name in sys.modules and name not in _loaded):
            name = f"reward_function_{name}"  # what others know by its own name stays what it is
        _loaded.add(name)
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # where dataclasses, pickle and type hints look for it
        try:
            spec.loader.exec_module(module)
        except BaseException:
            sys.modules.pop(name, None)
            raise
        return sys.modules.get(name, module)


def _functions(module: Any) -> str:
    """The names of the functions that a module itself defines."""
    names = [
        name
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__
    ]
    return ", ".join(names) or "none"
