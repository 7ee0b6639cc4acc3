"""What the gptq and awq quantizers read in configurations and settings files, and what they refuse there by name."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

import pytest

from loadmaster_hookspecs.errors import PlanError
from loadmaster_hookspecs.quantization import Quantizer
from loadmaster_plugins.awq.quantizer import Awq
from loadmaster_plugins.gptq.quantizer import Gptq
from loadmaster_plugins.gptq.settings import GptqSettings
from quantized_files import fixture

GPTQ, AWQ = Gptq(), Awq()
GPTQ_SAID = {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": False}
AWQ_SAID = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}


def beside(**files: Any) -> Any:
    """Return a reader of files that lie beside the weights; texts stay as they are, other values become JSON."""
    raw = {f"{name}.json": value if isinstance(value, bytes) else json.dumps(value).encode() for name, value in files.items()}
    return raw.get


def said(quantizer: Quantizer, config: Mapping[str, Any], **files: Any) -> Mapping[str, Any] | None:
    return quantizer.settings(config, beside(**files))


@pytest.mark.parametrize("key", ["text_config", "llm_config", "language_config"])
@pytest.mark.parametrize(("quantizer", "method"), [(GPTQ, GPTQ_SAID), (AWQ, AWQ_SAID)])
def test_settings_of_the_text_part_count(quantizer: Quantizer, method: Mapping[str, Any], key: str) -> None:
    direct = said(quantizer, {"quantization_config": method})
    assert direct is not None
    assert said(quantizer, {key: {"quantization_config": method}, "vision_config": {}}) == direct


def test_each_quantizer_reads_its_own_settings_alone() -> None:
    configs: list[dict[str, Any]] = [
        {},
        {"quantization_config": {"quant_method": "fp8"}},
        {"quantization_config": None},
        {"text_config": []},
    ]
    for config in configs:
        assert said(GPTQ, config) is None
        assert said(AWQ, config) is None
    assert said(GPTQ, {"quantization_config": AWQ_SAID}) is None
    assert said(AWQ, {"quantization_config": GPTQ_SAID}) is None


def test_files_beside_the_weights_count_where_the_configuration_is_silent() -> None:
    old = {"bits": 4, "group_size": 128, "desc_act": False}
    found = said(GPTQ, {}, quantize_config=old)
    assert found is not None
    assert (found["bits"], found["group_size"], found["sym"]) == (4, 128, None)
    assert said(AWQ, {}, quantize_config=old) is None
    autoawq = said(AWQ, {}, quant_config={"w_bit": 4, "q_group_size": 64, "zero_point": True, "version": "GEMM"})
    assert autoawq is not None
    assert (autoawq["group_size"], autoawq["layout"]) == (64, "gemm")
    assert said(AWQ, {}, quantize_config=AWQ_SAID) is not None
    assert said(GPTQ, {}, quantize_config=AWQ_SAID) is None
    assert said(GPTQ, {"quantization_config": AWQ_SAID}, quantize_config=old) is None


@pytest.mark.parametrize(
    ("text", "why"), [(b"{", "not JSON"), (b"[]", "a JSON list"), (b"\xff", "not JSON"), (b"[" * 100000, "not JSON")]
)
def test_unreadable_files_are_named(text: bytes, why: str) -> None:
    with pytest.raises(PlanError, match="LM-QUANT-SETTINGS") as caught:
        said(GPTQ, {}, quantize_config=text)
    assert caught.value.report.where == {"file": "quantize_config.json"}
    assert why in caught.value.report.why


@pytest.mark.parametrize(
    ("said_formats", "version"),
    [
        ({}, "v1"),
        ({"checkpoint_format": "gptq"}, "v1"),
        ({"checkpoint_format": "gptq_v2"}, "v2"),
        ({"format": "GPTQ_v2"}, "v2"),
    ],
)
def test_formats_tell_the_version_of_zero_points(said_formats: Mapping[str, str], version: str) -> None:
    found = said(GPTQ, {"quantization_config": {**GPTQ_SAID, **said_formats}})
    assert found is not None
    assert found["version"] == version


@pytest.mark.parametrize(
    ("changes", "setting"),
    [
        ({"is_marlin_format": True}, "is_marlin_format = true"),
        ({"checkpoint_format": "marlin"}, "checkpoint_format = marlin"),
        ({"format": "bitblas"}, "format = bitblas"),
        ({"quant_method": "marlin"}, "quant_method = marlin"),
        ({"checkpoint_format": "exl2"}, "checkpoint_format = exl2"),
    ],
)
def test_gptq_packed_for_one_kernel_is_refused_by_name(changes: Mapping[str, Any], setting: str) -> None:
    with pytest.raises(PlanError, match="LM-GPTQ-FORMAT") as caught:
        said(GPTQ, {"quantization_config": {**GPTQ_SAID, **changes}})
    assert caught.value.report.where == {"file": "config.json", "setting": setting}


@pytest.mark.parametrize("version", ["marlin", "llm-awq", "qqq"])
def test_awq_packed_for_one_kernel_is_refused_by_name(version: str) -> None:
    with pytest.raises(PlanError, match="LM-AWQ-FORMAT") as caught:
        said(AWQ, {"quantization_config": {**AWQ_SAID, "version": version}})
    assert caught.value.report.where == {"file": "config.json", "setting": f"version = {version}"}


@pytest.mark.parametrize(
    ("quantizer", "changes", "setting"),
    [
        (GPTQ, {"bits": 5}, "bits = 5"),
        (GPTQ, {"bits": "4"}, "bits = '4'"),
        (GPTQ, {"bits": True}, "bits = True"),
        (GPTQ, {"group_size": 0}, "group_size = 0"),
        (GPTQ, {"group_size": -2}, "group_size = -2"),
        (GPTQ, {"sym": "yes"}, "sym = 'yes'"),
        (GPTQ, {"pack_dtype": "int16"}, "pack_dtype = 'int16'"),
        (GPTQ, {"checkpoint_format": "gptq", "format": "gptq_v2"}, "format = 'gptq_v2'"),
        (GPTQ, {"format": 2}, "format = 2"),
        (GPTQ, {"dynamic": []}, "dynamic = []"),
        (GPTQ, {"dynamic": {"+:(": {}}}, "dynamic = '+:('"),
        (GPTQ, {"dynamic": {"+:a": 4}}, "dynamic = '+:a'"),
        (GPTQ, {"dynamic": {"+:a": {"bits": "4"}}}, "bits = '4'"),
        (GPTQ, {"dynamic": {"(a+)+": {}}}, "dynamic = '(a+)+'"),
        (GPTQ, {"dynamic": {".*a.*b.*c.*d.*e.*f": {}}}, "dynamic = '.*a.*b.*c.*d.*e.*f'"),
        (AWQ, {"bits": 8}, "bits = 8"),
        (AWQ, {"group_size": -7}, "group_size = -7"),
        (AWQ, {"zero_point": 1}, "zero_point = 1"),
        (AWQ, {"version": 4}, "version = 4"),
    ],
)
def test_values_without_sense_are_named(quantizer: Quantizer, changes: Mapping[str, Any], setting: str) -> None:
    method = GPTQ_SAID if quantizer is GPTQ else AWQ_SAID
    with pytest.raises(PlanError) as caught:
        said(quantizer, {"quantization_config": {**method, **changes}})
    assert caught.value.code == f"LM-{quantizer.name.upper()}-SETTINGS"
    assert caught.value.report.where["setting"] == setting


def test_the_worst_rule_that_is_accepted_takes_no_long_time() -> None:
    found = said(GPTQ, {"quantization_config": {**GPTQ_SAID, "dynamic": {"+:.*.*.*.*!.*": {"bits": 8}}}})
    assert found is not None
    start = time.monotonic()
    module = GptqSettings.of(found).of_module("model.layers.0." + 85 * "a")
    assert time.monotonic() - start < 10
    assert module is not None
    assert module.bits == 4


def test_rules_hold_from_the_beginning_of_a_name_and_those_that_leave_out_come_first() -> None:
    rules = {r"+:.*\.mlp\..*": {"bits": 8}, r"model\.layers\.1\.": {"bits": 2}, r"-:.*\.2\..*": {}, "layers": {"bits": 3}}
    found = said(GPTQ, {"quantization_config": {**GPTQ_SAID, "dynamic": rules}})
    assert found is not None
    bits = {name: (said_of := GptqSettings.of(found).of_module(f"model.layers.{name}")) and said_of.bits for name in NAMES}
    assert bits == NAMES


NAMES = {"0.mlp.up_proj": 8, "1.mlp.up_proj": 8, "1.attn.q": 2, "2.mlp.up_proj": None, "3.attn.q": 4}


@pytest.mark.parametrize("method", ["auto-round", "intel/auto-round"])
def test_files_of_auto_round_are_known_by_their_packing(method: str) -> None:
    config = {
        "quantization_config": {"quant_method": method, "bits": 4, "group_size": 128, "packing_format": "auto_round:auto_gptq"}
    }
    assert said(GPTQ, config) is not None
    assert said(AWQ, config) is None
    config["quantization_config"]["packing_format"] = "auto_round:auto_awq"
    assert said(GPTQ, config) is None
    assert said(AWQ, config) is not None


@pytest.mark.parametrize(
    ("quantizer", "method", "expected"),
    [
        (GPTQ, GPTQ_SAID, ("gptq", 4, 128)),
        (GPTQ, {**GPTQ_SAID, "group_size": -1}, ("gptq", 4, 0)),
        (AWQ, AWQ_SAID, ("awq", 4, 128)),
    ],
)
def test_outlines_need_the_configuration_alone(
    quantizer: Quantizer, method: Mapping[str, Any], expected: tuple[str, int, int]
) -> None:
    settings = said(quantizer, {"quantization_config": method})
    assert settings is not None
    outline = quantizer.outline(settings)
    assert outline is not None
    assert (outline.quantizer, outline.bits, outline.group_size) == expected
    assert quantizer.outline({}) is None


@pytest.mark.parametrize(
    ("name", "quantizer", "version"),
    [("gptq-4b-g64-sym", GPTQ, "v1"), ("gptq-4b-g64-asym-act", GPTQ, "v1"), ("gptqv2-4b-g64-asym", GPTQ, "v2")],
)
def test_configurations_of_producers(name: str, quantizer: Quantizer, version: str) -> None:
    found = said(quantizer, fixture(name)[1])
    assert found is not None
    assert (found["bits"], found["group_size"], found["version"], found["sym"]) == (4, 64, version, name == "gptq-4b-g64-sym")


def test_planning_imports_no_torch() -> None:
    code = (
        "import sys; from loadmaster_plugins.gptq.quantizer import Gptq; from loadmaster_plugins.awq.quantizer import Awq;"
        f"Gptq().outline(Gptq().settings({{'quantization_config': {GPTQ_SAID!r}}}, lambda n: None));"
        f"Awq().outline(Awq().settings({{'quantization_config': {AWQ_SAID!r}}}, lambda n: None));"
        "print([name for name in ('torch', 'numpy') if name in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout.strip() == "[]"
