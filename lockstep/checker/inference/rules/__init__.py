"""One rule an operator: from the kinds of its operands along one axis to those of its results."""

from lockstep.checker.inference.rules import (
    attention,
    collectives,
    convolution,
    creation,
    indexing,
    joins,
    matmul,
    norms,
    pointwise,
    reductions,
    slices,
    softmax,
    views,
    writes,
)
from lockstep.checker.inference.rules.registry import find as find
from lockstep.checker.inference.rules.registry import known as known
from lockstep.checker.inference.rules.registry import op_name as op_name

MODULES = (
    attention,
    collectives,
    convolution,
    creation,
    indexing,
    joins,
    matmul,
    norms,
    pointwise,
    reductions,
    slices,
    softmax,
    views,
    writes,
)
