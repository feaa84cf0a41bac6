"""The one door through which a model is loaded: whatever is wrong with it is said as an `InputError`."""

import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import torch

from rl_assets.errors import InputError
from rl_assets.policy.fingerprint import brief, policy_files
from rl_assets.policy.readable import read_object, require_readable

_NUMBER = re.compile(r"\.\d+(?=\.|$)")
_SAVE_AGAIN = "Save the whole policy again, config.json and weights together."


def load_model(folder: Path, dtype: torch.dtype, attention: str, trust_remote_code: bool) -> Any:
    """The model in a folder, with its weights on the CPU.

    Args:
        folder: holds config.json and weights.
        dtype: of the weights.
        attention: an implementation of transformers, or ``auto``.
        trust_remote_code: whether Python code in the folder may be run.

    Raises:
        InputError: a file is damaged, the weights are not those that config.json asks for, or the model is
            none that the decoding loop serves.
    """
    config = _read_config(folder, trust_remote_code)
    return _load(folder, config, attention, trust_remote_code, dtype=dtype)


def require_loadable(folder: Path, trust_remote_code: bool = False) -> int | None:
    """Refuse what `load_model` would refuse, without reading the weights: of these the headers are enough.

    A quantized model is not loaded, since that may need a device which another machine has.

    Returns:
        How many token ids the model knows; None for a quantized one.

    Raises:
        InputError: as `load_model`.
    """
    config = _read_config(folder, trust_remote_code)
    if getattr(config, "quantization_config", None) is not None:
        return None
    model = _load(folder, config, "auto", trust_remote_code, dtype=torch.float32, device_map={"": "meta"})
    return model.config.get_text_config(decoder=True).vocab_size


def _read_config(folder: Path, trust_remote_code: bool) -> Any:
    import transformers

    require_readable(policy_files(folder).values())
    settings = read_object(folder / "config.json")
    if not trust_remote_code:
        _require_no_kernel(settings, folder)
    try:
        return transformers.AutoConfig.from_pretrained(
            folder, trust_remote_code=trust_remote_code, local_files_only=True
        )
    except Exception as error:  # a setting of another kind than its class expects raises what it likes
        kind = settings.get("model_type")
        if not isinstance(kind, str) or kind not in transformers.CONFIG_MAPPING:
            raise InputError(
                file=folder / "config.json",
                field="model_type",
                found=repr(kind) if "model_type" in settings else "none",
                expected="a model that this release of transformers knows"
                + ("" if trust_remote_code else ", or code of its own and data.trust_remote_code"),
                remedy="Correct config.json, or update transformers.",
            ) from error
        raise _refused_config(folder, error) from error


def _load(folder: Path, config: Any, attention: str, trust_remote_code: bool, **options: Any) -> Any:
    import transformers

    auto = _auto_class(config, folder)
    transformers.utils.logging.disable_progress_bar()
    try:
        model, report = auto.from_pretrained(
            folder,
            attn_implementation=None if attention == "auto" else attention,
            trust_remote_code=trust_remote_code,
            local_files_only=True,
            ignore_mismatched_sizes=True,  # they are reported, and refused below by name
            output_loading_info=True,
            **options,
        )
    except ImportError as error:
        if attention == "auto":
            raise InputError(
                file=folder,
                found=f"a policy that needs another package ({brief(error)})",
                remedy="Install the package that config.json asks for.",
            ) from error
        raise InputError(
            field="policy.attn_implementation",
            found=f"{attention!r} ({brief(error)})",
            expected="auto, or an implementation whose package is installed",
            remedy="Install the package, or leave the choice to `auto`.",
        ) from error
    except Exception as error:  # torch and transformers share no base class for what they cannot load
        raise _refused_config(folder, error) from error
    _require_weights(model, report, folder)
    _require_cacheable(model, folder)
    return model


def _refused_config(folder: Path, error: Exception) -> InputError:
    return InputError(
        file=folder / "config.json",
        found=f"settings or weights that make no model ({type(error).__name__}: {brief(error)})",
        expected="config.json and weights of one model",
        remedy=_SAVE_AGAIN,
    )


