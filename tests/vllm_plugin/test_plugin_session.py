"""Paths of a layer's calls, without vLLM: what runs at which number of rows, what is counted, what is refused."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from harness.backends.base import Executor, Support  # noqa: E402  # behind the skip
from harness.backends.registry import linear_backend, linear_backends  # noqa: E402
from harness.errors import ConfigError, UnavailableError  # noqa: E402
from harness.specs.device import DeviceInfo  # noqa: E402
from harness.specs.problem import LinearProblem  # noqa: E402
from harness.specs.selection import Evidence, SelectionEntry, SelectionTable  # noqa: E402
from harness.vllm_plugin.audit import tensor_hash  # noqa: E402
from harness.vllm_plugin.counts import CardCounts, Counts, OpCounts  # noqa: E402
from harness.vllm_plugin.linear import Linear  # noqa: E402
from harness.vllm_plugin.linears import SHARED  # noqa: E402
from harness.vllm_plugin.machine import Machine  # noqa: E402
from harness.vllm_plugin.report import counted_steps  # noqa: E402
from harness.vllm_plugin.session import Session  # noqa: E402
from harness.vllm_plugin.settings import Settings  # noqa: E402
from harness.vllm_plugin.shared import read_reports, switch  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

CPU = DeviceInfo(kind="cpu", name="a test's CPU")
N, K = 24, 64


def table(*rows: tuple[str, int], bias: bool = False) -> SelectionTable:
    """(backend, m) each."""
    entries = tuple(
        SelectionEntry(
            op="linear", role="o", problem=LinearProblem(m=m, n=N, k=K, dtype="F32", bias=bias), backend=backend,
            contest_legal=backend != "onednn",
            evidence=Evidence(run_id="r", outcome="winner", call_s=1e-3, baseline="torch"),
        )
        for backend, m in rows
    )  # fmt: skip
    return SelectionTable(model="m", dtype="F32", device=CPU, versions={}, entries=entries).sealed()


def opened(*tables: SelectionTable, **settings: Any) -> Session:
    files = tuple(Path(f"{place}.yaml") for place, _ in enumerate(tables))
    return Session(Settings(files, **settings), tables, Machine(Executor(CPU), OpCounts(settings.get("report"))))


def layer(session: Session, bias: bool = False, padding: int = 0) -> Linear:
    """One whose own path answers nothing but sevens, added."""
    weight, added = torch.randn(N + padding, K), torch.randn(N) if bias else None
    made = Linear(
        name="model.layers.0.o_proj", weight=weight, bias=added, n=N, packed_by_vllm=False, kept_bytes=0,
        stock=lambda x, bias: x.new_full((*x.shape[:-1], N + padding), 7.0),
        largest=session.linears.largest(N, K, "F32"), hashes={"weight": tensor_hash(weight)},
    )  # fmt: skip
    session.linears.add(made)
    return made


def counted(session: Session) -> dict[tuple[int, int | None, str], int]:
    return {(row.variant, row.m, row.backend): row.num_calls for row in session.report().paths if row.num_calls}


def exact(x: Any, linear: Linear) -> Any:
    product = x.double() @ linear.weight[:N].double().T
    return product if linear.bias is None else product + linear.bias


@pytest.mark.parametrize("bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize("backend", ["cpu-gemv", "torch", "onednn"])
def test_rows_that_are_listed_run_on_their_backend(backend: str, bias: bool) -> None:
    session = opened(table((backend, 1), (backend, 4), bias=bias))
    linear = layer(session, bias)
    results = []
    for shape in ((1, K), (4, K), (2, 2, K), (1, 4, K)):
        x = torch.randn(shape)
        results.append((session.linears.product(x, linear.weight, linear.bias), exact(x, linear)))
        assert results[-1][0].shape == (*shape[:-1], N)
    for out, expected in results:  # a result stays what it was when later calls have run
        assert torch.allclose(out.double(), expected, atol=1e-4)
    assert counted(session) == {(0, 1, backend): 1, (0, 4, backend): 3}
    x = torch.randn(K, 4).t()  # not contiguous
    assert torch.allclose(session.linears.product(x, linear.weight, linear.bias).double(), exact(x, linear), atol=1e-4)


@pytest.mark.parametrize("on_card", [False, True], ids=["cpu", "card"])
def test_a_backend_of_somebodys_that_has_what_the_readme_asks_alone(
    on_card: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No base class, and nothing that may be left out."""

    class Mine:
        contest_legal = True

        def __init__(self, executor: Any) -> None: ...

        @staticmethod
        def supports(problem: Any, device: Any) -> Support:
            return Support.yes()

        def prepare(self, weight: Any, bias: Any, problem: Any) -> Any:
            return weight

        def read_bytes(self, packed: Any, m: int) -> int:
            return int(packed.nbytes)

        def bind(self, x: Any, packed: Any, out: Any) -> Any:
            return lambda: torch.mm(x, packed.t(), out=out)

    linear_backends.all()
    monkeypatch.setattr(linear_backends, "_backends", dict(linear_backends._backends))
    linear_backend("mine")(Mine)  # type: ignore[type-var]
    counts: Counts = CardCounts(None, torch.device("cpu")) if on_card else OpCounts(None)
    tables = (table(("mine", 1)),)
    session = Session(Settings((Path("t.yaml"),)), tables, Machine(Executor(CPU), counts))
    linear, x = layer(session), torch.randn(1, K)
    assert torch.allclose(session.linears.product(x, linear.weight, None).double(), exact(x, linear), atol=1e-4)
    assert counted(session) == {(0, 1, "mine"): 1}


