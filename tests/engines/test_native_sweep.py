"""Whole sweeps of the native engine on tiny models, and what its reads are. No speed, no verdict."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from native_engines import opened, tiny_config  # noqa: E402

from harness.backends.linear.torch_linear import TorchLinear  # noqa: E402
from harness.bench import run_bench  # noqa: E402
from harness.engines.base import CALLS_PER_TRIAL, KERNEL_READ_TRIALS  # noqa: E402
from harness.records import load_events  # noqa: E402
from harness.specs.event import ChunkEvent, PeakEvent, SendEvent  # noqa: E402
from harness.specs.probe import ProbeReading  # noqa: E402
from harness.specs.record import RunRecord  # noqa: E402
from harness.specs.request import Request  # noqa: E402
from harness.specs.run import RunConfig  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

LARGER: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 512, "moe_intermediate_size": 128}
"""Beside whose products norms and convolutions are less than a hundredth."""


def run(
    model: Path, runs: Path, sweep: dict[str, Any] | None = None, engine: dict[str, Any] | None = None
) -> tuple[Path, RunRecord]:
    config = {
        "name": "tiny", "model": str(model),
        "engine": {"kind": "native", "device": "cpu", "weights": "synthetic", "threads": 1, **(engine or {})},
        "workload": {"input_tokens": 8, "output_tokens": 6, "repeats": 2, "warmup_tokens": 2},
        "probe": {"buffer_bytes": 1 << 20, "survey_s": 0.1, "reading_s": 0.001, "every_s": None},
        "sweep": sweep,
    }  # fmt: skip
    folder, record, _ = run_bench(RunConfig.model_validate(config), runs, lambda line: None)
    return folder, record


def declared_bytes(record: RunRecord) -> int:
    """Weights of a step of one request by the backends' own account."""
    assert record.engine is not None
    linears = [op for op in record.engine.ops if op.op == "linear" and op.phase == "decode"]
    return sum((op.read_bytes or 0) * op.num_calls for op in linears)


@pytest.mark.parametrize("case", ["qwen3", "qwen3-moe", "qwen3.5"])
@pytest.mark.parametrize(("linear", "fuse"), [("torch", True), ("cpu-gemv", False)])
def test_the_backends_read_what_the_traffic_counts(tmp_path: Path, case: str, linear: str, fuse: bool) -> None:
    """Of a mixture the experts of one token, of a hybrid all of its projections."""
    _, record = run(tiny_config(tmp_path, case, **LARGER), tmp_path, engine={"linear": linear, "fuse": fuse})
    assert record.traffic is not None and record.analysis is not None
    assert declared_bytes(record) == pytest.approx(record.traffic.weight_read_bytes, rel=0.01)
    assert not [warning for warning in record.analysis.warnings if "declare" in warning]


@pytest.mark.parametrize("case", ["qwen3", "qwen3-moe", "qwen3.5"])
def test_a_sweep_over_batches_tells_each_its_own_backends(tmp_path: Path, case: str) -> None:
    """One request by our kernel, twelve by torch; neither is told of the other, and none reads more than it should."""
    model = tiny_config(tmp_path, case, **LARGER)
    folder, record = run(model, tmp_path, {"over": "batch", "values": (1, 2, 12)}, {"linear": "cpu-gemv"})
    assert record.sweep is not None
    points = {point.value: point.analysis for point in record.sweep.points}
    assert {value: a.batch for value, a in points.items()} == {1: 1, 2: 2, 12: 12}
    assert {value: a.kernels["linear.decode.lm_head"] for value, a in points.items()} == {
        1: "cpu-gemv", 2: "cpu-gemv", 12: "torch",
    }  # fmt: skip
    assert not [warning for a in points.values() for warning in a.warnings if "declare" in warning]
    cannot = {value: sum("cpu-gemv can't" in w and "(decode)" in w for w in a.warnings) for value, a in points.items()}
    assert cannot[1] == cannot[2] == 0 < cannot[12]
    chunks = Counter(
        (event.repeat, len(event.token_ids)) for event in load_events(folder) if isinstance(event, ChunkEvent)
    )
    assert Counter(size for _, size in chunks) == {1: 2, 2: 2, 12: 2}
    assert set(chunks.values()) == {6}


@pytest.mark.parametrize("case", ["qwen3", "qwen3.5"])
def test_a_sweep_over_contexts_computes_no_prompt(tmp_path: Path, case: str) -> None:
    model = tiny_config(tmp_path, case)
    folder, record = run(model, tmp_path, {"over": "context", "values": (8, 32, 64)})
    events = load_events(folder)
    assert {event.prompt_computed for event in events if isinstance(event, SendEvent)} == {False}
    assert not any(isinstance(event, PeakEvent) for event in events)
    assert record.sweep is not None and record.engine is not None
    assert [point.value for point in record.sweep.points] == [8, 32, 64]
    assert {point.analysis.ttft_s for point in record.sweep.points} == {None}
    assert {op.phase for op in record.engine.ops} == {"decode"}, "no launch over many tokens was ever made"


def test_a_sweep_over_prompts_times_products_beside_each(tmp_path: Path) -> None:
    folder, record = run(tiny_config(tmp_path, "qwen3"), tmp_path, {"over": "input_tokens", "values": (4, 8, 32)})
    events = load_events(folder)
    assert Counter((e.repeat, e.place) for e in events if isinstance(e, PeakEvent)) == {
        (repeat, place): 1 for repeat in range(6) for place in ("before", "after")
    }
    assert {event.reading.dtype for event in events if isinstance(event, PeakEvent)} == {"F32"}
    assert record.sweep is not None
    for point in record.sweep.points:
        assert point.analysis.ttft_s and point.analysis.prefill_verdict
    assert record.sweep.ttft_fit is not None, "six requests of three lengths over eight times"


def test_reads_of_a_mixture_are_of_distinct_experts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading the same expert twice would be a read of a cache, and raise the roof."""
    read: list[tuple[int, int]] = []
    bind = TorchLinear.bind

    def watched(self: Any, x: Any, packed: Any, out: Any) -> Any:
        launch = bind(self, x, packed, out)

        def launching() -> None:
            read.append((packed.weight.data_ptr(), packed.weight.nbytes))
            launch()

        return launching

    monkeypatch.setattr(TorchLinear, "bind", watched)
    reading = ProbeReading(pass_bytes=1, passes_s=(1.0,), variant="x")
    with opened(tiny_config(tmp_path, "qwen3-moe")) as engine:
        for warm in (False, True):
            if warm:
                list(engine.generate(Request(None, ((5, 90, 17, 3, 64),), 8, ignore_eos=True)))
            first = next(iter(engine.kernel_reads(lambda: reading)))
            read.clear()
            assert len(list(engine.kernel_reads(lambda: read.clear() or reading))) == KERNEL_READ_TRIALS
            # an untimed call and the timed ones follow a reading, or precede it
            calls = len(read) // (1 + CALLS_PER_TRIAL)
            last = read[-calls:]
            assert len({pointer for pointer, _ in last}) == len(last)
            assert sum(size for _, size in last) == first.read_bytes
