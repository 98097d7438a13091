"""All that megatron-core needs to run without CUDA."""

import torch
from megatron.core import parallel_state
from megatron.core.tensor_parallel.random import initialize_rng_tracker


def start(ranks: int) -> None:
    """Make the package's process groups, over this many tensor-parallel ranks."""
    torch.cuda.current_device = lambda: "cpu"  # where its scratch tensors are made
    initialize_rng_tracker(inference_rng_tracker=True)  # its states of CUDA generators are none
    parallel_state.destroy_model_parallel()
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=ranks)
