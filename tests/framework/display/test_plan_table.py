from __future__ import annotations

import msgspec

from loadmaster.display.plan_table import render_plan
from loadmaster_hookspecs.findings import Finding
from loadmaster_hookspecs.plan import Binding, FileView, PlanSettings
from sample_plan import sample_plan

DTYPE = Finding(level="info", code="LM-DTYPE-AUTO", where="dtype", message="all 273 tensors are BF16")
WARNING = Finding(level="warning", code="LM-TENSOR-UNKNOWN", where="model.foo", message="belongs to nothing", fix="check it")


def test_the_head_tells_model_type_and_split() -> None:
    lines = render_plan(sample_plan((DTYPE,))).splitlines()
    assert lines[0] == "source  /models/small  (1 file, 300.1 MB)"
    assert lines[3] == "dtype   bfloat16: all 273 tensors are BF16"
    assert lines[4] == "split   tensor-parallel over 2 ranks, 6+3 query and 2+1 key-value heads, device cpu"


def test_every_rank_has_a_row_and_the_sums_are_right() -> None:
    table = render_plan(sample_plan()).split("\n\n")[1].splitlines()
    cells = [[cell.strip() for cell in row.split("  ") if cell.strip()] for row in table]
    assert cells == [
        [
            "rank",
            "query heads",
            "kv heads",
            "vocabulary",
            "read",
            "repeated",
            "arena",
            "mapped",
            "embedding",
            "linear",
            "scratch",
        ],
        ["0", "0-5", "0-1", "0-24575", "200.0 MB", "0 B", "200.0 MB", "0 B", "50.0 MB", "150.0 MB", "4.0 MB"],
        ["1", "6-8", "2", "24576-49151", "110.0 MB", "10.0 MB", "110.0 MB", "0 B", "30.0 MB", "80.0 MB", "4.0 MB"],
        ["total", "310.0 MB", "10.0 MB", "310.0 MB", "0 B", "80.0 MB", "230.0 MB", "8.0 MB"],
    ]


def test_the_account_is_complete() -> None:
    text = render_plan(sample_plan())
    assert "ledger   272/273 tensors, 300.0 MB, 1 ignored: model.layers.0.inv_freq (computed)\n" in text
    assert "shared   lm_head.weight shares model.embed_tokens.weight\n" in text
    assert "reads    2 direct (300.0 MB), 1 gathered (10.0 MB), 1 through cast\n" in text
    assert "fills    1 with zeros (640 B)\n" in text
    assert "storage  300.0 MB leave storage, 1.000 times the unique bytes\n" in text
    assert f"digest   {'d' * 64}" in text


def test_mapped_bytes_have_a_column_of_their_own() -> None:
    plan = sample_plan()
    view = Binding(
        parameter="p", dtype="U8", shape=(10_000_000,), offset=0, nbytes=10_000_000, role="other", view=FileView(0, 8, (1,))
    )
    first = msgspec.structs.replace(plan.ranks[0], bytes=190_000_000, bindings=(view,))
    op = msgspec.structs.replace(plan.ranks[1].reads[1], via="mapped", transform=None)
    second = msgspec.structs.replace(plan.ranks[1], reads=(plan.ranks[1].reads[0], op))
    text = render_plan(msgspec.structs.replace(plan, ranks=(first, second)))
    row = next(line for line in text.splitlines() if line.startswith("0 "))
    cells = [cell.strip() for cell in row.split("  ") if cell.strip()]
    assert cells[5:8] == ["0 B", "190.0 MB", "10.0 MB"]
    assert "reads    2 direct (300.0 MB), 1 mapped (10.0 MB)\n" in text


def test_findings_are_told_once() -> None:
    text = render_plan(sample_plan((DTYPE, WARNING)))
    assert text.endswith("warning  model.foo: belongs to nothing  [LM-TENSOR-UNKNOWN]\n         try check it")
    assert text.count("all 273 tensors are BF16") == 1


def test_one_rank_has_neither_split_nor_total() -> None:
    two = sample_plan()
    whole = msgspec.structs.replace(two.ranks[0], modules=())
    ledger = msgspec.structs.replace(two.ledger, roles=two.ledger.roles[:1], aliased={})
    plan = msgspec.structs.replace(two, ranks=(whole,), ledger=ledger, settings=PlanSettings())
    text = render_plan(plan)
    assert "split   none, 1 rank holds everything, device cpu" in text
    assert "query heads" not in text
    assert "total" not in text
    assert "shared" not in text
    assert "dtype   bfloat16: as stored" in text
