"""torch's global flags that decide which operators a step calls, or how they compute."""

from __future__ import annotations

from typing import Any

import torch


def global_flags() -> dict[str, Any]:
    """Return "flag <name>" -> JSON value, for the fingerprint; equal on ranks that fit together.

    Example:
        >>> global_flags()["flag default dtype"]
        'torch.float32'
    """
    backends = torch.backends
    cuda, einsum = backends.cuda, backends.opt_einsum
    attention = {
        "flash": cuda.flash_sdp_enabled(),
        "memory-efficient": cuda.mem_efficient_sdp_enabled(),
        "math": cuda.math_sdp_enabled(),
        "cudnn": cuda.cudnn_sdp_enabled(),
    }
    precisions = {
        "cuda matmul": cuda.matmul.fp32_precision,
        "cudnn conv": backends.cudnn.conv.fp32_precision,
        "cudnn rnn": backends.cudnn.rnn.fp32_precision,
        "mkldnn matmul": backends.mkldnn.matmul.fp32_precision,
        "mkldnn conv": backends.mkldnn.conv.fp32_precision,
    }
    return {
        "flag deterministic": torch.are_deterministic_algorithms_enabled(),
        "flag matmul precision": _matmul_precision(),
        "flag default dtype": str(torch.get_default_dtype()),
        "flag mkldnn": backends.mkldnn.enabled,
        "flag cudnn": _on(backends.cudnn, "enabled", "deterministic", "benchmark"),
        "flag attention kernels": [name for name, on in attention.items() if on],
        "flag attention fast path": backends.mha.get_fastpath_enabled(),
        "flag default device": torch.get_default_device().type,
        "flag filled memory": torch.utils.deterministic.fill_uninitialized_memory,  # type: ignore
        "flag einsum order": str(einsum.strategy) if einsum.enabled else "off",
        "flag fp32 precision": precisions,
        "flag half sums": [
            cuda.matmul.allow_fp16_reduced_precision_reduction,
            cuda.matmul.allow_bf16_reduced_precision_reduction,
            cuda.fp16_bf16_reduction_math_sdp_allowed(),
        ],
    }


def _matmul_precision() -> str:
    """torch's own word; it has none where single back ends were told."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return "by back end"


def _on(owner: Any, *names: str) -> list[str]:
    return [name for name in names if getattr(owner, name)]
