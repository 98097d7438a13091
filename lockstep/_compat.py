"""Every private torch name that Lockstep uses, each with the version it was read in and the reason.

An upgrade of torch is a review of this file. Nothing here is imported before it is needed, so that
`import lockstep` stays cheap.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

# torch's own tree walk has no public name.
from torch.utils import _pytree as pytree  # noqa: F401  (for others to import from here)

# -- process groups (torch 2.14) -------------------------------------------------------------------


def register_process_group(name: str, group: Any) -> None:
    """Give a group a logical name that graphs may hold: there is no public way to choose it."""
    from torch._C._distributed_c10d import _register_process_group

    _register_process_group(name, group)


def resolve_process_group(name: str) -> Any:
    """The group behind a name that a functional collective was given as a string."""
    from torch._C._distributed_c10d import _resolve_process_group

    return _resolve_process_group(name)


def group_exists(group: Any) -> bool:
    """Whether a group is one of the live ones; a destroyed group's axis may be named anew."""
    return group in dist.distributed_c10d._world.pg_map


def default_store() -> Any:
    """The rendezvous store of the default group; `dist.rendezvous` would bind the port again."""
    return dist.distributed_c10d._get_default_store()


def functional_collectives() -> Any:
    """The ops that graphs hold for collectives; Inductor knows them, and they take group names."""
    return torch.ops._c10d_functional


COLLECTIVE_CALLS = "torch.ops._c10d_functional."
"""How a program's text calls one of them."""


@contextlib.contextmanager
def hearing_collectives(ops: Any, hear: Callable[[str, Any, Any, str], None]) -> Iterator[None]:
    """Hear of collectives of any thread while inside: op, group, what is first sent, reduction.

    Also of those that C++ starts, as DDP's reducer. Under a dispatch mode torch would compute in
    other ways; a kernel above the one that communicates changes nothing else (2.14).
    """
    from torch._C._distributed_c10d import ProcessGroup, ReduceOp

    below = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)

    def kernel(name: str, op: Any) -> Callable[..., Any]:
        def run(keys: Any, *args: Any, **kwargs: Any) -> Any:
            group, *how = (a for a in args if isinstance(a, torch.ScriptObject))
            reduction = ReduceOp.RedOpType(how[0].op()).name.lower() if how else ""
            hear(name, ProcessGroup.unbox(group), args[0], reduction)
            return op.redispatch(keys & below, *args, **kwargs)

        return run

    library = torch.library.Library("c10d", "IMPL")
    try:
        for name in ops:
            found = kernel(name, getattr(torch.ops.c10d, name).default)
            library.impl(name, found, "BackendSelect", with_keyset=True)
        yield
    finally:
        library._destroy()


def trace_event(name: str, text: str) -> None:
    """Write JSON into the structured trace of TORCH_TRACE: there is no public call (2.14)."""
    from torch._logging import trace_structured

    trace_structured(
        "artifact",
        metadata_fn=lambda: {"name": f"lockstep_{name}", "encoding": "json"},
        payload_fn=lambda: text,
        suppress_context=True,
        expect_trace_id=False,
    )


# -- tracing (torch 2.14) --------------------------------------------------------------------------


def is_compiled(function: Any) -> bool:
    """Whether torch.compile has made a function; what it was made of is its `__wrapped__`."""
    return hasattr(function, "_torchdynamo_orig_callable")


def current_autograd_node() -> Any:
    """The autograd node whose backward is running, or None: charges backward ops to a line."""
    return torch._C._current_autograd_node()


@contextlib.contextmanager
def _replaced(owner: Any, **values: Any) -> Iterator[None]:
    """Give attributes of torch's own other values while inside."""
    before = {name: getattr(owner, name) for name in values}
    try:
        for name, value in values.items():
            setattr(owner, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)


@contextlib.contextmanager
def on_create_node(stamp: Callable[[Any], None]) -> Iterator[None]:
    """Call `stamp` on each node that any graph makes; the public hook needs a finished module."""
    original = torch.fx.Graph.create_node

    @functools.wraps(original)
    def create_node(self: Any, *args: Any, **kwargs: Any) -> Any:
        node = original(self, *args, **kwargs)
        stamp(node)
        return node

    with _replaced(torch.fx.Graph, create_node=create_node):
        yield


def fake_mode() -> Any:
    """A fake mode that refuses real tensors (a baked constant) and gives unbacked symbols."""
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    return FakeTensorMode(allow_non_fake_inputs=False, shape_env=ShapeEnv())


def fake_of(mode: Any, tensor: Any) -> Any:
    """A static-shaped stand-in of a tensor; parameters stay parameters."""
    from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext

    static = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.STATIC] * tensor.dim())
    if tensor.is_leaf:
        return mode.from_tensor(tensor, symbolic_context=static)
    with warnings.catch_warnings():
        # torch looks for its gradient, and warns of that itself.
        warnings.filterwarnings("ignore", "The .grad attribute of a Tensor")
        return mode.from_tensor(tensor, symbolic_context=static)


