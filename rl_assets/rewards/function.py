"""A reward function: found by module or file, called as verl calls it, its result brought to one form."""

import asyncio
import importlib
import importlib.util
import inspect
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from numbers import Real
from pathlib import Path
from typing import Any

from rl_assets.contract import scorers
from rl_assets.errors import InputError
from rl_assets.rewards import builtin
from rl_assets.store import digest_file, digest_json

_PACKAGE, _FILE = "pkg://", "file://"
_FIELD = "reward.custom_reward_function"
_ARGUMENTS = ("data_source", "solution_str", "ground_truth", "extra_info")
_EXPECTED = f"a function ({', '.join(_ARGUMENTS)})"
_SHORTEST_SECRET = 8


@dataclass(frozen=True)
class RewardFunction:
    """Where `compute_score` is, and what it is given besides a response.

    Attributes:
        path: a Python file, or `pkg://` and a module's name, as in verl; None takes the built-in scorers.
        name: the function's name there.
        kwargs: further keyword arguments of every call; they win over the call's own.
    """

    path: str | None = None
    name: str = "compute_score"
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def files(self) -> list[Path]:
        """The Python files that hold it, those that are there; of the built-in scorers, their table too.

        What these import in turn does not count. A package that holds the module is imported to find it.
        """
        if self.path is None:
            return [Path(builtin.__file__), Path(scorers.__file__)]
        return [file] if (file := self._source()) is not None and file.is_file() else []

    @property
    def digest(self) -> str:
        """Changes with the function's name and arguments and with the bytes of its file or module, not with
        where that lies; for the built-in scorers, with theirs and with the version of math-verify."""
        library = version("math-verify") if self.path is None else None
        return digest_json(
            [self.name, dict(self.kwargs), [digest_file(file) for file in self.files], library]
        )

    def load(self) -> Callable[..., Any]:
        """The function itself; a file's code is run for it.

        Raises:
            InputError: there is no such file, module or function, its code fails, or it takes other
                arguments than it is given.
        """
        if self.path is None:
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
        except Exception as error:
            raise InputError(
                file=self.path,
                field=f"{_FIELD}.path",
                found=f"code that cannot be loaded ({type(error).__name__}: {error})",
                expected="a Python file, or pkg:// and the name of a module",
                remedy="Correct the path or the code.",
            ) from error
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

    def _module(self) -> Any:
        assert self.path is not None
        if self.path.startswith(_PACKAGE):
            return importlib.import_module(self._module_name())
        spec = importlib.util.spec_from_file_location("rl_assets_reward_function", self._file())
        if spec is None or spec.loader is None:
            raise ImportError("the name of a Python file ends in .py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module


def _functions(module: Any) -> str:
    """The names of the functions that a module itself defines."""
    names = [
        name
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__
    ]
    return ", ".join(names) or "none"


@dataclass(frozen=True)
class Scored:
    """What came of scoring one response.

    Attributes:
        score: the score, or None where there is none.
        error: why there is none.
        extra: what a dict result holds besides its score: text, numbers, booleans, None, or JSON-like values.
    """

    score: float | None = None
    error: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


def call(
    function: Callable[..., Any],
    kwargs: Mapping[str, Any],
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Any,
) -> Scored:
    """Call a reward function as verl does, awaiting a coroutine function; what it raises is the error."""
    arguments = {
        "data_source": data_source,
        "solution_str": solution_str,
        "ground_truth": ground_truth,
        "extra_info": extra_info,
        **kwargs,
    }
    try:
        result = function(**arguments)
        if inspect.isawaitable(result):
            result = asyncio.run(_await(result))
        return normalise(result)
    except Exception as error:
        return Scored(error=_without_secrets(_text(f"{type(error).__name__}: {error}"), kwargs))


def _without_secrets(message: str, kwargs: Mapping[str, Any]) -> str:
    """The message without the text arguments of the YAML: one may be a key, and errors are written down."""
    for name, value in kwargs.items():
        if isinstance(value, str) and len(value) >= _SHORTEST_SECRET:
            message = message.replace(value, f"({name})")
    return message


async def _await(result: Any) -> Any:
    return await result


def normalise(result: Any) -> Scored:
    """A reward function's result in one form, as verl reads it.

    A dict gives its `score` and keeps the rest; a number or a boolean is the score; of anything else the
    first element is. A score that is missing, not a number or not finite is an error.
    """
    extra: dict[str, Any] = {}
    value = result
    if isinstance(result, dict):
        if "score" not in result:
            return Scored(error=f"no score: a dict with the keys {sorted(map(str, result))}")
        value = result["score"]
        extra = {str(key): _plain(item) for key, item in result.items() if key != "score"}
    try:
        if isinstance(value, str):
            raise TypeError
        score = float(value) if value is not result or _is_number(value) else float(value[0])
    except (TypeError, ValueError, LookupError):
        return Scored(error=f"no score: {value!r:.80}", extra=extra)
    if not math.isfinite(score):
        return Scored(error=f"no score: {score}", extra=extra)
    return Scored(score=score, extra=extra)


def _is_number(value: Any) -> bool:
    """Whether `value` is a number of Python's, numpy's or (a tensor without dimensions) torch's."""
    return isinstance(value, Real) or getattr(value, "shape", None) == ()


def _plain(value: Any) -> Any:
    """`value` as JSON has it: numpy and torch scalars as numbers, what JSON cannot say as text."""
    if _is_number(value) and hasattr(value, "item"):
        value = value.item()
    if isinstance(value, str) or (type(value) is int and value.bit_length() > 63):
        return _text(value)
    return json.loads(json.dumps(value, default=str))


def _text(value: Any) -> str:
    """`value` as text that UTF-8 can hold."""
    return str(value).encode(errors="replace").decode()
