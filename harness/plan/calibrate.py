"""What a measured run says of the walls it met and how much of them it reached."""

from harness.errors import ConfigError, MeasurementError
from harness.models import ResolvedModel
from harness.roofline import Floor
from harness.specs.analysis import Analysis
from harness.specs.plan import Calibration, Walls
from harness.specs.record import RunRecord


def run_walls(record: RunRecord, model: ResolvedModel) -> tuple[Walls, Calibration]:
    """The run's own roof and peak, and its utilization of both.

    Raises ConfigError for a run of another model or type and one without figures, MeasurementError for one whose
    figures can't be believed.
    """
    analysis = _believed(record)
    if record.model != model.spec or analysis.precision != model.spec.dtype:
        raise ConfigError(
            f"run {record.run_id} is of {record.config.model} in {analysis.precision}, not of {model.name} in"
            f" {model.spec.dtype}",
            "plan the model and type that were measured",
        )
    roof, util = analysis.roof_read_bytes_per_s, analysis.util_frac
    if roof is None or util is None:
        raise ConfigError(f"run {record.run_id} has no utilization", "measure again with more output tokens")
    peak = record.probe.peak_flop_per_s.get(model.spec.dtype) if record.probe else None
    walls = Walls(
        device=analysis.hardware,
        roof_read_bytes_per_s=roof,
        roof_source=f"measured in this run: {analysis.roof_source}",
        roof_unverified=False,
        peak_flop_per_s=peak,
        peak_source=None if peak is None else "measured in this run: a large matrix product",
        memory_bytes=record.device.memory_bytes if record.device else None,
        link_bytes_per_s=None,
        link_source=None,
    )
    return walls, Calibration(
        run_id=record.run_id,
        verdict=analysis.verdict,
        util_frac=util,
        prefill_mfu_frac=analysis.prefill_mfu_frac,
    )


def _believed(record: RunRecord) -> Analysis:
    if record.analysis is None:
        raise ConfigError(
            f"run {record.run_id} is {record.status} and has no figures", "take a run that ended (harness runs list)"
        )
    if record.analysis.verdict in ("invalid", "no-roof"):
        raise MeasurementError(
            f"run {record.run_id} is {record.analysis.verdict}: {record.analysis.reason}",
            f"take another run; for this one: {record.analysis.next_step}",
        )
    return record.analysis


def predicted_step_s(floor: Floor, run: Calibration) -> float:
    """A step that reaches as much of the memory wall as the run's steps did, and of the compute wall as its prompts.

    One utilization stands for the whole step here: linears and attention are not told apart.
    """
    return max(floor.memory_s / run.util_frac, (floor.compute_s or 0.0) / (run.prefill_mfu_frac or 1.0))


def predicted_prompt_s(floor: Floor, run: Calibration) -> float | None:
    """A prompt that reaches as much of both walls as the run did; null where the run's prompts have no MFU."""
    if floor.compute_s is None or run.prefill_mfu_frac is None:
        return None
    return max(floor.compute_s / run.prefill_mfu_frac, floor.memory_s / run.util_frac)
