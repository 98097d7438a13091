"""The packages that the programs come from, and how to install those that are missing."""

from __future__ import annotations

import importlib.util

NEEDED = {
    "accelerate": "accelerate",
    "diffusers": "diffusers",
    "megatron.core": "megatron-core",
    "peft": "peft",
    "timm": "timm",
    "torchtitan": "torchtitan",
    "transformers": "transformers",
    "trl": "trl",
}
INSTALL = "pip install -e '.[dev,clients]'"


def missing() -> list[str]:
    """The packages that are not installed."""
    return [package for module, package in NEEDED.items() if not _installed(module)]


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # what holds it is missing
        return False