def fake_tensor_type() -> Any:
    """The class of stand-ins: while a step is captured, its methods answer for what they lack."""
    from torch._subclasses import FakeTensor

    return FakeTensor


def is_fake(tensor: Any) -> bool:
    """Whether a tensor is a stand-in of some fake mode."""
    return isinstance(tensor, fake_tensor_type())


@contextlib.contextmanager
def tracing(mode: Any) -> Iterator[None]:
    """What make_fx of a whole step needs around it.

    The backward runs on this thread: the engine's own threads lack the modes and context variables.
    """
    from torch._guards import TracingContext
    from torch._guards import tracing as torch_tracing

    one_thread = torch.autograd.set_multithreading_enabled(False)
    with mode, torch_tracing(TracingContext(mode)), one_thread:
        yield


def current_accelerator() -> Any:
    """The accelerator that this process computes on, with its index; None: it has none.

    The only place where capture and build ask: a test on a machine without one replaces it here.
    """
    found = torch.accelerator.current_accelerator(check_available=True)
    return found and torch.device(found.type, torch.accelerator.current_device_index())


@contextlib.contextmanager
def one_rank_flag(refusing: bool = True) -> Iterator[None]:
    """`compile_on_one_rank` while inside: graph and kernels then hold no device index.

    Args:
        refusing: torch refuses a second accelerator where it sees one. A capture looks itself:
            torch sees no constants or results, has no line for an input, and writes the device as a
            node of its own that a rank without its tracer lacks (2.14).
    """
    from torch.fx.experimental import proxy_tensor

    own: dict[str, Any] = {"_coor_current_accelerator": lambda: current_accelerator()}
    if not refusing:
        own["_coor_match_current_accelerator"] = lambda tracer, device: False
        own["_coor_check_current_accelerator"] = lambda device, current: None
    with _replaced(proxy_tensor, **own), torch.compiler.config.patch(compile_on_one_rank=True):
        yield


@contextlib.contextmanager
def foreach_as_eager() -> Iterator[None]:
    """Let optimizers take the form that eager takes on an accelerator, whose numbers differ.

    They choose it where every tensor is of a plain type; stand-ins are of another (2.14). On the
    CPU nothing changes: an optimizer goes one by one there, and a norm's two forms are one.
    """
    import torch.optim.optimizer as optimizers
    import torch.utils._foreach_utils as utils

    types = [torch.Tensor, torch.nn.Parameter, fake_tensor_type()]
    with contextlib.ExitStack() as stack:
        for module in (optimizers, utils) if current_accelerator() is not None else ():
            stack.enter_context(_replaced(module, _foreach_supported_types=types))
        yield


def not_computed() -> Any:
    """What a trace makes of constants inside is no constant: torch would really compute it (2.14).

    It does that for what `.item()` may ask later, and on a machine without the device it fails.
    """
    from torch.fx.experimental import proxy_tensor

    return _replaced(proxy_tensor, CONSTANT_NUMEL_LIMIT=-1)


def make_fx(function: Any, arguments: list[Any], reading: bool = False) -> Any:
    """Trace a function of a flat list of tensors into a GraphModule.

    `reading`: they are real, and their values may be read; what is read is a constant then.
    """
    from torch.fx._lazy_graph_module import _use_lazy_graph_module
    from torch.fx.experimental.proxy_tensor import make_fx as torch_make_fx

    options = {"_error_on_data_dependent_ops": not reading}
    with _use_lazy_graph_module(True):  # its code is made when it is first called, if it is
        return torch_make_fx(function, record_module_stack=False, **options)(*arguments)


def lazy_graph_module() -> Any:
    """The class of GraphModules whose code is made when they are first called."""
    from torch.fx._lazy_graph_module import _LazyGraphModule

    return _LazyGraphModule


@contextlib.contextmanager
def collectives_run_by(kernels: dict[str, Callable[..., Any]]) -> Iterator[None]:
    """Run functional collectives on CPU tensors by these functions while inside.

    torch's own kernels serve all devices, so that one for the CPU goes before them (2.14).
    """
    library = torch.library.Library("_c10d_functional", "IMPL")
    try:
        for name, kernel in kernels.items():
            library.impl(name, kernel, "CPU")
        yield
    finally:
        library._destroy()


def capture_errors() -> tuple[type[BaseException], ...]:
    """What torch raises where a trace would have to look at a tensor's value."""
    from torch._subclasses.fake_tensor import (
        DataDependentOutputException,
        DynamicOutputShapeException,
        UnsupportedFakeTensorException,
    )
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    return (
        DataDependentOutputException,
        DynamicOutputShapeException,
        UnsupportedFakeTensorException,
        GuardOnDataDependentSymNode,
    )


