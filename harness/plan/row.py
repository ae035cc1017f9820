"""The plan of a model on a device as one row."""

from collections.abc import Sequence
from typing import Any

from harness.batching import largest_batch_memory_bound
from harness.errors import ConfigError
from harness.models import ResolvedModel
from harness.plan.calibrate import predicted_prompt_s, run_walls
from harness.plan.floors import largest_batch_in_memory, prompt_floor
from harness.plan.question import Question, step_figures
from harness.plan.variants import Variants
from harness.plan.walls import device_walls
from harness.plan.what_ifs import what_ifs
from harness.roofline import ridge_flop_per_byte
from harness.specs.device import DeviceSpec
from harness.specs.model import ModelSpec
from harness.specs.plan import Plan, Scenario
from harness.specs.record import RunRecord


def plan_on_devices(model: ResolvedModel, scenario: Scenario, devices: Sequence[DeviceSpec]) -> list[Plan]:
    """One plan a device, in their order."""
    variants = Variants(model)
    walls = [device_walls(device, model.spec.dtype) for device in devices]
    return [make_plan(Question(variants, scenario, of_device)) for of_device in walls]


def plan_from_run(model: ResolvedModel, scenario: Scenario, record: RunRecord) -> Plan:
    """A plan for the machine of a run, and what the run lets one expect there (`calibrate.run_walls` refuses some)."""
    walls, run = run_walls(record, model)
    return make_plan(Question(Variants(model), scenario, walls, run))


def make_plan(question: Question) -> Plan:
    """Raises ConfigError past the model's positions, and where heads can't be shared out to so many ranks."""
    spec = question.variants.model.spec
    _check_positions(spec, question.scenario)
    step = step_figures(question)
    row = _identity(question) | step | _prompt(question) | _bytes(question) | _batches(question)
    return Plan.model_validate(row | {"what_ifs": what_ifs(question, step["floor_s"])})


def _check_positions(spec: ModelSpec, scenario: Scenario) -> None:
    limit = spec.max_position_embeddings
    for name, positions in (("context", scenario.context), ("a prompt of", scenario.prompt_tokens)):
        if positions > limit:
            raise ConfigError(f"{name} {positions} passes the model's {limit} positions", f"give at most {limit}")


def _identity(question: Question) -> dict[str, Any]:
    return {
        "model": question.variants.model.name,
        **question.scenario.model_dump(),
        "input_tokens": question.scenario.prompt_tokens,
        "precision": question.variants.model.spec.dtype,
        **question.walls.model_dump(exclude={"memory_bytes"}),
        "calibration": question.run,
    }


def _prompt(question: Question) -> dict[str, Any]:
    """Null where the peak is not known: a prompt is arithmetic, and the weights' reading says little of it."""
    floor, run = prompt_floor(question.rank, question.walls, question.scenario.prompt_tokens), question.run
    return {
        "ttft_floor_s": None if floor.compute_s is None else floor.floor_s,
        "ttft_bound": floor.bound,
        "predicted_ttft_s": None if run is None else predicted_prompt_s(floor, question.scenario, run),
    }


def _bytes(question: Question) -> dict[str, Any]:
    """The whole model's, as a run's analysis has them, and a rank's."""
    scenario, traffic = question.scenario, question.variants.whole(question.scenario).traffic
    rank, walls = question.rank.traffic, question.walls
    at = (scenario.context, scenario.batch)
    peak = walls.peak_flop_per_s
    return {
        **traffic.model_dump(include=_SAME_KEYS),
        "step_weight_bytes": traffic.step_weight_bytes(scenario.batch),
        "experts_assumption": traffic.experts_assumption,
        "step_bytes": traffic.step_bytes(*at),
        "step_flop": traffic.step_flop(*at),
        "kv_cache_bytes": scenario.batch * traffic.cache_bytes(scenario.context),
        **{f"rank_{key}": getattr(rank, key) for key in _RANK_KEYS},
        "rank_step_bytes": rank.step_bytes(*at),
        "step_flop_per_byte": rank.step_flop(*at) / rank.step_bytes(*at),
        "ridge_flop_per_byte": None if peak is None else ridge_flop_per_byte(peak, walls.roof_read_bytes_per_s),
    }


def _batches(question: Question) -> dict[str, Any]:
    context, walls, rank = question.scenario.context, question.walls, question.rank
    largest, reason = largest_batch_memory_bound(
        rank.traffic, context, walls.roof_read_bytes_per_s, walls.peak_flop_per_s
    )
    return {
        "largest_batch_memory_bound": largest,
        "largest_batch_memory_bound_reason": reason,
        "largest_batch_in_memory": largest_batch_in_memory(rank.traffic, context, walls.memory_bytes),
    }


_RANK_KEYS = ("weight_read_bytes", "kv_bytes_per_context_token", "resident_weight_bytes")
_SAME_KEYS = {
    "tensors_source", "weight_read_bytes", "embedding_row_bytes", "kv_bytes_per_context_token", "state_read_bytes",
    "state_write_bytes", "resident_weight_bytes",
}  # fmt: skip
