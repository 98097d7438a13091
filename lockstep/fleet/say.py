"""The one place that writes to a user's terminal."""

from __future__ import annotations

import sys


def say(rank: int, text: str) -> None:
    """Print a text to stderr, each line marked with the rank that says it, in one write.

    Args:
        rank: the speaker.
        text: one or more lines.
    """
    mark = f"[lockstep rank {rank}] "
    sys.stderr.write("".join(f"{mark}{line}\n" for line in text.splitlines()))
    sys.stderr.flush()


def waits(seconds: float, what: str) -> str:
    """Return "waits for it", or how long already.

    Example:
        >>> waits(0.2, "rank 0 to build"), waits(12.3, "rank 0 to build")
        ('waits for rank 0 to build', 'waits 12 s for rank 0 to build')
    """
    return f"waits {seconds:.0f} s for {what}" if seconds >= 1 else f"waits for {what}"


def store_text(at: str) -> str:
    """Return "the rendezvous store at node-0:29500"; without an address where it has none.

    Example:
        >>> store_text("10.0.0.1:29500"), store_text("")
        ('the rendezvous store at 10.0.0.1:29500', 'the rendezvous store')
    """
    return f"the rendezvous store at {at}" if at else "the rendezvous store"


def ranks_text(ranks: list[int] | tuple[int, ...], most: int = 8) -> str:
    """Return "rank 3" or "ranks 0, 2, 5 and 9 more".

    Example:
        >>> ranks_text([3]), ranks_text([0, 2]), ranks_text(list(range(12)))
        ('rank 3', 'ranks 0, 2', 'ranks 0, 1, 2, 3, 4, 5, 6, 7 and 4 more')
    """
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    more = f" and {len(ranks) - most} more" if len(ranks) > most else ""
    return f"ranks {', '.join(map(str, ranks[:most]))}{more}"
