"""What a table of winners holds, and which entry a problem gets."""

import pytest

from harness.specs.ab import AbRow, Confirmation
from harness.specs.device import DeviceInfo
from harness.specs.problem import AttentionProblem, DeltaProblem, LinearProblem
from harness.specs.selection import Problem, SelectionEntry, SelectionTable, entries_of

DEVICE = DeviceInfo(kind="cpu", name="a test's CPU", arch="x86_64")
LINEAR = LinearProblem(m=1, n=8, k=8, dtype="BF16")
ATTENTION = AttentionProblem(m=1, num_heads=4, num_kv_heads=2, head_dim=64, max_context=1000, dtype="BF16")
DELTA = DeltaProblem(
    m=1, num_key_heads=2, num_value_heads=4, key_head_dim=32, value_head_dim=32, conv_kernel=4, dtype="BF16"
)


def row(backend: str, call_s: float | None, outcome: str, ratio: tuple[float, float] | None = None) -> AbRow:
    confirmed = ratio and Confirmation(
        call_s=1e-3, baseline_call_s=2e-3, ratio_to_baseline=1.5, ratio_interval=ratio, num_pairs=8, call_gain_s=1e-3
    )
    return AbRow(
        role="o", shape="1x8x8", problem=LINEAR, calls_per_token=28, unfused_calls_per_token=28, backend=backend,
        status="ok" if call_s else "incorrect", contest_legal=True, call_s=call_s, outcome=outcome, confirmed=confirmed,
        ratio_to_baseline=2.0 if call_s else None, num_pairs=24,
    )  # fmt: skip


def chosen(*rows: AbRow) -> SelectionEntry:
    (entry,) = entries_of(rows, "a-run", "torch")
    return entry


def table(*problems: tuple[Problem, int | None, str]) -> SelectionTable:
    template = chosen(row("x", 1e-3, "winner"))
    entries = tuple(
        template.model_copy(update={"op": op_of(p), "problem": p, "context": context, "backend": name})
        for p, context, name in problems
    )
    empty = SelectionTable(model="m", dtype="BF16", device=DEVICE, versions={"torch": "2"}, entries=())
    return empty.merged(entries)


def op_of(problem: Problem) -> str:
    return {LinearProblem: "linear", AttentionProblem: "attention", DeltaProblem: "linear-attention"}[type(problem)]


def test_the_winner_is_kept_with_its_fresh_evidence() -> None:
    entry = chosen(row("torch", 2e-3, "baseline"), row("fast", 1e-3, "winner", (1.4, 1.6)), row("bad", None, "-"))
    assert (entry.backend, entry.evidence.outcome, entry.evidence.run_id) == ("fast", "winner", "a-run")
    assert entry.evidence.ratio_to_baseline == 1.5
    assert entry.evidence.ratio_interval == (1.4, 1.6)
    assert entry.evidence.num_pairs == 8


def test_who_did_not_win_again_leaves_the_place_to_the_baseline() -> None:
    assert chosen(row("torch", 2e-3, "baseline"), row("lucky", 1e-3, "winner", (0.9, 1.1))).backend == "torch"


def test_who_was_refused_when_it_was_measured_once_more_leaves_the_place_to_the_baseline_or_to_nobody() -> None:
    refused, third = row("worn", None, "-"), row("third", 1.5e-3, "slower")
    entry = chosen(refused, third, row("torch", 2e-3, "baseline"))
    assert (entry.backend, entry.evidence.outcome) == ("torch", "baseline")
    assert entries_of([refused, third], "a-run", "torch") == []


def test_who_alone_could_do_it_is_kept() -> None:
    entry = chosen(row("only", 1e-3, "-"), row("torch", None, "-"))
    assert (entry.backend, entry.evidence.outcome) == ("only", "-")


def test_of_those_that_share_the_place_the_smallest_median_is_kept_and_says_so() -> None:
    rows = [row(name, s, "no difference shown") for name, s in (("a", 1.1e-3), ("b", 1e-3), ("torch", 1.2e-3))]
    entry = chosen(*rows)
    assert (entry.backend, entry.evidence.outcome) == ("b", "no difference shown")


def test_where_nothing_was_timed_nothing_is_kept() -> None:
    assert entries_of([row("bad", None, "-")], "a-run", "torch") == []


def test_a_product_is_found_exactly() -> None:
    found = table((LINEAR, None, "a"), (LINEAR.model_copy(update={"m": 4}), None, "b"))
    for m, name in ((1, "a"), (4, "b")):
        entry = found.find("linear", LINEAR.model_copy(update={"m": m}))
        assert entry is not None and entry.backend == name
    for changed in ({"m": 2}, {"n": 9}, {"bias": True}, {"dtype": "F32"}):
        assert found.find("linear", LINEAR.model_copy(update=changed)) is None


def test_attention_is_found_by_heads_phase_and_the_nearest_context() -> None:
    def heads(**changes: object) -> AttentionProblem:
        return ATTENTION.model_copy(update=changes)

    found = table((heads(), 512, "short"), (heads(), 8192, "long"), (heads(m=512), 8192, "prompt"))
    for places, name in ((100, "short"), (2000, "short"), (2200, "long"), (10**6, "long")):
        entry = found.find("attention", heads(max_context=places))
        assert entry is not None and entry.backend == name, places
    prompt = found.find("attention", heads(m=64, max_context=600))
    assert prompt is not None and prompt.backend == "prompt", "a decode step is never a prompt's"
    assert found.find("attention", heads(head_dim=128)) is None


def test_the_delta_rule_is_found_by_heads_and_phase() -> None:
    found = table((DELTA, None, "step"), (DELTA.model_copy(update={"m": 64}), None, "chunk"))
    for m, name in ((1, "step"), (2, "chunk"), (64, "chunk"), (512, "chunk")):
        entry = found.find("linear-attention", DELTA.model_copy(update={"m": m}))
        assert entry is not None and entry.backend == name
    assert found.find("linear-attention", DELTA.model_copy(update={"conv_kernel": 3})) is None


def test_a_later_measurement_replaces_its_own_problem_alone() -> None:
    before = table((LINEAR, None, "a"), (ATTENTION, 512, "b"))
    after = before.merged([before.entries[0].model_copy(update={"backend": "c"})])
    assert [entry.backend for entry in after.entries] == ["c", "b"]
    assert after.is_whole


@pytest.mark.parametrize("change", [{"dtype": "F32"}, {"entries": ()}, {"versions": {"torch": "3"}}, {"model": "n"}])
def test_what_was_edited_is_not_whole(change: dict[str, object]) -> None:
    assert table((LINEAR, None, "a")).is_whole
    assert not table((LINEAR, None, "a")).model_copy(update=change).is_whole


def test_an_entry_poses_a_problem_of_its_operation() -> None:
    data = chosen(row("x", 1e-3, "winner")).model_dump()
    with pytest.raises(ValueError, match="the problem is not one of attention"):
        SelectionEntry.model_validate(data | {"op": "attention"})
