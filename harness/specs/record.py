"""record.json: what a run was, and the figures derived from its events."""

from typing import Literal

from pydantic import PositiveFloat

from harness.specs.analysis import Analysis, RequestFigures
from harness.specs.base import Frozen
from harness.specs.device import DeviceInfo
from harness.specs.engine import EngineReport
from harness.specs.environment import Environment
from harness.specs.model import ModelSpec
from harness.specs.probe import ProbeReport
from harness.specs.run import RunConfig
from harness.specs.step import DecodeTraffic
from harness.specs.sweep_report import SweepReport

SCHEMA_VERSION: Literal[2] = 2


class Failure(Frozen):
    """Why a run ended without a result."""

    what: str
    mend: str
    exit_code: int


Status = Literal["running", "done", "failed", "interrupted"]


class RunRecord(Frozen):
    """record.json."""

    schema_version: Literal[2] = SCHEMA_VERSION
    run_id: str
    created_utc: str
    kind: Literal["bench"] = "bench"
    status: Status
    """`running` in the file of a run whose process is gone shows as `interrupted`."""
    config: RunConfig
    environment: Environment
    model: ModelSpec
    device: DeviceInfo | None = None
    traffic: DecodeTraffic | None = None
    datasheet_bytes_per_s: PositiveFloat | None = None
    """Published bandwidth of the device, where its data sheet is known (`harness devices`)."""
    probe: ProbeReport | None = None
    engine: EngineReport | None = None
    requests: tuple[RequestFigures, ...] = ()
    analysis: Analysis | None = None
    """Of a run of one workload."""
    sweep: SweepReport | None = None
    """Of a run over several."""
    failure: Failure | None = None
