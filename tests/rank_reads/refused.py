"""Reads of the rank, the environment or the data that no one program holds: refused at the line.

Each names a part of its refusal; the marked line is the one that is told.
"""

from __future__ import annotations

import functools
import math
import os
import random
import socket
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

Step = Callable[[Tensor, Any], Any]
FORMS: list[tuple[Step, str]] = []


def refused(text: str) -> Callable[[Step], Step]:
    def add(step: Step) -> Step:
        FORMS.append((step, text))
        return step

    return add


BRANCH, NUMBER = "the step branches on its rank", "the step turns its rank into a Python number"
TEXT, KEY = "the step puts its rank into text", "the step looks something up by its rank"


@refused(BRANCH)
def branch(x: Tensor, mesh: Any) -> Tensor:
    if dist.get_rank() == 0:  # the line
        x = x * 2
    return x


@refused(BRANCH)
def last(x: Tensor, mesh: Any) -> Tensor:
    return x * 2 if dist.get_rank() == dist.get_world_size() - 1 else x  # the line


@refused(BRANCH)
def truth(x: Tensor, mesh: Any) -> Tensor:
    return x * 2 if not dist.get_rank() else x  # the line


@refused(BRANCH)
def one_of(x: Tensor, mesh: Any) -> Tensor:
    return x * 2 if dist.get_rank() in (0, 2) else x  # the line


@refused(BRANCH)
def through_a_variable(x: Tensor, mesh: Any) -> Tensor:
    is_first = mesh.get_local_rank("tp") == 0
    return x * 2 if is_first and x.dim() == 2 else x  # the line


@refused(BRANCH)
def maximum(x: Tensor, mesh: Any) -> Tensor:
    return x + max(dist.get_rank(), 1)  # the line


@refused(BRANCH)
def swallowed(x: Tensor, mesh: Any) -> Tensor:
    try:
        return x * 2 if dist.get_rank() == 1 else x  # the line
    except Exception:
        return x * 3


@refused(NUMBER)
def loop(x: Tensor, mesh: Any) -> Tensor:
    for _ in range(dist.get_rank()):  # the line
        x = x + 1
    return x


@refused(NUMBER)
def integer(x: Tensor, mesh: Any) -> Tensor:
    return x + int(dist.get_rank())  # the line


@refused(NUMBER)
def floating(x: Tensor, mesh: Any) -> Tensor:
    return x + float(dist.get_rank())  # the line


@refused(NUMBER)
def listed(x: Tensor, mesh: Any) -> Tensor:
    return x + [1.0, 2.0, 5.0, 9.0][dist.get_rank()]  # the line


@refused(NUMBER)
def listed_parts(x: Tensor, mesh: Any) -> Tensor:
    return list(x.split(4))[dist.get_rank()]  # the line


@refused(NUMBER)
def repeated(x: Tensor, mesh: Any) -> Tensor:
    return torch.cat([x] + [x] * dist.get_rank())  # the line


@refused(NUMBER)
def square_root(x: Tensor, mesh: Any) -> Tensor:
    return x + math.sqrt(dist.get_rank())  # the line


@refused(NUMBER)
def numpy_number(x: Tensor, mesh: Any) -> Tensor:
    return x + float(np.float32(dist.get_rank()))  # the line


@refused(NUMBER)
def numpy_index(x: Tensor, mesh: Any) -> Tensor:
    return x + float(np.arange(4)[dist.get_rank()])  # the line


@refused(NUMBER)
def dimension(x: Tensor, mesh: Any) -> Tensor:
    return x.sum(mesh.get_local_rank("tp"))  # the line


@refused(KEY)
def key(x: Tensor, mesh: Any) -> Tensor:
    return x + {0: 1.0, 1: 2.0, 2: 5.0, 3: 9.0}[dist.get_rank()]  # the line


@refused(KEY)
def member(x: Tensor, mesh: Any) -> Tensor:
    return x * 2 if dist.get_rank() in {0, 1} else x  # the line


@refused(TEXT)
def text(x: Tensor, mesh: Any) -> Tensor:
    return x + len(str(dist.get_rank() * 10))  # the line


