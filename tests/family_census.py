"""What loadmaster makes of every family of causal language models that ships a tensor-parallel plan: whole and divided.

`PYTHONPATH=tests python -m family_census` examines all of them and writes the table in docs/families.md anew.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from transformers import AutoModelForCausalLM

import loadmaster as lm
from tiny_families import families, tiny_config
from tiny_models import reference_logits, relative_error

TABLE: Final = Path(__file__).parent.parent / "docs" / "families.md"
BEGIN: Final = "<!-- table: begin -->"
END: Final = "<!-- table: end -->"
HEADER: Final = "| model type | one rank | two ranks | why not |\n| --- | --- | --- | --- |"

IDS: Final = [3, 17, 20, 5, 49, 8, 8, 90, 41, 2, 7]
TOLERANCE: Final = 1e-5
SPREAD: Final = 0.05

WORKS: Final = "works"
REFUSED: Final = "refused"
NOT_BUILT: Final = "not built"
DIFFERS: Final = "differs"


class Outcome(NamedTuple):
    """A row of the table: what happens on one rank and on two, and the reason where something is refused."""

    family: str
    whole: str
    split: str
    why: str = ""


def random_model(family: str, **sizes: Any) -> torch.nn.Module:
    """Return a model whose every parameter and stored buffer has values of its own."""
    torch.manual_seed(0)
    model: torch.nn.Module = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
        tiny_config(family, **sizes), dtype=torch.float32, attn_implementation="eager", experts_implementation="eager"
    )
    with torch.no_grad():
        for tensor in model.state_dict().values():
            if tensor.is_floating_point():
                tensor.add_(0.2 * torch.randn(tensor.shape))
    return model.eval()


def examine(family: str, folder: Path) -> Outcome:
    """Return what happens to a tiny random model of `family`, saved below `folder` by transformers.

    Everything but a refusal by the planner is raised: nothing else may happen to a user.
    """
    try:
        model = random_model(family)
        reference = reference_logits(model, IDS)
    except Exception as error:  # noqa: BLE001 # boundary: whatever transformers cannot do with a tiny default configuration
        return Outcome(family, NOT_BUILT, NOT_BUILT, f"transformers: {_first_line(error)}")
    assert float(reference.std()) > SPREAD * float(np.abs(reference).max()), f"{family}: these logits prove nothing"
    model.save_pretrained(folder)  # type: ignore[operator]
    results = [_attempt(folder, ranks, reference) for ranks in (1, 2)]
    return Outcome(family, results[0][0], results[1][0], results[0][1] or results[1][1])


def documented() -> dict[str, Outcome]:
    """Return the rows of the table in the documentation."""
    rows = TABLE.read_text().partition(BEGIN)[2].partition(END)[0]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in rows.splitlines() if line.startswith("| `")]
    return {row[0].strip("`"): Outcome(row[0].strip("`"), row[1], row[2], row[3]) for row in cells}


def write_table() -> None:
    """Examine every family and write the table."""
    rows = []
    for family in families():
        with tempfile.TemporaryDirectory() as folder:
            rows.append(examine(family, Path(folder)))
            sys.stdout.write(f"{rows[-1]}\n")
    lines = [f"| `{row.family}` | {row.whole} | {row.split} | {row.why} |" for row in rows]
    before, _, rest = TABLE.read_text().partition(BEGIN)
    TABLE.write_text(f"{before}{BEGIN}\n{HEADER}\n" + "\n".join(lines) + f"\n{END}{rest.partition(END)[2]}")


def _attempt(folder: Path, ranks: int, reference: npt.NDArray[np.float32]) -> tuple[str, str]:
    try:
        with lm.Engine(folder, tensor_parallel=ranks, executor="inline") as engine:
            error = relative_error(engine.logits(IDS), reference)
    except lm.PlanError as refusal:
        why = refusal.report.why
        return REFUSED, f"{refusal.code}: {refusal.report.summary}" + (f" ({why})" if why and "<" not in why else "")
    return (WORKS, "") if error < TOLERANCE else (DIFFERS, f"largest relative difference {error:.1e} on {ranks} ranks")


def _first_line(error: Exception) -> str:
    text = re.sub(r"\s+", " ", str(error)).replace("|", "/").strip() or type(error).__name__
    return text if len(text) <= 100 else f"{text[:97]}..."


if __name__ == "__main__":
    write_table()
