"""Back end `inductor`: compiled once, loaded from its libraries, the same numbers and text.

Every artifact here is compiled once for the file; the tests share them.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lockstep import _compat
from lockstep.build.artifact import Artifact, pack
from lockstep.build.backends import lower
from lockstep.build.inductor_backend import _OPTIONS, check_operators
from lockstep.build.program import Program
from lockstep.build.rewrite import rewrite
from lockstep.errors import ArtifactError, LoweringError, ToolchainError
from lockstep.run.kernels import scope_for
from lockstep.run.loader import load_program
from lockstep.spmd.mesh import mesh
from tests.graphs import Tiny, Traced, trace, training_inputs, training_step

pytestmark = pytest.mark.timeout(300)  # a cold compiler cache takes most of it


@pytest.fixture(scope="module", autouse=True)
def group() -> None:
    """A world of one whose group carries a mesh axis's name, as on a rank."""
    mesh("cpu", dp=-1)


def reduced(grad: torch.Tensor) -> torch.Tensor:
    ops = _compat.functional_collectives()
    return ops.wait_tensor(ops.all_reduce(grad, "sum", "dp"))


MODEL = Tiny()
STEP = training_step(MODEL, reduced)
INPUTS = training_inputs(MODEL)


@pytest.fixture(scope="module")
def traced(group: None) -> Traced:
    return trace(STEP, INPUTS)


@pytest.fixture(scope="module")
def program(traced: Traced) -> Program:
    return lower(traced, "inductor")


def both(step: Callable[..., Any], inputs: list[Any], tolerance: float = 1e-5) -> Program:
    """Run eager and the compiled program on clones, twice; compare every output and input."""
    program = lower(trace(step, inputs), "inductor")
    call = load_program(pack({}, program))
    eager, ours = ([value.clone() for value in inputs] for _ in range(2))
    for seed in range(2):
        torch.manual_seed(seed)
        with torch.no_grad():
            want = step(*eager)
        torch.manual_seed(seed)
        given = list(ours)
        got = call(given)
        assert given == []
        for left, right in zip([*want, *eager], [*got, *ours], strict=True):
            assert (left.dtype, left.stride()) == (right.dtype, right.stride())
            torch.testing.assert_close(left, right, rtol=tolerance, atol=tolerance)
    return program


def test_a_transformer_step_with_dropout_and_a_collective(program: Program) -> None:
    call = load_program(pack({}, program))
    torch.manual_seed(7)
    want = STEP(*INPUTS)
    torch.manual_seed(7)
    got = call(list(INPUTS))
    for left, right in zip(want, got, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-5, atol=1e-6)
    torch.manual_seed(8)
    assert not torch.equal(call(list(INPUTS))[0], got[0])  # dropout draws from torch's generator


def test_bitwise_equal_to_compiling_the_graph_here(traced: Traced, program: Program) -> None:
    from torch._inductor import standalone_compile

    with _compat.inductor_options(_OPTIONS), torch.no_grad():
        here = standalone_compile(traced.gm, traced.fakes, dynamic_shapes="from_graph")
    call = load_program(pack({}, program))
    for seed in range(3):
        inputs = training_inputs(MODEL, seed)
        torch.manual_seed(seed)
        with torch.no_grad():
            want = here(*inputs)
        torch.manual_seed(seed)
        for left, right in zip(want, call(list(inputs)), strict=True):
            assert torch.equal(left, right)


def test_the_same_graph_gives_the_same_program(program: Program) -> None:
    assert lower(trace(STEP, INPUTS), "inductor") == program


def test_options_that_no_program_can_have_are_off(program: Program) -> None:
    import torch._inductor.config as config

    with config.patch({"freezing": True, "cpp_wrapper": True}):
        assert lower(trace(STEP, INPUTS), "inductor") == program


