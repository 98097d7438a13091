"""The texts of findings about gradients, in the user's own names."""

from __future__ import annotations

from lockstep.checker.finding import Finding
from lockstep.checker.lines import assigned_name, source_of, with_operand
from lockstep.checker.simulation.gold import Gold
from lockstep.checker.simulation.simulate import op_name

_SUMS = {"_c10d_functional.all_reduce", "_c10d_functional.all_reduce_"}
_VIEWS = {"aten.alias", "aten.view", "aten._unsafe_view", "aten.detach"}
_SAME = _VIEWS | {"aten.clone", "aten.split", "aten.cat"}


def value_name(gold: Gold, row: int) -> str:
    """What the user calls a forward value: an input's name, or what its line assigns."""
    sim = gold.sim
    inputs = [i for i, nodes in enumerate(sim.rows) if nodes[0].op == "placeholder"]
    while op_name(sim.rows[row][0]) in _VIEWS and sim.sources(row):
        row = sim.sources(row)[0]  # a product makes views of what it is given
    if row in inputs:
        return gold.world.ranks[0].graph.inputs[inputs.index(row)].name
    return assigned_name(sim.line(row)) or f"the value of {source_of(sim.line(row))}"


def missing_conversion(
    gold: Gold, site: int, forward: int | None, axis: str, parameter: str | None = None
) -> Finding:
    """A gradient is partial where what uses the value varies: convert it, or reduce to R above."""
    sim = gold.sim
    used = sim.line(_maker(gold, site))
    if forward is None or axis not in gold.equal(forward):
        running = _running(gold, used)
        if running is not None:  # what it gathered is the same on all ranks, its input is not
            made = sim.line(forward) if forward is not None else ""
            return _unadded(running, made, axis, used)
    maker = _reducing_line(gold, forward) if forward is not None else None
    if maker is not None:
        return Finding(
            "LS531",
            "the result of this collective is used differently on each rank, and its backward does "
            "not reduce",
            line=maker,
            source=source_of(maker),
            axis=axis,
            got="dst=I",
            want="dst=R",
            why=f"its gradient is a partial sum over {axis} that no one adds up",
            fix="say dst=R in this collective: its backward then adds up",
            witness="gold",
            related=_others(used, maker),
        )
    function = _function_of(gold, forward) if forward is not None else None
    if function is not None:
        return _forgetful(gold, function, forward, axis, used)
    name = value_name(gold, forward) if forward is not None else "the operand"
    line = used or (sim.line(forward) if forward is not None else "")
    related = _others(sim.line(forward) if forward is not None else "", line)
    told = f"the gradient of {parameter} is" if parameter else f"the gradient of {name} is"
    return Finding(
        "LS530",
        f"{told} partial on {axis}: each rank adds its own part, and no one adds them up",
        line=line,
        source=source_of(line),
        axis=axis,
        got="I meets V",
        want="R",
        why=f"{name} is the same on every rank of {axis}, what it meets here is not",
        fix=_conversion(line, name, axis),
        witness="gold",
        related=related,
    )


def _function_of(gold: Gold, row: int | None) -> tuple[str, str] | None:
    """The user's autograd Function that gave a forward value, and the line of its backward."""
    functions = gold.world.ranks[0].notes.functions
    return functions.get(gold.sim.rows[row][0]) if row is not None else None


def _running(gold: Gold, line: str) -> str | None:
    """The user's autograd Function in whose backward a line is, by name."""
    file, _, number = line.rpartition(":")
    begun = []
    for name, at in gold.world.ranks[0].notes.functions.values():
        other, _, first = at.rpartition(":")
        if other == file and int(first) < int(number):
            begun.append((int(first), name))
    return max(begun)[1] if begun else None


def _unadded(function: str, made: str, axis: str, line: str) -> Finding:
    return Finding(
        "LS536",
        f"the backward of {function} does not add up what the ranks of {axis} give it",
        line=line,
        source=source_of(line),
        axis=axis,
        got="a gradient that is partial from this line on",
        want=f"a reduction over {axis} in that backward",
        why="each rank has its own part of it, and no one adds them up",
        witness="gold",
        related=_others(made, line),
    )


def _forgetful(
    gold: Gold, function: tuple[str, str], forward: int | None, axis: str, used: str
) -> Finding:
    line = gold.sim.line(forward) if forward is not None else ""
    return Finding(
        "LS536",
        f"the backward of {function[0]} does not add up what the ranks of {axis} give it",
        line=line,
        source=source_of(line),
        axis=axis,
        got="a partial gradient, passed on as it is",
        want=f"an all-reduce over {axis} in its backward",
        why="its result is used differently on each rank, and its input is the same on all",
        witness="gold",
        related=tuple(at for at in dict.fromkeys((function[1], used)) if at and at != line),
    )


def wrong_backward(
    gold: Gold, forward: int, before: list[int], between: list[int], how: str
) -> Finding:
    """The gradients before this operation are right, and the one it passes on is not."""
    sim = gold.sim
    for value in (forward, *sorted(before)):
        doubled = _sums_equal_values(gold, value)
        if doubled is not None:
            return doubled
    axis = _axis_of(gold, between) or (gold.world.wide[0] if len(gold.world.wide) == 1 else None)
    line = sim.line(min(before)) if before else sim.line(forward)
    if between and before:
        return Finding(
            "LS532",
            "the backward of this collective reduces a gradient that is whole already",
            line=line,
            source=source_of(line),
            axis=axis,
            got="dst=R",
            want="dst=I",
            why=f"what goes on is {how}: the result is used alike on every rank of {axis}",
            fix="say dst=I in this collective: the backward then does nothing",
            witness="gold",
        )
    return Finding(
        "LS532",
        "the backward of this operation is not its derivative",
        line=line,
        source=source_of(line),
        axis=axis,
        got=f"a gradient that is {how}",
        want="the derivative of what it computes in the forward",
        why="each gradient before it is right",
        witness="gold",
        related=_others(sim.line(forward), line),
    )


