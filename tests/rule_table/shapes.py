"""Views, parts, several side by side, and tensors made from numbers."""

from __future__ import annotations

from typing import Any

import torch

from tests.rule_table.cases import Case, Lazy, T, op

X, X3, ROW = T("nm"), T("nmk"), T("m")


def _size(make: Any) -> Lazy:
    return Lazy(lambda x, *rest: make(*x.shape))


def _zeros(*args: Any, **kwargs: Any) -> torch.Tensor:
    """In the place of memory that nobody wrote."""
    return torch.zeros(2, 3)


_VIEWS = ("view", "_unsafe_view", "reshape")
VIEWS: list[Case] = [
    *(op(name, X3, _size(lambda n, m, k: [n * m, k])) for name in _VIEWS),
    *(op(name, X3, _size(lambda n, m, k: [n, m * k])) for name in _VIEWS),
    op("view", T("nmk", "ES"), _size(lambda n, m, k: [n, m // 2, 2, k])),
    op("view.dtype", X, torch.int64),
    op("view.dtype", X, torch.int32),
    op("_reshape_alias", X, _size(lambda n, m: [n * m]), [1]),
    op("flatten.using_ints", X3, 1, 2),
    op("unflatten.int", X, 1, [-1, 2]),
    op("t", X),
    op("t", ROW),
    *(op(f"{name}", X3, 0, -1) for name in ("transpose.int", "swapaxes")),
    op("permute", X3, [2, 0, 1]),
    op("movedim.intlist", X3, [0], [2]),
    op("movedim.int", X3, 2, 0),
    op("expand", T("n1"), _size(lambda n, one: [3, n, 5])),
    op("broadcast_to", T("m"), _size(lambda m: [3, m])),
    op("unsqueeze", X, 1),
    op("squeeze.dim", T("n1m"), 1),
    op("squeeze", T("1nm")),
    op("squeeze.dims", T("1nm"), [0, 1]),
    op("as_strided", X, _size(lambda n, m: [m, n]), _size(lambda n, m: [1, m])),
    op("unfold", X, 1, 2, 1),
    op("diagonal", T("nn")),
]
_INTO: list[tuple[str, tuple[Any, ...]]] = [
    ("split.Tensor", (2,)),
    ("unsafe_split.Tensor", (2,)),
    ("chunk", (2,)),
    ("tensor_split.sections", (2,)),
    ("unbind.int", ()),
]
PARTS: list[Case] = [
    *(op(name, X, *rest, dim) for name, rest in _INTO for dim in (0, 1)),
    *(
        op(name, X, _size(lambda n, m: [1, n - 1]), 0)
        for name in ("split_with_sizes", "split_with_sizes_copy")
    ),
    *(op(name, X, dim, 1, 2) for name in ("slice.Tensor", "slice_copy.Tensor") for dim in (0, 1)),
    op("slice.Tensor", X, 0, 0, 100),
    op("narrow", X, 1, 0, 1),
    *(op(name, X3, dim, 0) for name in ("select.int", "select_copy.int") for dim in (0, 1, 2)),
    op("slice_backward", X, _size(lambda n, m: [n, m + 2]), 1, 1, _size(lambda n, m: m + 1), 1),
    *(op("select_backward", X, _size(lambda n, m: [n, 3, m]), 1, i) for i in (0, 2)),
    op("slice_scatter", X, X, 0, 0, 100),
    op("slice_scatter", X, T("n1"), 1, 1, 2),
    op("select_scatter", X, T("n"), 1, 0),
    op("constant_pad_nd", X, [1, 1], 0.0),
    op("constant_pad_nd", X, [0, 0, 1, 0], 2.0),
    op("pad", X, [1, 0], "constant", 0.0),
    op("repeat", X, [1, 2]),
    op("tile", X, [2, 1]),
    op("repeat_interleave.self_int", X, 2, 0),
    op("repeat_interleave.self_Tensor", X, T("n", "ESV", of="integers"), 0),
    *(
        op(name, [X, X], dim)
        for name in ("cat", "concat", "concatenate", "stack")
        for dim in (0, 1)
    ),
    op("cat", [X, T("nm"), T("nm")], 1),
]
LIKE, NEW = ("ones_like", "zeros_like"), ("new_ones", "new_zeros")
MADE: list[Case] = [
    *(op(name, X) for name in LIKE),
    *(op(name, X, [2, 3]) for name in NEW),
    *(op(name, [2, 3]) for name in ("zeros", "ones", "_efficientzerotensor")),
    *(op(name, [2, 3], run=_zeros) for name in ("empty.memory_format", "new_empty")[:1]),
    op("empty_like", X, run=_zeros),
    op("empty_strided", [2, 3], [3, 1], run=_zeros),
    op("empty_permuted", [2, 3], [0, 1], run=_zeros),
    op("new_empty", X, [2, 3], run=_zeros),
    op("new_empty_strided", X, [2, 3], [3, 1], run=_zeros),
    op("full", [2, 3], 0),
    op("full", [2, 3], 1.5),
    op("full_like", X, 0.0),
    op("new_full", X, [2], 2.0),
    op("scalar_tensor", 3.0),
    op("fill.Scalar", X, 2.0),
    op("fill.Tensor", T("nm", "EPVZF"), T("", "EPVZF")),
    op("zero", X),
    op("arange", 5),
    op("eye", 3),
    op("linspace", 0, 1, 5),
    op("tril_indices", 3, 3),
    op("triu_indices", 3, 3),
    op("copy", X, X),
    op("copy", X, ROW),
    op("set.source_Tensor", X, X),
    op("resize", X, _size(lambda n, m: [n, m])),
    op("sym_size.int", X, 0),
    op("sym_numel.default", X),
    op("_assert_async", T("", "EV", of="positive")),
    op("_assert_scalar", True, "never"),
    op("_assert_tensor_metadata", X),
]
_LIKE_DRAWS = "rand_like randn_like bernoulli normal_functional poisson"
_IN_PLACE = "uniform exponential random log_normal geometric cauchy"
DRAWN: list[Case] = [
    op("rand_like", X, seeded=True),
    op("randn_like", X, seeded=True),
    op("randint_like", X, 5, seeded=True),
    op("bernoulli", T("nm", of="unit"), seeded=True),
    op("multinomial", T("nm", of="unit"), 1, seeded=True),
    op("poisson", T("nm", of="positive"), seeded=True),
    op("normal_", X, seeded=True),
    *(
        op(f"{name}_", X, *([0.5] * (name == "geometric")), seeded=True)
        for name in _IN_PLACE.split()
    ),
    *(op(name, [2, 3], seeded=True) for name in ("rand", "randn")),
    op("randint", 5, [2, 3], seeded=True),
    op("randperm", 5, seeded=True),
    op("native_dropout", X, 0.5, True, seeded=True),
    op("native_dropout_backward", X, T("nm", "ESVF", of="mask"), 2.0),
]
CASES = [*VIEWS, *PARTS, *MADE, *DRAWN]
