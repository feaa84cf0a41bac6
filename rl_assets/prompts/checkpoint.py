"""The tokenizer and the processor of a policy, loaded; what is wrong with them is said in one way."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_assets.errors import InputError, first_line

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

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
        return AutoTokenizer.from_pretrained(str(path), trust_remote_code=trust_remote_code)
    except Exception as error:  # whatever a damaged or absent checkpoint makes the library raise
        raise InputError(
            file=path,
            field=field,
            found=f"a policy whose tokenizer does not load ({first_line(error)})",
            expected="a folder with tokenizer.json, or a hub id",
            remedy="Check the path; `tokenizer.save_pretrained` saves a tokenizer beside its policy.",
        ) from error


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
