"""What each class of kernels has to move and multiply in a decode step of a run, and its least time. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import prod

from harness.roofline import Floor, compute_floor_s, memory_floor_s
from harness.specs.analysis import PromptChunk
from harness.specs.engine import OUTSIDE_LAYERS, Evidence, LaunchClass, OpChoice
from harness.specs.kernel_classes import KernelClass
from harness.specs.profile import ClassRow
from harness.specs.step import DecodeTraffic
from harness.specs.tensor import dtype_bytes
from harness.specs.trace import OWN_LAUNCH


@dataclass(frozen=True)
class Moved:
    """Of one class, in a step."""

    read_bytes: int
    write_bytes: int = 0
    flop: int = 0

    @property
    def num_bytes(self) -> int:
        return self.read_bytes + self.write_bytes


@dataclass(frozen=True)
class StepWork:
    """A run's decode step, or a part of its prompt, by classes, and its walls; null where the run knows none."""

    moved: dict[KernelClass, Moved]
    roof_bytes_per_s: float | None
    peak_flop_per_s: float | None
    mean_context: int
    launches: dict[str, Moved] = field(default_factory=dict)
    """Of kernels whose names say which of the model's products they are."""

    def floor(self, kernel_class: KernelClass) -> Floor | None:
        """Both walls of a class; null without a roof, and for a class whose bytes nobody counts."""
        return self.floor_of(self.moved.get(kernel_class))

    def floor_of(self, moved: Moved | None) -> Floor | None:
        """Both walls of what is moved and multiplied; null without a roof, and where nobody counts."""
        if moved is None or self.roof_bytes_per_s is None:
            return None
        peak = self.peak_flop_per_s
        compute_s = None if peak is None else compute_floor_s(moved.flop, peak)
        return Floor(memory_floor_s(moved.num_bytes, self.roof_bytes_per_s), compute_s)

    @property
    def floor_s(self) -> float | None:
        """Of all classes together, each at its own wall."""
        floors = [self.floor(kernel_class) for kernel_class in self.moved]
        return sum(floor.floor_s for floor in floors if floor) if all(floors) else None


def moved_by_class(traffic: DecodeTraffic, contexts: Sequence[int], batch: int) -> dict[KernelClass, Moved]:
    """The mean over decode steps at these contexts; classes that read neither weights nor cache nor state are left out.

    Weights of norms count among the linears': they are a ten-thousandth of them.
    """
    num = len(contexts)
    cache_bytes = sum(traffic.cache_bytes(context) for context in contexts) // num
    all_flop = sum(traffic.step_flop(context, batch) for context in contexts) // num
    linear_flop, state_flop = batch * traffic.linear_flop, batch * traffic.state_flop
    found: dict[KernelClass, Moved] = {
        "linear": Moved(traffic.step_weight_bytes(batch), flop=linear_flop),
        "attention": Moved(batch * cache_bytes, flop=all_flop - linear_flop - state_flop),
        "linear-attention": Moved(batch * traffic.state_read_bytes, batch * traffic.state_write_bytes, state_flop),
        "kv-write": Moved(0, batch * traffic.kv_bytes_per_context_token),
    }
    return {kernel_class: moved for kernel_class, moved in found.items() if moved.num_bytes}


def moved_by_prompt(chunk: PromptChunk, traffic: DecodeTraffic) -> dict[KernelClass, Moved]:
    """Of a part of a prompt: all weights, the cache of all positions up to its end, and the state once. Who takes it in
    by several chunks moves more: a floor."""
    found: dict[KernelClass, Moved] = {
        "linear": Moved(chunk.weight_bytes, flop=chunk.linear_flop),
        "attention": Moved(traffic.cache_bytes(chunk.end), flop=chunk.attention_flop),
        "linear-attention": Moved(traffic.state_read_bytes, traffic.state_write_bytes, chunk.state_flop),
        "kv-write": Moved(0, (chunk.end - chunk.begin) * traffic.kv_bytes_per_context_token),
    }
    return {kernel_class: moved for kernel_class, moved in found.items() if moved.num_bytes}


