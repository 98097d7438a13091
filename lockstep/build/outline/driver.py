"""The calls of bodies as straight Python text, which drops each name where it is last read."""

from __future__ import annotations

from typing import Any

from lockstep.build.outline.bodies import BodyCall

BODY = "body_{}"
GIVEN = "given"


def driver_text(graph: Any, calls: list[BodyCall]) -> str:
    """Return the text of `call(inputs)`, which reads `body_0`, `body_1`, ... as globals.

    A body gets a list and empties it, so that nothing holds a value longer than who reads it last.
    """
    inputs = [node.name for node in graph.find_nodes(op="placeholder")]
    (outputs,) = graph.output_node().args
    last: dict[Any, int] = {}
    for at, call in enumerate(calls):
        last |= dict.fromkeys(call.inputs, at)
    last |= dict.fromkeys(graph.output_node().all_input_nodes, len(calls))
    lines = ["def call(inputs):"]
    lines += [f"    [{', '.join(inputs)}] = inputs"] if inputs else []
    lines += ["    inputs.clear()"]
    unread = [n.name for n in graph.find_nodes(op="placeholder") if n not in last]
    lines += [f"    {' = '.join(unread)} = None"] if unread else []
    for at, call in enumerate(calls):
        lines.append(f"    {GIVEN} = [{', '.join(node.name for node in call.inputs)}]")
        dead = [node.name for node in call.inputs if last[node] == at]
        lines += [f"    {' = '.join(dead)} = None"] if dead else []
        names = [n.name if n is not None and n in last else "_" for n in call.outputs]
        target = f"[{', '.join(names)}] = " if names else ""
        lines.append(f"    {target}{BODY.format(call.body)}({GIVEN})")
        lines += ["    _ = None"] if "_" in names else []
    lines.append(f"    return [{', '.join(map(repr, outputs))}]")
    return "\n".join(lines) + "\n"