def failed_rule(error: BaseException) -> tuple[Any, Any, Any] | None:
    """The operator whose rule for stand-ins raised, and its arguments, which the error's frames
    hold (torch 2.14); None: another error."""
    at = error.__traceback__
    while at is not None:
        code, held = at.tb_frame.f_code, at.tb_frame.f_locals
        if code.co_name == "_dispatch_impl" and "_subclasses" in code.co_filename:
            return held["func"], held["args"], held["kwargs"]
        at = at.tb_next
    return None


def unknown_int(low: int, high: int) -> Any:
    """A number of the trace in these bounds, both included, that is known only as a program runs.

    The public `new_dynamic_size` is for sizes: it takes them to be no 0 and no 1.
    """
    from torch._guards import detect_fake_mode
    from torch.fx.experimental.symbolic_shapes import constrain_range

    made = detect_fake_mode().shape_env.create_unbacked_symint()
    constrain_range(made, min=low, max=high)
    return made


def expression(number: Any) -> Any:
    """The formula behind a number of the trace; None for one that has none, as an int."""
    numbers = (torch.SymInt, torch.SymFloat, torch.SymBool)
    return number.node.expr if isinstance(number, numbers) else None


def assume(condition: Any) -> None:
    """Take a condition on numbers of the trace for granted: a branch on it takes that side."""
    torch._check(condition)


def surely(condition: Any) -> bool:
    """Whether a condition on numbers of the trace holds whatever they are; decides nothing."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return statically_known_true(condition)


def engine_run() -> Any:
    """What both `backward()` and `autograd.grad` call to run the engine, below torch's own handling
    of function modes, which are off from there on (torch 2.14)."""
    return torch.autograd.graph._engine_run_backward


def undecided(error: BaseException) -> Any:
    """The formula of numbers of the trace that torch wanted to decide by; None: another error."""
    return getattr(error, "cond", None)


def assumptions(mode: Any) -> list[tuple[Any, str]]:
    """What a trace took to hold of its unknown numbers, and no graph checks: (formula, stack)."""
    found = mode.shape_env.deferred_runtime_asserts.values()
    return [(a.expr, "".join(a.stack.format())) for several in found for a in several]


def is_wrapper_subclass(tensor: Any) -> bool:
    """Whether a tensor is a wrapper around others, such as a DTensor."""
    from torch.utils._python_dispatch import is_traceable_wrapper_subclass

    return bool(is_traceable_wrapper_subclass(tensor))


def group_resolvers() -> tuple[Any, Any, Any]:
    """Where torch turns a group argument into what a graph holds: two for collectives, one for
    meshes. Under `compile_on_one_rank` they give group objects, which no file can hold."""
    import torch.distributed._functional_collectives as functional
    from torch.distributed import device_mesh

    return (
        functional._resolve_group,
        functional._group_or_group_name,
        device_mesh._maybe_traced_group,
    )


# --- build and run: programs and their loading (torch 2.14.1) -----------------------------------

# A rank that imports one of these is about to trace or compile: the alarm's list.
COMPILER_PACKAGES = ("torch._inductor", "torch._dynamo", "triton")

# `GraphModule.recompile` compiles its code under this file name (torch/fx/graph_module.py), so a
# trace shows even where every compiler package was imported before.
FX_CODE_PREFIX = "<eval_with_key>"


def op_overload_type() -> Any:
    """The type of `torch.ops.aten.add.Tensor`; its `name()` is what a dispatcher registers."""
    return torch._ops.OpOverload


def without_autocast() -> Any:
    """A guard class that leaves Autocast's dispatch keys out: a captured graph holds its casts."""
    return torch._C._DisableAutocast


def is_tracing() -> bool:
    """Whether a make_fx trace is under way on this thread."""
    module = sys.modules.get("torch.fx.experimental.proxy_tensor")
    return module is not None and module.get_proxy_mode() is not None


# --- build and run: the inductor back end (torch 2.14.1) ----------------------------------------

# A generated module that names one of these can't run where the compiler is not imported.
PRIVATE_PACKAGES = ("torch._inductor", "torch._dynamo", "torch._functorch")

# What generated modules import from private places and Lockstep's loader gives in their stead.
STAND_INS = frozenset(
    {"extern_kernels", "assert_tensor_metadata", "align", "empty_strided"}
    | {"copy_if_misaligned", "get_raw_stream"}
)

# Notes for Dynamo on an output whose size may differ: no rank reads them.
MARKS_OUTPUT = "_mark_dynamic_"

# `extern_kernels.<name>` of generated code -> the torch function Inductor registers under the name
# (ExternKernelChoice in torch/_inductor/kernel/*.py).
EXTERN_KERNELS = {
    "mm": "mm",
    "addmm": "addmm",
    "bmm": "bmm",
    "baddbmm": "baddbmm",
    "convolution": "convolution",
    "_int_mm": "_int_mm",
    "_scaled_mm": "_scaled_mm",
    "_grouped_mm": "_grouped_mm",
}


