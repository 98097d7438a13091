"""Products of matrices, convolutions and pooling, attention."""

from __future__ import annotations

from typing import Any

import torch

from tests.rule_table.cases import Case, Lazy, T, op

aten = torch.ops.aten
MATRICES: list[Case] = [
    *(op(name, T("nm"), T("mk")) for name in ("mm", "matmul")),
    *(op(name, T("bnm"), T("bmk")) for name in ("bmm", "matmul")),
    op("matmul", T("bnm"), T("mk")),
    op("mv", T("nm"), T("m")),
    *(op(name, T("n"), T("n")) for name in ("dot", "vdot")),
    op("addmm", T("k"), T("nm"), T("mk")),
    op("addmm", T("nk"), T("nm"), T("mk")),
    op("baddbmm", T("bnk"), T("bnm"), T("bmk")),
    op("addbmm", T("nk"), T("bnm"), T("bmk")),
    op("addmv", T("n"), T("nm"), T("m")),
    op("linear", T("nm"), T("km")),
    op("linear", T("bnm"), T("km"), T("k")),
    *(op(name, T("n"), T("m")) for name in ("outer", "ger", "kron")),
    op("_grouped_mm", T("bnm"), T("bmk"), run=aten.bmm),
]
IMAGE, FILTER, MADE = T("nm66"), T("km33"), T("nk44")
BOTH, ONES = [1, 1], [0, 0]
_PLAIN = (BOTH, ONES, BOTH, False, ONES, 1)
_EXTRA = (False, False, False, False)
_TRIPLE = [True, True, True]
SMALL = T("nm33")


def _sides(grad: Any, *rest: Any) -> list[int]:
    return [*grad.shape[:2], 6, 6]


CONVOLUTIONS: list[Case] = [
    op("convolution", IMAGE, FILTER, None, *_PLAIN),
    op("convolution", IMAGE, FILTER, T("k"), *_PLAIN),
    op("convolution", IMAGE, T("mk33"), None, BOTH, ONES, BOTH, True, ONES, 1),
    op("_convolution", IMAGE, FILTER, T("k"), *_PLAIN, *_EXTRA),
    op(
        "convolution_backward",
        *(MADE, IMAGE, FILTER, Lazy(lambda g, x, w: [w.shape[0]]), *_PLAIN, _TRIPLE),
    ),
    op("avg_pool1d", T("nm6"), [2]),
    op("avg_pool2d", IMAGE, [2, 2]),
    op("avg_pool3d", T("nm666"), [2, 2, 2]),
    op("_adaptive_avg_pool2d", IMAGE, [3, 3]),
    op("upsample_nearest2d", IMAGE, [12, 12]),
    op("max_pool2d_with_indices", IMAGE, [2, 2]),
    op("max_pool3d_with_indices", T("nm666"), [2, 2, 2]),
    op("adaptive_max_pool2d", IMAGE, [3, 3]),
    op("avg_pool2d_backward", SMALL, IMAGE, [2, 2], [2, 2], ONES, False, True, None),
    op("_adaptive_avg_pool2d_backward", SMALL, IMAGE),
    op("upsample_nearest2d_backward", T("nm66"), [6, 6], Lazy(_sides)),
    op(
        "max_pool2d_with_indices_backward",
        *(SMALL, IMAGE, [2, 2], [2, 2], ONES, BOTH, False, T("nm33", "ESV", of="integers")),
    ),
]


def _padded(count: int) -> Any:
    """Attention on the CPU, with as many further results as another kernel gives."""

    def run(q: Any, k: Any, v: Any, *rest: Any, is_causal: bool = False, **kwargs: Any) -> Any:
        made = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, is_causal)
        return [*made, *[torch.zeros(1) for _ in range(count)]]

    return run


def _backward(grad: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, *rest: Any, **kw: Any) -> Any:
    flash = aten._scaled_dot_product_flash_attention_for_cpu_backward
    return [*flash(grad, q, k, v, out, lse, 0.0, False)]


def _efficient(
    grad: Any, q: Any, k: Any, v: Any, bias: Any, out: Any, lse: Any, *rest: Any, **kw: Any
) -> Any:
    return [*_backward(grad, q, k, v, out, lse), torch.zeros(1)]


Q, KV, SUMS = T("nhtd"), T("nhsd"), T("nht")
QKV, SQUARE = (Q, KV, KV), (Q, Q, Q)
NOTHING = torch.zeros(1)
ATTENTION: list[Case] = [
    op("_scaled_dot_product_flash_attention_for_cpu", *QKV),
    op("_scaled_dot_product_flash_attention_for_cpu", *SQUARE, 0.0, True),
    op("_scaled_dot_product_attention_math", *QKV),
    op("scaled_dot_product_attention", *QKV),
    op("scaled_dot_product_attention", *QKV, T("ts")),
    op("_scaled_dot_product_flash_attention", *QKV, run=_padded(7)),
    op("_scaled_dot_product_efficient_attention", *QKV, None, True, run=_padded(2)),
    op("_scaled_dot_product_cudnn_attention", *QKV, None, True, run=_padded(7)),
    op("_scaled_dot_product_fused_attention_overrideable", *QKV, run=_padded(7)),
    op("_scaled_dot_product_flash_attention_for_cpu_backward", Q, *QKV, Q, SUMS, 0.0, False),
    op(
        "_scaled_dot_product_flash_attention_backward",
        *(Q, *QKV, Q, SUMS, NOTHING, NOTHING, 4, 4, 0.0, False, NOTHING, NOTHING),
        run=_backward,
    ),
    op(
        "_scaled_dot_product_cudnn_attention_backward",
        *(Q, *QKV, Q, SUMS, NOTHING, NOTHING, NOTHING, NOTHING, NOTHING, 4, 4, 0.0, False),
        run=_backward,
    ),
    op(
        "_scaled_dot_product_efficient_attention_backward",
        *(Q, *QKV, None, Q, SUMS, NOTHING, NOTHING, 0.0, [True] * 4),
        run=_efficient,
    ),
]
CASES = [*MATRICES, *CONVOLUTIONS, *ATTENTION]
