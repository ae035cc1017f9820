"""A model in a scenario before its walls, and what a step of it comes to."""

from dataclasses import dataclass
from typing import Any

from harness.plan.calibrate import predicted_step_s
from harness.plan.floors import cache_floor_s, request_bytes, step_floor
from harness.plan.ranks import collectives_floor_s
from harness.plan.variants import Variants, Work
from harness.specs.plan import Calibration, Scenario, Walls


@dataclass(frozen=True)
class Question:
    """A model in a scenario, what it is held against, and what a run reached of that."""

    variants: Variants
    scenario: Scenario
    walls: Walls
    run: Calibration | None = None

    @property
    def rank(self) -> Work:
        return self.variants.rank(self.scenario)


def step_figures(question: Question) -> dict[str, Any]:
    """What a plan and a what-if say of a step alike."""
    rank, scenario, walls, run = question.rank, question.scenario, question.walls, question.run
    at = (rank, walls, scenario.context, scenario.batch)
    floor = step_floor(*at)
    kept = scenario.batch * request_bytes(rank.traffic, scenario.context)
    needed = rank.traffic.resident_weight_bytes + kept
    return {
        "floor_s": floor.floor_s,
        "bound": floor.bound,
        "memory_floor_s": floor.memory_s,
        "compute_floor_s": floor.compute_s,
        "floor_tokens_per_s": scenario.batch / floor.floor_s,
        "collectives_floor_s": collectives_floor_s(
            rank.spec, scenario.batch, scenario.tensor_parallel, walls.link_bytes_per_s
        ),
        "fits_in_memory": None if walls.memory_bytes is None else needed <= walls.memory_bytes,
        "predicted_tpot_s": None if run is None else predicted_step_s(floor, cache_floor_s(*at), run),
    }
