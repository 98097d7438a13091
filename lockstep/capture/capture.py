"""Trace one call of a step, under fake tensors, into one flat graph.

Nothing is computed and no full-size memory is needed. After a capture, refused or not, the model,
the optimizer and Python's state are as they were.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from lockstep import _compat
from lockstep._compat import pytree
from lockstep.capture import passes
from lockstep.capture.around import as_eager, quiet_random, without_mkldnn
from lockstep.capture.binding import Call, Step
from lockstep.capture.branches import Side, joined
from lockstep.capture.checking import Checking
from lockstep.capture.collectives import CollectiveRecorder
from lockstep.capture.coordinates import Coordinates
from lockstep.capture.devices import on_one_accelerator, refuse_second
from lockstep.capture.draws import Draws
from lockstep.capture.dtensors import placed_dtensors, tracing_dtensors
from lockstep.capture.early import Early, putting
from lockstep.capture.emits import Emit, Emits
from lockstep.capture.going_on import going_on
from lockstep.capture.graph import Effect, InputSpec, Leaf, StepGraph, input_spec
from lockstep.capture.indexing import plain
from lockstep.capture.layout import local_of, record_of
from lockstep.capture.lost import refuse_lost
from lockstep.capture.machine import refusing_machine_reads
from lockstep.capture.meshes import asking_meshes
from lockstep.capture.obstacles import explain, say_captured
from lockstep.capture.origin import OriginTracker
from lockstep.capture.plain import refuse_sparse
from lockstep.capture.pystate import PythonState
from lockstep.capture.rank import reading_rank
from lockstep.capture.readings import refusing_readings
from lockstep.capture.refusal import refuse
from lockstep.capture.shown import Marks
from lockstep.capture.sizes import Size, Symbols
from lockstep.capture.standin import dress, like, stand_ins, standing_in
from lockstep.capture.state import Slot, State, collect, tensor_holders
from lockstep.errors import CaptureError, LockstepError
from lockstep.spmd.claims import in_phase
from lockstep.spmd.messages import line_of_step


def capture(function: Callable[..., Any], *args: Any, **kwargs: Any) -> StepGraph:
    """Capture what one call of a step does, without doing it.

    Args:
        function: the step. It may call `backward()`, collectives on mesh axes, and the optimizer.
        args, kwargs: as for a real call; tensors give shapes and dtypes, their values are not read.

    Returns:
        The step's graph, the same on every rank.

    Raises:
        CaptureError: the step holds what one program for all ranks cannot hold; names the line.

    Example:
        >>> graph = capture(lambda x: x + 1, torch.zeros(2))
        >>> [spec.name for spec in graph.inputs]
        ['x']
    """
    step = Step(function)
    call = step.call(args, kwargs)
    return capture_call(step, call, collect(call))


def capture_call(
    step: Step,
    call: Call,
    state: State,
    checking: Checking | None = None,
    sizes: Sequence[Size] = (),
    early: Sequence[Early] = (),
) -> StepGraph:
    """Capture a call that was taken apart already; see `capture`.

    Args:
        checking: takes notes for a check. The rank may then be read, and dead code stays, but where
            it `ships`: the graph is then the one that would be captured without it.
        sizes: what may differ from call to call; one graph holds for all of them.
        early: ints of each rank, whose formula is captured in their place.
    """

    def again(places: dict[str, int], samples: bool) -> Side:
        return Tracing(step, call, state, None, sizes, early, places, samples).side()

    tracing = Tracing(step, call, state, checking, sizes, early)
    graph = tracing.run()
    return joined(Side(tracing.coordinates.decisions, {}, graph, tracing.marks), again)


class Tracing:
    """One capture: the inputs' stand-ins, the trace, and what the trace did to each place."""

    def __init__(
        self,
        step: Step,
        call: Call,
        state: State,
        checking: Checking | None,
        sizes: Sequence[Size] = (),
        early: Sequence[Early] = (),
        places: dict[str, int] | None = None,
        samples: bool = False,
    ) -> None:
        self.step, self.call, self.state, self.checking = step, call, state, checking
        self._noting = checking if checking is not None and checking.ships else None
        self._lenient = checking is not None and not checking.ships
        self.mode = _compat.fake_mode()
        self._symbols = Symbols(self.mode, sizes)
        self._early, self.coordinates = early, Coordinates(places or {}, step.known)
        self._samples, self._computed = samples, 0
        self.specs: list[InputSpec] = []
        self.fakes: list[torch.Tensor] = []
        self.index_of: dict[int, int] = {}  # id of a stand-in -> graph input
        self._around: list[torch.Tensor] = []  # DTensors are held, so that no id is given twice
        self.returns: list[Leaf] = []
        self.effects: list[Effect] = []
        self.emits: list[Emit] = []
        self.marks: Marks | None = None
        self.out_spec: Any = None

    def run(self) -> StepGraph:
        by_real = stand_ins(self.stand_in, self.state.slots)
        for slot in self.state.slots:
            names = tuple(h.name for h in slot.holders[1:])
            spec = input_spec(slot.name, slot.kind, slot.tensor, names)
            self._add(spec, by_real[id(slot.tensor)])
        for slot in self.state.parameters:
            self._add_grad(slot, by_real[id(slot.tensor)])
        leaves = [
            self._argument(n, v, by_real)
            for n, v in zip(self.call.names, self.call.leaves, strict=True)
        ]
        scalars = {s.name: self._float(s.name, s.get()) for s in self.state.scalars}
        traced = self._trace(by_real, leaves, scalars)
        self._symbols.guards()  # refuses a size that the step fixes
        gm = passes.without(traced, self._noting.labels) if self._noting else traced
        passes.clean(gm, keep_dead=self._lenient)
        refuse_second(gm, self.specs)
        graph = StepGraph(
            name=self.step.name,
            gm=gm,
            fakes=self.fakes,
            fake_mode=self.mode,
            inputs=self.specs,
            returns=self.returns,
            out_spec=self.out_spec,
            effects=self.effects,
            emits=self.emits,
            computed=self._computed,
            schedule=passes.schedule(gm),
            symbols=self._symbols if self._symbols.sizes else None,
            switched=self.state.switched,
        )
        if self._noting is not None:
            passes.clean(traced, keep_dead=True, runs=False)
            self._noting.graph = replace(graph, gm=traced)
        return graph

    def side(self) -> Side:
        """Trace; what the step raises is part of what is given."""
        side = Side(self.coordinates.decisions, self.coordinates.places)
        try:
            side.graph = self.run()
            side.marks = self.marks
        except Exception as error:
            side.failure = error
        return side

    # -- how it is traced

    def stand_in(self, tensor: torch.Tensor) -> torch.Tensor:
        """What takes an input's place in the trace."""
        return _compat.fake_of(self.mode, tensor)

    def made_here(self, value: Any) -> bool:
        """Whether a value that a place holds after the trace came to be in it."""
        return _compat.is_fake(local_of(value))

    @contextlib.contextmanager
    def reading_numbers(self) -> Iterator[None]:
        """What is around the reads of the step's Python floats, and the step."""
        yield

    @contextlib.contextmanager
    def refusing(self) -> Iterator[None]:
        """Refuse, while the step runs, what its graph could not hold."""
        with contextlib.ExitStack() as stack:
            if not self._lenient:  # a check draws for real, and may be seeded
                stack.enter_context(reading_rank(self.mode, self.coordinates))
                stack.enter_context(refusing_machine_reads())
                stack.enter_context(on_one_accelerator())
                stack.enter_context(Draws().watching())
            else:
                stack.enter_context(without_mkldnn())
                stack.enter_context(placed_dtensors())
            stack.enter_context(refusing_readings())
            stack.enter_context(going_on())
            yield

    def make_graph(self, flat_step: Callable[..., Any]) -> torch.fx.GraphModule:
        """Trace a function of the stand-ins."""
        flag, foreach = _compat.one_rank_flag(refusing=False), _compat.foreach_as_eager()
        with _compat.tracing(self.mode), flag, foreach:
            return _compat.make_fx(flat_step, self.fakes)

    def explained(self, error: Exception) -> LockstepError | None:
        """The capture error behind what the trace raised; None where it is the step's own."""
        found = explain(error)
        if found is None:
            say_captured(error)
        return found

    # -- inputs

    def _add(self, spec: InputSpec, fake: torch.Tensor) -> int:
        self.specs.append(spec)
        self.fakes.append(local_of(fake))
        self._around.append(fake)
        self.index_of[id(fake)] = len(self.fakes) - 1
        return len(self.fakes) - 1

    def _add_grad(self, slot: Slot, fake: torch.Tensor) -> None:
        grad = slot.tensor.grad
        if grad is not None:
            fake.grad = like(grad, self.stand_in(local_of(grad)))
            self._add(input_spec(f"{slot.name}.grad", "grad", grad), fake.grad)

    def _argument(self, name: str, leaf: Any, by_real: dict[int, torch.Tensor]) -> Any:
        """A leaf's stand-in: the same tensor passed twice, or a parameter passed, is one input."""
        if isinstance(leaf, torch.Tensor):
            if id(leaf) not in by_real:
                spec = input_spec(name, "arg", leaf)
                if self._symbols.of(name):
                    spec, by_real[id(leaf)] = self._symbols.taken(spec, leaf)
                else:
                    by_real[id(leaf)] = self.stand_in(leaf)
                dress(by_real[id(leaf)], leaf)
                self._add(spec, by_real[id(leaf)])
            return by_real[id(leaf)]
        if isinstance(leaf, float):
            return self._float(name, leaf)
        return leaf

    def _float(self, name: str, value: float) -> Any:
        """A Python float as a 0-dim input; the trace reads it as a number of unknown value."""
        real = torch.tensor(value, dtype=torch.float64)
        fake = self.stand_in(real)
        return _LateItem(self._add(input_spec(name, "float", real), fake))

    # -- the trace

    def _trace(self, by_real: dict[int, torch.Tensor], leaves: list[Any], scalars: Any) -> Any:
        python = PythonState(self.step, self.call, self.state)
        tracker = OriginTracker({id(m): name for name, m in self.state.modules})
        recorder = CollectiveRecorder()
        reached = python.functions
        emits = Emits(self.step, self.call, self.coordinates, reached, self._lenient, self._samples)
        self.marks = None if self._lenient else emits.marks
        memory = [_compat.storage_identity(fake) for fake in self.fakes]

        def flat_step(*fakes: torch.Tensor) -> list[Any]:
            def items(value: Any) -> Any:
                return fakes[value.index].item() if isinstance(value, _LateItem) else value

            with contextlib.ExitStack() as stack:
                stack.enter_context(self.reading_numbers())
                numbers = {name: items(value) for name, value in scalars.items()}
                for scalar in self.state.scalars:
                    if scalar.positive:
                        _compat.assume(numbers[scalar.name] > 0)
                taken = [items(leaf) for leaf in leaves]
                ended = stack.enter_context(standing_in(self.state, by_real, numbers))
                watches = recorder.recording(), tracker.watching(), emits.noting()
                for watch in (*watches, asking_meshes(alone=not self._lenient), tracing_dtensors()):
                    stack.enter_context(watch)
                stack.enter_context(self.refusing())
                stack.enter_context(python.noting())
                stack.enter_context(as_eager())
                if self.checking is not None:
                    stack.enter_context(self.checking.watching(self.fakes))
                stack.enter_context(in_phase("build"))
                messages = stack.enter_context(line_of_step())
                early = stack.enter_context(putting(self._early, self._number_of))
                args, kwargs = self.call.arguments(
                    [early.get(at, leaf) for at, leaf in enumerate(taken)]
                )
                result = self.step.function(*args, **kwargs)
                ended()
                recorder.refuse_unfinished()
                messages.refuse_open()
                if self.checking is not None:
                    self.checking.finish()
                self.refuse_lost(memory)
                outputs = self._returned(result)
                self._grad_effects(by_real, outputs)
                self._holder_effects(by_real, outputs)
            self._computed = len(outputs)
            return [*outputs, *emits.slots]

        try:
            with quiet_random():
                gm = self.make_graph(flat_step)
        except BaseException as error:
            python.abandon()
            explained = self.explained(error) if isinstance(error, Exception) else None
            if explained is None or explained is error:
                raise
            raise explained from error
        self.refuse_changes(python)
        self.emits = emits.finish(gm)
        return self._items_to_tensors(gm)

    def _number_of(self, early: Early) -> Any:
        return early.number(self.coordinates)

    # -- what came out

    def refuse_changes(self, python: PythonState) -> None:
        """Undo, and refuse, what the step did to Python's state."""
        python.refuse_changes()

    def refuse_lost(self, memory: list[int]) -> None:
        """Refuse what happens to an input, and that no program does to the caller's tensor.

        Args:
            memory: the storage of each input's stand-in before the trace.
        """
        refuse_lost(self.step, zip(self.specs, self.fakes, memory, strict=True))

    def _returned(self, result: Any) -> list[Any]:
        outputs: list[Any] = []
        leaves, self.out_spec = pytree.tree_flatten(plain(result))
        for leaf in leaves:
            if isinstance(leaf, torch.Tensor) and id(leaf) in self.index_of:
                self.returns.append(Leaf("input", self.index_of[id(leaf)]))
            elif isinstance(leaf, (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool)):
                grad = isinstance(leaf, torch.Tensor) and leaf.requires_grad
                layout = record_of("what the step returns", leaf)
                self.returns.append(Leaf("output", len(outputs), grad=grad, layout=layout))
                outputs.append(local_of(leaf))
            elif leaf is None or isinstance(leaf, (bool, int, float, str)):
                self.returns.append(Leaf("value", value=leaf))
            else:
                self.refuse_return(leaf)
        return outputs

    def refuse_return(self, leaf: Any) -> None:
        """Refuse what no program can return."""
        refuse(
            CaptureError(
                f"the step returns a {type(leaf).__name__}",
                want="tensors, numbers, strings, None, and containers of these",
                fix="return what is needed of it as tensors",
            )
        )

    def _grad_effects(self, by_real: dict[int, torch.Tensor], outputs: list[Any]) -> None:
        for slot in self.state.parameters:
            before, after = slot.tensor.grad, by_real[id(slot.tensor)].grad
            if after is None:
                if before is not None:
                    self.effects.append(Effect("grad", slot.name))
            elif id(after) in self.index_of:
                index = self.index_of[id(after)]
                if before is None or self.specs[index].name != f"{slot.name}.grad":
                    self.effects.append(Effect("grad", slot.name, input=index))
            else:
                refuse_sparse(slot.name, after)
                self._put("grad", slot.name, after, outputs)

    def _holder_effects(self, by_real: dict[int, torch.Tensor], outputs: list[Any]) -> None:
        """Places that got another tensor: reassigned buffers, new attributes, optimizer state."""
        known = {(id(h.mapping), h.key): s for s in self.state.slots for h in s.holders}
        for holder in tensor_holders(self.state, self.call):
            now = holder.get()
            slot = known.get((id(holder.mapping), holder.key))
            if slot is not None and now is by_real[id(slot.tensor)]:
                continue
            if slot is None and not self.made_here(now):
                continue
            if id(now) in self.index_of:
                self.effects.append(Effect("hold", holder.name, input=self.index_of[id(now)]))
            else:
                self._put("hold", holder.name, now, outputs)
            if slot is None:
                del holder.mapping[holder.key]

    def _put(self, kind: str, name: str, value: torch.Tensor, outputs: list[Any]) -> None:
        """A place gets a tensor that the step made."""
        layout = record_of(f"{name}.grad" if kind == "grad" else name, value)
        output = _output(outputs, local_of(value))
        self.effects.append(Effect(kind, name, output=output, layout=layout))

    def _items_to_tensors(self, gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
        """Return the tensor of a returned `.item()`: the caller takes the number out of it."""
        output = gm.graph.output_node()
        nodes = list(output.args[0])  # type: ignore[arg-type]
        for i, leaf in enumerate(self.returns):
            source = passes.item_source(nodes[leaf.index]) if leaf.kind == "output" else None
            if source is not None:
                nodes[leaf.index] = source
                self.returns[i] = Leaf("item", leaf.index)
        output.args = (tuple(nodes),)
        return gm


class _LateItem:
    """A float argument before the trace began: the index of its input."""

    def __init__(self, index: int) -> None:
        self.index = index


def _output(outputs: list[Any], tensor: torch.Tensor) -> int:
    for i, known in enumerate(outputs):
        if known is tensor:
            return i
    outputs.append(tensor)
    return len(outputs) - 1
