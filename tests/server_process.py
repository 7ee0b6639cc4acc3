"""`loadmaster serve` as a process of its own, over the real engine, with an official client."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Final, Self

import openai
from prometheus_client.parser import text_string_to_metric_families

WAIT_SECONDS: Final = 120


class ServerProcess:
    """A running server. Leaving the context ends it for certain; `drain` ends it in an orderly way.

    `url` is the base of its API, `name` what requests call the model.
    """

    def __init__(self, model: Path, *options: str) -> None:
        command = [sys.executable, "-m", "loadmaster.cli", "serve", str(model), "--port", "0", "--dtype", "float32", *options]
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self._process.stderr is not None
        said = []
        for line in self._process.stderr:
            said.append(line)
            if found := re.search(r"at (http://\S+)", line):
                self.url = found[1]
                self.client = openai.OpenAI(base_url=self.url, api_key="none", max_retries=0, timeout=WAIT_SECONDS)
                self.name = self.client.models.list().data[0].id
                return
        raise AssertionError("".join(said))

    def metrics(self) -> dict[str, float]:
        """Return all samples of `/metrics` as `name{label=value}`."""
        with urllib.request.urlopen(f"{self.url.removesuffix('/v1')}/metrics", timeout=WAIT_SECONDS) as response:
            families = text_string_to_metric_families(response.read().decode())
        return {
            sample.name + "".join(f"{{{name}={value}}}" for name, value in sorted(sample.labels.items())): sample.value
            for family in families
            for sample in family.samples
        }

    def drain(self) -> int:
        """Ask it to stop and return its exit code."""
        self._process.send_signal(signal.SIGTERM)
        _, rest = self._process.communicate(timeout=60)
        assert "Traceback" not in rest
        return self._process.returncode

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()
