"""A procedure of one draw, as the tuners use `Job.once`."""

from __future__ import annotations

from typing import Any


def once(job: Any, draw: Any, facts: Any, work: Any) -> Any:
    """What `work` makes of one draw, or what it made of it before; facts is a mapping or None."""
    with job.once(facts) as opened:
        if opened.wants_a_draw:
            opened.begin(draw())
        drawn = opened.drawn()
        if drawn is not None:
            opened.end(work(drawn))
    return opened.outcome