@contextlib.contextmanager
def inductor_options(options: dict[str, Any]) -> Iterator[None]:
    """Inductor's options and compile_on_one_rank for a block; the user's come back after it."""
    import torch._inductor.config as config

    with config.patch(options), one_rank_flag():
        yield


def compile_to_python(gm: Any, fakes: list[Any]) -> str:
    """AOTAutograd and Inductor of one graph, as the text of one module that defines `call`.

    New in 2.14, behind `torch.compiler.precompile`. Its shapes mode is "from_example_inputs" unless
    a placeholder is symbolic, and that dies on scalars read from tensors (`.item()`): so it is told
    that the graph is dynamic, which keeps the graph's own fake mode and changes no static shape.
    """
    import torch._functorch._aot_autograd.to_standalone_python as module

    dynamic = _replaced(module, _graph_has_dynamic_shapes=lambda gm: True)
    with module._COMPILE_LOCK, dynamic, _patterns_heed_arguments():
        return module.compile_to_python(gm, fakes)[0]


@contextlib.contextmanager
def _patterns_heed_arguments() -> Iterator[None]:
    """Inductor's patterns ignore keyword arguments that they do not name: it takes
    `add(a @ b, c, alpha=0.1)` for `addmm(c, a, b)`, in plain torch.compile too (2.14.1). While
    inside, a pattern does not match where such an argument would change numbers."""
    from torch._inductor import pattern_matcher

    kind = pattern_matcher._TargetArgsExpr
    original = kind._match

    def match(self: Any, node: Any, ctx: Any) -> Any:
        given = set(getattr(node, "kwargs", ())) - set(self.kwargs)
        if given and any(_changes_numbers(node, name) for name in given):
            return pattern_matcher.FailedMatch("an argument that no part of the pattern names")
        return original(self, node, ctx)

    with _replaced(kind, _match=match):
        yield


def _changes_numbers(node: Any, name: str) -> bool:
    """Whether an argument that can only be given by its keyword is another than its default."""
    schema = getattr(node.target, "_schema", None)
    found = [a for a in schema.arguments if a.name == name and a.kwarg_only] if schema else []
    factory = ("dtype", "layout", "device", "pin_memory", "memory_format", "out")
    return name not in factory and any(node.kwargs[name] != a.default_value for a in found)


def built_library(argtypes: list[str], source: str) -> str:
    """The path of the library that Inductor built in this process from a kernel's source."""
    from torch._inductor.codecache import CppPythonBindingsCodeCache

    return CppPythonBindingsCodeCache.load_pybinding(argtypes, source).__self__.__file__


@contextlib.contextmanager
def libraries_checked(whole: Callable[[str], bool]) -> Iterator[None]:
    """Inductor builds a library anew that is not whole: a file that is there counts as built, also
    what a compiler left that was killed while it linked (codecache._worker_compile_cpp, 2.14.1)."""
    from torch._inductor import codecache
    from torch.utils._filelock import FileLock

    def compile_cpp(lock_path: str, builders: Any) -> None:
        with FileLock(lock_path, timeout=codecache.LOCK_TIMEOUT):
            for builder in builders:
                if not whole(builder.get_target_file_path()):
                    builder.build()

    with _replaced(codecache, _worker_compile_cpp=compile_cpp):
        yield


@contextlib.contextmanager
def kernels_given_to(take: Callable[[list[str], str], None]) -> Iterator[None]:
    """Generated code gives its C++ kernels to `take`, by signature and source, and does not wait
    for a compiler. 2.14.1 waits after each graph, so that its parts are compiled in turn."""
    from torch._inductor.async_compile import AsyncCompile

    def given(_: Any, argtypes: list[str], source: str) -> None:
        take(argtypes, source)

    with _replaced(AsyncCompile, cpp_pybinding=given):
        yield


def compile_threads() -> int:
    """How many compilers Inductor would run at a time: `config.compile_threads`, or the cores."""
    from torch._inductor.async_compile import get_compile_threads

    return max(1, get_compile_threads())


@contextlib.contextmanager
def kernels_uncompiled() -> Iterator[None]:
    """Generate code whose kernels nobody compiles or tunes: what lowering makes is not run."""
    from torch._inductor.async_compile import AsyncCompile
    from torch._inductor.codegen.wrapper import PythonWrapperCodegen

    untuned = _replaced(PythonWrapperCodegen, generate_and_run_autotune_block=lambda self: None)
    with kernels_given_to(lambda *_: None), untuned:
        with _replaced(AsyncCompile, triton=lambda *_, **__: None):
            yield


def cpp_compile_errors() -> tuple[type[Exception], type[Exception]]:
    """What Inductor raises where the C++ compiler failed, and where there is none."""
    from torch._inductor.exc import CppCompileError, InvalidCxxCompiler

    return CppCompileError, InvalidCxxCompiler


