"""Sums, extremes, orders, norms, softmax and the losses that read it."""

from __future__ import annotations

from typing import Any

import torch

from tests.rule_table.cases import Case, Lazy, T, op

X, ROW, COLUMN = T("nm"), T("m"), T("n1")
X3, ABOVE, UNIT = T("nmk"), T("nm", of="positive"), T("nm", of="unit")
MASK, RANKS_OF = T("nm", "ESVF", of="mask"), T("n", "ESV", of="integers")
NUMBER, COUNT = T("", "EPZF"), T("", "E", of="positive")

_TWO = ("median.dim", "nanmedian.dim", "mode", "max.dim", "min.dim", "sort", "cummax")
_ALL = ("sum", "nansum", "mean", "max", "min", "median", "nanmedian", "prod", "std", "var")
_DIMS = (
    "sum.dim_IntList nansum mean.dim logsumexp amax amin std.dim var.dim std_mean.dim var_mean.dim"
)
SUMS: list[Case] = [
    *(op(name, X) for name in _ALL),
    *(
        op(name, X3, dims, keep)
        for name in _DIMS.split()
        for dims, keep in [([1], False), ([0, 2], True)]
    ),
    *(op(name, X, dim) for name in _TWO for dim in (0, 1)),
    *(
        op(name, X, dim)
        for name in ("argmax", "argmin", "argsort", "prod.dim_int")
        for dim in (0, 1)
    ),
    *(op(name, X, 1) for name in ("cumprod", "logcumsumexp")),
    *(op(name, X, 1) for name in ("all.dim", "any.dim")),
    *(op(name, MASK) for name in ("all", "any")),
    op("argmax", X),
    op("max.other", X, ROW),
    op("min.other", X, ROW),
    op("kthvalue", X, 1, 1),
    op("topk", X, 2, 1),
    op("linalg_vector_norm", X, 2, [1]),
    op("linalg_vector_norm", X),
    op("norm.ScalarOpt_dim", X, 2, [1]),
    op("norm.Scalar", X),
    op("_foreach_norm.Scalar", [X, ROW]),
    op(
        "value_selecting_reduction_backward",
        T("n"),
        1,
        RANKS_OF,
        Lazy(lambda grad, index: [grad.shape[0], 4]),
        False,
    ),
    op(
        "value_selecting_reduction_backward",
        T("n1"),
        1,
        T("n1", "ESV", of="integers"),
        Lazy(lambda grad, index: [grad.shape[0], 4]),
        True,
    ),
]


def _last(x: Any, *rest: Any) -> list[int]:
    return [x.shape[-1]]


LAST, WEIGHT, MEAN = Lazy(_last), T("k"), T("nm1")
GRAD_LAST = Lazy(lambda grad, *rest: [grad.shape[-1]])
SPREAD = T("nm1", of="positive")
CHANNELS, C, VARIANCE = T("ncm"), T("c"), T("c", "ESVF", of="positive")
STATISTICS = (CHANNELS, C, C, C, VARIANCE)
OWN, OWN_SPREAD = T("n2"), T("n2", of="positive")


def _batch_norm(name: str, *more: Any) -> list[Case]:
    return [
        op(name, *STATISTICS, *([training] if training is not None else []), *more)
        for training in (True, False)
    ]


EXTENTS = [Lazy(lambda x, *rest, dim=dim: x.shape[dim]) for dim in range(3)]


def _rms_backward(grad: Any, x: Any, shape: Any, scale: Any, weight: Any, mask: Any) -> Any:
    """What no CPU kernel does."""
    normed, weighted = x * scale, grad * weight
    mean = (weighted * normed).mean(-1, keepdim=True)
    return scale * (weighted - normed * mean), (grad * normed).sum((0, 1))


def _cudnn(*args: Any) -> Any:
    return [*torch.ops.aten.native_batch_norm(*args), torch.zeros(1)]


def _batch_backward(*args: Any) -> Any:
    return torch.ops.aten.native_batch_norm_backward(*args[:-1])


