"""`harness ab linear`: every linear backend on each shape of a model, interleaved, checked, beside the probe.

Weights rotate through more memory than the last-level cache, one arena that every backend walks in turn: a weight is
read again only after all of the arena was, so no cache serves it, as none does in a decode step.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.ab.interleave import turning_order
from harness.ab.judge import judge_shape
from harness.ab.shapes import ModelShape, model_shapes
from harness.backends.base import Executor, Launch, LinearBackend
from harness.backends.check import exact_product, first_fault
from harness.backends.registry import linear_backends
from harness.cpu_pool import CpuPool, physical_cores
from harness.devices.cpu import available_memory_bytes, detect_cpu
from harness.environment import read_environment
from harness.errors import UnavailableError
from harness.exclusive import measuring
from harness.models import resolve_model
from harness.probe.base import Probe
from harness.probe.cpu import open_cpu_probe
from harness.records import RunFolder, end_recorded
from harness.roof import reading_rate
from harness.specs.ab import AbConfig, AbProbeEvent, AbRecord, AbRow, AbSampleEvent
from harness.specs.model import ModelSpec
from harness.specs.problem import LinearProblem
from harness.specs.run import ProbeConfig

if TYPE_CHECKING:
    from torch import Tensor

ROTATION_CACHES = 2
"""The arena is so many times the last-level cache, and at least MIN_ROTATION_BYTES."""
MIN_ROTATION_BYTES = 256 << 20
READING_S = 0.1
SETTLE_S = 0.003
"""Threads of the side before may still spin: OpenMP's do for about a millisecond."""
Say = Callable[[str], None]


@dataclass(frozen=True)
class Side:
    """One backend on one shape, bound to every place of the arena."""

    row: AbRow
    launches: tuple[Launch, ...]


def run_ab_linear(config: AbConfig, runs_parent: Path, tell: Say) -> tuple[Path, AbRecord]:
    """Measure, and leave a record. Raises ConfigError for unknown names."""
    model = resolve_model(config.model)
    if importlib.util.find_spec("torch") is None:
        raise UnavailableError("ab linear needs torch", "pip install torch, as `make install` does")
    for name in {*config.backends, config.baseline}:
        linear_backends.get(name)
    device = detect_cpu()
    pool = CpuPool(physical_cores()[: config.threads])
    executor = Executor(device, pool)
    with pool, RunFolder.create(runs_parent, device.arch or device.kind, "ab-linear") as folder:
        record = AbRecord(
            run_id=folder.run_id, created_utc=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            status="running", config=config, environment=read_environment(), device=device,
        )  # fmt: skip
        folder.write(record)

        def say(line: str) -> None:
            folder.log(line)
            tell(line)

        with end_recorded(lambda **fields: folder.write(record.model_copy(update=fields))), measuring(say):
            done = record.model_copy(update=_measure(config, model.spec, executor, folder, say))
        folder.write(done)
        return folder.path, done


def _measure(config: AbConfig, spec: ModelSpec, executor: Executor, folder: RunFolder, say: Say) -> dict[str, Any]:
    """The record's fields that measuring fills in."""
    shapes = model_shapes(spec)
    arena = _arena(shapes, spec.dtype, executor, config.seed)
    probe = open_cpu_probe(ProbeConfig(reading_s=READING_S, survey_s=3.0), executor.pool, executor.device)
    with contextlib.closing(probe):
        say("probe: looking for the fastest verified reader")
        report = probe.survey(None)
        comparison = _Comparison(config, arena, executor, probe, folder)
        rows: list[AbRow] = []
        for m, shape in itertools.product(config.batches, shapes):
            say(f"{'/'.join(shape.roles)}: {m} x {shape.n} x {shape.k}")
            rows += comparison.rows(shape, shape.problem(m, spec.dtype))
    return {"status": "done", "probe": report, "rotation_bytes": arena.nbytes, "rows": tuple(rows)}