def test_other_rows_are_vllms_own_and_say_why() -> None:
    session = opened(table(("torch-mv", 1), ("torch-mv", 4)))
    linear = layer(session)
    for m in (1, 2, 2, 4, 5, 500):
        out = session.linears.product(torch.randn(m, K), linear.weight, None)
        assert bool((out == 7).all()) is (m > 1)
    assert counted(session) == {(0, 1, "torch-mv"): 1, (0, 2, "vllm"): 2, (0, 4, "vllm"): 1, (0, None, "vllm"): 2}
    reasons = {row.m: row.reason for row in session.report().paths}
    assert reasons[1] is None and reasons[None] is None
    assert reasons[2] == "the table does not list this problem"
    assert str(reasons[4]).startswith("torch-mv: a matrix-vector product has one row, not 4")


def test_a_bias_that_comes_unexpected_is_not_left_out() -> None:
    session = opened(table(("torch", 1)))
    linear = layer(session)
    assert (session.linears.product(torch.randn(1, K), linear.weight, torch.ones(N)) == 7).all()
    assert counted(session) == {(0, 1, "vllm"): 1}


@pytest.mark.parametrize("backend", ["cpu-gemv", "torch"])
def test_a_heads_padding_is_zeros(backend: str) -> None:
    session = opened(table((backend, 1)))
    linear = layer(session, padding=8)
    x = torch.randn(1, K)
    out = session.linears.product(x, linear.weight, None)
    assert torch.allclose(out[:, :N].double(), exact(x, linear), atol=1e-4)
    assert (out[:, N:] == 0).all()


def test_variants_are_switched_between_calls(tmp_path: Path) -> None:
    session = opened(table(("cpu-gemv", 1)), table(("torch", 1)), report=tmp_path)
    linear = layer(session)
    x = torch.randn(1, K)
    for variant, times in ((0, 1), (1, 2), (-1, 3), (0, 4)):
        switch(tmp_path, variant, 2)
        for _ in range(times):
            out = session.linears.product(x, linear.weight, None)
        assert bool((out == 7).all()) is (variant == -1)
    assert counted(session) == {(0, 1, "cpu-gemv"): 5, (1, 1, "torch"): 2, (-1, 1, "vllm"): 3}
    (found,) = read_reports(tmp_path)
    assert found == session.report()
    session.paths.switch(2)
    with pytest.raises(ConfigError, match="no variant 2"):
        session.linears.product(x, linear.weight, None)


