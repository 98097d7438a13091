"""Rows by index, and what depends on the values themselves."""

from __future__ import annotations

from tests.rule_table.cases import Case, T, op

X, ROWS, TABLE = T("nm"), T("km"), T("4m")
INDEX, PLACES = T("k", "ESVF", of="integers"), T("km", "ESVF", of="integers")
COLUMNS, MASK = T("nk", "ESVF", of="integers"), T("nm", "ESVF", of="mask")
SORTED, NUMBERS = T("m", "EV", of="positive"), T("nm", "ESVF", of="integers")

READ: list[Case] = [
    op("embedding", TABLE, INDEX),
    op("embedding", TABLE, T("nk", "ESVF", of="integers")),
    op("embedding_dense_backward", ROWS, INDEX, 4, -1, False),
    op("embedding_dense_backward", T("nkm"), COLUMNS, 4, -1, False),
    *(op(name, TABLE, [INDEX]) for name in ("index.Tensor", "_unsafe_index.Tensor")),
    op("index.Tensor", T("n4"), [None, INDEX]),
    op("index.Tensor", T("44"), [INDEX, INDEX]),
    op("index.Tensor", X, [T("n", "EF", of="mask")]),
    op("index_select", TABLE, 0, INDEX),
    op("index_select", T("n4"), 1, INDEX),
    op("take_along_dim", T("n4"), COLUMNS, 1),
    op("gather", T("n4"), 1, COLUMNS),
    op("gather", TABLE, 0, PLACES),
    op("one_hot", INDEX, 4),
]
_PUT = ("index_put", "_index_put_impl", "_unsafe_index_put")
WRITTEN: list[Case] = [
    *(op(name, TABLE, [INDEX], ROWS, True) for name in _PUT),
    op("index_put", TABLE, [INDEX], ROWS, False),
    op("index_put", T("n4"), [None, INDEX], T("nk"), True),
    op("index_put", X, [MASK], T("", "EVZF"), False),
    op("index_add", TABLE, 0, INDEX, ROWS),
    op("index_add", T("n4"), 1, INDEX, T("nk")),
    op("index_copy", TABLE, 0, INDEX, ROWS),
    op("index_reduce", TABLE, 0, INDEX, ROWS, "prod"),
    op("scatter_add", TABLE, 0, PLACES, ROWS),
    op("scatter_add", T("n4"), 1, COLUMNS, T("nk")),
    op("scatter.src", T("n4"), 1, T("n1", "ESVF", of="integers"), T("n1")),
    op("scatter.value", T("n4"), 1, COLUMNS, 1.0),
    op("scatter_reduce.two", TABLE, 0, PLACES, ROWS, "amax"),
]
BY_VALUE: list[Case] = [
    op("bincount", INDEX, None, 4),
    op("histc", X),
    op("nonzero", T("nm", "EV", of="mask")),
    op("masked_select", X, MASK),
    op("_unique2", NUMBERS),
    op("unique_dim", T("nm", "EV", of="integers"), 0),
    op("isin.Tensor_Tensor", NUMBERS, INDEX),
    op("searchsorted.Tensor", SORTED, X),
    op("bucketize.Tensor", X, SORTED),
]
CASES = [*READ, *WRITTEN, *BY_VALUE]
