"""From samples to outcomes: scripted samples with a known truth."""

import random

import pytest

from harness.ab.interleave import turning_order
from harness.ab.judge import judge_shape
from harness.ab.shapes import model_shapes
from harness.models import resolve_model
from harness.specs.ab import AbRow
from harness.specs.problem import LinearProblem


def row(backend: str, status: str = "ok") -> AbRow:
    return AbRow.model_validate(
        {
            "role": "o", "shape": "1x8x8", "problem": LinearProblem(m=1, n=8, k=8, dtype="BF16"), "calls_per_token": 28,
            "backend": backend, "status": status, "contest_legal": True, "read_bytes": 1000,
        }
    )  # fmt: skip


def samples(call_s: float, noise: float, seed: int, blocks: int = 16) -> list[float]:
    draw = random.Random(seed)
    return [call_s * draw.lognormvariate(0, noise) for _ in range(blocks)]


def outcomes(noise: float, **truth_s: float) -> dict[str, AbRow]:
    call_s = {name: samples(time_s, noise, seed) for seed, (name, time_s) in enumerate(truth_s.items())}
    rows = judge_shape([row(name) for name in truth_s], call_s, [1e6] * 16, baseline="torch")
    return {judged.backend: judged for judged in rows}


def test_order_turns_so_that_a_straight_drift_cancels() -> None:
    order = list(turning_order("ABC", 4))
    assert [side for _, side in order] == list("ABCCBAABCCBA")
    places = {side: [i for i, (_, s) in enumerate(order) if s == side] for side in "ABC"}
    assert {sum(found) for found in places.values()} == {22}


def test_a_clear_winner() -> None:
    found = outcomes(0.02, torch=2e-3, fast=1e-3, middle=1.5e-3)
    assert {name: judged.outcome for name, judged in found.items()} == {
        "torch": "baseline", "fast": "winner", "middle": "slower",
    }  # fmt: skip
    fast = found["fast"]
    assert fast.ratio_to_baseline == pytest.approx(2.0, rel=0.03)
    assert fast.ratio_interval is not None
    assert fast.ratio_interval[0] < 2.0 < fast.ratio_interval[1]
    assert fast.read_bytes_per_s == pytest.approx(1e6, rel=0.03)
    assert fast.probe_frac == pytest.approx(1.0, rel=0.03)
    assert fast.token_gain_s == pytest.approx(28 * 1e-3, rel=0.05)
    assert fast.num_pairs == 16


def test_no_difference_is_shown_where_there_is_none() -> None:
    found = outcomes(0.1, torch=1e-3, same=1e-3)
    assert {judged.outcome for judged in found.values()} == {"no difference shown"}


def test_the_best_that_shares_its_place_is_no_winner() -> None:
    found = outcomes(0.05, torch=2e-3, a=1e-3, b=1.001e-3)
    assert found["torch"].outcome == "baseline"
    assert {found["a"].outcome, found["b"].outcome} == {"no difference shown"}


def test_what_was_not_timed_is_never_ranked() -> None:
    rows = [row("torch"), row("fast"), row("wrong", "incorrect"), row("cannot", "unsupported")]
    call_s = {"torch": samples(2e-3, 0.01, 1), "fast": samples(1e-3, 0.01, 2)}
    judged = {found.backend: found for found in judge_shape(rows, call_s, [1e6] * 16, "torch")}
    for name in ("wrong", "cannot"):
        assert (judged[name].outcome, judged[name].call_s, judged[name].ratio_to_baseline) == ("-", None, None)


def test_alone_there_is_nothing_to_win() -> None:
    (only,) = judge_shape([row("fast")], {"fast": samples(1e-3, 0.01, 1)}, [1e6] * 16, "torch")
    assert (only.outcome, only.ratio_to_baseline) == ("-", None)
    assert only.call_s is not None


def test_shapes_of_qwen3_0_6b_count_the_calls_of_a_token() -> None:
    shapes = {(shape.n, shape.k): shape for shape in model_shapes(resolve_model("qwen3-0.6b").spec)}
    assert shapes[1024, 1024].roles == ("k", "v")
    assert shapes[1024, 1024].calls_per_token == 56
    assert shapes[3072, 1024].roles == ("gate", "up")
    assert shapes[4096, 1024].roles == ("qkv",)
    assert shapes[151936, 1024].calls_per_token == 1


def test_a_shapes_rate_is_its_own_bytes_over_its_own_time() -> None:
    """A large shape's bytes over the mean time of all shapes were reported as a rate above the memory's."""
    small, large = row("fast"), row("fast").model_copy(update={"read_bytes": 9000})
    for of, call_s, rate in ((small, 2e-3, 0.5e6), (large, 9e-3, 1e6)):
        (found,) = judge_shape([of], {"fast": [call_s] * 4}, [1e6] * 4, "torch")
        assert (found.read_bytes_per_s, found.probe_frac) == pytest.approx((rate, rate / 1e6))


def test_one_wild_sample_moves_no_median() -> None:
    calls = [1e-3] * 15 + [1.0]
    rates = [1e6] * 15 + [1e9]
    (only,) = judge_shape([row("fast")], {"fast": calls}, rates, "torch")
    assert (only.call_s, only.read_bytes_per_s, only.probe_frac) == pytest.approx((1e-3, 1e6, 1.0))
