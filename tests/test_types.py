"""Types, their text, claims, signatures, parameters by pattern, phases."""
# ruff: noqa: F722  (the text in T["tp: I"] is no annotation)

from __future__ import annotations

import copy
import json
import pickle
import threading
from linecache import getline
from typing import Annotated, Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import lockstep as ls
from lockstep import I, P, R, S, V
from lockstep.capture.binding import Step
from lockstep.capture.capture import capture
from lockstep.capture.reach import reach
from lockstep.capture.state import collect
from lockstep.errors import UsageError
from lockstep.spmd import claims
from lockstep.spmd.claims import in_phase, recording_claims
from lockstep.spmd.parse import parse_tensor_type, parse_type, parse_types
from lockstep.spmd.signature import ATTRIBUTE, types_of
from lockstep.spmd.types import DTYPES, TensorType, Type, dtype_text

NAMES = st.from_regex(r"[a-z][a-z0-9_]{0,5}", fullmatch=True)
SIZES = st.integers(0, 10**6) | st.sampled_from(["u0", "s12", "2*s0", "u0 + 1"])
SHAPES = st.lists(SIZES, max_size=4).map(tuple)


def kinds(dims: int) -> st.SearchStrategy[Type]:
    plain = st.sampled_from([R, I, V, P, P("mean")])
    return plain | st.integers(0, dims - 1).map(S) if dims else plain


@st.composite
def tensor_types(draw: Any) -> TensorType:
    shape = draw(SHAPES)
    types = draw(st.dictionaries(NAMES, kinds(len(shape)), max_size=4))
    return TensorType(draw(st.sampled_from([*DTYPES, "float8_e5m2"])), shape, types)


@settings(deadline=None, max_examples=200)
@given(tensor_types())
def test_what_is_printed_reads_back(kind: TensorType) -> None:
    assert parse_tensor_type(str(kind)) == kind
    assert list(parse_tensor_type(str(kind)).types) == list(kind.types)


