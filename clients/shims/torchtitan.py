"""All that torchtitan needs to make its meshes on the CPU: a torch built for CUDA says "cuda"."""

from torchtitan.distributed import parallel_dims


def start() -> None:
    """Let the package's meshes be of the CPU."""
    parallel_dims.device_type = "cpu"
