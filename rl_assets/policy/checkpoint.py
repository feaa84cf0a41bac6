"""The tokenizer and the processor of a policy, loaded; what is wrong with them is said in one way."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_assets.errors import InputError, first_line

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_TOKENIZER_FILES = ("tokenizer.json", "*.model", "vocab*", "merges.txt")
_PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json", "video_preprocessor_config.json")


def load_tokenizer(
    path: str | Path, *, field: str = "policy.path", trust_remote_code: bool = False
) -> "PreTrainedTokenizerBase":
    """The tokenizer of the policy at `path`, a folder or a hub id.

    Args:
        field: the setting that names the path, for messages.
        trust_remote_code: lets the policy's repository run code of its own.

    Raises:
        InputError: there is no such folder, or no tokenizer in it that loads.
    """
    from transformers import AutoTokenizer

    if isinstance(path, Path) and not path.is_dir():
        raise InputError(
            file=path,
            field=field,
            found="no such folder",
            expected="a policy's folder, or a hub id",
            remedy="Check the path; `make setup` makes the demo policy.",
        )
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(path), trust_remote_code=trust_remote_code)
        tokenizer.decode(tokenizer.encode("a"))  # settings of a wrong kind are met when they are used
        return tokenizer
    except Exception as error:  # whatever a damaged or absent checkpoint makes the library raise
        file, why = _at_fault(path, error)
        raise InputError(
            file=file,
            field=field,
            found=f"a policy whose tokenizer does not load ({why})",
            expected="a folder with tokenizer.json, or a hub id",
            remedy="Check the path; `tokenizer.save_pretrained` saves a tokenizer beside its policy.",
        ) from error


def _at_fault(path: str | Path, error: Exception) -> tuple[str | Path, str]:
    """The file for which a tokenizer does not load, as far as that is known, and what is wrong with it."""
    from tokenizers import Tokenizer

    folder = Path(path)
    if folder.is_dir() and not any(file for name in _TOKENIZER_FILES for file in folder.glob(name)):
        return path, "it has none of the files of one"
    file = folder / "tokenizer.json"
    if file.is_file():
        try:
            Tokenizer.from_file(str(file))
        except Exception as wrong:  # the library has no class of its own for it
            return file, first_line(wrong)
    return path, f"{type(error).__name__}: {first_line(error)}"


def load_processor(path: str | Path, *, trust_remote_code: bool = False) -> Any:
    """The processor of the policy at `path`; None where it has none.

    A processor without a chat template of its own takes its tokenizer's.

    Raises:
        InputError: there are files of a processor, and it does not load.
    """
    folder = Path(path)
    if folder.is_dir() and not any((folder / name).is_file() for name in _PROCESSOR_FILES):
        return None
    from transformers import AutoProcessor, ProcessorMixin

    try:
        processor = AutoProcessor.from_pretrained(str(path), trust_remote_code=trust_remote_code)
    except Exception as error:  # whatever a damaged checkpoint or a missing package makes the library raise
        raise InputError(
            file=path,
            field="policy.path",
            found=f"a policy whose processor does not load ({first_line(error)})",
            expected="processor_config.json or preprocessor_config.json that transformers reads",
            remedy="Check its files; images and videos need the extra: pip install -e '.[media]'.",
        ) from error
    tokenizer = getattr(processor, "tokenizer", None)
    if not isinstance(processor, ProcessorMixin) or tokenizer is None:
        return None
    # A prompt is measured whole: tokenizer.json may declare a length to which a processor would cut.
    tokenizer.init_kwargs["truncation"] = False
    if processor.chat_template is None:
        processor.chat_template = tokenizer.chat_template
    return processor


def require_template(
    path: str | Path, tokenizer: "PreTrainedTokenizerBase", kwargs: Mapping[str, Any]
) -> None:
    """Refuse chat templates that Jinja does not read, with tools or without.

    Args:
        path: of the policy, for messages.
        tokenizer: has the templates.
        kwargs: may name one of them, or be one, under `chat_template`.

    Raises:
        InputError: one has an error of syntax.
    """
    from jinja2 import TemplateError
    from transformers.utils.chat_template_utils import _compile_jinja_template

    given = kwargs.get("chat_template")
    choices: tuple[Any, ...] = (None, [{}])
    for tools in choices:
        try:
            source = tokenizer.get_chat_template(given, tools)
        except ValueError:  # there is none by that name, or without tools: said of the prompts that need it
            continue
        try:
            _compile_jinja_template(source)
        except (TemplateError, RecursionError) as error:
            own = given is not None and source == given
            line = getattr(error, "lineno", None)
            raise InputError(
                file=None if own else _template_file(path),
                field="data.apply_chat_template_kwargs.chat_template" if own else "chat_template",
                found=f"no Jinja template ({first_line(error)}{f', line {line}' if line else ''})",
                expected="a chat template that Jinja compiles",
                remedy="Correct the template, or save it again with the policy's tokenizer.",
            ) from error


def _template_file(path: str | Path) -> str | Path:
    """Where a policy's chat template is, as far as its folder says."""
    file = Path(path) / "chat_template.jinja"
    return file if file.is_file() else path
