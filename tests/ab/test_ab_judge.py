"""From samples to outcomes: scripted samples with a known truth."""

import random

import pytest

from harness.ab.interleave import turning_order
from harness.ab.judge import confirmation, is_settled, judge_shape
from harness.ab.shapes import Calls, attention_cases, delta_cases, linear_cases
from harness.models import resolve_model
from harness.specs.ab import AbRow
from harness.specs.problem import LinearProblem


def row(backend: str, status: str = "ok") -> AbRow:
    return AbRow.model_validate(
        {
            "role": "o", "shape": "1x8x8", "problem": LinearProblem(m=1, n=8, k=8, dtype="BF16"), "calls_per_token": 28,
            "unfused_calls_per_token": 28, "backend": backend, "status": status, "contest_legal": True,
            "read_bytes": 1000,
        }
    )  # fmt: skip


def samples(call_s: float, noise: float, seed: int, blocks: int = 16) -> list[float]:
    draw = random.Random(seed)
    return [call_s * draw.lognormvariate(0, noise) for _ in range(blocks)]


def outcomes(noise: float, **truth_s: float) -> dict[str, AbRow]:
    call_s = {name: samples(time_s, noise, seed) for seed, (name, time_s) in enumerate(truth_s.items())}
    rows = judge_shape([row(name) for name in truth_s], call_s, [1e6] * 17, baseline="torch", precision=0.03)
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
    assert fast.bytes_per_s == pytest.approx(1e6, rel=0.03)
    assert fast.probe_frac == pytest.approx(1.0, rel=0.03)
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
    judged = {found.backend: found for found in judge_shape(rows, call_s, [1e6] * 17, "torch", 0.03)}
    for name in ("wrong", "cannot"):
        assert (judged[name].outcome, judged[name].call_s, judged[name].ratio_to_baseline) == ("-", None, None)


def test_alone_there_is_nothing_to_win() -> None:
    (only,) = judge_shape([row("fast")], {"fast": samples(1e-3, 0.01, 1)}, [1e6] * 17, "torch", 0.03)
    assert (only.outcome, only.ratio_to_baseline) == ("-", None)
    assert only.call_s is not None


def test_a_block_is_held_against_the_readings_on_both_sides_of_it() -> None:
    (found,) = judge_shape([row("fast")], {"fast": [1e-3] * 2}, [1e6, 3e6, 3e6], "torch", 0.03)
    assert found.probe_frac == pytest.approx((1e6 / 2e6 + 1e6 / 3e6) / 2)


def test_without_a_probe_there_is_no_share_of_it() -> None:
    (found,) = judge_shape([row("fast")], {"fast": [1e-3] * 2}, [], "torch", 0.03)
    assert (found.bytes_per_s, found.probe_frac) == (pytest.approx(1e6), None)


def test_what_a_state_is_written_counts_as_moved_and_arithmetic_has_a_peak() -> None:
    of = row("fast").model_copy(update={"write_bytes": 500, "flop": 2000})
    (found,) = judge_shape([of], {"fast": [1e-3] * 2}, [1e6] * 3, "torch", 0.03, peak=4e6)
    assert (found.bytes_per_s, found.flop_per_s, found.peak_frac) == pytest.approx((1.5e6, 2e6, 0.5))


def test_rounds_are_settled_by_how_wide_intervals_are_and_not_by_where_they_lie() -> None:
    for truth_s in (1e-3, 2e-3):
        call_s = {"torch": samples(1e-3, 0.02, 1), "other": samples(truth_s, 0.02, 2)}
        assert is_settled(call_s, "torch", 0.03)
        assert not is_settled(call_s, "torch", 0.003)
    assert is_settled({"other": [1.0, 2.0]}, "torch", 0.001), "nothing to compare to"


def test_a_confirmation_is_of_its_own_samples() -> None:
    found = confirmation(samples(1e-3, 0.01, 1), samples(1.5e-3, 0.01, 2), 0.03)
    assert found.holds
    assert found.ratio_to_baseline == pytest.approx(1.5, rel=0.02)
    assert found.call_gain_s == pytest.approx(0.5e-3, rel=0.05)
    assert not confirmation(samples(1e-3, 0.1, 1), samples(1e-3, 0.1, 2), 0.03).holds


