"""What an engine says of itself: what ran, and where a step's time goes."""

from collections.abc import Iterable
from typing import Literal

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from harness.specs.base import Frozen


class LaunchClass(Frozen):
    """Decode time of one kind of launch, per step."""

    name: str
    """linear, attention, linear-attention, elementwise, sampling."""
    step_s: NonNegativeFloat
    read_bytes: NonNegativeInt
    """Bytes of weights, cache and state that this kind reads in the step; 0 where it reads none."""
    write_bytes: NonNegativeInt = 0
    """Bytes of recurrent and convolution state that it writes."""


class Evidence(Frozen):
    """Where decode time goes, by an instrumented pass that is not part of the timed repeats; unknown is null."""

    num_steps: NonNegativeInt = 0
    """Steps the instrumented pass took; 0: the engine can't tell."""
    step_s: PositiveFloat | None = None
    """Mean step of the instrumented pass itself: instruments cost time, so shares are taken of this."""
    outside_kernels_s: NonNegativeFloat | None = None
    """Per step: launches, the host's loop, synchronization."""
    communication_s: NonNegativeFloat | None = None
    classes: tuple[LaunchClass, ...] = ()
    timeline_gaps_s: NonNegativeFloat | None = None
    """Idle time between kernels on the device's own clock: null until a trace is read."""


OUTSIDE_LAYERS = "model"
"""Stands for the layers of what is in none: the head."""


class OpChoice(Frozen):
    """Which backend ran an operation of one shape, in which layers."""

    op: str
    """linear, attention or linear-attention."""
    role: str
    """qkv, o, gate_up, down, lm_head, decode, prefill, ..."""
    shape: str
    backend: str
    parameters: tuple[tuple[str, int | str], ...] = ()
    """Of a backend with a tuning space, as the selection table has them."""
    note: str = ""
    """What the backend settled on by itself, such as a library's kernel."""
    contest_legal: bool
    layers: str
    """As ranges: 0-27, or OUTSIDE_LAYERS."""
    num_calls: PositiveInt = 1
    """In one step."""
    phase: Literal["decode", "prefill"]
    batch: PositiveInt = 1
    """Requests of the decode step that made the call: other numbers of rows may have other backends. 1 in prefill."""
    read_bytes: NonNegativeInt | None = None
    """What the backend says that one call reads."""
    selected: bool = False
    """By the selection table."""
    fallback_from: str | None = None
    """The backend that was asked for and can't do this problem, or `selection`: the table does not list it."""
    fallback_reason: str | None = None


class EngineReport(Frozen):
    """What ran."""

    kind: str
    dtype: str
    num_threads: PositiveInt | None = None
    ops: tuple[OpChoice, ...] = ()
    elementwise: str | None = None
    """Who does norms, rotation, activations and cache write: torch, cpu or triton. Embedding and argmax as well, but
    triton leaves those to torch; experts are chosen and their outputs summed by torch always."""
    graph: bool = False
    """Decode step captured as one graph."""
    counted_steps: NonNegativeInt | None = None
    """Decode steps that every layer counted, by itself and when it ran, on what was asked for: the fewest of all
    layers. Null: nothing counts, or nothing was asked for."""
    answered_steps: NonNegativeInt | None = None
    """Decode steps that the answers took while they counted, warm-up and trace included: one a token behind the first.
    A prompt whose last part has one row counts as one more in the layers."""
    resolved: dict[str, str | int | float | bool | None] = {}
    """What the engine itself says of its settings, by its own names."""
    load_s: NonNegativeFloat | None = None
    prepare_s: NonNegativeFloat | None = None
    """Backends' one-time preparation of the weights."""
    late_compilations: tuple[str, ...] = ()
    """What a server's log says of compiling after the server was ready: some request waited for it."""
    notes: tuple[str, ...] = ()


def layer_ranges(numbers: Iterable[int]) -> str:
    """0-27 for consecutive layers, commas between ranges; `model` for what stands outside the layers."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(OUTSIDE_LAYERS if a < 0 else str(a) if a == b else f"{a}-{b}" for a, b in parts)
