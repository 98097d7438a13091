"""What an installed package is to be told so that its code can be captured: one row a place.

An obstacle that lies in a package's own file names a line that its user will not edit. Where the
package has another way of its own, a row here names it, and the obstacle says it first. To add one:
the package's file, some words of the line, and what to write.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Way:
    """One place and the way around it.

    Args:
        file: the start of the file's path below site-packages.
        words: part of the line there; "" for every line.
        way: what to write in the script.
    """

    file: str
    words: str
    way: str


EXPERTS = 'model.set_experts_implementation("batched_mm"), which reads no values'
SCHEDULER = "pass the scheduler as an argument of the step: its tables are inputs then"
ROPE = 'a rope_type whose table is fixed, as "linear" or "yarn": "dynamic" looks at the lengths'
PROBLEM = 'set config.problem_type before the first step, as "single_label_classification"'
WAYS = (
    Way("transformers/", "in expert_hit", EXPERTS),
    Way("transformers/integrations/moe.py", "grouped_mm", EXPERTS),
    Way("transformers/modeling_rope_utils.py", "seq_len", ROPE),
    Way("transformers/loss/", "problem_type", PROBLEM),
    Way("diffusers/schedulers/", "", SCHEDULER),
)


def ways(where: str | None, line: str) -> list[str]:
    """What to tell a package, for a place as "file:number" and the text of its line.

    Example:
        >>> ways("diffusers/schedulers/scheduling_ddpm.py:598", "x = self.alphas_cumprod")
        ['in diffusers: pass the scheduler as an argument of the step: its tables are inputs then']
    """
    file = where or ""
    found = [way for way in WAYS if file.startswith(way.file) and way.words in line]
    return [f"in {way.file.partition('/')[0]}: {way.way}" for way in found]