def test_text_and_sources_name_no_place_and_no_compiler(program: Program) -> None:
    for word in (
        "torch._inductor",
        "torch._dynamo",
        "torch._functorch",
        "async_compile",
        "import os",
    ):
        assert word not in program.text
    places = [str(Path(torch.__file__).parent), str(Path.home()), str(Path.cwd()), "/tmp"]
    for text in (program.text, *program.sources.values()):
        assert [place for place in places if place in text] == []
    assert set(program.sources) == set(program.kernels)
    assert all(f"kernel('{digest}')" in program.text for digest in program.kernels)


def test_requirements_name_the_machine(program: Program) -> None:
    assert program.requires["machine"] in ("x86_64", "aarch64")
    assert program.requires["python_abi"].startswith("cpython-3")
    assert program.requires["cpu_features"]
    artifact = pack(
        {}, Program("inductor", program.text, {}, {**program.requires, "cpu_features": ["no"]})
    )
    with pytest.raises(ArtifactError, match="CPU instructions that this machine lacks"):
        load_program(artifact)


def test_a_fresh_process_loads_without_a_compiler(program: Program, tmp_path: Path) -> None:
    path, folder = tmp_path / "step.lockstep", tmp_path / "tmp"
    folder.mkdir()
    path.write_bytes(pack({}, program).to_bytes())
    torch.save(INPUTS, tmp_path / "inputs.pt")
    torch.manual_seed(3)
    want = load_program(pack({}, program))(list(INPUTS))
    code = """if True:
        import pathlib, sys, torch
        import torch.distributed as dist
        from lockstep import _compat
        from lockstep.build.artifact import Artifact
        from lockstep.run.loader import load_program
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        _compat.register_process_group("dp", dist.group.WORLD)
        folder = pathlib.Path(sys.argv[1])
        call = load_program(Artifact.from_bytes((folder / "step.lockstep").read_bytes()))
        torch.manual_seed(3)
        torch.save(list(call(torch.load(folder / "inputs.pt"))), folder / "outputs.pt")
        private = ("torch._inductor", "torch._dynamo", "triton")
        print([name for name in sys.modules if name.startswith(private)])
        print([str(entry) for entry in (folder / "tmp").iterdir()])
    """
    env = {"PATH": "", "TMPDIR": str(folder), "OMP_NUM_THREADS": str(torch.get_num_threads())}
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path], capture_output=True, text=True, env=env
    )
    assert done.stderr == "" and done.stdout.splitlines() == ["[]", "[]"]
    for left, right in zip(want, torch.load(tmp_path / "outputs.pt"), strict=True):
        assert torch.equal(left, right)


def test_in_place_updates_views_and_outputs_that_are_inputs() -> None:
    def step(a: torch.Tensor, b: torch.Tensor) -> tuple[Any, ...]:
        a.mul_(2).add_(b.sum())
        b[0].zero_()
        new = a + 1
        return a, a.view(-1)[1:], b.t(), new, new

    inputs = [torch.randn(3, 4), torch.randn(2, 5)]
    program = both(step, inputs)
    a, b = inputs
    out = load_program(pack({}, program))([a, b])
    assert out[0] is a
    assert out[1].data_ptr() == a.data_ptr() + a.element_size()
    assert out[2].untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
    assert out[3] is out[4]


def test_a_step_that_computes_nothing() -> None:
    x = torch.randn(2, 3)
    program = lower(trace(lambda x: (x, x.t()), [x]), "inductor")
    same, turned = load_program(pack({}, program))([x])
    assert same is x and torch.equal(turned, x.t()) and program.kernels == {}


def test_sizes_read_from_tensors() -> None:
    def step(x: torch.Tensor, count: torch.Tensor) -> tuple[Any, ...]:
        return torch.ones(count.item()).sum() + x, x.nonzero().sum()

    both(step, [torch.ones(2), torch.tensor(3)])


def test_outputs_share_memory_as_eager_s_do() -> None:
    program = lower(
        trace(lambda x: ((y := x * 2), y.t(), y.clone()), [torch.ones(2, 3)]), "inductor"
    )
    made, turned, copied = load_program(pack({}, program))([torch.ones(2, 3)])
    assert turned.untyped_storage().data_ptr() == made.untyped_storage().data_ptr()
    assert copied.untyped_storage().data_ptr() != made.untyped_storage().data_ptr()


