"""What is known of a run beside its events. Pure."""

from dataclasses import dataclass

from harness.specs.device import DeviceInfo
from harness.specs.engine import EngineReport
from harness.specs.model import ModelSpec
from harness.specs.probe import ProbeReport
from harness.specs.run import NativeEngine, RunConfig
from harness.specs.step import DecodeTraffic


@dataclass(frozen=True)
class RunFacts:
    """What is known of a run before its events are looked at."""

    run_id: str
    config: RunConfig
    model: ModelSpec
    device: DeviceInfo
    traffic: DecodeTraffic
    engine: EngineReport
    probe: ProbeReport | None
    datasheet_bytes_per_s: float | None = None

    @property
    def peak_flop_per_s(self) -> float | None:
        """Of a large matrix product of the engine's type."""
        return self.probe.peak_flop_per_s.get(self.engine.dtype) if self.probe else None

    @property
    def prefill_chunk(self) -> int | None:
        """Tokens of a prompt that the engine takes at once; null where it takes all, or does not say."""
        return self.config.engine.prefill_chunk if isinstance(self.config.engine, NativeEngine) else None