def tensor_pointer_address() -> int:
    """Where generated C++ finds the function that reads a tensor's data pointer; it has no other
    link to torch (CppPythonBindingsCodeCache in torch/_inductor/codecache.py)."""
    return torch._C._dynamo.guards._torchinductor_pyobject_tensor_data_ptr


def assert_size_stride(tensor: Any, size: Any, stride: Any, name: str | None) -> None:
    """The C++ check that generated code makes of an operator's result."""
    torch._C._dynamo.guards.assert_size_stride(tensor, size, stride, name)


# --- build and run: kernels of an accelerator (torch 2.14.1, read; launched on none yet) ---------


# A Triton source tells whether caches were on when it was generated; that is no part of it.
CACHES_OFF = ("'force_disable_caches': True", "'force_disable_caches': False")


def triton_kernel(name: str, source: str) -> dict[str, Any]:
    """The binary that Inductor made of a Triton source in this process, and how it is started;
    a ValueError where several are left, or torch's static launcher can't take it."""
    from torch._inductor.async_compile import AsyncCompile
    from torch._inductor.runtime.triton_heuristics import GridExpr

    tuner = AsyncCompile().triton(name, source, device_str="cuda")
    tuner = tuner.result() if hasattr(tuner, "result") else tuner
    if len(tuner.launchers) != 1:
        raise ValueError(f"{len(tuner.launchers)} configurations are left after tuning")
    config = tuner.launchers[0].config
    (made,) = [one for one in tuner.compile_results if one.config is config]
    static = made.kernel
    if not hasattr(static, "arg_tys") or made.inductor_meta.get("host_tma_descriptor_args"):
        raise ValueError("it is not for the static launcher")
    _, takes, absent = made._get_arg_lists(static.arg_names, static.declared_constexprs)
    passed = [name for i, name in enumerate(static.arg_names) if i not in static.full_constexprs]
    grid = GridExpr.from_meta(made.inductor_meta, made.config)
    return {
        "entry": static.name,
        "warps": static.num_warps,
        "shared": static.shared,
        "types": static.arg_tys,
        "nulls": static.has_global_scratch + static.has_profile_scratch,
        "takes": list(takes),
        "gives": [name for name in passed if name not in absent],
        "before": list(grid.prefix),
        "grid": [grid.x_grid, grid.y_grid, grid.z_grid],
        "binary": static.cubin_raw,
    }


def cubin_launcher() -> tuple[Callable[..., Any], Callable[..., None]]:
    """torch's launcher of CUDA binaries: what loads a file's function, and what starts one."""
    from torch._C import _StaticCudaLauncher as launcher

    return launcher._load_kernel, launcher._launch_kernel


def generated_helpers() -> dict[str, Any]:
    """What generated code for CUDA calls of torch's C++: to align an input, a device's stream."""
    stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # of a build with CUDA
    aligned = torch._C._dynamo.guards.copy_if_misaligned
    return {"copy_if_misaligned": aligned, "get_raw_stream": stream}


def storage_identity(tensor: Any) -> int:
    """A number that two tensors share where they share memory; fakes have no data pointer."""
    return tensor.untyped_storage()._cdata


# --- LOCKSTEP=torch and torch-one-rank: what torch.compile did (torch 2.14.1) --------------------


def compile_counts() -> dict[str, int]:
    """Dynamo's and Inductor's own counts in this process so far: no public place gives them.

    "frames" are those Dynamo traced or tried to; "hits" and "misses" are of the graph cache.
    """
    from torch._dynamo.utils import counters

    inductor = counters["inductor"]
    return {
        "frames": counters["frames"]["total"],
        "hits": inductor["fxgraph_cache_hit"],
        "misses": inductor["fxgraph_cache_miss"] + inductor["fxgraph_cache_bypass"],
    }


def frame_count() -> Callable[[], int]:
    """A cheap reader of how many frames Dynamo has met: a step can ask after each call."""
    from torch._dynamo.utils import counters

    return lambda: counters["frames"]["total"]


def compile_seconds() -> float:
    """Seconds that Dynamo and what it calls have spent in this process so far."""
    from torch._dynamo.utils import calculate_time_spent

    return calculate_time_spent()["total_wall_time"]


def on_lowering(count: Callable[[], None]) -> None:
    """Call `count` whenever Inductor lowers a graph from now on: its counters don't tell."""
    from torch._inductor.graph import GraphLowering

    original = GraphLowering.run

    @functools.wraps(original)
    def run(self: Any, *args: Any) -> Any:
        count()
        return original(self, *args)

    GraphLowering.run = run  # type: ignore[method-assign]


def compile_error() -> type[Exception]:
    """What `torch.compile` raises when it fails itself, whatever part of it."""
    from torch._dynamo.exc import TorchDynamoException

    return TorchDynamoException