@refused(TEXT)
def formatted_key(x: Tensor, mesh: Any) -> Tensor:
    return x + {"r0": 1.0}.get(f"r{dist.get_rank()}", 2.0)  # the line


@refused(TEXT)
def formatted(x: Tensor, mesh: Any) -> Tensor:
    return x + {"r00": 1.0}.get("r{:02d}".format(dist.get_rank()), 2.0)  # noqa: UP032  # the line


@refused(NUMBER)
def formatted_by_percent(x: Tensor, mesh: Any) -> Tensor:
    return x + {"r0": 1.0}.get("r%d" % dist.get_rank(), 2.0)  # noqa: UP031  # the line


@refused("seeds the random generator")
def seeded(x: Tensor, mesh: Any) -> Tensor:
    torch.manual_seed(1 + dist.get_rank())  # the line
    return x + torch.rand(4)


@refused(NUMBER)
def seeded_generator(x: Tensor, mesh: Any) -> Tensor:
    generator = torch.Generator()
    generator.manual_seed(1 + dist.get_rank())  # the line
    return x + torch.rand(4, generator=generator)


@refused(NUMBER)
def python_seed(x: Tensor, mesh: Any) -> Tensor:
    draw = random.Random(dist.get_rank())  # the line
    return x + draw.random()


@refused('the step reads its rank: os.environ["RANK"]')
def environment(x: Tensor, mesh: Any) -> Tensor:
    return x + int(os.environ["RANK"])  # the line


@refused('the step reads its rank: os.environ["LOCAL_RANK"]')
def environment_with_default(x: Tensor, mesh: Any) -> Tensor:
    return x + int(os.getenv("LOCAL_RANK", "0"))  # the line


@refused("the step reads its rank: dist.get_node_local_rank()")
def local_rank(x: Tensor, mesh: Any) -> Tensor:
    return x + dist.get_node_local_rank()  # the line


@refused("the step reads its process or machine: os.getpid()")
def process(x: Tensor, mesh: Any) -> Tensor:
    return x + os.getpid() % 4  # the line


@refused("the step reads its process or machine: socket.gethostname()")
def host(x: Tensor, mesh: Any) -> Tensor:
    return x + len(socket.gethostname())  # the line


@refused("the step reads the index of its device as a number")
def device_index(x: Tensor, mesh: Any) -> Tensor:
    return x + torch.accelerator.current_device_index()  # the line


@refused("the step looks at a tensor's value")
def data(x: Tensor, mesh: Any) -> Tensor:
    return x * 2 if x.sum() > 3 else x  # the line


@refused("the step looks at a tensor's value")
def data_as_number(x: Tensor, mesh: Any) -> Tensor:
    return x.narrow(0, 0, int(x[0, 0].item()) + 1)  # the line


@refused("the step changes Python state")
def kept(x: Tensor, mesh: Any) -> Tensor:
    global LAST
    LAST = dist.get_rank()  # type: ignore[assignment]  # the line
    return x * LAST


@functools.lru_cache  # the line
def in_a_cache() -> int:
    return dist.get_rank()


@refused("the step keeps its rank in a cache, that of in_a_cache")
def cached(x: Tensor, mesh: Any) -> Tensor:
    return x * in_a_cache()


@refused("the step keeps its rank in a cache, that of in_a_cache")
def cached_in_arithmetic(x: Tensor, mesh: Any) -> Tensor:
    return x * (in_a_cache() * 4 + 1)


@refused("a slice by the rank leaves its tensor")
def out_of_bounds(x: Tensor, mesh: Any) -> Tensor:
    return x.narrow(0, dist.get_rank() * 8, 8)  # the line


@refused("an index by the rank that may be negative")
def neighbour(x: Tensor, mesh: Any) -> Tensor:
    return x[dist.get_rank() - 1]  # the line


LAST = 0
# Where a refusal points that is not at the step's own line.
PLACES: dict[Any, Any] = dict.fromkeys((cached, cached_in_arithmetic), in_a_cache.__wrapped__)
