"""`ls.even_batches` in one process, and what makes batches of several ranks one form."""

from __future__ import annotations

import pytest
import torch

import lockstep as ls
from lockstep import _compat
from lockstep.errors import UsageError
from lockstep.run.even_size import agreed, declared_of
from lockstep.spmd.mesh import apart


def even(batches, **options):
    return list(ls.even_batches(batches, ls.mesh(dp=-1), **options))


def batch(size: int, width: int = 2, **more):
    return {"x": torch.arange(size * width).float().view(size, width), "n": torch.tensor(3), **more}


def declared(size: int, width: int = 2):
    return declared_of(batch(size, width), torch.ones(size), None)


def test_a_smaller_batch_is_filled_up_with_its_last_sample():
    (_, first), (last, weights) = even([batch(3), batch(2)])
    assert first.tolist() == [1, 1, 1]
    assert weights.tolist() == [1, 1, 0]
    assert last["x"].tolist() == [[0, 1], [2, 3], [2, 3]]
    assert last["n"].item() == 3


def test_a_full_batch_is_handed_on_as_it_is():
    given = batch(3)
    ((taken, _),) = even([given])
    assert taken is given


def test_the_size_may_be_given():
    assert [w.tolist() for _, w in even([batch(1), batch(2)], size=4)] == [
        [1, 0, 0, 0],
        [1, 1, 0, 0],
    ]


def test_weights_may_be_by_token_and_a_mask():
    def counts(b):
        return b["x"] > 1

    (_, weights), (_, last) = even([batch(2), batch(1)], weights=counts)
    assert weights.tolist() == [[0, 0], [1, 1]]
    assert last.tolist() == [[0, 0], [0, 0]]
    assert weights.dtype == torch.float32


def test_batches_without_samples_are_left_out():
    assert len(even([batch(2), batch(0), batch(1)])) == 2
    assert even([]) == []
    assert even([batch(0)]) == []


def test_in_a_world_that_is_not_there_a_rank_agrees_with_itself():
    with apart(), _compat.fake_process_group(1, 4):
        mesh = ls.mesh(dp=4)
        assert len(list(ls.even_batches([batch(2), batch(1)], mesh))) == 2


def test_each_loop_is_a_pass_and_the_size_stays():
    batches = ls.even_batches([batch(3), batch(1)], ls.mesh(dp=-1))
    again = [[weights.tolist() for _, weights in batches] for _ in range(2)]
    assert again[0] == again[1] == [[1, 1, 1], [1, 0, 0]]


def test_one_batch_is_read_ahead():
    read = []

    def loader():
        for number in range(4):
            read.append(number)
            yield batch(2)

    seen = [(step, len(read)) for step, _ in enumerate(ls.even_batches(loader()))]
    assert seen == [(0, 2), (1, 3), (2, 4), (3, 4)]


def test_a_rank_without_data_gets_zeros_that_weigh_nothing():
    made, weights = declared(3).empty()
    assert made["x"].tolist() == [[0, 0]] * 3 and made["x"].dtype == torch.float32
    assert weights.tolist() == [0, 0, 0]
    assert made["n"] == torch.tensor(3)


def test_ranks_agree_on_the_largest_first_batch():
    found = agreed([declared(2), None, declared(3)])
    assert found is not None and found.size == 3
    assert agreed([None, None]) is None


def test_ranks_with_other_batches_are_named():
    with pytest.raises(UsageError) as caught:
        agreed([None, declared(2), declared(2, width=5)])
    assert str(caught.value) == (
        "LS001: ls.even_batches: the batches of ranks 1 and 2 differ\n"
        "  got  batch['x'] on rank 2: float32['n', 5] on cpu\n"
        "  want batch['x'] on rank 1: float32['n', 2] on cpu\n"
        "  why  one program for all ranks takes batches of one form"
    )