def test_memory_beside_the_weights_is_told() -> None:
    legal, packed = opened(table(("torch", 1))), opened(table(("onednn", 1)))
    layer(legal)
    layer(packed)
    assert legal.report().kept_bytes == 0
    assert packed.report().kept_bytes >= N * K * 4


def test_scratch_of_kernels_is_told_once_for_all_layers() -> None:
    """A row of x in whole lines of 32 values, which all layers share; three rows need another, and the first stays."""
    session = opened(table(("cpu-gemv", 1), ("cpu-gemv", 3)))
    for _ in range(2):
        layer(session)
    line = -(-K // 32) * 32 * 4
    assert session.report().kept_bytes == (1 + 3) * line


def test_a_contest_takes_no_backend_with_a_layout_of_its_own() -> None:
    with pytest.raises(ConfigError, match="HARNESS_CONTEST=1, and the selection has onednn"):
        opened(table(("torch", 1), ("onednn", 4)), contest=True)
    session = opened(table(("cpu-gemv", 1)), contest=True)
    linear = layer(session)
    session.linears.product(torch.randn(1, K), linear.weight, None)
    ((before, now),) = session.linears.hashes().values()
    assert before == now
    linear.weight[3, 5] += 1e-3
    ((before, now),) = session.linears.hashes().values()
    assert before != now


def test_a_hash_knows_a_layout() -> None:
    weight = torch.randn(8, 8)
    assert tensor_hash(weight) == tensor_hash(weight.clone())
    assert tensor_hash(weight) != tensor_hash(weight.t().contiguous().t())
    assert tensor_hash(weight) != tensor_hash(weight.view(torch.int32))


def test_an_input_of_another_type_is_refused() -> None:
    session = opened(table(("cpu-gemv", 1)))
    linear = layer(session)
    with pytest.raises(UnavailableError, match=r"o_proj got torch.float64"):
        session.linears.product(torch.randn(1, K, dtype=torch.float64), linear.weight, None)


def test_a_weight_that_was_moved_is_refused() -> None:
    session = opened(table(("cpu-gemv", 1)))
    linear = layer(session)
    with pytest.raises(UnavailableError, match="not where it was loaded"):
        session.linears.product(torch.randn(1, K), linear.weight.clone(), None)


def test_a_head_takes_over_from_the_embedding_that_it_shares_its_weight_with() -> None:
    """Which multiplies nothing itself, so it must not look like a layer that was never called."""
    session = opened(table(("cpu-gemv", 1)))
    embedding = replace(layer(session), name="model.embed_tokens", paths={}, kept_bytes=8)
    session.linears.add(embedding)
    head = replace(embedding, name="lm_head", paths={})
    session.linears.add(head)
    for _ in range(5):
        session.linears.product(torch.randn(1, K), head.weight, None)
    rows = {row.layer: (row.num_calls, row.reason) for row in session.report().paths}
    assert rows["model.embed_tokens"] == (0, SHARED) and rows["lm_head"] == (5, None)
    assert counted_steps([session.report()]) == 5
    assert session.linears.kept_bytes == 0, "of the first layer with this weight, once"


def test_no_rows_are_no_call() -> None:
    session = opened(table(("cpu-gemv", 1)))
    linear = layer(session, padding=8)
    assert session.linears.product(torch.randn(0, 3, K), linear.weight, None).shape == (0, 3, N + 8)
    assert counted(session) == {}


def test_products_that_no_table_lists_are_named() -> None:
    session = opened(table(("cpu-gemv", 1)))
    layer(session)
    assert session.report().notes == ()
    session.linears.unlisted |= {"gate_up", "down"}
    assert session.report().notes == (
        "no shape in the selection fits down, gate_up: vLLM's own path runs there, uncounted",
    )


def test_a_session_is_of_one_model() -> None:
    class Model: ...

    settings, first, second = Settings((Path("t.yaml"),)), Model(), Model()
    tables = (table(("torch", 1)),)
    session = Session(settings, tables, Machine(Executor(CPU), OpCounts(None)), model=first)
    assert session.is_of(settings, first) and not session.is_of(settings, second)
    assert not session.is_of(replace(settings, contest=True), first)
