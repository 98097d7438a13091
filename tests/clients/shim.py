"""All that megatron-core needs to run without CUDA."""

import torch
from megatron.core import parallel_state


def start(ranks: int) -> None:
    """Make the package's process groups, over this many tensor-parallel ranks."""
    torch.cuda.current_device = lambda: "cpu"  # where its scratch tensors are made
    parallel_state.destroy_model_parallel()
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=ranks)
