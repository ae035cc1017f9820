"""Decode steps of the gated delta rule on another's cache, without vLLM: what runs, is counted, and is left alone."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from harness.backends.base import DeltaWeights, Executor  # noqa: E402  # behind the skip
from harness.backends.linear_attention.torch_recurrent import TorchRecurrent  # noqa: E402
from harness.errors import UnavailableError  # noqa: E402
from harness.specs.device import DeviceInfo  # noqa: E402
from harness.specs.problem import DeltaProblem  # noqa: E402
from harness.specs.selection import Evidence, SelectionEntry, SelectionTable  # noqa: E402
from harness.vllm_plugin.counts import OpCounts  # noqa: E402
from harness.vllm_plugin.delta import Delta, Tokens  # noqa: E402
from harness.vllm_plugin.machine import Machine  # noqa: E402
from harness.vllm_plugin.session import Session  # noqa: E402
from harness.vllm_plugin.settings import Settings  # noqa: E402
from harness.vllm_plugin.shared import read_reports, switch  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

CPU = DeviceInfo(kind="cpu", name="a test's CPU")
STEP = DeltaProblem(
    m=1, num_key_heads=2, num_value_heads=4, key_head_dim=16, value_head_dim=32, conv_kernel=4, dtype="F32"
)
NAME, SEVEN, NUM_SLOTS = "model.layers.0.linear_attn", 7.0, 6
BACKENDS = ["cpu-recurrent", "torch-recurrent"]


def table(backend: str, problem: DeltaProblem = STEP) -> SelectionTable:
    entry = SelectionEntry(
        op="linear-attention", role="decode", problem=problem, backend=backend, contest_legal=True,
        evidence=Evidence(run_id="r", outcome="winner", call_s=1e-3, baseline="torch-recurrent"),
    )  # fmt: skip
    return SelectionTable(model="m", dtype="F32", device=CPU, versions={}, entries=(entry,)).sealed()


def opened(*tables: SelectionTable, **settings: Any) -> Session:
    files = tuple(Path(f"{place}.yaml") for place, _ in enumerate(tables))
    return Session(Settings(files, **settings), tables, Machine(Executor(CPU), OpCounts(settings.get("report"))))


def normal(*shape: int) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def layer(session: Session, unfit: str | None = None) -> Delta:
    weights = DeltaWeights(
        conv=normal(STEP.conv_channels, 4) * 0.5, a_log=normal(4), dt_bias=normal(4) + 1, norm=None, eps=1e-6
    )
    delta = Delta(NAME, STEP, weights, packed_by_vllm=False, unfit=unfit, kept_bytes=16)
    session.deltas.add(delta)
    return delta


def tokens(*slots: int, gap: int = 0) -> Tokens:
    """Of as many requests; b and a are halves of one product, and a slot has other data behind its state."""
    b, a = normal(len(slots), 8).chunk(2, dim=1)
    conv, recurrent = normal(NUM_SLOTS, 3, STEP.conv_channels + gap), normal(NUM_SLOTS, 5, 16, 32)
    qkv = normal(len(slots), STEP.conv_channels + 9)[:, : STEP.conv_channels]
    out = torch.full((len(slots), 4, 32), torch.nan)
    return Tokens(qkv, b, a, out, list(slots), conv[:, :, : STEP.conv_channels], recurrent[:, :4])


def run(session: Session, delta: Delta, step: Tokens) -> None:
    """vLLM's own path answers sevens."""
    session.deltas.run(delta, step, lambda: step.out.fill_(SEVEN))


def counted(session: Session) -> dict[tuple[int, int | None, str], int]:
    return {(row.variant, row.m, row.backend): row.num_calls for row in session.report().paths if row.num_calls}


def reasons(session: Session) -> set[str | None]:
    return {row.reason for row in session.report().paths}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("slots", [(2,), (4, 1, 5)], ids=["one", "three"])