@pytest.mark.parametrize(
    ("batches", "options", "text"),
    [
        ([batch(2), batch(3)], {}, "a batch of 3 samples\n  want at most 2"),
        ([batch(2), batch(2, 3)], {}, "a batch of another form than the first\n  got  batch['x']"),
        ([batch(2), [torch.ones(2)]], {}, "a batch of another form than the first\n  got  batch"),
        ([batch(2, y=torch.ones(3))], {}, "the tensors of a batch hold different numbers"),
        ([3], {}, "a batch without a tensor of samples\n  got  a int"),
        ([batch(2)], {"weights": lambda b: 1}, "gives no weight for each sample\n  got  a int"),
        ([batch(2)], {"weights": lambda b: torch.ones(3)}, "first dimension has the batch's 2"),
        ([batch(2)], {"size": 0}, "size=0"),
        (3, {}, "takes an iterable\n  got  a int"),
    ],
)
def test_what_cannot_be_made_even_is_said(batches, options, text):
    with pytest.raises(UsageError) as caught:
        even(batches, **options)
    assert text in str(caught.value)


def test_a_mesh_that_is_none_is_refused():
    with pytest.raises(UsageError, match="want a DeviceMesh"):
        ls.even_batches([batch(2)], {"dp": 2})


@pytest.mark.parametrize("shape", [(2,), (2, 3)])
def test_the_weighted_mean_is_that_of_what_counts(shape):
    ls.mesh(dp=-1)
    losses = torch.arange(6.0).view(2, 3).requires_grad_()
    weights = torch.zeros(shape)
    weights[0] = 1
    mean = ls.weighted_mean(losses, weights, "dp")
    mean.backward()
    assert mean.item() == 1
    assert torch.allclose(losses.grad, torch.tensor([[1 / 3] * 3, [0] * 3]))


def test_weights_that_do_not_fit_are_refused():
    ls.mesh(dp=-1)
    with pytest.raises(UsageError) as caught:
        ls.weighted_mean(torch.ones(6), torch.ones(2), "dp")
    assert "losses of shape [6], weights of shape [2]" in str(caught.value)
    with pytest.raises(UsageError, match="needs an axis"):
        ls.weighted_mean(torch.ones(2), torch.ones(2))
    with pytest.raises(UsageError, match="no mesh axis pp"):
        ls.weighted_mean(torch.ones(2), torch.ones(2), "pp")
    with pytest.raises(UsageError, match="the weights are no tensor\n  got  nothing"):
        ls.weighted_mean(torch.ones(2))
    with pytest.raises(UsageError, match="takes no keywords\n  got  dp='sum'") as caught:
        ls.weighted_mean(torch.ones(2), torch.ones(2), dp="sum")
    assert caught.value.fixes == ["ls.weighted_mean(losses, weights, 'dp')"]


def step(way: str):
    def step(model, x, weights):
        losses = model(x).square().mean(1)
        if way == "mean of means":
            loss = ls.loss((losses * weights).sum() / weights.sum(), dp="mean")
            loss.backward()
            ls.reduce_grads(model, dp="mean")
        else:
            loss = ls.weighted_mean(losses, weights, "dp")
            loss.backward()
            ls.reduce_grads(model, dp=way)
        return loss

    return step


def uneven(mesh):
    draw = torch.Generator().manual_seed(1)
    torch.manual_seed(0)
    whole = torch.randn(8, 4, generator=draw), torch.tensor([1.0, 1, 1, 1, 1, 1, 0, 0])
    parts = [t.chunk(mesh.size())[mesh.get_rank()].clone() for t in whole]
    return torch.nn.Linear(4, 3), *parts


@pytest.mark.parametrize(("way", "codes"), [("sum", []), ("mean", ["LS551"])])
def test_the_checker_takes_a_weighted_mean_and_names_a_wrong_reduction(way, codes):
    report = ls.check(step(way), uneven, mesh={"dp": 2}, data="dp", repair_s=0)
    assert [finding.code for finding in report.findings] == codes, str(report)


def test_the_checker_names_a_mean_of_means_over_unequal_counts():
    report = ls.check(step("mean of means"), uneven, mesh={"dp": 2}, data="dp", repair_s=0)
    (found,) = report.findings
    assert found.code == "LS540"
    assert found.source == 'loss = ls.loss((losses * weights).sum() / weights.sum(), dp="mean")'