def _arena(shapes: list[ModelShape], dtype: str, executor: Executor, seed: int) -> Tensor:
    """Random values, normal with deviation 1/32: products of a thousand of them stay near 1."""
    import torch

    from harness.engines.native.memory import empty
    from harness.engines.native.weights import TORCH_DTYPES

    cache = executor.device.last_level_cache_bytes or 0
    kind = TORCH_DTYPES[dtype]
    largest = max(shape.n * shape.k for shape in shapes) * kind.itemsize
    num_bytes = max(ROTATION_CACHES * cache, MIN_ROTATION_BYTES, 2 * largest)
    available = available_memory_bytes()
    if available is not None and num_bytes > available:
        raise UnavailableError(
            f"the weights rotate through {num_bytes:,} B, {available:,} B are free", "take a smaller model"
        )
    arena = empty((num_bytes // kind.itemsize,), kind, torch.device("cpu"))
    return arena.normal_(0, 1 / 32, generator=torch.Generator().manual_seed(seed))


class _Comparison:
    """What the shapes of a comparison share: weights, threads, probe and the folder that samples go to."""

    def __init__(
        self, config: AbConfig, arena: Tensor, executor: Executor, probe: Probe, folder: RunFolder
    ) -> None:  # fmt: skip
        self._config, self._arena, self._executor = config, arena, executor
        self._probe, self._folder = probe, folder

    def rows(self, shape: ModelShape, problem: LinearProblem) -> list[AbRow]:
        """Rows of one shape: each backend checked, the correct ones timed in turning order beside the probe."""
        config = self._config
        wanted = config.backends or tuple(linear_backends.all())
        sides = [self._side(name, shape, problem) for name in dict.fromkeys((*wanted, config.baseline))]
        timed = [side for side in sides if side.row.status == "ok"]
        call_s: dict[str, list[float]] = defaultdict(list)
        roofs: list[float] = []
        place = itertools.count()
        for block, side in turning_order(timed, config.blocks):
            if len(roofs) == block:
                roofs.append(self._read_roof(side.row.shape, block))
            wanted_calls = round(config.sample_s * roofs[-1] / (side.row.read_bytes or 1))
            num_calls = min(max(1, wanted_calls), len(side.launches))
            time_s = _sample(side.launches, num_calls, place, self._executor)
            name = side.row.backend
            call_s[name].append(time_s / num_calls)
            self._folder.append(
                AbSampleEvent(shape=side.row.shape, backend=name, block=block, num_calls=num_calls, time_s=time_s)
            )
        return judge_shape([side.row for side in sides], call_s, roofs, config.baseline)

    def _read_roof(self, shape: str, block: int) -> float:
        reading = self._probe.read()
        self._folder.append(AbProbeEvent(shape=shape, block=block, reading=reading))
        return reading_rate(reading)

    def _side(self, name: str, shape: ModelShape, problem: LinearProblem) -> Side:
        """A backend bound to the arena and checked on its first place; unsupported and incorrect ones are not bound."""
        cls = linear_backends.get(name)
        support = cls.supports(problem, self._executor.device)
        label = f"{problem.m}x{problem.n}x{problem.k}{'+bias' if problem.bias else ''}"
        fields: dict[str, Any] = {
            "role": "/".join(shape.roles), "shape": label, "problem": problem,
            "calls_per_token": shape.calls_per_token, "backend": name, "contest_legal": cls.contest_legal,
        }  # fmt: skip
        if not support.ok:
            return Side(AbRow(status="unsupported", why=support.why, **fields), ())
        backend: LinearBackend = cls(self._executor)
        x, weights, bias, out = self._operands(problem)
        packed = [backend.prepare(weight, bias, problem) for weight in weights]
        launches = tuple(backend.bind(x, one, out) for one in packed)
        launches[0]()
        fault = first_fault(out, exact_product(x, weights[0], bias))
        if fault:
            return Side(AbRow(status="incorrect", why=fault, **fields), ())
        return Side(AbRow(status="ok", read_bytes=backend.read_bytes(packed[0], problem.m), **fields), launches)

    def _operands(self, problem: LinearProblem) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
        """x, all weights of the arena, bias and a poisoned output: the same values for every backend."""
        import torch

        size, dtype = problem.n * problem.k, self._arena.dtype
        weights = self._arena[: self._arena.numel() // size * size].view(-1, problem.n, problem.k)
        random = torch.Generator().manual_seed(self._config.seed)
        x = torch.randn(problem.m, problem.k, generator=random).to(dtype)
        bias = torch.randn(problem.n, generator=random).to(dtype) if problem.bias else None
        return x, weights, bias, torch.full((problem.m, problem.n), float("nan"), dtype=dtype)


def _sample(launches: tuple[Launch, ...], num_calls: int, place: Iterator[int], executor: Executor) -> float:
    """Seconds of so many calls, after one that is not timed; nothing of the other sides spins beside them."""
    import torch

    if executor.pool is not None:
        executor.pool.park()
    time.sleep(SETTLE_S)
    chosen = [launches[next(place) % len(launches)] for _ in range(num_calls + 1)]
    with torch.inference_mode():
        chosen[0]()
        started = time.perf_counter()
        for launch in chosen[1:]:
            launch()
        return time.perf_counter() - started
