"""Which values of an earlier part a later one had better compute anew.

A compiler that sees the whole graph computes a pointwise value again where it is read, rather than
to keep it. Cut apart, a forward body would have to return it, and it would live until the backward.
"""

from __future__ import annotations

from typing import Any

from lockstep.build.outline.nodes import base, is_view, written


def cheap_values(graph: Any, parts: list[list[Any]], owner: dict[Any, int]) -> set[Any]:
    """Return pairs of a value and the place of a part that is to compute it anew.

    Of pointwise values alone, which the part only reads in what a compiler fuses, and whose own
    inputs the part has anyway, unwritten until it starts.
    """
    order = {node: at for at, node in enumerate(graph.nodes)}
    first_write: dict[Any, int] = {}
    for node in order:
        if node.op == "call_function":
            for target in written(node):
                first_write.setdefault(base(target), order[node])
    found: set[Any] = set()
    for at, part in enumerate(parts):
        begin, inside = order[part[0]], set(part)
        read = {base(a) for node in part for a in node.all_input_nodes} - inside
        has = {n for n in read if first_write.get(n, begin) >= begin}
        for value in sorted(read, key=order.__getitem__, reverse=True):
            if value in owner and _is_pointwise(value) and _only_fused(value, at, owner):
                if all(_at_hand(base(a), has, first_write, begin) for a in value.all_input_nodes):
                    found.add((value, at))
    return found


def _at_hand(node: Any, has: set[Any], first_write: dict[Any, int], begin: int) -> bool:
    return node in has or (node.op == "placeholder" and first_write.get(node, begin) >= begin)


def _only_fused(value: Any, at: int, owner: dict[Any, int]) -> bool:
    """Whether all that a part does with a value, or a view of it, is fused with making it."""

    def fused(user: Any) -> bool:
        if is_view(user):
            return all(fused(one) for one in user.users)
        return owner.get(user) != at or _is_pointwise(user) or _is_reduction(user)

    return all(fused(user) for user in value.users)


def _is_pointwise(node: Any) -> bool:
    import torch

    tags = getattr(node.target, "tags", ())
    random = torch.Tag.nondeterministic_seeded in tags
    return torch.Tag.pointwise in tags and not random and not written(node)


def _is_reduction(node: Any) -> bool:
    import torch

    aten = torch.ops.aten
    return node.target in (aten.sum.dim_IntList, aten.sum.default, aten.mean.dim)
