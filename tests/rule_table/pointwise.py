"""Element by element: one operand, several, selections, and the backwards."""

from __future__ import annotations

import torch

from tests.rule_table.cases import Case, T, op

X, ROW, COLUMN = T("nm"), T("m"), T("n1")
POLE = T("n1", of="positive")
ABOVE, UNIT = T("nm", of="positive"), T("nm", of="unit")
INTS, MASK = T("nm", "ESVF", of="integers"), T("nm", "ESVF", of="mask")
PAIR = T("nm2", "ESPVZ", of="complex")
NUMBER = T("", "EPVZF")

_RANDOM = (
    "abs asinh atan bitwise_not ceil cos cosh elu erf erfc exp exp2 expm1 floor frac gelu "
    "hardsigmoid hardswish hardtanh isfinite isinf isnan leaky_relu logical_not mish nan_to_num "
    "neg positive relu relu6 round selu sgn sigmoid sign silu sin sinc sinh softplus square tan "
    "tanh trunc celu resolve_conj resolve_neg detach alias alias_copy clone contiguous lift_fresh "
    "lift_fresh_copy lift real conj _conj_physical log_sigmoid_forward"
)
_POSITIVE = "acosh digamma lgamma log log10 log1p log2 reciprocal rsqrt sqrt"
_UNIT = "acos asin atanh erfinv"
_PAIRS = "atan2 copysign fmax fmin hypot maximum minimum nextafter logaddexp logaddexp2 heaviside"
_TENSOR_PAIRS = "eq ge gt le lt ne"
_COMPLEX = "neg conj _conj _conj_physical real imag view_as_real resolve_conj clone"
_INTEGERS = (
    "bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift logical_and "
    "logical_or logical_xor eq maximum"
)


def _overload(name: str) -> str:
    """The overload of a pair that has more than one."""
    tensor = [*_TENSOR_PAIRS.split(), "bitwise_and", "bitwise_or", "bitwise_xor"]
    shifts = {"bitwise_left_shift": ".Tensor", "bitwise_right_shift": ".Tensor"}
    two = {"copysign": ".Tensor", **shifts}
    return name + (".Tensor" if name in tensor else two.get(name, ""))


ONE: list[Case] = [
    *(op(name, INTS if name == "bitwise_not" else X) for name in _RANDOM.split()),
    *(op(name, ABOVE) for name in _POSITIVE.split()),
    *(op(name, UNIT) for name in _UNIT.split()),
    *(op(name, PAIR) for name in _COMPLEX.split()),
    op("view_as_complex", T("nm2")),
    op("_local_scalar_dense", NUMBER),
    op("to.dtype", X, torch.float64),
    op("_to_copy", X, dtype=torch.float64),
    op("_to_copy", X, dtype=torch.int64),
    op("logit", UNIT, None),
    op("polygamma", 1, ABOVE),
    op("glu", X, 1),
    op("clamp", X, -0.5, 0.5),
    op("clamp_max", X, 0.5),
    op("clamp_min", X, -0.5),
    op("threshold", X, 0.1, 0.2),
    op("pow.Tensor_Scalar", X, 2),
    op("pow.Tensor_Scalar", X, 1),
    op("tril", X),
    op("triu", X, 1),
    op("cumsum", X, 1),
    op("flip", X, [0]),
    op("roll", X, [1], [1]),
    op("roll", X, [1]),
]
SEVERAL: list[Case] = [
    *(op(_overload(name), X, other) for name in _PAIRS.split() for other in (X, ROW)),
    *(op(_overload(name), X, other) for name in _TENSOR_PAIRS.split() for other in (X, COLUMN)),
    *(op(f"{name}.Tensor", X, other) for name in ("fmod", "remainder") for other in (ABOVE, POLE)),
    *(op(_overload(name), INTS, INTS) for name in _INTEGERS.split()),
    *(op(f"{name}.Tensor", X, o) for name in ("add", "sub", "mul") for o in (X, ROW, COLUMN)),
    *(op(f"{name}.Tensor", X, ABOVE) for name in ("div", "true_divide")),
    *(op(f"{name}.Scalar", X, number) for name in ("add", "sub", "mul") for number in (0, 2.0)),
    op("rsub.Tensor", X, ROW),
    op("rsub.Scalar", X, 2.0),
    op("div.Tensor", X, POLE),
    op("div.Scalar", X, 3.0),
    op("div.Tensor_mode", X, ABOVE, rounding_mode="floor"),
    op("floor_divide", X, ABOVE),
    op("xlogy.Tensor", X, ABOVE),
    op("ldexp.Tensor", X, X),
    op("pow.Tensor_Tensor", ABOVE, X),
    op("isclose", X, X),
    op("prelu", X, ROW),
    op("addcmul", X, X, ROW),
    op("addcdiv", X, X, ABOVE),
    op("lerp.Scalar", X, X, 0.3),
    op("lerp.Tensor", X, X, UNIT),
    op("where.self", MASK, X, X),
    op("where.self", T("m", "ESVF", of="mask"), X, COLUMN),
    op("masked_fill.Scalar", X, MASK, 0.0),
    op("masked_fill.Scalar", X, MASK, 1.5),
    op("masked_fill.Tensor", X, MASK, NUMBER),
]
_PLAIN_BACKWARDS = "gelu silu hardswish hardsigmoid mish tanh sigmoid"
BACKWARDS: list[Case] = [
    *(op(f"{name}_backward", X, X) for name in _PLAIN_BACKWARDS.split()),
    op("threshold_backward", X, X, 0.0),
    op("elu_backward", X, 1.0, 1.0, 1.0, False, X),
    op("hardtanh_backward", X, X, -0.5, 0.5),
    op("leaky_relu_backward", X, X, 0.1, False),
    op("softplus_backward", X, X, 1.0, 20.0),
    op("log_sigmoid_backward", X, X, X),
    op("logit_backward", X, UNIT, None),
]
CASES = [*ONE, *SEVERAL, *BACKWARDS]
