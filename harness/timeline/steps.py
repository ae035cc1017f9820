"""Which part of a trace is decode steps, and how many, from the marks that the traced program left. Pure.

Known marks: `decode_step`, for programs of one's own (torch.profiler.record_function); vLLM's
`execute_context_0(0)_generation_1(1)`, whose first pair counts prompts; torch's `ProfilerStep#n`. A trace of
`prefill 0-512` alone, as `bench --profile` takes one, holds these positions of a prompt and no step.
"""

import math
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from harness.specs.trace import DECODE_MARK, PREFILL_MARK, Mark, Trace, Work
from harness.timeline.intervals import Interval

_VLLM = re.compile(r"execute_context_(\d+)\(\d+\)_generation_\d+\(\d+\)")
_PROFILER_STEP = re.compile(r"ProfilerStep#\d+")
_PREFILL = re.compile(rf"{PREFILL_MARK} (\d+)-(\d+)")


class Steps(NamedTuple):
    """A stretch of a trace, and the steps in it."""

    window: Interval
    """Work that begins in it counts."""
    num_steps: int | None
    """Null: nothing tells."""
    source: str | None
    """What told."""
    positions: tuple[int, int] | None = None
    """(begin, end) of a prompt, which the stretch takes in: then it is the one "step"."""


def prompt_part(trace: Trace) -> tuple[int, int] | None:
    """Which positions of a prompt the trace takes in, by its own mark; null for a trace of anything else."""
    found = [found for mark in trace.marks if (found := _PREFILL.fullmatch(mark.name))]
    return (int(found[0][1]), int(found[0][2])) if found else None


def find_steps(trace: Trace, work: Sequence[Work], num_steps: int | None = None) -> Steps:
    """Steps of the work of one device, which is not empty. num_steps is the user's word, and then all work counts.

    From the begin of the first step to that of the last there are whole steps, the pauses between them included: one
    less than there are marks. A single mark gives one step, to the end of the trace.
    """
    whole = min(w.start_s for w in work), max(w.end_s for w in work)
    if num_steps is not None:
        return Steps(whole, num_steps, "--steps")
    if (positions := prompt_part(trace)) is not None:
        begins = _begins(mark for mark in trace.marks if _PREFILL.fullmatch(mark.name))
        return Steps((max(whole[0], begins[0]), whole[1]), 1, PREFILL_MARK, positions)
    source, marks, after_prompt = _decode_marks(trace.marks)
    here = _begins(mark for mark in marks if mark.on_device == (work[0].kind != "op"))
    if not here:
        host = [mark for mark in marks if _has_launch(mark, trace)]
        known = bool(host) and not after_prompt
        return Steps(whole, len(host) if known else None, source if known else None)
    begins = [start_s for start_s in here if start_s < whole[1]]
    if len(begins) > 1:
        return Steps((begins[0], begins[-1]), len(begins) - 1, source)
    begin = begins[0] if begins and (after_prompt or source == DECODE_MARK) else whole[0]
    return Steps((begin, whole[1]), 1 if begins else None, source if begins else None)


def _decode_marks(marks: Sequence[Mark]) -> tuple[str | None, list[Mark], bool]:
    """(kind of marks, those of decode steps behind the last prompt, whether there was a prompt)."""
    ours = [mark for mark in marks if mark.name == DECODE_MARK]
    if ours:
        return DECODE_MARK, ours, False
    vllm = [(mark, int(found[1])) for mark in marks if (found := _VLLM.match(mark.name))]
    if vllm:
        prompts = [mark for mark, num_prompts in vllm if num_prompts]
        last = {on_device: max((m.start_s for m in prompts if m.on_device == on_device), default=-math.inf)
                for on_device in (True, False)}  # fmt: skip
        decode = [mark for mark, num_prompts in vllm if not num_prompts and mark.start_s > last[mark.on_device]]
        return "vLLM's marks", decode, bool(prompts)
    return "ProfilerStep", [mark for mark in marks if _PROFILER_STEP.match(mark.name)], False


def _begins(marks: Iterable[Mark]) -> list[float]:
    """When each step begins, on whichever stream it does first."""
    first: dict[int | float, float] = {}
    for mark in marks:
        key = mark.start_s if mark.number is None else mark.number
        first[key] = min(mark.start_s, first.get(key, mark.start_s))
    return sorted(set(first.values()))


def _has_launch(mark: Mark, trace: Trace) -> bool:
    """A last ProfilerStep often holds nothing: the profiler stopped in it."""
    end_s = mark.start_s + mark.duration_s
    return not mark.on_device and any(c.kind == "launch" and mark.start_s <= c.start_s < end_s for c in trace.calls)
