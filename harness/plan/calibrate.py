"""What a measured run says of the walls it met and how much of them it reached."""

from collections.abc import Sequence

from harness.errors import ConfigError, MeasurementError
from harness.models import ResolvedModel
from harness.roofline import Floor
from harness.specs.analysis import Analysis
from harness.specs.plan import Calibration, Scenario, Walls
from harness.specs.record import RunRecord
from harness.stats import median


def run_walls(record: RunRecord, model: ResolvedModel) -> tuple[Walls, Calibration]:
    """The run's own roof and peak, and its utilization of both; of a sweep the median of its values.

    Raises ConfigError for a run of another model or type and one without figures, MeasurementError for one whose
    figures can't be believed.
    """
    analyses = _believed(record)
    precision = analyses[0].precision
    if record.model != model.spec or precision != model.spec.dtype:
        raise ConfigError(
            f"run {record.run_id} is of {record.config.model} in {precision}, not of {model.name} in"
            f" {model.spec.dtype}",
            "plan the model and type that were measured",
        )
    roof = median([a.roof_read_bytes_per_s for a in analyses if a.roof_read_bytes_per_s is not None])
    over_batches = record.sweep is not None and record.sweep.over == "batch"
    of_memory = analyses[:1] if over_batches else analyses
    util = median([a.util_frac for a in of_memory if a.util_frac is not None])
    if roof is None or util is None:
        raise ConfigError(f"run {record.run_id} has no utilization", "measure again with more output tokens")
    peak = record.probe.peak_flop_per_s.get(model.spec.dtype) if record.probe else None
    walls = Walls(
        device=analyses[0].hardware,
        roof_read_bytes_per_s=roof,
        roof_source=f"measured in this run: {analyses[0].roof_source}",
        roof_unverified=False,
        peak_flop_per_s=peak,
        peak_source=None if peak is None else "measured in this run: a large matrix product",
        memory_bytes=record.device.memory_bytes if record.device else None,
        link_bytes_per_s=None,
        link_source=None,
    )
    return walls, Calibration(
        run_id=record.run_id,
        verdict=None if record.analysis is None else record.analysis.verdict,
        util_frac=util,
        decode_mfu_frac=analyses[-1].mfu_frac if record.sweep is not None and record.sweep.knee is not None else None,
        split=record.sweep.split if record.sweep else None,
        prefill_mfu_frac=median([a.prefill_mfu_frac for a in analyses if a.prefill_mfu_frac is not None]),
        ttft_fit=record.sweep.ttft_fit if record.sweep else None,
    )


def _believed(record: RunRecord) -> Sequence[Analysis]:
    """The figures of the run's workloads. Of a sweep those that are not invalid: their noise is the fits' to judge."""
    analyses = [point.analysis for point in record.sweep.points] if record.sweep else [record.analysis]
    found = [analysis for analysis in analyses if analysis is not None]
    if not found:
        raise ConfigError(
            f"run {record.run_id} is {record.status} and has no figures", "take a run that ended (harness runs list)"
        )
    believed = [analysis for analysis in found if analysis.verdict not in ("invalid", "no-roof")]
    if not believed:
        raise MeasurementError(
            f"run {record.run_id} is {found[0].verdict}: {found[0].reason}",
            f"take another run; for this one: {found[0].next_step}",
        )
    return believed


def predicted_step_s(floor: Floor, cache_s: float, run: Calibration) -> float:
    """A step that reaches as much of the memory wall as the run's steps did, and of the compute wall as its largest
    batch, else as its prompts.

    cache_s: the part of the memory floor that is the cache's, which the run's split, if it has one, tells apart.
    """
    memory_s = floor.memory_s / run.util_frac
    if run.split is not None:
        other_s = floor.memory_s - cache_s
        memory_s = cache_s / run.split.attention_util_frac + other_s / run.split.linear_util_frac
    return max(memory_s, (floor.compute_s or 0.0) / (run.decode_mfu_frac or run.prefill_mfu_frac or 1.0))


def predicted_prompt_s(floor: Floor, scenario: Scenario, run: Calibration) -> float | None:
    """A prompt as the run's fit has it, else one that reaches as much of both walls as the run's did; null where the
    run's prompts say nothing. A fit is of the whole model as it is."""
    as_measured = scenario.tensor_parallel == 1 and scenario.weight_bits is None
    if run.ttft_fit is not None and as_measured:
        n, fit = scenario.prompt_tokens, run.ttft_fit
        return fit.fixed_s + fit.per_token_s * n + fit.per_token_squared_s * n**2
    if floor.compute_s is None or run.prefill_mfu_frac is None:
        return None
    return max(floor.compute_s / run.prefill_mfu_frac, floor.memory_s / run.util_frac)