def test_the_text_is_that_of_the_language() -> None:
    kind = TensorType("f32", (8, 16), {"dp": R, "tp": S(1)})
    assert str(kind) == "f32[8, 16@tp] {dp: R, tp: S(1)}"
    assert str(TensorType("bf16", (4,), {"a": S(0), "b": S(0)})) == "bf16[4@a@b] {a: S(0), b: S(0)}"
    assert str(TensorType("f64", (), {"dp": P("mean")})) == "f64[] {dp: P(mean)}"
    assert str(TensorType.of(torch.zeros(2, 3, dtype=torch.int64), {})) == "i64[2, 3] {}"


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("f32[8,16] {dp:R,tp:S(1)}", "f32[8, 16@tp] {dp: R, tp: S(1)}"),
        (" f32[ 8 , 16@tp ]{ tp : S( 1 ) } ", "f32[8, 16@tp] {tp: S(1)}"),
        ("f32[3]", "f32[3] {}"),
        ("f32[] {dp: P(sum)}", "f32[] {dp: P}"),
    ],
)
def test_looser_texts_read_too(text: str, same: str) -> None:
    assert str(parse_tensor_type(text)) == same


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("f32[8, 16@tp] {dp: R}", "contradicts itself on tp"),
        ("f32[8@tp, 16] {tp: S(1)}", "@tp on dimension 0, and tp: S(1)"),
        ("f32[8] {tp: S(1)}", "tp: S(1) of a tensor of 1 dimension(s)"),
        ("f32[8] {tp: Q}", "'Q' is no type"),
        ("f32[8] {tp: P(max)}", "'P(max)' is no type"),
        ("f32[8] {tp: R, tp: I}", "names the axis tp twice"),
        ("f32[8,] {tp: R}", "an empty size"),
        ("f32[8] {tp}", "got  tp"),
        ("8, 16", "such as f32[8, 16@tp] {dp: R, tp: S(1)}"),
    ],
)
def test_unreadable_texts_say_what_is_wrong(text: str, told: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_tensor_type(text)
    assert told in str(caught.value)


@pytest.mark.parametrize("kind", [R, I, V, P, P("mean"), S(0), S(3)])
def test_a_type_is_its_text_and_does_not_change(kind: Type) -> None:
    assert parse_type(str(kind)) == kind and repr(kind) == str(kind)
    assert json.loads(json.dumps(kind)) == kind
    for again in (pickle.loads(pickle.dumps(kind)), copy.deepcopy(kind)):
        assert (again, again.kind, again.dim, again.factor) == (
            kind, kind.kind, kind.dim, kind.factor,
        )  # fmt: skip
    with pytest.raises(AttributeError, match="does not change"):
        kind.dim = 7


def test_types_tell_themselves_apart() -> None:
    assert len({R, I, V, P, P("mean"), S(0), S(1)}) == 7
    assert P("sum") is P and P.factor == "sum" and P("mean").factor == "mean"
    assert S(2) is S(2) and S(2).dim == 2
    assert [t.dual for t in (R, P, P("mean"), I, V, S(1))] == [P, R, R, I, V, S(1)]


@pytest.mark.parametrize("dim", [-1, "0", 1.0, True])
def test_a_shard_is_of_a_dimension(dim: Any) -> None:
    with pytest.raises(UsageError, match="is no shard"):
        S(dim)


def test_dtypes_have_short_names() -> None:
    names = [dtype_text(t) for t in (torch.float32, torch.bfloat16, torch.int64, torch.bool)]
    assert names == ["f32", "bf16", "i64", "bool"]
    assert dtype_text(torch.float8_e5m2) == "float8_e5m2"


# -- claims --------------------------------------------------------------------------------------


@pytest.fixture(scope="module", autouse=True)
def mesh() -> Any:
    return ls.mesh("cpu", dp=1, tp=-1)


def test_a_claim_gives_back_the_tensor_and_leaves_nothing() -> None:
    x = torch.zeros(2, 2)
    before = dict(x.__dict__)
    assert ls.typed(x, tp=S(0), dp=R) is x
    assert ls.typed(x, nowhere=S(9)) is x  # nothing is looked at while nothing checks
    assert x.__dict__ == before


def test_while_recording_a_claim_is_noted_with_its_line() -> None:
    x = torch.zeros(2, 2)
    with recording_claims() as said:
        ls.typed(x, tp=S(0), dp=R)
    (claim,) = said.claims
    assert claim.tensor is x and claim.types == {"tp": S(0), "dp": R} and claim.what == "ls.typed"
    assert claim.place.file == __file__
    assert "ls.typed(x, tp=S(0), dp=R)" in getline(__file__, claim.place.line)
    assert claims.recording is None


@pytest.mark.parametrize(
    ("types", "told"),
    [
        ({"pp": R}, "there is no mesh axis pp"),
        ({"tp": S}, "S needs its dimension"),
        ({"tp": "R"}, "'R' is no type"),
        ({"tp": S(2)}, "ls.typed: tp=S(2) of a tensor of shape [2, 2]"),
    ],
)
def test_while_recording_a_claim_must_make_sense(types: dict[str, Any], told: str) -> None:
    with recording_claims() as said, pytest.raises(UsageError) as caught:
        ls.typed(torch.zeros(2, 2), **types)
    assert told in str(caught.value) and said.claims == []


def test_a_loss_is_a_claim_too() -> None:
    with recording_claims() as said:
        ls.loss(torch.zeros(()), dp="mean", tp="sum")
    assert [(c.what, c.types) for c in said.claims] == [("ls.loss", {"dp": P("mean"), "tp": P})]


def test_recordings_do_not_nest_and_hear_their_thread_alone() -> None:
    with recording_claims() as said:
        with pytest.raises(UsageError, match="recorded already"), recording_claims():
            pass
        other = threading.Thread(target=lambda: ls.typed(torch.zeros(1), tp=R))
        other.start()
        other.join()
    assert said.claims == []


def test_typed_collectives_are_noted_with_both_their_tensors() -> None:
    x = torch.zeros(2)
    with recording_claims() as said:
        y = ls.convert(x, "tp", src=I, dst=R)
        z = ls.all_reduce(y, "tp", src=P("mean"), dst=I, async_op=True)
        assert len(said.moves) == 1
        z.wait()
    first, second = said.moves
    assert (first.verb, first.axis, first.src, first.dst) == ("convert", "tp", I, R)
    assert first.before is x and first.after is y and y is not x
    assert (second.verb, second.op, second.before) == ("all_reduce", "avg", y)
    assert [move.place.file for move in said.moves] == [__file__] * 2


def test_claims_leave_no_node_and_are_noted_in_a_capture() -> None:
    def bare(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).sum()

    @ls.signature
    def double(x: ls.T["tp: R"]) -> ls.T["tp: R"]:
        return x * 2

    def claimed(x: torch.Tensor) -> torch.Tensor:
        return ls.loss(double(ls.typed(x, tp=R)).sum(), tp="sum")

    with recording_claims() as said:
        checked = capture(claimed, torch.zeros(2))
    built = capture(claimed, torch.zeros(2))
    assert built.gm.code == checked.gm.code == capture(bare, torch.zeros(2)).gm.code
    assert [c.what for c in said.claims] == [
        "ls.typed",
        "ls.signature of " + double.__qualname__ + ", x",
        "ls.signature of " + double.__qualname__ + ", result",
        "ls.loss",
    ]


# -- signatures ----------------------------------------------------------------------------------


@ls.signature
def mlp(
    x: ls.T["tp: I"],
    mask: ls.T["tp: I"] | None = None,
    w: Annotated[torch.Tensor, "a weight"] | None = None,
) -> tuple[ls.T["tp: R"], torch.Tensor, ls.T["tp: S(0)"]]:
    return x + 1, x, x - 1


def test_a_signature_claims_arguments_and_results_while_recording() -> None:
    x, m = torch.zeros(2), torch.ones(2)
    plain = mlp(x)
    with recording_claims() as said:
        out = mlp(x, mask=m)
        mlp(x)
    assert all(map(torch.equal, plain, out))
    names = [c.what.removeprefix("ls.signature of mlp, ") for c in said.claims]
    assert names == ["x", "mask", "result 0", "result 2", "x", "result 0", "result 2"]
    assert [c.tensor for c in said.claims[:4]] == [x, m, out[0], out[2]]
    assert said.claims[3].types == {"tp": S(0)}
    assert getline(__file__, said.claims[0].place.line).startswith("def mlp(")


def test_a_signature_is_the_function_to_others() -> None:
    assert mlp.__name__ == "mlp" and mlp.__wrapped__(torch.zeros(1))[1].item() == 0


def test_a_signature_must_say_something_readable() -> None:
    with pytest.raises(UsageError, match="no annotation says a type"):
        ls.signature(lambda x: x)
    with pytest.raises(UsageError, match="'Q' is no type"):
        ls.T["tp: Q"]

    def lost(x: nowhere.T["tp: I"]) -> None:  # noqa: F821
        pass

    with recording_claims(), pytest.raises(UsageError, match="can't read the annotation of x"):
        ls.signature(lost)(torch.zeros(1))


# -- parameters ----------------------------------------------------------------------------------


def model() -> torch.nn.Module:
    norm, up = torch.nn.LayerNorm(4), torch.nn.Linear(4, 8, bias=False)
    return torch.nn.ModuleDict({"norm": norm, "up": up, "tied": up})


def test_parameters_are_typed_by_patterns_and_the_later_one_holds() -> None:
    m = model()
    ls.type_parameters(m, {"*": {"dp": R, "tp": S(0)}, "norm.*": {"tp": I}})
    assert types_of(m["norm"].weight) == {"dp": R, "tp": I}
    assert types_of(m["up"].weight) == {"dp": R, "tp": S(0)}
    ls.type_parameters(m, {"tied.weight": {"tp": S(1)}})  # another name of the same parameter
    assert types_of(m["up"].weight) == {"dp": R, "tp": S(1)}
    assert set(m["up"].weight.__dict__) == {ATTRIBUTE}
    assert types_of(torch.zeros(1)) == {}


def test_types_are_on_the_stand_ins_of_a_capture() -> None:
    m = model()
    ls.type_parameters(m, {"norm.weight": {"tp": I}})

    def step(m: torch.nn.Module, x: torch.Tensor) -> Any:
        return m["norm"](x), str(types_of(m["norm"].weight))

    assert capture(step, m, torch.zeros(2, 4)).returns[1].value == "{'tp': I}"


@pytest.mark.parametrize(
    ("patterns", "told"),
    [
        ({"*.wieght": {"tp": I}}, "no parameter matches '*.wieght'"),
        ({"norm.wieght": {"tp": I}}, "fix  'norm.weight'"),
        ({"norm.*": {"tp": S(1)}}, "norm.weight: tp S(1) of a parameter of shape [4]"),
        ({"norm.*": {"pp": I}}, "there is no mesh axis pp"),
        ({"norm.*": {"tp": "I"}}, "'I' is no type"),
        ({"up.*": {"tp": S(0)}, "down.*": {"tp": I}}, "no parameter matches 'down.*'"),
    ],
)
def test_patterns_that_cannot_be_meant_change_nothing(patterns: Any, told: str) -> None:
    m = model()
    with pytest.raises(UsageError) as caught:
        ls.type_parameters(m, patterns)
    assert told in str(caught.value)
    assert [types_of(p) for p in m.parameters()] == [{}] * 3


# -- intentions and phases -----------------------------------------------------------------------


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return -grad


reverse = ls.intended(Reverse.apply, reason="gradient reversal")


@ls.intended(reason="straight through")
def rounded(x: torch.Tensor) -> torch.Tensor:
    return x + (x.round() - x).detach()


def test_what_is_intended_is_noted_with_its_reason() -> None:
    x = torch.ones(1, requires_grad=True)
    assert torch.autograd.grad(reverse(x), x)[0].item() == -1
    with recording_claims() as said:
        y = reverse(x)
        rounded(y)
    assert [(i.reason, i.before, i.after[0] is y) for i in said.intents] == [
        ("gradient reversal", (x,), True),
        ("straight through", (y,), False),
    ]
    assert [i.place.file for i in said.intents] == [__file__] * 2
    with pytest.raises(UsageError, match="needs a reason"):
        ls.intended(rounded, reason=" ")


def test_the_function_behind_an_intention_is_in_reach() -> None:
    """Its code is part of what a program is made from, so a change of it is another program."""

    def step(x: torch.Tensor) -> torch.Tensor:
        return reverse(rounded(mlp(x)[0]))

    taken = Step(step)
    call = taken.call((torch.zeros(1),), {})
    found = reach(taken, call, collect(call)).functions
    names = ("Reverse.forward", "Reverse.backward", "rounded", "mlp")
    assert {f"{__name__}.{name}" for name in names} <= set(found)


def test_the_phase_is_run_build_or_check() -> None:
    def step(x: torch.Tensor) -> Any:
        return x + 1, ls.phase()

    x = torch.zeros(1)
    assert step(x)[1] == "run"
    assert capture(step, x).returns[1].value == "build"
    with in_phase("check"):
        assert capture(step, x).returns[1].value == "check"
    assert step(x)[1] == "run"


def test_types_read_one_by_one() -> None:
    assert parse_types("{dp: R, tp: P(mean)}") == {"dp": R, "tp": P("mean")} and not parse_types("")