def moved_by_launch(ops: Iterable[OpChoice], batch: int) -> dict[str, Moved]:
    """Products of a decode step of our engine by the marks that their launches stand under on a CPU: bytes as the
    backends say, all calls of a role together."""
    steps = (op for op in ops if op.phase == "decode" and op.batch == batch)
    return _by_mark((op, batch, op.read_bytes) for op in steps)


def moved_by_prompts_launch(ops: Iterable[OpChoice], num_tokens: int, dtype: str) -> dict[str, Moved]:
    """The same of a part of a prompt: each weight once, as it lies in a checkpoint of that type. The last position's
    head is a decode step's."""
    prompts = [op for op in ops if op.phase == "prefill"]
    heads = [op for op in ops if op.phase == "decode" and op.layers == OUTSIDE_LAYERS and op.batch == 1]
    return _by_mark(
        (op, num_rows, _weight_bytes(op, dtype))
        for part, num_rows in ((prompts, num_tokens), (heads, 1))
        for op in part
    )


def _by_mark(products: Iterable[tuple[OpChoice, int, int | None]]) -> dict[str, Moved]:
    """Of (operation, rows, bytes that a call reads); what is no product, or has no bytes or one shape, is left out."""
    found: dict[str, Moved] = {}
    for op, num_rows, read_bytes in products:
        if op.op == "linear" and read_bytes is not None:
            name = f"{OWN_LAUNCH}{op.op}::{op.role}"
            flop = op.num_calls * 2 * num_rows * prod(_n_and_k(op))
            before = found.get(name, Moved(0))
            found[name] = Moved(before.read_bytes + op.num_calls * read_bytes, flop=before.flop + flop)
    return found


def _n_and_k(op: OpChoice) -> tuple[int, ...]:
    """Of a shape as the engine writes it: 1x2048x1024, of a prompt mx2048x1024; nothing where rows differ (-)."""
    return tuple(int(size) for size in op.shape.split("x")[1:])


def _weight_bytes(op: OpChoice, dtype: str) -> int | None:
    return prod(_n_and_k(op)) * dtype_bytes(dtype) if op.op == "linear" and _n_and_k(op) else None


LAUNCH_CLASS: dict[KernelClass, str] = {
    "norm": "elementwise", "rope": "elementwise", "kv-write": "elementwise",
}  # fmt: skip
"""The instrumented pass of an engine tells fewer kinds apart, and causes are named by those."""


def evidence(rows: Sequence[ClassRow], work: StepWork | None, num_steps: int, wall_s: float, gaps_s: float) -> Evidence:
    """A trace in the words of an engine's instrumented pass. All figures per step."""
    times: dict[str, list[float]] = {}
    moved: dict[str, list[Moved]] = {}
    for row in rows:
        name = LAUNCH_CLASS.get(row.kernel_class, row.kernel_class)
        times.setdefault(name, []).append(row.time_s)
        if work is not None and row.kernel_class in work.moved:
            moved.setdefault(name, []).append(work.moved[row.kernel_class])
    communication = times.pop("communication", None)
    return Evidence(
        num_steps=num_steps,
        step_s=wall_s,
        outside_kernels_s=gaps_s,
        communication_s=None if communication is None else sum(communication),
        classes=tuple(
            LaunchClass(
                name=name, step_s=sum(parts), read_bytes=sum(m.read_bytes for m in moved.get(name, ())),
                write_bytes=sum(m.write_bytes for m in moved.get(name, ())),
            )
            for name, parts in times.items()
        ),
        timeline_gaps_s=gaps_s,
    )  # fmt: skip


def losses_by_floors(rows: Sequence[ClassRow], gaps_s: float) -> dict[str, float]:
    """What each part of a step loses against its own walls, memory's and arithmetic's, in the words of a verdict's
    cause; a part without a floor loses all of its time."""
    losses: dict[str, float] = {"outside-kernels": gaps_s}
    for row in rows:
        name = LAUNCH_CLASS.get(row.kernel_class, row.kernel_class)
        cause = name if name == "communication" else f"{name}-path"
        losses[cause] = losses.get(cause, 0.0) + row.time_s - (row.floor_s or 0.0)
    return losses