def inductor_cache_folder() -> str:
    """The folder that Inductor's caches are in."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    return cache_dir()


def changed_inductor_options() -> dict[str, str]:
    """Options that the user's code has set, by name; empty where nothing imported Inductor.

    A patch that has ended leaves its old value behind as if the user had set it, and what the
    environment set is in the list too: only what differs from a fresh process' value counts.
    """
    config = sys.modules.get("torch._inductor.config")
    if config is None:
        return {}
    found = {}
    for line in config.codegen_config().splitlines():
        name, equals, shown = line.removeprefix("torch._inductor.config.").partition(" = ")
        if equals and _is_overridden(config._config[name]):
            found[name] = shown
    return found


def _is_overridden(entry: Any) -> bool:
    """Whether an option holds a value that the user set, other than the one it starts with."""
    from torch.utils._config_module import _UNSET_SENTINEL

    if entry.env_value_force is not _UNSET_SENTINEL:  # it stands whatever is set
        return False
    by_environment = entry.env_value_default is not _UNSET_SENTINEL
    fresh = entry.env_value_default if by_environment else entry.default
    value = entry.user_override.get()
    return value is not _UNSET_SENTINEL and value != fresh


# Operators that the compiler's Python code registers: a rank that does not import it lacks them.
COMPILER_OPS = ("inductor_prims::", "rngprims::", "symm_mem::")


def is_nothing_to_compile(error: BaseException) -> bool:
    """Whether `compile_to_python` ended because the graph computes nothing."""
    from torch._inductor.standalone_compile import NoRunnableInductorModuleError

    return isinstance(error, NoRunnableInductorModuleError)


# --- checker: simulated ranks in one process (torch 2.14.1) --------------------------------------


@contextlib.contextmanager
def fake_process_group(rank: int, ranks: int) -> Iterator[None]:
    """Be one rank of a job that does not exist; the groups of a real job are put aside and back.

    Each start of groups puts a hook around the last for uncaught errors: it is put back, too. The
    registry of group names is the process's own and refuses a name twice: hence all the names.
    """
    from torch._C import _distributed_c10d as native
    from torch.testing._internal.distributed.fake_pg import FakeStore

    c10d = dist.distributed_c10d
    real = c10d._world
    names = dict((name, group) for group, name in real.pg_names.items())
    for name in names:
        native._unregister_process_group(name)
    c10d._world, hook = _apart(c10d._World), sys.excepthook
    try:
        dist.init_process_group("fake", rank=rank, world_size=ranks, store=FakeStore())
        yield
    finally:
        if c10d._world.default_pg is not None:
            dist.destroy_process_group()
        c10d._world, sys.excepthook = real, hook
        for name, group in names.items():
            native._register_process_group(name, group)


def _apart(world: Any) -> Any:
    """A c10d world whose tables are its own: torch's reads the module's through properties."""
    tables: tuple[str, ...] = ("pg_map", "pg_names", "pg_group_ranks", "pg_backend_config")
    tables += ("tags_to_pg", "pg_to_tag")
    return type("World", (world,), {**{name: {} for name in tables}, "group_count": 0})()


def unregister_process_group(name: str) -> None:
    """Forget a group's logical name: a name can't be given twice."""
    from torch._C._distributed_c10d import _unregister_process_group

    _unregister_process_group(name)


def node_of(tensor: Any) -> Any:
    """The graph node of a tensor that is being traced; None for one that is not."""
    from torch.fx.experimental.proxy_tensor import get_proxy_mode, get_proxy_slot

    mode = get_proxy_mode()
    if mode is None:
        return None
    slot = get_proxy_slot(tensor, mode.tracer, None)
    return slot.proxy.node if slot is not None else None


def without_modes() -> Any:
    """A block in which tensors are real and nothing is traced."""
    from torch.utils._python_dispatch import _disable_current_modes

    return _disable_current_modes()


def mesh_methods() -> list[Any]:
    """What of a DeviceMesh computes on its table of ranks: slices, its tensor, meshes of it.

    `_flatten` and `_unflatten` are the only ways to an axis over several names (2.14)."""
    from torch.distributed.device_mesh import DeviceMesh

    names = ("__getitem__", "_flatten", "_unflatten")
    return [*(getattr(DeviceMesh, name) for name in names), mesh_table()]


def mesh_table() -> Any:
    """What gives a DeviceMesh's table of ranks: the getter of a property."""
    from torch.distributed.device_mesh import DeviceMesh

    return vars(DeviceMesh)["mesh"].fget


@contextlib.contextmanager
def quiet_fake_errors() -> Iterator[None]:
    """Fake tensors log what a failing operator raises; not where a failure is an answer."""
    import logging

    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def dispatch_mode() -> Any:
    """The base class of modes that see each operator as the dispatcher does."""
    from torch.utils._python_dispatch import TorchDispatchMode

    return TorchDispatchMode


