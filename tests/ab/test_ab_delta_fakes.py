"""The delta rule's samples are checked, too: fakes that are right as long as they are checked, and not while timed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_ab import ARENA_BYTES

torch = pytest.importorskip("torch")

from operand_checks import PLACES, delta  # noqa: E402

from harness.ab.compare import run_ab  # noqa: E402
from harness.ab.operands.base import NUM_CHECKS  # noqa: E402
from harness.ab.operands.delta_spot import _cancels  # noqa: E402
from harness.ab.sampler import Sampler  # noqa: E402
from harness.backends.linear_attention.torch_recurrent import TorchRecurrent  # noqa: E402
from harness.backends.registry import linear_attention_backend, linear_attention_backends  # noqa: E402
from harness.engines.native.machine import open_executor  # noqa: E402
from harness.records import silent  # noqa: E402
from harness.specs.ab import AbConfig, AbRow  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

STATE_BYTES = 4 * 4 * 32 * 32
Step = Callable[[], None]


def keeps_its_output(step: Step, state: Any, out: Any, kept: dict[str, Any]) -> None:
    """And goes on with the states."""
    step()
    out.copy_(kept["out"])


def writes_nothing(step: Step, state: Any, out: Any, kept: dict[str, Any]) -> None:
    pass


def leaves_the_state(step: Step, state: Any, out: Any, kept: dict[str, Any]) -> None:
    before = state.recurrent.clone()
    step()
    state.recurrent.copy_(before)


def leaves_the_convolution(step: Step, state: Any, out: Any, kept: dict[str, Any]) -> None:
    before = state.conv.clone()
    step()
    state.conv.copy_(before)


def steps_one_head(step: Step, state: Any, out: Any, kept: dict[str, Any]) -> None:
    before = state.recurrent.clone()
    step()
    state.recurrent[1:].copy_(before[1:])


def steps_twice(step: Step, state: Any, out: Any, kept: dict[str, Any]) -> None:
    step()
    step()


def leaves_nan(step: Step, state: Any, out: Any, kept: dict[str, Any]) -> None:
    """To whoever comes after it."""
    step()
    state.recurrent.fill_(float("nan"))
    state.conv.fill_(float("nan"))


FAKES = [
    (keeps_its_output, "output of head"), (writes_nothing, "state of head"), (leaves_the_state, "state of head"),
    (leaves_the_convolution, "convolution state of head"), (steps_one_head, "state of head"),
    (steps_twice, "state of head"), (leaves_nan, "state of head"),
]  # fmt: skip


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """Registers a fake that is right until it is timed, as torch is."""
    linear_attention_backends.all()  # so that ours are there before
    monkeypatch.setattr(linear_attention_backends, "_backends", dict(linear_attention_backends._backends))

    def add(deceive: Any) -> None:
        class Fake(TorchRecurrent):
            """Planted."""

            def __init__(self, executor: Any) -> None:
                self.calls, self.kept = 0, {}

            def bind(self, inputs: Any, weights: Any, state: Any, out: Any, problem: Any) -> Any:
                step = super().bind(inputs, weights, state, out, problem)

                def launch() -> None:
                    self.calls += 1
                    if self.calls > ARENA_BYTES // STATE_BYTES + NUM_CHECKS:  # every place once, and the checks
                        deceive(step, state, out, self.kept)
                    else:
                        step()
                        self.kept["out"] = out.clone()

                return launch

        linear_attention_backend("fake")(Fake)

    return add


def rows_of(hybrid: Path, runs: Path, *backends: str, chunks: tuple[int, ...] = (1,)) -> list[AbRow]:
    settings = {"op": "linear-attention", "model": str(hybrid), "backends": backends, "chunks": chunks, "threads": 1}
    rounds = {"min_blocks": 8, "max_blocks": 8, "sample_s": 1e-5}
    return list(run_ab(AbConfig.model_validate({**settings, **rounds}), runs, silent)[1].rows)


@pytest.mark.parametrize("chunk", [1, 5])
@pytest.mark.parametrize(("deceive", "what"), FAKES)
def test_one_that_is_right_until_it_is_timed(
    hybrid: Path, tmp_path: Path, plant: Any, deceive: Any, what: str, chunk: int
) -> None:
    plant(deceive)
    rows = {row.backend: row for row in rows_of(hybrid, tmp_path / "runs", "fake", "cpu-recurrent", chunks=(chunk,))}
    fake = rows.pop("fake")
    assert (fake.status, fake.call_s) == ("incorrect", None)
    assert fake.why.startswith(f"while it was timed: {what}"), fake.why
    assert {row.status for row in rows.values()} == {"ok"} and len(rows) == 2, (
        "one fake must not take the others with it"
    )


def test_a_graph_that_is_replayed_calls_twice(hybrid: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: the states have gone on by two steps."""

    def seconds(self: Any, launches: Any, uses_pool: bool) -> float:
        for launch in launches[1:] * 2:
            launch()
        return 1e-3

    monkeypatch.setattr(Sampler, "seconds", seconds)
    runs = tmp_path / "runs"
    assert {row.status for row in rows_of(hybrid, runs, "cpu-recurrent", chunks=(1, 3))} == {"incorrect"}
    monkeypatch.setattr(Sampler, "calls_a_place", 2)
    assert {row.status for row in rows_of(hybrid, runs, "cpu-recurrent", chunks=(1, 3))} == {"ok"}


@pytest.mark.parametrize("name", ["torch-recurrent", "cpu-recurrent"])
@pytest.mark.parametrize(("m", "num_calls", "dtype"), [(1, 1, "BF16"), (1, 2, "BF16"), (7, 2, "BF16"), (1, 1, "F32")])
def test_who_is_right_is_right_in_every_spot(name: str, m: int, num_calls: int, dtype: str) -> None:
    """However often, and whatever all calls before left: outputs whose parts cancel are not held to be exact."""
    operands = delta(m, 2, 4, 64, dtype)
    backend, executor = linear_attention_backends.get(name), open_executor(torch.device("cpu"), 1)
    launches = operands.bind(backend, {}, executor).launches
    try:
        for number in range(100):
            operands.renew()
            operands.mark(number % PLACES, num_calls)
            for _ in range(num_calls):
                launches[number % PLACES]()
            assert operands.spot_fault(number % PLACES) == "", number
            assert operands.spot_fault(1 - number % PLACES), "what is right here is wrong there"
    finally:
        executor.close()


def test_an_output_whose_parts_cancel_may_err_by_more() -> None:
    """Of a state k v, asked by a q that k hardly answers: |k.q| of a hundredth of what two of 64 values have."""
    k, v = torch.randn(64, 1).double(), torch.ones(1, 8).double()
    state = (k / k.norm() @ v).numpy()
    for answer in (1 / 8, 1 / 800):
        output = answer * 64**-0.5 * v[0].numpy()
        assert _cancels(output, state) == pytest.approx(max(1, 1 / 8 / answer), abs=1)
    assert _cancels(0 * output, state) == pytest.approx(1e6, rel=0.01) and _cancels(0 * output, 0 * state) == 1
