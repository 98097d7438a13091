"""Networks of pictures under data parallelism: timm's convolutions, diffusers' U-Net and DiT."""

from __future__ import annotations

from typing import Any

import timm
import torch
import torch.distributed as dist
from diffusers import DDPMScheduler, DiTTransformer2DModel, UNet2DModel
from timm.models.resnet import BasicBlock, ResNet
from torch import Tensor, nn

from clients.program import Program, copies, draws, replicated

BATCH, CLASSES = 2, 5


def images(pixels: int) -> Any:
    """What gives batches of pictures and their classes."""

    def batch(mesh: Any, call: int) -> tuple[Tensor, ...]:
        draw = draws(mesh, call)
        pictures = torch.randn(BATCH, 3, pixels, pixels, generator=draw)
        return pictures, torch.randint(CLASSES, (BATCH,), generator=draw)

    return batch


def noised(mesh: Any, call: int) -> tuple[Tensor, ...]:
    """Pictures, their noise and how much of it."""
    draw = draws(mesh, call)
    pictures, noise = torch.randn(2, BATCH, 3, 16, 16, generator=draw)
    return pictures, noise, torch.randint(1000, (BATCH,), generator=draw)


def scheduled(mesh: Any, call: int) -> tuple[Any, ...]:
    """The same, and the package's scheduler."""
    return *noised(mesh, call), SCHEDULE


def latents(mesh: Any, call: int) -> tuple[Tensor, ...]:
    """Latents, their noise, how much of it, and classes."""
    pictures, noise, times = noised(mesh, call)
    return pictures, noise, times, times % CLASSES


def resnet() -> nn.Module:
    """A ResNet of the package's blocks, narrow."""
    wide = dict(stem_width=8, channels=(8, 16, 16, 32))
    return ResNet(BasicBlock, (1, 1, 1, 1), num_classes=CLASSES, **wide)


def convnext() -> nn.Module:
    """A ConvNeXt by the package's name for it, narrow."""
    narrow: dict[str, Any] = dict(dims=(8, 16, 16, 32), depths=(1, 1, 1, 1))
    return timm.create_model("convnext_atto", num_classes=CLASSES, **narrow)


@replicated
def classify(model: nn.Module, pictures: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy of classes."""
    return nn.functional.cross_entropy(model(pictures), labels)


def classify_averaging(model: nn.Module, pictures: Tensor, labels: Tensor) -> Tensor:
    """The same; what batch norm has seen is averaged, so that all ranks keep one model."""
    loss = classify(model, pictures, labels)
    for buffer in model.buffers():
        if buffer.is_floating_point():
            dist.all_reduce(buffer, dist.ReduceOp.AVG)
    return loss


SCHEDULE = DDPMScheduler()


@replicated
def denoise(model: nn.Module, clean: Tensor, noise: Tensor, times: Tensor) -> Tensor:
    """The noise is to be told."""
    noisy = add_noise(clean, noise, times)
    return nn.functional.mse_loss(model(noisy, times).sample, noise)


def add_noise(clean: Tensor, noise: Tensor, times: Tensor) -> Tensor:
    """What the package's scheduler does, its table made in the step."""
    betas = torch.linspace(0.0001, 0.02, 1000)
    kept = (1.0 - betas).cumprod(0)[times].view(-1, 1, 1, 1)
    return kept.sqrt() * clean + (1 - kept).sqrt() * noise


@replicated
def denoise_by_global(model: nn.Module, clean: Tensor, noise: Tensor, times: Tensor) -> Tensor:
    """The same by the package's scheduler, which holds its table in a global."""
    noisy = SCHEDULE.add_noise(clean, noise, times)
    return nn.functional.mse_loss(model(noisy, times).sample, noise)


@replicated
def denoise_by_scheduler(
    model: nn.Module, clean: Tensor, noise: Tensor, times: Tensor, schedule: DDPMScheduler
) -> Tensor:
    """The same by a scheduler that is an argument."""
    noisy = schedule.add_noise(clean, noise, times)
    return nn.functional.mse_loss(model(noisy, times).sample, noise)


@replicated
def denoise_class(
    model: nn.Module, clean: Tensor, noise: Tensor, times: Tensor, labels: Tensor
) -> Tensor:
    """The noise is to be told, of a picture of a class."""
    told = model(add_noise(clean, noise, times), timestep=times, class_labels=labels).sample
    return nn.functional.mse_loss(told, noise)


def unet() -> nn.Module:
    """A small U-Net, with attention at its lower level."""
    return UNet2DModel(
        sample_size=16,
        block_out_channels=(16, 32),
        layers_per_block=1,
        norm_num_groups=8,
        attention_head_dim=8,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )


def dit() -> nn.Module:
    """A small diffusion transformer."""
    return DiTTransformer2DModel(
        num_attention_heads=2,
        attention_head_dim=16,
        in_channels=3,
        out_channels=3,
        num_layers=2,
        sample_size=16,
        patch_size=4,
        num_embeds_ada_norm=1000,
        norm_num_groups=1,
    )


UNET = copies(unet)
PROGRAMS = [
    Program("ResNet with batch norm", "timm", copies(resnet), images(32), classify_averaging),
    Program("ConvNeXt", "timm", copies(convnext), images(64), classify),
    Program("U-Net", "diffusers", UNET, noised, denoise),
    Program("U-Net, scheduler in a global", "diffusers", UNET, noised, denoise_by_global),
    Program("U-Net, scheduler as argument", "diffusers", UNET, scheduled, denoise_by_scheduler),
    Program("DiT", "diffusers", copies(dit), latents, denoise_class),
]
