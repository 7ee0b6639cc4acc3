"""What is imported before planner and workers are forked: everything they need, and nothing that modelling code does not."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any, Final

import pytest

from loadmaster_plugins.transformers_models.family import modelling_code
from tiny_models import make_model, save_model

OWN: Final = ("loadmaster", "loadmaster_hookspecs", "loadmaster_engine", "loadmaster_plugins", "msgspec", "pluggy")

MODELLING: Final = """
import json, sys
import numpy.typing, torch, transformers.models.llama.modeling_llama
print(json.dumps(sorted(sys.modules)))
"""

PRELOADED: Final = """
import importlib, json, sys
from pathlib import Path
from loadmaster.host import PluginHost
from loadmaster.checkpoints import open_index
from loadmaster.preloading import modules_for
from loadmaster_engine.plan import make_plan
from loadmaster_hookspecs.plan import PlanSettings

host = PluginHost()
index = open_index(host, Path(sys.argv[1]))
light = "torch" not in sys.modules
for module in modules_for(host, host.record(), index.config):
    importlib.import_module(module)
before = set(sys.modules)
plan = make_plan(host, index, PlanSettings(tensor_parallel=2))
planned = set(sys.modules)
host.family(plan.family).build(plan.config, plan.dtype, plan.ranks[0].modules).new_cache()
print(json.dumps([light, sorted(before), sorted(planned - before), sorted(set(sys.modules) - planned)]))
"""


def run(code: str, *arguments: str) -> Any:
    command = [sys.executable, "-W", "ignore", "-c", code, *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return json.loads(ended.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What modelling code alone imports, and what loadmaster imports before planning, while planning, and while building."""
    folder = save_model(make_model("llama"), tmp_path_factory.mktemp("model") / "model")
    return {"modelling": run(MODELLING), "own": run(PRELOADED, str(folder))}


def test_the_host_imports_no_torch_to_find_out(imported: Any) -> None:
    assert imported["own"][0]


def test_a_dense_model_needs_nothing_that_its_modelling_code_does_not_import(imported: Any) -> None:
    more = set(imported["own"][1]) - set(imported["modelling"])
    foreign = {name for name in more if name.partition(".")[0] not in {*OWN, *sys.stdlib_module_names}}
    assert foreign <= {"transformers.models.auto.modeling_auto"}


def test_nothing_is_left_for_planner_and_workers_to_import(imported: Any) -> None:
    _, _, planning, building = imported["own"]
    assert (planning, building) == ([], [])


@pytest.mark.parametrize("model_type", ["../../etc", "no_such_type", "", None, 3])
def test_a_model_type_that_is_none_names_no_modelling_code(model_type: object) -> None:
    assert modelling_code({"model_type": model_type}) == ()