def test_each_request_has_its_own_state(backend: str, slots: tuple[int, ...], kernel_reference: Any) -> None:
    session = opened(table(backend))
    delta, reference = layer(session), kernel_reference("gated_delta_rule")
    w = delta.weights
    weights = reference.Weights(w.conv.double().numpy(), w.a_log.numpy(), w.dt_bias.numpy(), None, w.eps)
    for _ in range(2):  # a launch is moved, and the one before it stays done
        step = tokens(*slots)
        expected = {}
        for request, slot in enumerate(slots):
            qkv, b, a = (rows[request : request + 1].double().numpy() for rows in (step.qkv, step.b, step.a))
            states = (part[slot].double().numpy() for part in (step.conv, step.recurrent))
            expected[slot] = reference.gated_delta(qkv, None, b, a, weights, *states, STEP.num_key_heads)
        untouched = [slot for slot in range(NUM_SLOTS) if slot not in slots]
        before = [part[untouched].clone() for part in (step.conv, step.recurrent)]
        run(session, delta, step)
        for request, slot in enumerate(slots):
            found = (step.out[request : request + 1], step.conv[slot], step.recurrent[slot])
            for tensor, exact in zip(found, expected[slot], strict=True):
                torch.testing.assert_close(tensor.double(), torch.from_numpy(exact), rtol=1e-4, atol=1e-5)
        for part, kept in zip((step.conv, step.recurrent), before, strict=True):
            assert torch.equal(part[untouched], kept)
    assert counted(session) == {(0, len(slots), backend): 2}
    (row,) = session.report().paths
    assert (row.op, row.role, row.shape) == ("linear-attention", "decode", "4/2 heads x 16 x 32")
    assert row.read_bytes == len(slots) * (4 * 4 * 16 * 32 + 4 * STEP.conv_channels * 7)


def test_a_step_with_a_prompt_is_vllms_own() -> None:
    session, asked = opened(table("cpu-recurrent")), []
    delta = layer(session)
    for step in (None, tokens(1), None):
        session.deltas.run(delta, step, lambda step=step: asked.append(step))
    assert asked == [None, None]
    assert counted(session) == {(0, None, "vllm"): 2, (0, 1, "cpu-recurrent"): 1}
    assert reasons(session) == {None}


def test_variants_are_switched_between_calls(tmp_path: Path) -> None:
    session = opened(table("cpu-recurrent"), table("torch-recurrent"), report=tmp_path)
    delta, step = layer(session), tokens(1)
    for variant, times in ((0, 1), (1, 2), (-1, 3), (0, 4)):
        switch(tmp_path, variant, 2)
        for _ in range(times):
            run(session, delta, step)
        assert bool((step.out == SEVEN).all()) is (variant == -1)
    assert counted(session) == {(0, 1, "cpu-recurrent"): 5, (1, 1, "torch-recurrent"): 2, (-1, 1, "vllm"): 3}
    (found,) = read_reports(tmp_path)
    assert found == session.report()
    assert found.kept_bytes == 16


def test_why_a_step_is_vllms_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the table lacks, what vLLM's state is not, and what a backend can't do."""
    other = STEP.model_copy(update={"conv_kernel": 3})
    for make, why in (
        (lambda: (opened(table("cpu-recurrent", other)), None), "the table does not list this problem"),
        (lambda: (opened(table("cpu-recurrent")), "vLLM keeps the states in bfloat16"), "the states in bfloat16"),
    ):
        session, unfit = make()
        step = tokens(3)
        run(session, layer(session, unfit), step)
        assert (step.out == SEVEN).all()
        assert counted(session) == {(0, 1, "vllm"): 1}
        assert why in str(*reasons(session))
    session = opened(table("cpu-recurrent"))
    run(session, layer(session), tokens(3, gap=8))
    assert reasons(session) == {"a request's state is not contiguous in vLLM's cache"}
    monkeypatch.setattr(TorchRecurrent, "norm_is_optional", False)
    session = opened(table("torch-recurrent"))
    run(session, layer(session), tokens(3))
    assert "torch-recurrent: its launch ends with the norm" in str(*reasons(session))


def test_only_what_a_table_lists_is_of_interest() -> None:
    session = opened(table("cpu-recurrent"))
    assert session.paths.lists("linear-attention", STEP)
    assert not session.paths.lists("linear-attention", STEP.model_copy(update={"num_key_heads": 4}))
    assert session.deltas.find(NAME) is None
    assert session.deltas.find(layer(session).name) is not None
    session.close()
    assert session.deltas.find(NAME) is None


def test_an_input_of_another_type_is_refused() -> None:
    session = opened(table("cpu-recurrent"))
    step = tokens(1)
    with pytest.raises(UnavailableError, match=r"linear_attn got torch.float64"):
        run(session, layer(session), replace(step, qkv=step.qkv.double()))


def test_a_table_of_the_rule_alone_is_taken_before_a_request_comes(tmp_path: Path) -> None:
    """vLLM calls its layers with the first one."""
    session = opened(table("torch-recurrent"), report=tmp_path)
    (found,) = read_reports(tmp_path)
    assert found.ops == ("linear-attention",) and not found.paths and found.notes
    layer(session)
    (found,) = read_reports(tmp_path)
    assert not found.notes
