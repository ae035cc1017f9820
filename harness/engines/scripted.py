"""An engine without a model: step times and probe readings from a script whose truth is known.

It drives the whole pipeline in no time (its clock is virtual), so that tests and `benchmarks/verdict_truth.py` can ask
whether a run at a true utilization of 0.5, 0.8, 0.95 or 1.3, on a machine that drifts and jitters, gets its verdict.
Its records say `scripted` wherever a device or an engine is named.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

from harness.engines.base import CALLS_PER_TRIAL, Engine, Rig, side_by_side
from harness.errors import ConfigError
from harness.models import ResolvedModel
from harness.specs.device import DeviceInfo
from harness.specs.engine import EngineReport, Evidence, LaunchClass
from harness.specs.event import KernelReadEvent
from harness.specs.probe import PeakReading, ProbeReading, ProbeReport
from harness.specs.request import Chunk, Request
from harness.specs.run import RunConfig, ScriptedEngine
from harness.specs.step import DecodeTraffic
from harness.traffic import decode_traffic, prefill_flop

PASS_BYTES = 1 << 28
PASSES = 5
PREFILL_MFU_FRAC = 0.5


class ScriptedWorld:
    """A virtual machine: its clock, its bandwidth at each moment, and its noise."""

    def __init__(self, script: ScriptedEngine, horizon_s: float) -> None:
        self.script = script
        self.now_s = 0.0
        self._horizon_s = horizon_s
        self._random = random.Random(script.seed)

    def bandwidth(self) -> float:
        """Bytes per second at this moment: drifts in a straight line until the horizon, and swings around it."""
        script, progress = self.script, min(1.0, self.now_s / self._horizon_s)
        swing = script.bandwidth_wave_frac * math.sin(math.tau * self.now_s / script.bandwidth_wave_s)
        return script.bandwidth_bytes_per_s * (1 + script.bandwidth_drift_frac * progress) * (1 + swing)

    def read_s(self, num_bytes: int, frac: float) -> float:
        """Time passes while so many bytes are read at a fraction of the bandwidth."""
        time_s = num_bytes / (frac * self.bandwidth()) * self.noise(self.script.probe_noise_frac)
        self.now_s += time_s
        return time_s

    def noise(self, sigma_frac: float) -> float:
        """A factor around 1, lognormal."""
        return self._random.lognormvariate(0.0, sigma_frac) if sigma_frac else 1.0


class ScriptedProbe:
    """Reads the virtual machine's bandwidth, with noise."""

    def __init__(self, world: ScriptedWorld, peak_dtype: str) -> None:
        self._world, self._peak_dtype = world, peak_dtype

    def survey(self, working_set_bytes: int | None) -> ProbeReport:
        reading = self.read()
        return ProbeReport(
            method="scripted",
            variant=reading.variant,
            num_threads=1,
            buffer_bytes=PASS_BYTES,
            huge_pages=None,
            read_bytes_per_s=PASS_BYTES / sorted(reading.passes_s)[PASSES // 2],
            reading_buffer_bytes=PASS_BYTES,
            peak_flop_per_s={self._peak_dtype: self._world.script.peak_flop_per_s},
        )

    def read(self, reading_s: float | None = None) -> ProbeReading:
        """As many passes whatever reading_s is."""
        return ProbeReading(
            pass_bytes=PASS_BYTES, passes_s=tuple(self._pass_s() for _ in range(PASSES)), variant="scripted"
        )

    def read_peak(self, dtype: str) -> PeakReading:
        peak = self._world.script.peak_flop_per_s * self._world.noise(self._world.script.probe_noise_frac)
        return PeakReading(dtype=dtype, flop_per_s=peak)

    def _pass_s(self) -> float:
        return self._world.read_s(PASS_BYTES, self._world.script.probe_frac)

    def close(self) -> None:
        """Holds nothing."""


class ScriptedDecoder(Engine):
    """Yields token after token at scripted times."""

    can_pause: ClassVar[bool] = True
    can_skip_prompt: ClassVar[bool] = True

    def __init__(self, world: ScriptedWorld, model: ResolvedModel, traffic: DecodeTraffic) -> None:
        self._world, self._model, self._traffic = world, model, traffic

    def clock_s(self) -> float:
        return self._world.now_s

    def num_prompt_tokens(self, request: Request) -> int:
        """A text's words stand for its tokens."""
        return len(request.prompts_ids[0]) if request.prompts_ids is not None else len((request.prompt or "").split())

    def generate(self, request: Request) -> Iterator[Chunk]:
        script, world = self._world.script, self._world
        prompt = self.num_prompt_tokens(request)
        repeat_noise = world.noise(script.repeat_noise_frac)
        if not request.skip_prompt:
            flop = request.batch * prefill_flop(self._model.spec, prompt)
            world.now_s += flop / (PREFILL_MFU_FRAC * script.peak_flop_per_s)
        for index in range(min(request.max_output_tokens, script.stop_after or request.max_output_tokens)):
            if index or request.skip_prompt:
                noise = repeat_noise * world.noise(script.step_noise_frac)
                world.now_s += sum(self._step_parts_s(prompt + index, request.batch)) * noise
            tokens = (index % self._model.spec.vocab_size,) * request.batch
            yield Chunk(world.now_s, tokens, f"{index} " if request.prompt else "")

    def _step_parts_s(self, context: int, batch: int = 1) -> tuple[float, float, float]:
        """(linear path, attention path, gap) of one step by the script's truth; the linear path at its higher wall."""
        script, bandwidth = self._world.script, self._world.bandwidth()
        kv_bytes = batch * (self._traffic.cache_bytes(context) + self._traffic.kv_bytes_per_context_token)
        other_bytes = self._traffic.step_bytes(context, batch) - kv_bytes
        compute_s = self._traffic.step_flop(context, batch) / script.peak_flop_per_s
        linear_s = max(other_bytes / bandwidth, compute_s) / script.util_frac
        attention_s = kv_bytes / ((script.kv_util_frac or script.util_frac) * bandwidth)
        return linear_s, attention_s, script.gap_s

    def kernel_reads(self, read_probe: Callable[[], ProbeReading]) -> Iterator[KernelReadEvent]:
        """Kernels that read at the true bandwidth."""

        def read_calls() -> tuple[float, ...]:
            return tuple(self._world.read_s(PASS_BYTES, 1.0) for _ in range(CALLS_PER_TRIAL))

        for calls_s, reading in side_by_side(read_calls, read_probe):
            yield KernelReadEvent(kernel="scripted", read_bytes=PASS_BYTES, calls_s=calls_s, reading=reading)

    def explain(self, request: Request, num_steps: int) -> Evidence:
        """The script's truth in the words of an instrumented pass."""
        if not self._world.script.explains:
            return Evidence()
        context = self.num_prompt_tokens(request) + request.max_output_tokens // 2
        linear_s, attention_s, gap_s = self._step_parts_s(context)
        kv_bytes = self._traffic.cache_bytes(context) + self._traffic.kv_bytes_per_context_token
        weight_bytes = self._traffic.step_bytes(context) - kv_bytes
        return Evidence(
            num_steps=num_steps,
            step_s=linear_s + attention_s + gap_s,
            outside_kernels_s=gap_s,
            classes=(
                LaunchClass(name="linear", step_s=linear_s, read_bytes=weight_bytes),
                LaunchClass(name="attention", step_s=attention_s, read_bytes=kv_bytes),
            ),
        )

    def report(self) -> EngineReport:
        return EngineReport(kind="scripted", dtype=self._model.spec.dtype, notes=("scripted: no model ran",))

    def close(self) -> None:
        """Holds nothing."""


class ScriptedRig(Rig):
    """The virtual machine with its probe and its engine."""

    def __init__(self, config: RunConfig, model: ResolvedModel) -> None:
        if not isinstance(config.engine, ScriptedEngine):
            raise ConfigError(f"engine.kind is {config.engine.kind!r}", "the scripted rig takes `scripted`")
        self._model = model
        self._traffic = decode_traffic(model.spec, model.tensors, model.tensors_source)
        script, work = config.engine, config.workload
        step_s = self._traffic.step_bytes(0) / (script.util_frac * script.bandwidth_bytes_per_s) + script.gap_s
        self._world = ScriptedWorld(script, horizon_s=step_s * work.output_tokens * work.repeats)
        self.device = DeviceInfo(kind="scripted", name="scripted", last_level_cache_bytes=script.cache_bytes)

    def open_probe(self) -> ScriptedProbe:
        return ScriptedProbe(self._world, self._model.spec.dtype)

    def open_engine(self, log_dir: Path | None = None) -> ScriptedDecoder:
        return ScriptedDecoder(self._world, self._model, self._traffic)

    def close(self) -> None:
        """Holds nothing."""