AFTER = " after backward()"  # a fix that is a line of its own, and where it goes


def unreduced(gold: Gold, name: str, axis: str) -> Finding:
    """A parameter's gradient is still partial when the step ends or the optimizer takes it."""
    way = gold.meaning.ways.get(axis, "sum")
    way = "sum" if way == "same" else way
    line = _use_line(gold, name)
    return Finding(
        "LS550",
        f"the gradient of {name} is still partial on {axis} when the optimizer takes it",
        line=line,
        source=source_of(line),
        axis=axis,
        got="P" if way == "sum" else "P(mean)",
        want="the whole gradient, reduced once",
        why=f"each rank of {axis} would step by its own part, and the replicas drift apart",
        fix=f'ls.reduce_grads({name.split(".")[0]}, {axis}="{way}"){AFTER}',
        witness="after",
    )


def unlocated(gold: Gold, name: str, how: str) -> Finding:
    """A wrong gradient whose line is not known: where the parameter is used first."""
    line = _use_line(gold, name)
    return Finding(
        "LS539",
        f"the gradient of {name} is {how}",
        line=line,
        source=source_of(line),
        got="wrong",
        want="the derivative of the job's loss",
        witness="gold",
    )


def _conversion(line: str, name: str, axis: str) -> str:
    pasted = with_operand(line, name, f'ls.convert({{}}, "{axis}", src=I, dst=R)')
    return pasted or f'ls.convert(..., "{axis}", src=I, dst=R) around {name}, before this line'


def _maker(gold: Gold, row: int) -> int:
    """The backward row that computed a gradient, behind the names that hooks gave it."""
    while op_name(gold.sim.rows[row][0]) == "aten.alias" and gold.sim.sources(row):
        source = gold.sim.sources(row)[0]
        if gold.sim.phase[source] != "backward":
            break
        row = source
    return row


def _reducing_line(gold: Gold, row: int) -> str | None:
    """The line of the collective whose result a forward value is, if it is one's."""
    found = made_by(gold, row)
    return gold.sim.line(found[0]) if found is not None else None


def made_by(gold: Gold, row: int) -> tuple[int, str] | None:
    """The collective whose result a forward value is, as (a row of its line, its operator)."""
    sim = gold.sim
    for user in sim.rows[row][0].users:  # written in place after it was made
        for write in user.users if op_name(user) == "aten.alias" else ():
            if op_name(write) == "aten.copy_" and write.args[0] is user:
                behind = _collective(gold, sim.at[0][write.args[1]])  # type: ignore[index]
                return row, op_name(sim.rows[behind][0]) if behind is not None else ""
    behind = _collective(gold, row)
    return (behind, op_name(sim.rows[behind][0])) if behind is not None else None


def _collective(gold: Gold, row: int) -> int | None:
    """The row of a collective whose result a value is, but for its shape."""
    sim = gold.sim
    while True:
        name = op_name(sim.rows[row][0])
        if name.startswith("_c10d_functional.") and "wait" not in name:
            return row
        if name not in _SAME and "wait_tensor" not in name:
            return None
        if not sim.sources(row):
            return None
        row = sim.sources(row)[0]


def _sums_equal_values(gold: Gold, forward: int) -> Finding | None:
    """A forward all-reduce that adds up what is the same on every rank."""
    sim = gold.sim
    tied = gold.equal(forward)
    reach, done = [sim.rows[forward][0]], set()
    while reach:
        node = reach.pop()
        if node in done:
            continue
        done.add(node)
        for user in node.users:
            row = sim.at[0][user]
            if sim.phase[row] != "forward":
                continue
            axis = str(user.args[-1])
            if op_name(user) in _SUMS and node is sim.rows[forward][0] and sim.written(forward):
                continue  # reduced in place: what is known is the result
            if op_name(user) in _SUMS and user.args[1] == "sum" and axis in tied:
                line = sim.line(row)
                return Finding(
                    "LS535",
                    f"this adds up what is the same on every rank of {axis} already",
                    line=line,
                    source=source_of(line),
                    axis=axis,
                    got="I",
                    want="P",
                    why=f"the result is {gold.world.mesh.get(axis, 'N')} times the value",
                    fix="leave this reduction out",
                    witness="gold",
                )
            if op_name(user) in ("aten.alias", "aten.clone", "aten.view", "aten.detach"):
                reach.append(user)
    return None


def _axis_of(gold: Gold, rows: list[int]) -> str | None:
    for row in rows:
        axis = str(gold.sim.rows[row][0].args[-1])
        if axis in gold.world.mesh:
            return axis
    return None


def _use_line(gold: Gold, name: str) -> str:
    """Where a parameter is used first."""
    sim = gold.sim
    node = sim.rows[gold.parameters[name]][0]
    lines = [sim.line(sim.at[0][user]) for user in node.users]
    return next((line for line in lines if line), "")


def _others(line: str, than: str) -> tuple[str, ...]:
    return (line,) if line and line != than else ()
