"""The porting guide: its code runs, and each mapping's backward is what its row says."""

from __future__ import annotations

import re
from pathlib import Path

import torch

import lockstep as ls

GUIDE = Path(__file__).parents[1] / "docs" / "porting_megatron.md"


def test_its_code_runs_and_its_two_blocks_agree() -> None:
    ls.mesh(tp=-1)
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL):
        exec(block, names)
    torch.manual_seed(0)
    x, up, down = torch.randn(4, 8), torch.randn(16, 8), torch.randn(8, 16)
    plain = torch.nn.functional.silu(x @ up.T) @ down.T
    for block in ("mlp", "mlp_sp"):
        assert torch.allclose(names[block](x, up, down), plain, atol=1e-5)  # type: ignore[operator]
    report = names["report"]
    assert report.ok and not report.undecided, str(report)  # type: ignore[attr-defined]
    assert "types only: gold and twin did not run" in str(report)


def test_every_mapping_is_a_call_that_this_version_accepts() -> None:
    ls.mesh(tp=-1)
    rows = re.findall(r"\| `(ls\.(?:convert|all_\w+|reduce_scatter)\(.*?\))` \|", GUIDE.read_text())
    assert len(rows) == 9
    names = {"ls": ls, "I": ls.I, "R": ls.R, "P": ls.P, "S": ls.S, "last": 1}
    for call in rows:
        x = torch.randn(2, 4, requires_grad=True)
        out = eval(call, {**names, "x": x, "weight": x})
        out.sum().backward()
        assert x.grad is not None and out.shape == x.shape, call