def test_constants_among_the_outputs() -> None:
    traced = trace(lambda x: (x * 2, None, 3), [torch.ones(2)])
    made, nothing, three = load_program(pack({}, lower(traced, "inductor")))([torch.ones(2)])
    assert (made.tolist(), nothing, three) == ([2, 2], None, 3)


def test_batch_norm_convolution_and_pooling() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16, 2),
    )
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    names = [name for name, _ in model.named_parameters()]

    def step(*values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        *tensors, data = values
        held = dict(zip(state, tensors, strict=True))
        with torch.enable_grad():
            params = {name: held[name].detach().requires_grad_() for name in names}
            loss = torch.func.functional_call(model, {**held, **params}, (data,)).square().mean()
            grads = torch.autograd.grad(loss, list(params.values()))
        return (loss.detach(), *grads)

    both(step, [*(value.detach().clone() for value in state.values()), torch.randn(2, 3, 6, 6)])


def test_an_optimizer_s_scalars_are_read_at_each_call() -> None:
    def step(
        p: torch.Tensor, grad: torch.Tensor, m: torch.Tensor, count: torch.Tensor, lr: torch.Tensor
    ):
        count += 1
        rate, number = lr.item(), count.item()
        norm = torch.linalg.vector_norm(grad)
        grad.mul_(torch.clamp(0.5 / (norm + 1e-6), max=1.0))
        m.lerp_(grad, 0.1)
        p.mul_(1 - rate * 0.1).add_(m, alpha=-rate / (1 - 0.9**number))
        return (norm,)

    scalars = [torch.tensor(0.0), torch.tensor(0.3, dtype=torch.float64)]
    program = both(step, [torch.randn(5), torch.randn(5), torch.zeros(5), *scalars])
    call = load_program(pack({}, program))
    for rate in (0.25, 0.75):
        ours, want = (
            [torch.ones(5), torch.ones(5), torch.zeros(5), torch.tensor(0.0)] for _ in range(2)
        )
        call([*ours, torch.tensor(rate, dtype=torch.float64)])
        step(*want, torch.tensor(rate, dtype=torch.float64))
        torch.testing.assert_close(ours, want)


def test_autocast_is_held() -> None:
    def step(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.enable_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            leaf = w.detach().requires_grad_()
            low = F.gelu(x @ leaf)
            (grad,) = torch.autograd.grad(low.float().square().mean(), [leaf])
        return low.detach(), grad

    both(step, [torch.randn(4, 8), torch.randn(8, 8)], tolerance=2e-2)


def test_random_draws_are_eager_s() -> None:
    def step(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return F.dropout(x, 0.3), torch.bernoulli(x.sigmoid()), torch.rand(3), torch.randn_like(x)

    both(step, [torch.randn(8, 4)], tolerance=0)


def test_collectives_of_every_kind() -> None:
    ops = _compat.functional_collectives()

    def step(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        gathered = ops.wait_tensor(ops.all_gather_into_tensor(x, 1, "dp"))
        scattered = ops.wait_tensor(ops.reduce_scatter_tensor(x, "sum", 1, "dp"))
        swapped = ops.wait_tensor(ops.all_to_all_single(x, [4], [4], "dp"))
        sent = ops.wait_tensor(ops.broadcast(x * 2, 0, "dp"))
        several = [ops.wait_tensor(t) for t in ops.all_reduce_coalesced([x, sent], "sum", "dp")]
        x.copy_(ops.wait_tensor(ops.all_reduce(x, "sum", "dp")))
        return gathered + 1, scattered * 2, swapped + 2, sent, *several

    both(step, [torch.randn(4, 3)])


def test_parameters_that_need_gradients_may_be_written() -> None:
    program = lower(trace(lambda value: (value.mul_(2),), [torch.ones(2)]), "inductor")
    x = torch.ones(2, requires_grad=True)
    (out,) = load_program(pack({}, program))([x])
    assert out is x and x.tolist() == [2, 2]


def test_the_user_s_options_come_back() -> None:
    import torch._inductor.config as config

    before = config.fallback_random, torch.compiler.config.compile_on_one_rank
    with pytest.raises(KeyError), _compat.inductor_options(_OPTIONS):
        assert torch.compiler.config.compile_on_one_rank
        raise KeyError
    assert (config.fallback_random, torch.compiler.config.compile_on_one_rank) == before


def test_an_operator_that_can_t_be_held_is_named() -> None:
    ops = _compat.functional_collectives()
    traced = trace(lambda x: (ops.wait_tensor(ops.all_reduce_(x, "sum", "dp")),), [torch.ones(2)])
    with pytest.raises(LoweringError) as caught:
        lower(traced, "inductor")
    assert str(caught.value).startswith(
        "LS200: the compiler can't hold _c10d_functional::all_reduce_\n  got  RuntimeError: "
    )
    assert str(caught.value).endswith('  fix  backend="graph"')


def test_a_view_in_another_dtype_is_refused() -> None:
    traced = trace(lambda x: (x.view(torch.int32),), [torch.ones(2)])
    with pytest.raises(LoweringError, match="strides don't describe"):
        lower(traced, "inductor")


def test_a_missing_compiler_is_the_machine_s_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor.exc import InvalidCxxCompiler

    def fail(*_: Any) -> str:
        try:
            raise InvalidCxxCompiler
        except InvalidCxxCompiler as error:
            raise RuntimeError("backend failed") from error

    monkeypatch.setattr(_compat, "compile_to_python", fail)
    with pytest.raises(ToolchainError, match="LS201: this machine can't compile the step"):
        lower(trace(lambda x: (x + 1,), [torch.ones(1)]), "inductor")


def test_operators_of_the_compiler_are_refused(traced: Traced) -> None:
    found = frozenset(rewrite("import torch\ntorch.ops.inductor_prims.seed.default()").operators)
    assert found == {"inductor_prims::seed"}
    with pytest.raises(LoweringError, match="got  inductor_prims::seed"):
        check_operators(found, traced.gm.graph.nodes)
    check_operators(frozenset({"aten::mm", "mylib::op"}), traced.gm.graph.nodes)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("k = async_compile.triton('k', 'source', device_str='xpu')", "kind async_compile.triton"),
        ("from torch._inductor.hooks import run\nrun()", "run of torch._inductor.hooks"),
        ("import os\nos.getpid()", "import os"),
        ("import torch\ntorch._dynamo.reset()", "torch._dynamo.reset"),
        ("def call(x): extern_kernels.bias_addmm(x)", "the kernel extern_kernels.bias_addmm"),
        ("def call(x): return elsewhere(x)", "the names elsewhere"),
    ],
)
def test_what_no_loader_has_is_refused_at_the_build(text: str, said: str) -> None:
    with pytest.raises(LoweringError) as caught:
        rewrite(text)
    assert said in str(caught.value)


def test_the_loader_has_every_stand_in(program: Program) -> None:
    scope = scope_for(pack({}, program))
    assert _compat.STAND_INS <= set(scope)
    assert all(callable(getattr(scope["extern_kernels"], name)) for name in _compat.EXTERN_KERNELS)


def test_a_lost_library_is_told_by_its_digest(program: Program) -> None:
    digest = min(program.kernels)
    lost = Program("inductor", program.text, {}, program.requires)
    with pytest.raises(ArtifactError, match=r"holds no library for kernel [0-9a-f]{32}"):
        load_program(pack({}, lost))
    broken = Program("inductor", program.text, {digest: b"no library"}, program.requires)
    with pytest.raises(ArtifactError, match=r"a library of the artifact can't be opened"):
        load_program(pack({}, broken))


def test_a_round_trip_through_bytes_loads(program: Program) -> None:
    artifact = Artifact.from_bytes(pack({}, program).to_bytes())
    names = {name.split(".")[-1] for name in artifact.blobs}
    assert names == {"py", "code", "so", "cpp"}
    assert len(load_program(artifact)(list(INPUTS))) == len(INPUTS) - 1