def _require_weights(model: Any, report: dict[str, Any], folder: Path) -> None:
    """Refuse a model of which a parameter is not in the weights, has another shape there, or is left out."""
    if missing := sorted(report["missing_keys"]):
        raise InputError(
            file=folder,
            found=f"weights without {len(missing)} of the model's parameters ({missing[0]}, …)",
            expected="every parameter that config.json asks for",
            remedy="Save the whole policy again; nothing may be left at random values.",
        )
    if others := sorted(report["mismatched_keys"]):
        name, there, asked = others[0]
        more = f", and {len(others) - 1} more" if len(others) > 1 else ""
        raise InputError(
            file=folder,
            found=f"weights of other shapes than config.json says: {name} is {list(there)}{more}",
            expected=f"{list(asked)}",
            remedy=f"Config and weights are of two models, or one was edited. {_SAVE_AGAIN}",
        )
    known = model.state_dict().keys()
    if beyond := sorted(_beyond(report["unexpected_keys"], known)):
        raise InputError(
            file=folder / "config.json",
            found=f"a model without {len(beyond)} of the weights ({beyond[0]}, …)",
            expected="as many layers as the weights have",
            remedy=_SAVE_AGAIN,
        )


def _beyond(unexpected: Collection[str], known: Collection[str]) -> set[str]:
    """The weights whose name differs only by its numbers from those that the model has: more layers."""
    kinds = {_NUMBER.sub(".0", name) for name in known} if unexpected else set()
    return {name for name in unexpected if _NUMBER.search(name) and _NUMBER.sub(".0", name) in kinds}


def _require_no_kernel(config: Any, folder: Path) -> None:
    """Refuse a config that names an implementation by a hub id: transformers would fetch and run its code."""
    for name, chosen in _implementations(config):
        if "/" in chosen:
            raise InputError(
                file=folder / "config.json",
                field=name,
                found=repr(chosen),
                expected="an implementation that transformers has",
                remedy="Take it out: code from the hub is run only under data.trust_remote_code.",
            )


def _implementations(value: Any, name: str = "", *, chosen: bool = False) -> Iterator[tuple[str, str]]:
    """Name and value of every setting of a config, or of one within it, that chooses an implementation."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _implementations(inner, key, chosen=chosen or "_implementation" in key)
    elif chosen:
        yield name, str(value)


def _auto_class(config: Any, folder: Path) -> Any:
    import transformers
    from transformers.models.auto import modeling_auto

    kind = type(config)
    perceives = any(getattr(config, name, None) is not None for name in ("vision_config", "audio_config"))
    if perceives and kind in modeling_auto.MODEL_FOR_MULTIMODAL_LM_MAPPING:
        return transformers.AutoModelForMultimodalLM
    generates = kind in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING or "AutoModelForCausalLM" in (
        getattr(config, "auto_map", None) or {}
    )
    if not generates or getattr(config, "is_encoder_decoder", False):
        raise InputError(
            file=folder,
            found=f"a model of type {config.model_type!r}",
            expected="a causal language model, which may take images, videos or audio as well",
            remedy="Name another policy.",
        )
    return transformers.AutoModelForCausalLM


def _require_cacheable(model: Any, folder: Path) -> None:
    """Refuse a model without layers, or whose layers keep something else than keys and values of every
    token."""
    config = model.config.get_text_config(decoder=True)
    if not config.num_hidden_layers:
        raise InputError(
            file=folder / "config.json",
            field="num_hidden_layers",
            found="0",
            expected="a model with layers",
            remedy=_SAVE_AGAIN,
        )
    kinds = set(getattr(config, "layer_types", None) or ())
    others = kinds - {"full_attention", "sliding_attention"}
    if others or getattr(model, "_is_stateful", False):
        raise InputError(
            file=folder,
            found=f"layers of another kind ({', '.join(sorted(others)) or config.model_type})",
            expected="full or sliding-window attention in every layer",
            remedy="Name another policy: the decoding loop keeps one cache of keys and values.",
        )