# --- check: a world that is not there (torch 2.14.1) ----------------------------------------------


def fake_store() -> Any:
    """A store for the process group "fake", which answers for all ranks; importing registers it."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    return FakeStore()


# --- plain tables and ops without a public name (torch 2.14.1) ------------------------------------


def hook_tables(module: Any) -> tuple[dict[int, Any], ...]:
    """The tables of a module's hooks that run in a forward or a backward: no public list exists."""
    return (
        module._forward_hooks,
        module._forward_pre_hooks,
        module._backward_hooks,
        module._backward_pre_hooks,
    )


def global_module_hooks() -> tuple[dict[int, Any], ...]:
    """The hooks that run at every module's forward or backward: no public list exists."""
    hooks = torch.nn.modules.module
    return (
        hooks._global_forward_hooks,
        hooks._global_forward_pre_hooks,
        hooks._global_backward_hooks,
        hooks._global_backward_pre_hooks,
    )


def tensor_hooks(tensor: Any) -> tuple[list[Any], list[Any]]:
    """The hooks of `register_hook`, and those after a gradient was accumulated: no public lists."""
    first, last = tensor._backward_hooks, tensor._post_accumulate_grad_hooks
    return list((first or {}).values()), list((last or {}).values())


def all_tensor_hooks(tensor: Any) -> tuple[Any, ...]:
    """What `tensor_hooks` gives, in one tuple; quick where there are none."""
    first, last = tensor._backward_hooks, tensor._post_accumulate_grad_hooks
    return (*first.values(), *(last or {}).values()) if first else tuple((last or {}).values())


def own_hook_tables(tensor: Any) -> list[dict[int, Any]]:
    """The tables behind `tensor_hooks` that there are: each is made with its first hook."""
    tables = tensor._backward_hooks, tensor._post_accumulate_grad_hooks
    return [table for table in tables if table is not None]


def hooks_where_it_accumulates(parameter: Any) -> list[Any]:
    """Hooks on the node that accumulates a parameter's gradient.

    torch lists them nowhere, but shows them to Python's collector, unless the node is also held by
    a graph or by C++ (torch/csrc/autograd/python_cpp_function.cpp).
    """
    if not (parameter.requires_grad and parameter.is_leaf):
        return []
    with torch.inference_mode(False):
        node = torch.autograd.graph.get_gradient_edge(parameter).node
    known = own_hook_tables(parameter)
    held = [table for table in gc.get_referents(node) if isinstance(table, dict)]
    return [h for table in held if not any(table is one for one in known) for h in table.values()]


def module_tables(module: Any) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """A module's parameters, buffers and modules, as the dictionaries that hold them.

    The public iterators give copies, and skip a tensor that is met twice.
    """
    return module._parameters, module._buffers, module._modules


def note_step(optimizer: Any) -> None:
    """Say that an optimizer has stepped, as its own method does: else a schedule's step() warns."""
    optimizer._opt_called = True


@contextlib.contextmanager
def without_step_hooks(optimizer: Any) -> Iterator[None]:
    """Run an optimizer's step without the hooks that others have put around it."""
    hooks = optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks
    optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks = {}, {}
    try:
        yield
    finally:
        optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks = hooks


def schema(op: Any) -> Any:
    """An op's schema: its arguments' names, and whether it changes one of them."""
    return op._schema


def item_op() -> Any:
    """What `.item()` is in a graph."""
    return torch.ops.aten._local_scalar_dense.default


def one_by_one(op: Any) -> Callable[..., Any]:
    """A foreach operator as the loop over its lists that it stands for; any other as it is.

    torch's own loop serves all devices; the CPU and CUDA have kernels of lists beside it (2.14).
    """
    if not op._schema.name.startswith("aten::_foreach_"):
        return op
    from torch._C import DispatchKey

    return functools.partial(op._op_dk, DispatchKey.CompositeExplicitAutograd)


def foreach_lerp_op() -> Any:
    """What `torch.optim`'s foreach forms call with a Python number as the weight."""
    return torch.ops.aten._foreach_lerp_.Scalar


# Reading an operator's schema where a graph's target may be a plain Python function; torch 2.14.
def schema_or_none(target: Any) -> Any:
    """An operator's schema; None for `operator.getitem` and other plain functions."""
    return getattr(target, "_schema", None)


# --- sizes that differ from call to call (torch 2.14.1) -------------------------------------------


