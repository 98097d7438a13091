"""A run as a trace for Perfetto (ui.perfetto.dev) and chrome://tracing."""

from __future__ import annotations

import json

from lockstep.report.page.phases import PHASES
from lockstep.report.page.run import Run


def as_trace(run: Run) -> str:
    """The run's timeline in the trace event format, times in microseconds; a rank is a thread."""
    events: list[dict[str, object]] = [
        {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": f"{run.label}: ranks"}}
    ]
    for rank, group, spans in run.rows:
        name = f"rank {rank}, {run.groups[group].name.partition(':')[0]}"
        events.append(
            {"ph": "M", "pid": 1, "tid": rank, "name": "thread_name", "args": {"name": name}}
        )
        for phase, begin, lasted, program, is_open in spans:
            args = {"open": bool(is_open)}
            events.append(
                {
                    "ph": "X",
                    "pid": 1,
                    "tid": rank,
                    "ts": begin * 1000,
                    "dur": lasted * 1000,
                    "name": PHASES[phase],
                    "cat": run.programs[program].name if program >= 0 else "",
                    "args": args,
                }
            )
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})