def test_shapes_of_qwen3_0_6b_count_the_calls_of_a_token() -> None:
    found = {case.label: case for case in linear_cases(resolve_model("qwen3-0.6b").spec, [1])}
    assert found["1x1024x1024"].role == "k/v"
    assert found["1x1024x1024"].calls == Calls(fused=0, unfused=56)
    assert found["1x3072x1024"].role == "gate/up"
    assert found["1x4096x1024"].role == "qkv"
    assert found["1x4096x1024"].calls == Calls(fused=28, unfused=0)
    assert found["1x1024x2048"].calls == Calls(fused=28, unfused=28)
    assert found["1x151936x1024"].calls == Calls(1, 1)


def test_the_calls_of_a_token_read_the_whole_model_fused_and_unfused() -> None:
    """Qwen3-0.6B's matrices by hand: 28 x (2048 + 2 x 1024 + 2048 + 3 x 3072) x 1024 and the head."""
    values = 28 * (2048 + 2 * 1024 + 2048 + 3 * 3072) * 1024 + 151936 * 1024
    found = linear_cases(resolve_model("qwen3-0.6b").spec, [1])
    for calls in ([case.calls.fused for case in found], [case.calls.unfused for case in found]):
        assert sum(n * case.problem.n * case.problem.k for n, case in zip(calls, found, strict=True)) == values


def test_what_vllm_joins_is_listed_and_counted_nowhere() -> None:
    """Of Qwen3.5's four projections it makes two products, of one input all the same."""
    spec = resolve_model("qwen3.5-1b-scaled").spec
    found = linear_cases(spec, [1])
    by_role = {case.role: case for case in found}
    whole, *two = (by_role[role] for role in ("qkv_z_b_a", "qkv_z", "ba"))
    assert whole.problem.n == sum(case.problem.n for case in two)
    assert [case.calls for case in two] == [Calls(0, 0)] * 2
    reads = [
        sum(calls * case.problem.n * case.problem.k for calls, case in zip(counts, found, strict=True))
        for counts in ([case.calls.fused for case in found], [case.calls.unfused for case in found])
    ]
    assert reads[0] == reads[1]


def test_a_shape_that_is_a_part_and_a_whole_counts_both() -> None:
    """SmolLM2's q and o are both 576 x 576: fused, only o is left."""
    found = {case.label: case for case in linear_cases(resolve_model("smollm2-135m-instruct").spec, [1])}
    assert found["1x576x576"].role == "q/o"
    assert found["1x576x576"].calls == Calls(fused=30, unfused=60)


def test_a_hybrid_has_attention_and_the_delta_rule_in_its_own_layers() -> None:
    spec = resolve_model("qwen3.5-1b-scaled").spec
    layers = [layer.mixer.kind for layer in spec.layers]
    (decode,) = attention_cases(spec, [512], [1])
    assert (decode.calls.fused, decode.context) == (layers.count("attention"), 512)
    (step,) = delta_cases(spec, [1])
    assert step.calls.fused == layers.count("gated-delta")


def test_a_ratio_says_whether_it_is_as_precise_as_was_wanted() -> None:
    call_s = {"torch": samples(1e-3, 0.001, 1), "quiet": samples(1e-3, 0.001, 2), "noisy": samples(1e-3, 0.5, 3)}
    rows = [*map(row, call_s), row("wrong", "incorrect")]
    found = {judged.backend: judged for judged in judge_shape(rows, call_s, [1e6] * 17, "torch", 0.03)}
    assert {name: judged.precision_reached for name, judged in found.items()} == {
        "torch": True, "quiet": True, "noisy": False, "wrong": None,
    }  # fmt: skip
    assert confirmation(call_s["quiet"], call_s["torch"], 0.03).precision_reached
    assert not confirmation(call_s["noisy"], call_s["torch"], 0.03).precision_reached


def test_a_shapes_rate_is_its_own_bytes_over_its_own_time() -> None:
    """A large shape's bytes over the mean time of all shapes were reported as a rate above the memory's."""
    small, large = row("fast"), row("fast").model_copy(update={"read_bytes": 9000})
    for of, call_s, rate in ((small, 2e-3, 0.5e6), (large, 9e-3, 1e6)):
        (found,) = judge_shape([of], {"fast": [call_s] * 4}, [1e6] * 5, "torch", 0.03)
        assert (found.bytes_per_s, found.probe_frac) == pytest.approx((rate, rate / 1e6))


def test_one_wild_sample_moves_no_median() -> None:
    calls = [1e-3] * 15 + [1.0]
    rates = [1e6] * 15 + [1e9, 1e9]
    (only,) = judge_shape([row("fast")], {"fast": calls}, rates, "torch", 0.03)
    assert (only.call_s, only.bytes_per_s, only.probe_frac) == pytest.approx((1e-3, 1e6, 1.0))
