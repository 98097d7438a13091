"""`lockstep doctor`: what keeps this machine from building, loading or running steps."""

from __future__ import annotations

import json as json_text
from dataclasses import asdict


def doctor(json: bool = False, alone: bool = False) -> int:
    """Look at versions, compiler, instruction sets, store, keys, clock and a group of two ranks.

    Exit code 1 where something is wrong; what to do about it stands below it.

    Args:
        json: print one JSON list in place of lines.
        alone: start no second rank.
    """
    from lockstep.build.describe import printable
    from lockstep.report.doctor import examine

    found = []
    for one in examine(not alone):
        found.append(one)
        if not json:
            print(printable(f"{'ok  ' if one.ok else 'BAD '} {one.what:<17} {one.got}"), flush=True)
            if not one.ok:
                print(printable(f"     do                {one.remedy}"), flush=True)
    if json:
        print(json_text.dumps([asdict(one) for one in found], indent=2))
    return 0 if all(one.ok for one in found) else 1