def symbolic_of(mode: Any, tensor: Any, name: str, ranges: dict[int, tuple[int, int]]) -> Any:
    """A stand-in some of whose dimensions are symbols: no public way gives them bounds.

    Args:
        ranges: dimension -> its smallest and largest size.
    """
    from torch._dynamo.source import LocalSource
    from torch.fx.experimental.symbolic_shapes import (
        DimDynamic,
        StatelessSymbolicContext,
        StrictMinMaxConstraint,
    )
    from torch.utils._sympy.value_ranges import ValueRanges

    if not tensor.is_contiguous():  # strides may not be said to be fixed: made of the size alone
        shape, device = list(tensor.shape), tensor.device
        for dim, bounds in ranges.items():
            line = torch.empty(shape[dim], device="meta")
            shape[dim] = symbolic_of(mode, line, f"{name}[{dim}]", {0: bounds}).shape[0]
        with mode:
            made = torch.empty_strided(shape, tensor.stride(), dtype=tensor.dtype, device=device)
        return made.requires_grad_(tensor.requires_grad)
    dims = range(tensor.dim())
    context: Any = StatelessSymbolicContext(
        dynamic_sizes=[DimDynamic.DYNAMIC if d in ranges else DimDynamic.STATIC for d in dims],
        constraint_sizes=[
            StrictMinMaxConstraint(warn_only=False, vr=ValueRanges(*ranges[d]))
            if d in ranges
            else None
            for d in dims
        ],
    )
    return mode.from_tensor(tensor, symbolic_context=context, source=LocalSource(name))


def note_lines(mode: Any, line: Callable[[], str]) -> None:
    """Keep with each guard on a size the line that `line` gives; torch keeps one of its own."""
    from torch._guards import SLoc

    mode.shape_env._get_sloc = lambda framework_loc=None: SLoc(None, line())


def size_guards(mode: Any, names: dict[Any, str]) -> Iterator[tuple[str, str | None]]:
    """What a trace decided by its sizes, as Python text, each with the line that asked.

    Args:
        names: symbol -> what it is called in the text. Formulas of others are left out.
    """
    import sympy
    from torch.utils._sympy.printers import PythonPrinter

    called = {symbol: sympy.Symbol(name, integer=True) for symbol, name in names.items()}
    for guard in mode.shape_env.guards:
        if guard.expr.free_symbols and guard.expr.free_symbols <= set(names):
            formula = guard.expr.xreplace(called)
            if formula.is_Relational:  # 5*a == 5*b
                common = sympy.gcd(*formula.args)
                if common.is_Integer and common > 1:
                    formula = formula.func(*[side / common for side in formula.args])
            yield PythonPrinter().doprint(formula), guard.sloc.maybe_user_loc


def fixed_size(mode: Any, symbol: Any) -> tuple[int | None, str | None]:
    """The one size that a trace takes a symbol to be, and the line that asked; None: it is free."""
    env = mode.shape_env
    value = env.replacements.get(symbol)
    if value is None or not value.is_number:
        return None, None
    return int(value), env.replacements_slocs[symbol].maybe_user_loc


def suppressed_guards(mode: Any) -> Any:
    """A block in which asking a trace's sizes leaves no guard behind."""
    return mode.shape_env.suppress_guards()


# --- ahead of time: a script's set-up below fake tensors (torch 2.14.1) ---------------------------


def fake_set_up() -> Any:
    """A mode in which a whole script runs without values; real tensors that it meets join in."""
    from torch._subclasses import FakeTensorMode

    mode: Any = FakeTensorMode(allow_non_fake_inputs=True)
    mode.is_set_up = True
    return mode


def is_of_set_up(tensor: Any) -> bool:
    """Whether a tensor is a stand-in of a set-up: to a capture it is what a real one would be."""
    return is_fake(tensor) and hasattr(tensor.fake_mode, "is_set_up")


def known_value(tensor: Any) -> Any:
    """The small constant that a stand-in is known to hold, as `torch.tensor(3)`; else None."""
    return getattr(tensor, "constant", None)


def between_frames() -> tuple[str, ...]:
    """The files of torch whose functions lie between an operator's caller and a mode it is for."""
    root = str(sys.modules["torch"].__file__).removesuffix("__init__.py")
    return tuple(root + name for name in ("_tensor.py", "_compile.py", "_dynamo/eval_frame.py"))


def set_fake_data(tensor: Any, other: Any) -> None:
    """Give a stand-in what another one is, but for its identity: `module.to(...)` of fakes.

    torch swaps the two objects there, which fails where anything else refers to one of them.
    """
    tensor.data = other.detach()
    tensor.fake_device = other.fake_device


def mesh_makers() -> list[Any]:
    """What makes a DeviceMesh: its table of ranks is read, and must hold numbers."""
    from torch.distributed import device_mesh

    return [device_mesh.init_device_mesh, vars(device_mesh.DeviceMesh)["__init__"]]


def hint_of(size: Any) -> int:
    """The size that a symbolic one has in the call that was traced; 0 where none is known."""
    if isinstance(size, int):
        return size
    hint = size.node.hint if size.node.has_hint() else 0
    return int(hint)


def after_backward(call: Callable[[], None]) -> None:
    """Have something called once the backward that runs now has ended."""
    torch.autograd.Variable._execution_engine.queue_callback(call)
