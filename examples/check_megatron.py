"""megatron-core's own layers, checked as they come: `python examples/check_megatron.py`.

A column- and a row-parallel layer with sequence parallelism, on two simulated ranks and on the CPU;
it needs megatron-core. First as it should be, then with the norm's weight not marked for it.
"""

import torch
from megatron.core import parallel_state
from megatron.core.model_parallel_config import ModelParallelConfig
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear, mappings
from torch import Tensor, nn

import lockstep as ls

TOKENS, WIDE, FFN = 8, 16, 32


class Mlp(nn.Module):
    """Norm, column, relu, row: tokens are divided outside of the two layers."""

    def __init__(self, ranks: int) -> None:
        super().__init__()
        config = ModelParallelConfig(
            tensor_model_parallel_size=ranks,
            sequence_parallel=ranks > 1,
            use_cpu_initialization=True,
            gradient_accumulation_fusion=False,
        )
        words = dict(config=config, init_method=nn.init.xavier_normal_, bias=False)
        self.norm = nn.LayerNorm(WIDE)
        self.up = ColumnParallelLinear(WIDE, FFN, gather_output=False, **words)
        self.down = RowParallelLinear(
            FFN, WIDE, input_is_parallel=True, skip_bias_add=False, **words
        )

    def forward(self, x: Tensor) -> Tensor:
        x = mappings.scatter_to_sequence_parallel_region(x)
        h, _ = self.up(self.norm(x))
        h, _ = self.down(h.relu())
        return mappings.gather_from_sequence_parallel_region(
            x + h, tensor_parallel_output_grad=False
        )


def step(model: Mlp, x: Tensor, sums: bool) -> Tensor:
    loss = model(x).square().mean()
    loss.backward()
    if sums:  # what the package's own training loop does with parameters that are marked for it
        for weight in model.norm.parameters():
            torch.distributed.all_reduce(
                weight.grad, group=parallel_state.get_tensor_model_parallel_group()
            )
    return loss


def ask(sums: bool) -> bool:
    """Judge the step on two simulated ranks, and print what was found."""

    def make(mesh):
        torch.cuda.current_device = lambda: "cpu"  # where the package makes its scratch tensors
        parallel_state.destroy_model_parallel()
        parallel_state.initialize_model_parallel(tensor_model_parallel_size=mesh.size())
        torch.manual_seed(0)
        return Mlp(mesh.size()), torch.randn(TOKENS, 2, WIDE), sums and mesh.size() > 1

    report = ls.check(step, make, mesh={"tp": 2})
    print(report, end="\n\n")
    return report.ok


if __name__ == "__main__":
    print("1. The norm's gradients are summed over the ranks, as the package does.\n")
    assert ask(sums=True)
    print("2. The sum is forgotten: training would go on with wrong gradients.\n")
    assert not ask(sums=False)
