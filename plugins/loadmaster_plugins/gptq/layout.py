"""How the tensors of a GPTQ matrix lie over its rows and columns.

| tensor | dimension 0 | dimension 1 |
|---|---|---|
| `qweight` | `in`, 32 / bits values per word (3 bits: 32 in 3 words) | `out` |
| `scales` | `in`, a group per index | `out` |
| `qzeros` | `in`, a group per index | `out`, packed like `qweight`, or unpacked |
| `g_idx` | `in` | |

With act-order a column may use any group: then `scales` and `qzeros` lie along `group`, which is never cut.
"""

from __future__ import annotations

from loadmaster_hookspecs.layout import AxisMap, TensorLayout
from loadmaster_hookspecs.quantization import Claim
from loadmaster_plugins.grouped.bits import STREAM


def layouts(claim: Claim) -> tuple[TensorLayout, ...]:
    """Return the layouts of the tensors that a rank keeps; `g_idx` only with act-order."""
    per, words = STREAM[claim.bits]
    size = claim.group_size
    group = AxisMap(axis="in", per=size, hard=False) if size else AxisMap(axis="group", hard=False)
    out = AxisMap(axis="out", hard=False)
    found = [
        TensorLayout(
            name="qweight",
            dims=(AxisMap(axis="in", per=per, words=words, hard=False), out),
            dtype="I32",
            role="quantised",
        ),
        TensorLayout(name="scales", dims=(group, out), dtype=claim.dtype, role="scales"),
    ]
    zeros = str(claim.params["zeros_tensor"])
    if zeros:
        plain = claim.params["zeros"] == "plain"
        along = out if plain else AxisMap(axis="out", per=per, words=words, hard=False)
        found.append(TensorLayout(name=zeros, dims=(group, along), dtype=claim.dtype if plain else "I32", role="scales"))
    if claim.params["g_idx"]:
        found.append(
            TensorLayout(name="g_idx", dims=(AxisMap(axis="in", hard=False),), dtype=str(claim.params["g_idx"]), role="scales")
        )
    return tuple(found)
