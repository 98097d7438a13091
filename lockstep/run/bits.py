"""A tensor's bits in a few numbers, computed where it lies: two that differ are told apart."""

from __future__ import annotations

import torch

from lockstep.capture.layout import local_of

_CHUNK = {"cpu": 1 << 15}  # words that are looked at together: what stays in a core's cache
_CHUNK_ELSEWHERE = 1 << 22
_ODD = (-7046029254386353131, -4417276706812531889)  # any odd numbers with many bits set


def digest(tensor: torch.Tensor) -> str:
    """A digest of a tensor's dtype, shape and bits; no gradient is asked for.

    Equal bits give equal digests, on any device. That others give the same has a chance of about
    one in 2 ** 64: it is made for differences that come by accident, not on purpose.

    Example:
        >>> digest(torch.zeros(3)) == digest(torch.zeros(3)), digest(torch.tensor([0.0, 1.0, 0.0]))
        ... # doctest: +ELLIPSIS
        (True, 'torch.float32 [3] ...')
    """
    tensor = local_of(tensor)  # of a DTensor, this rank's part
    head = f"{tensor.dtype} {list(tensor.shape)}"
    if tensor.device.type == "meta" or tensor.numel() == 0:
        return head
    words = _words(tensor.detach())
    chunk = _CHUNK.get(tensor.device.type, _CHUNK_ELSEWHERE)
    places = torch.arange(min(chunk, len(words)), device=words.device) * _ODD[0]
    total = torch.zeros((), dtype=torch.int64, device=words.device)
    for part in words.split(chunk):
        mixed = (part ^ places[: len(part)]).mul_(_ODD[1])
        total = total * _ODD[1] + mixed.bitwise_xor_(mixed >> 29).sum()
    return f"{head} {int(total) & (1 << 64) - 1:016x}"


def _words(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor's bytes as whole numbers of 64 bits, filled up with zeros."""
    data = tensor.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
    missing = -len(data) % 8
    if missing:
        data = torch.cat([data, data.new_zeros(missing)])
    elif data.storage_offset() % 8:
        data = data.clone()
    return data.view(torch.int64)
