"""The plan once more with one thing changed: what helps, and by how much."""

from collections.abc import Iterator
from dataclasses import replace

from harness.plan.question import Question, step_figures
from harness.plan.ranks import can_share
from harness.specs.model import ModelSpec
from harness.specs.plan import Scenario, WhatIf
from harness.specs.tensor import DTYPE_BITS

FASTER_MEMORY = 1.5
_SHOWN = ("floor_s", "bound", "floor_tokens_per_s", "collectives_floor_s", "fits_in_memory", "predicted_tpot_s")


def what_ifs(question: Question, floor_s: float) -> tuple[WhatIf, ...]:
    """Each change that this model and scenario allow; floor_s is the plan's own."""
    spec, scenario = question.variants.model.spec, question.scenario
    rows = [
        _row(what, key, value, replace(question, scenario=scenario.model_copy(update={key: value})), floor_s)
        for what, key, value in _changes(spec, scenario)
    ]
    return (*rows, _faster_memory(question, floor_s))


def _changes(spec: ModelSpec, scenario: Scenario) -> Iterator[tuple[str, str, int]]:
    """(what, key, value) of the scenario."""
    if spec.quantization is None:
        narrower = [bits for bits in (8, 4) if bits < (scenario.weight_bits or DTYPE_BITS[spec.dtype])]
        yield from ((f"weights at {bits} bits", "weight_bits", bits) for bits in narrower)
    if scenario.kv_bits is None and DTYPE_BITS[spec.dtype] > 8:
        yield "cache at 8 bits", "kv_bits", 8
    yield from ((f"batch {batch}", "batch", batch) for batch in (8, 64) if batch != scenario.batch)
    contexts = (2 * scenario.context, scenario.context // 2)
    possible = [context for context in contexts if 1 <= context <= spec.max_position_embeddings]
    yield from ((f"context {context:,}", "context", context) for context in possible)
    shared = [ranks for ranks in (2, 8) if ranks != scenario.tensor_parallel and can_share(spec, ranks)]
    yield from ((f"shared by {ranks} devices", "tensor_parallel", ranks) for ranks in shared)


def _faster_memory(question: Question, floor_s: float) -> WhatIf:
    roof = FASTER_MEMORY * question.walls.roof_read_bytes_per_s
    walls = question.walls.model_copy(update={"roof_read_bytes_per_s": roof})
    what = f"memory {FASTER_MEMORY} x as fast"
    return _row(what, "roof_read_bytes_per_s", roof, replace(question, walls=walls), floor_s)


def _row(what: str, changed: str, value: int | float, question: Question, floor_s: float) -> WhatIf:
    figures = step_figures(question)
    shown = {key: figures[key] for key in _SHOWN}
    return WhatIf(what=what, changed=changed, value=value, floor_ratio=figures["floor_s"] / floor_s, **shown)