NORMS: list[Case] = [
    op("native_layer_norm", X3, LAST, WEIGHT, WEIGHT, 1e-5),
    op("native_layer_norm", X3, LAST, None, None, 1e-5),
    op("rms_norm", X3, LAST, WEIGHT, 1e-5),
    op("_fused_rms_norm", X3, LAST, WEIGHT, 1e-5),
    op(
        "native_layer_norm_backward",
        X3, X3, GRAD_LAST, MEAN, SPREAD, WEIGHT, WEIGHT, [True, True, True],
    ),
    op(
        "_fused_rms_norm_backward",
        X3, X3, GRAD_LAST, SPREAD, WEIGHT, [True, True], run=_rms_backward,
    ),
    *_batch_norm("native_batch_norm", 0.1, 1e-5),
    *_batch_norm("_native_batch_norm_legit", 0.1, 1e-5),
    *_batch_norm("_native_batch_norm_legit_functional", 0.1, 1e-5),
    op("_batch_norm_with_update", *STATISTICS, 0.1, 1e-5),
    op("cudnn_batch_norm", *STATISTICS, True, 0.1, 1e-5, run=_cudnn),
    op(
        "batch_norm_backward",
        CHANNELS, CHANNELS, C, C, VARIANCE, C, VARIANCE, True, 1e-5, [True, True, True],
        torch.zeros(1), run=_batch_backward,
    ),
    op("native_group_norm", CHANNELS, C, C, *EXTENTS, 2, 1e-5),
    op(
        "native_batch_norm_backward",
        CHANNELS, CHANNELS, C, C, VARIANCE, C, VARIANCE, True, 1e-5, [True, True, True],
    ),
    op(
        "native_batch_norm_backward",
        CHANNELS, CHANNELS, C, C, VARIANCE, C, VARIANCE, False, 1e-5, [True, True, True],
    ),
    op(
        "native_group_norm_backward",
        CHANNELS, CHANNELS, OWN, OWN_SPREAD, C,
        *EXTENTS, 2, [True, True, True],
    ),
]  # fmt: skip
LOGITS, TARGET = T("nk"), T("n", "ESVF", of="integers", below=2)
IMAGE, PIXELS = T("nkab"), T("nab", "ESVF", of="integers", below=2)
_LOSSES = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")
SOFTMAX: list[Case] = [
    *(op(name, X3, dim, False) for name in ("_softmax", "_log_softmax") for dim in (1, 2)),
    *(op(name, X3, 2) for name in ("softmax.int", "log_softmax.int", "_safe_softmax")),
    *(op(name, X3, X3, 2, 7) for name in ("_softmax_backward_data", "_log_softmax_backward_data")),
    *(op("nll_loss_forward", LOGITS, TARGET, None, mode, -100) for mode in (0, 1, 2)),
    op("nll_loss_forward", LOGITS, TARGET, T("k"), 2, -100),
    *(op("nll_loss2d_forward", IMAGE, PIXELS, None, mode, -100) for mode in (0, 1, 2)),
    *(op("nll_loss_backward", NUMBER, LOGITS, TARGET, None, m, -100, COUNT) for m in (1, 2)),
    op("nll_loss_backward", T("n"), LOGITS, TARGET, None, 0, -100, COUNT),
    op("nll_loss2d_backward", NUMBER, IMAGE, PIXELS, None, 2, -100, COUNT),
    *(op(name, X, X, mode) for name in _LOSSES for mode in (0, 1, 2)),
    *(op("binary_cross_entropy", UNIT, UNIT, None, mode) for mode in (0, 1, 2)),
    *(op("binary_cross_entropy_with_logits", X, UNIT, None, None, mode) for mode in (0, 1, 2)),
    *(op("mse_loss_backward", T("", "EPZF"), X, X, mode) for mode in (0, 2)),
    op("mse_loss_backward", X, X, X, 0),
    *(op("smooth_l1_loss_backward", g, X, X, m, 1.0) for g, m in [(X, 0), (NUMBER, 2)]),
    *(op("huber_loss_backward", g, X, X, m, 1.0) for g, m in [(X, 0), (NUMBER, 2)]),
]
CASES = [*SUMS, *NORMS, *SOFTMAX]
