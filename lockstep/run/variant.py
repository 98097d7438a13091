"""One variant at run time: an artifact's program, bound to this rank's tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from lockstep import _compat
from lockstep._compat import pytree
from lockstep.build.artifact import Artifact
from lockstep.capture.binding import Call, describe
from lockstep.capture.graph import input_spec
from lockstep.capture.layout import is_dtensor, local_of, meshes_of, read_layout
from lockstep.capture.state import Slot
from lockstep.capture.trees import tree_of
from lockstep.errors import ContractError
from lockstep.run.dynamic import Guards, fits
from lockstep.run.emit import Emission
from lockstep.run.guarded import guarded
from lockstep.run.key import Bound

Meshes = Mapping[tuple[str, ...], Any]


class Variant:
    """A loaded program with its contract.

    Args:
        artifact: verified bytes; its manifest's "contract" says what goes in and out.
        program: `call(inputs) -> outputs` as the loader gives it; it empties its list.
    """

    def __init__(
        self, artifact: Artifact, program: Callable[[list[Any]], Sequence[Any]], name: str
    ) -> None:
        self.name, self.digest = name, artifact.digest
        self.checked: dict[str, Any] = artifact.manifest.get("check", {})
        self.messages: list[dict[str, Any]] = artifact.manifest.get("messages", [])
        self._program = program
        contract = artifact.manifest["contract"]
        self.guards = Guards(contract)
        self._inputs = contract["inputs"]
        self._returns = [
            ("guarded" if r["grad"] else r["kind"], r["index"], r["value"])
            for r in contract["returns"]
        ]
        self._layouts = {
            at: read_layout(r["layout"])
            for at, r in enumerate(contract["returns"])
            if r.get("layout") is not None
        }
        self._out_spec = tree_of(contract["out_spec"])
        self._effects = contract["effects"]
        self._emission = Emission(contract["emits"])
        self._switched: dict[str, Any] = contract.get("switched", {})

    def run(self, call: Call, bound: Bound) -> Any:
        """Run the program on the call's tensors and the bound state; returns what the step returns.

        Parameters, buffers, gradients and optimizer state are changed as the step would.
        """
        plan = bound.plans.get(self)
        if plan is None:
            plan = bound.plans[self] = _Plan(self._inputs, self._effects, call, bound)
        inputs = plan.inputs(call)
        passed = list(inputs)
        outputs = self._program(inputs)
        plan.apply(outputs, passed)
        for _, optimizer in bound.state.optimizers:
            _compat.note_step(optimizer)
        for wrapper in bound.state.wrappers:
            wrapper.switch(self._switched)
        self._emission.run(outputs, call, bound)
        leaves = [
            outputs[index] if kind == "output"
            else passed[index] if kind == "input"
            else guarded(outputs[index]) if kind == "guarded"
            else outputs[index].item() if kind == "item"
            else value
            for kind, index, value in self._returns
        ]  # fmt: skip
        for at, layout in self._layouts.items():
            leaves[at] = layout.around(leaves[at], plan.meshes)
        return pytree.tree_unflatten(leaves, self._out_spec)

    def verify(self, call: Call, bound: Bound) -> None:
        """Compare every input of the contract with this rank's tensors, and bind it to them.

        Raises:
            ContractError: names each parameter or argument that is missing, or differs.
        """
        bound.plans[self] = _Plan(self._inputs, self._effects, call, bound)


class _Plan:
    """Where each graph input is found, and where each effect goes, for one bound state."""

    def __init__(
        self, inputs: list[dict[str, Any]], effects: list[dict[str, Any]], call: Call, bound: Bound
    ) -> None:
        self.bound = bound
        slots = {h.name: s for s in bound.state.slots for h in s.holders}
        leaves = {name: i for i, name in enumerate(call.names)}
        scalars = {s.name: s for s in bound.state.scalars}
        # What the state holds is the same tensor as long as it holds; the rest is read each time.
        self._inputs: list[Any] = []
        self._read: list[tuple[int, Callable[[list[Any]], Any]]] = []
        problems: list[str] = []
        for at, spec in enumerate(inputs):
            reader, real = _reader(spec, slots, leaves, scalars, call)
            problems += _problems(spec, real, slots)
            self._inputs.append(real if reader is None else None)
            if reader is not None:
                self._read.append((at, reader))
        if problems:
            shown = problems[:8] + [f"and {len(problems) - 8} more"] * (len(problems) > 8)
            raise ContractError(
                "the artifact was built for other parameters or arguments",
                got="\n".join(shown),
                why="a program bound to the wrong tensors would train on, wrongly",
                fix="build again: delete the artifact, or unset LOCKSTEP_STORE",
            )
        meshes = meshes_of(slot.tensor for slot in bound.state.slots)
        self._effects = [_writer(effect, slots, bound, meshes) for effect in effects]
        self.meshes = meshes

    def inputs(self, call: Call) -> list[Any]:
        leaves, inputs = call.leaves, self._inputs.copy()
        for at, read in self._read:
            inputs[at] = read(leaves)
        return inputs

    def apply(self, outputs: Sequence[Any], passed: list[Any]) -> None:
        for write, output, given in self._effects:
            if output is not None:
                write(outputs[output])
            else:
                write(None if given is None else passed[given])


def _reader(
    spec: dict[str, Any], slots: dict[str, Slot], leaves: dict[str, int], scalars: Any, call: Call
) -> tuple[Callable[[list[Any]], Any] | None, Any]:
    """How to read an input at each call (None: it stays), and its value now (None: missing)."""
    name, kind = spec["name"], spec["kind"]
    if kind == "float":
        if name in scalars:
            scalar = scalars[name]
            return lambda _: _number(scalar.get()), _number(scalar.get())
        at = leaves.get(name)
        value = call.leaves[at] if at is not None else None
        real = _number(value) if isinstance(value, float) else None
        return lambda given: _number(given[at]), real
    if kind == "arg":
        at = leaves.get(name)
        return lambda given: given[at], call.leaves[at] if at is not None else None
    if kind == "grad":
        owner = slots.get(name.removesuffix(".grad"))
        if owner is None:
            return _nothing, None
        parameter = owner.tensor
        return lambda _: local_of(parameter.grad), parameter.grad
    slot = slots.get(name)
    if slot is not None and is_dtensor(slot.tensor):  # its local tensor is read at each call
        divided = slot.tensor
        return lambda _: local_of(divided), divided
    return None, slot.tensor if slot else None


def _nothing(_leaves: list[Any]) -> None:
    return None


def _number(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64)


def _problems(spec: dict[str, Any], real: Any, slots: dict[str, Slot]) -> list[str]:
    name = spec["name"]
    want = f"{spec['dtype']}{list(spec['shape'])}"
    if not isinstance(real, torch.Tensor):
        return [f"{name}: built for {want}, missing here"]
    here = input_spec(name, spec["kind"], real)
    kept = ("dtype", "shape", "stride", "device")
    now = {k: list(v) if isinstance(v := getattr(here, k), tuple) else v for k in kept}
    found = [
        f"{name}: built for {k} {spec[k]}, here {now[k]} ({describe(real)})"
        for k in kept
        if not fits(now[k], spec[k])
    ]
    if here.layout != spec.get("layout"):
        was, now_is = _divided(spec.get("layout")), _divided(here.layout)
        found.append(f"{name}: built for {was}, here {now_is}")
    if real.device.type != "cpu" and real.device != _compat.current_accelerator():
        found.append(f"{name}: on {real.device}, which is not the current accelerator of this rank")
    slot = slots.get(name)
    ties = [h.name for h in slot.holders[1:]] if slot else []
    if ties != list(spec["ties"]):
        found.append(
            f"{name}: built tied to {spec['ties'] or 'nothing'}, here to {ties or 'nothing'}"
        )
    return found


def _divided(record: dict[str, Any] | None) -> str:
    return read_layout(record).text if record is not None else "a plain tensor"


def _writer(
    effect: dict[str, Any], slots: dict[str, Slot], bound: Bound, meshes: Meshes
) -> tuple[Callable[[Any], None], int | None, int | None]:
    if effect["kind"] == "grad":
        tensor = slots[effect["name"]].tensor

        def write(value: Any) -> None:
            tensor.grad = value

    else:
        mapping, key = _place(effect["name"], slots, bound)

        def write(value: Any) -> None:
            mapping[key] = value

    record = effect.get("layout")
    if record is None:
        return write, effect["output"], effect["input"]
    layout = read_layout(record)
    return lambda value: write(layout.around(value, meshes)), effect["output"], effect["input"]


def _place(name: str, slots: dict[str, Slot], bound: Bound) -> tuple[Any, Any]:
    """The mapping and key behind a holder's name: a known one, or a new attribute of a module."""
    if name in slots:
        holder = next(h for h in slots[name].holders if h.name == name)
        return holder.mapping, holder.key
    owner, _, key = name.rpartition(".")
    for path, module in bound.state.modules:
        if path == owner:
            return module.__dict__, key
    for path, obj in bound.objects.items():
        if path == owner:
            return vars(obj), key
    raise ContractError(f"the artifact writes to {name}, which is missing here")
