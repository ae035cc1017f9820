"""The plugin where kernels count for themselves: a card that is the host, whose libraries are those of the kernels' own
tests. No graph is captured here; what a replay would do is to launch without us."""

import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from compilers import command_for

torch = pytest.importorskip("torch")

from harness.backends.base import BlockCache, Executor  # noqa: E402  # behind the skip
from harness.errors import ConfigError, UnavailableError  # noqa: E402
from harness.specs.device import DeviceInfo  # noqa: E402
from harness.specs.plugin import PluginReport  # noqa: E402
from harness.specs.problem import AttentionProblem, LinearProblem, Parameters  # noqa: E402
from harness.specs.selection import Evidence, Problem, SelectionEntry, SelectionTable  # noqa: E402
from harness.vllm_plugin.attention import gathered  # noqa: E402
from harness.vllm_plugin.attentions import step_requests  # noqa: E402
from harness.vllm_plugin.audit import AskedWorker  # noqa: E402
from harness.vllm_plugin.counts import CardCounts  # noqa: E402
from harness.vllm_plugin.gpu_attentions import GpuLayer, rows_of_cache  # noqa: E402
from harness.vllm_plugin.linear import Linear  # noqa: E402
from harness.vllm_plugin.machine import Machine, open_machine  # noqa: E402
from harness.vllm_plugin.session import Session  # noqa: E402
from harness.vllm_plugin.settings import Settings  # noqa: E402
from harness.vllm_plugin.shared import read_reports, switch, write_report  # noqa: E402
from harness.vllm_plugin.variant import Variant  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

HOST = DeviceInfo(kind="rocm", name="the host", arch="host", wave_width=64)
N, K = 24, 64
HEADS = AttentionProblem(m=1, num_heads=4, num_kv_heads=2, head_dim=32, max_context=256, dtype="F32")
PROMPT = HEADS.model_copy(update={"m": 64})
SEVEN = 7.0


def entry(backend: str, problem: Problem, **parameters: int | str) -> SelectionEntry:
    chosen: Parameters = parameters
    return SelectionEntry(
        op="linear" if isinstance(problem, LinearProblem) else "attention", role="o", problem=problem, backend=backend,
        parameters=chosen, contest_legal=True,
        evidence=Evidence(run_id="r", outcome="winner", call_s=1e-3, baseline="torch"),
    )  # fmt: skip


def product(backend: str, m: int, **parameters: int | str) -> SelectionEntry:
    return entry(backend, LinearProblem(m=m, n=N, k=K, dtype="F32"), **parameters)


def opened(
    folder: Path, *tables: tuple[SelectionEntry, ...], captures: bool = False, machine: Machine | None = None
) -> Session:
    made = tuple(
        SelectionTable(model="m", dtype="F32", device=HOST, versions={}, entries=entries).sealed() for entries in tables
    )
    files = tuple(Path(f"{place}.yaml") for place, _ in enumerate(made))
    machine = machine or Machine(Executor(HOST), CardCounts(folder, torch.device("cpu")))
    return Session(Settings(files, report=folder), made, machine, captures=captures)


def layer(session: Session, device: str = "cpu") -> Linear:
    """One whose own path answers nothing but sevens."""
    linear = Linear(
        name="model.layers.0.o_proj", weight=torch.randn(N, K, device=device), bias=None, n=N,
        packed_by_vllm=False, kept_bytes=0,
        stock=lambda x, bias: x.new_full((*x.shape[:-1], N), SEVEN), largest=session.linears.largest(N, K, "F32"),
        hashes={},
    )  # fmt: skip
    session.linears.add(linear)
    return linear


def counted(reports: list[PluginReport]) -> dict[tuple[str, int, int | None, str], int]:
    (report,) = reports
    return {(row.op, row.variant, row.m, row.backend): row.num_calls for row in report.paths if row.num_calls}


def test_products_count_in_the_kernel_or_beside_it(tmp_path: Path) -> None:
    session = opened(tmp_path, (product("gpu-gemv", 1, split_k=2), product("torch", 4)))
    linear = layer(session)
    for m, times in ((1, 3), (4, 2), (2, 1), (9, 4)):
        for _ in range(times):
            x = torch.randn(m, K)
            out = session.linears.product(x, linear.weight, None)
            expected = x.double() @ linear.weight.double().T if m in (1, 4) else torch.full((m, N), SEVEN).double()
            assert torch.allclose(out.double(), expected, atol=1e-4)
    assert counted(read_reports(tmp_path)) == {}, "nobody has collected"
    found = {("linear", 0, 1, "gpu-gemv"): 3, ("linear", 0, 4, "torch"): 2, ("linear", 0, 2, "vllm"): 1}
    found["linear", 0, None, "vllm"] = 4
    assert counted([session.report()]) == counted(read_reports(tmp_path)) == found


def test_a_worker_is_asked_for_its_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = opened(tmp_path, (product("gpu-gemv", 1),))
    linear = layer(session)
    monkeypatch.setattr("harness.vllm_plugin.open_session", lambda: session)
    worker = AskedWorker()
    session.linears.product(torch.randn(1, K), linear.weight, None)  # a warm-up, which counts for nobody
    variant = Variant(tmp_path, worker.harness_collect_counts)
    for _ in range(5):
        session.linears.product(torch.randn(1, K), linear.weight, None)
    assert counted(variant.reports()) == {("linear", 0, 1, "gpu-gemv"): 5}
    monkeypatch.setattr("harness.vllm_plugin.open_session", lambda: None)
    worker.harness_collect_counts()  # a process without a layer of ours


def test_captured_graphs_are_not_switched(tmp_path: Path) -> None:
    """Their variant is what it was when they were captured, whatever the switch says."""
    session = opened(tmp_path, (product("gpu-gemv", 1),), captures=True)
    layer(session)
    write_report(tmp_path, session.report())
    assert Variant(tmp_path).reports()
    for place in (0, -1):
        with pytest.raises(ConfigError, match=r"captured graphs keep the selection .*graph: compiled"):
            Variant(tmp_path, None, place)


@pytest.mark.card
@pytest.mark.parametrize("backend", ["gpu-gemv", "triton-gemv", "torch"])
def test_a_replayed_graph_counts(backend: str, tmp_path: Path) -> None:
    """What was captured while nobody counted it: the capture itself runs no kernel."""
    if not torch.cuda.is_available():
        pytest.skip("no GPU that torch sees")
    machine = open_machine("cuda", tmp_path)
    if backend == "gpu-gemv":
        command_for(machine.executor.device.arch or "")
    session = opened(tmp_path, (product(backend, 1),), captures=True, machine=machine)
    linear, graph = layer(session, "cuda"), torch.cuda.CUDAGraph()
    x = torch.randn(1, K, device="cuda")
    for _ in range(3):
        session.linears.product(x, linear.weight, None)
    with torch.cuda.graph(graph):
        out = session.linears.product(x, linear.weight, None)
    for seed in range(10):
        x.copy_(torch.randn(1, K) * (seed + 1))
        graph.replay()
        expected = x.double().cpu() @ linear.weight.double().cpu().T
        assert torch.allclose(out.double().cpu(), expected, atol=1e-2)
    assert counted([session.report()]) == {("linear", 0, 1, backend): 13}


def step(contexts: list[int]) -> tuple[Any, BlockCache, Any, Any, list[Any]]:
    """(q, cache, contexts, out, expected rows in float64): keys and values side by side in blocks of 8."""
    size, head_dim = 8, HEADS.head_dim
    blocks = torch.full((6 * len(contexts), HEADS.num_kv_heads, size, 2 * head_dim), torch.nan)
    table = torch.randperm(6 * len(contexts)).reshape(len(contexts), 6).to(torch.int32)
    q, expected = torch.randn(len(contexts), HEADS.num_heads, head_dim), []
    for request, context in enumerate(contexts):
        keys, values = torch.randn(2, HEADS.num_kv_heads, context, head_dim)
        for place in range(context):
            both = torch.cat((keys[:, place], values[:, place]), -1)
            blocks[int(table[request, place // size]), :, place % size] = both
        scores = torch.einsum("hpd,hgd->hgp", keys.double(), q[request].double().view(2, 2, head_dim)) / head_dim**0.5
        expected.append(torch.einsum("hgp,hpd->hgd", torch.softmax(scores, -1), values.double()).flatten(0, 1))
    cache = BlockCache(blocks[..., :head_dim], blocks[..., head_dim:], table)
    return q, cache, torch.tensor(contexts, dtype=torch.int32), torch.full_like(q, SEVEN), expected


def attend(session: Session, ours: GpuLayer, contexts: list[int]) -> None:
    q, cache, filled, out, expected = step(contexts)
    assert session.gpu_attentions.decode(ours, q, cache, filled, out)
    assert all(torch.allclose(row.double(), right, atol=1e-5) for row, right in zip(out, expected, strict=True))


def test_decode_steps_of_any_number_of_requests(tmp_path: Path) -> None:
    """Tensors lie elsewhere in each step, as in one that is not captured."""
    session = opened(tmp_path, (entry("gpu-decode", HEADS.model_copy(update={"max_context": 999}), num_splits=3),))
    assert session.paths.lists("attention", HEADS)
    ours = session.gpu_attentions.add("model.layers.0.attn", HEADS, PROMPT)
    for contexts in ([17], [40], [1, 30], [17], [5, 48]):
        attend(session, ours, contexts)
    q, cache, filled, out, expected = step([17, 23])
    for rows in (slice(0, 2), slice(1, 2)):  # of one cache, whose requests come and go
        table = BlockCache(cache.keys, cache.values, cache.table[rows])
        assert session.gpu_attentions.decode(ours, q[rows], table, filled[rows], out[rows].fill_(torch.nan))
        assert torch.allclose(out[1].double(), expected[1], atol=1e-5)
    assert counted([session.report()]) == {("attention", 0, 1, "gpu-decode"): 7}


def test_vllms_own_attention_is_counted_and_says_why(tmp_path: Path) -> None:
    session = opened(tmp_path, (entry("torch-sdpa", HEADS),), (entry("gpu-decode", HEADS),), (product("torch", 1),))
    ours = session.gpu_attentions.add("model.layers.0.attn", HEADS, PROMPT)
    for variant, times in ((-1, 1), (0, 2), (2, 3)):
        switch(tmp_path, variant, 3)
        for _ in range(times):
            q, cache, filled, out, _ = step([9])
            assert not session.gpu_attentions.decode(ours, q, cache, filled, out)
            assert (out == SEVEN).all()
    switch(tmp_path, 1, 3)
    attend(session, ours, [9])
    found = {("attention", variant, 1, "vllm"): times for variant, times in ((-1, 1), (0, 2), (2, 3))}
    assert counted([session.report()]) == found | {("attention", 1, 1, "gpu-decode"): 1}
    reasons = {row.variant: row.reason for row in session.report().paths if row.role == "decode"}
    assert reasons[-1] is None and reasons[1] is None
    assert reasons[0] == "torch-sdpa: it does not read a server's cache (select gpu-decode or triton-decode)"
    assert reasons[2] == "the table does not list this problem"
    session.paths.switch(7)
    with pytest.raises(UnavailableError, match="no variant 7"):
        session.gpu_attentions.decode(ours, q, cache, filled, out)


def prompts(session: Session, ours: GpuLayer, rows: list[int], contexts: list[int]) -> bool:
    """A step with so many queries of each request, at the end of its context."""
    q, cache, filled, _, _ = step(contexts)
    queries, out = torch.randn(sum(rows), *q.shape[1:]), torch.full((sum(rows), *q.shape[1:]), SEVEN)
    ends = [sum(rows[: number + 1]) for number in range(len(rows))]
    made = SimpleNamespace(
        query_start_loc=torch.tensor([0, *ends]), seq_lens=filled, block_table=cache.table
    )  # fmt: skip
    if not session.gpu_attentions.prompts(ours, lambda: step_requests(made), queries, cache, filled, out):
        assert (out == SEVEN).all()
        return False
    for request in step_requests(made):
        keys, values = (gathered(part, request.table, request.filled).double() for part in (cache.keys, cache.values))
        for number, row in enumerate(range(request.rows.start, request.rows.stop)):
            seen = request.filled - request.num_rows + 1 + number
            grouped = queries[row].double().view(2, 2, -1)
            scores = torch.einsum("hpd,hgd->hgp", keys[:, :seen], grouped) / HEADS.head_dim**0.5
            expected = torch.einsum("hgp,hpd->hgd", torch.softmax(scores, -1), values[:, :seen]).flatten(0, 1)
            assert torch.allclose(out[row].double(), expected, atol=1e-5)
    return True


def test_steps_with_prompts_and_decoding_together(tmp_path: Path) -> None:
    """One by one, a request without rows left out; each new token beside a prompt is a decode step's."""
    session = opened(tmp_path, (entry("gpu-decode", HEADS), entry("torch-sdpa", PROMPT)))
    ours = session.gpu_attentions.add("model.layers.0.attn", HEADS, PROMPT)
    assert prompts(session, ours, [9], [9])
    assert prompts(session, ours, [5, 0, 1, 16], [30, 7, 23, 16])
    found = {("attention", 0, None, "torch-sdpa"): 3, ("attention", 0, 1, "gpu-decode"): 1}
    assert counted([session.report()]) == found


def test_prompts_that_stay_vllms_say_why(tmp_path: Path) -> None:
    session = opened(tmp_path, (entry("gpu-decode", HEADS),))
    ours = session.gpu_attentions.add("model.layers.0.attn", HEADS, PROMPT)
    assert not prompts(session, ours, [4, 1], [4, 9])
    assert counted([session.report()]) == {("attention", 0, None, "vllm"): 1}
    reasons = {row.variant: row.reason for row in session.report().paths if row.role == "prefill"}
    assert reasons == {-1: None, 0: "the table does not list this problem"}


def test_layers_share_one_scratch_and_keep_no_cache(tmp_path: Path) -> None:
    """Told as memory that the selection keeps, an outgrown one too, since launches are bound to it; a server's cache
    goes when the server lets go."""
    session = opened(tmp_path, (entry("gpu-decode", HEADS, num_splits=3),))
    layers = [session.gpu_attentions.add(f"model.layers.{number}.attn", HEADS, PROMPT) for number in range(3)]
    for contexts in ([17], [5, 48, 1], [9, 4]):
        for ours in layers:
            attend(session, ours, contexts)
    session.collect()
    assert read_reports(tmp_path)[0].kept_bytes == (1 + 3) * HEADS.num_heads * 3 * (HEADS.head_dim + 2) * 4
    q, cache, filled, out, _ = step([30])
    kept = [weakref.ref(tensor) for tensor in (q, cache.keys, cache.values, cache.table, filled, out)]
    assert session.gpu_attentions.decode(layers[0], q, cache, filled, out)
    q, cache, filled, out = q.clone(), step([8])[1], filled.clone(), out.clone()
    assert not any(ref() is not None for ref in kept)


@pytest.mark.parametrize("axis", [0, 1, None])
def test_every_layout_of_vllms_cache(axis: int | None) -> None:
    """0.18's FLASH_ATTN and TRITON_ATTN, and 0.32's: views, so that what vLLM writes is what our kernels read."""
    keys, values = torch.randn(2, 3, 2, 16, 32)  # blocks, heads, places
    if axis is None:
        cache = torch.cat((keys, values), -1)
    else:
        cache = torch.stack((keys.transpose(1, 2), values.transpose(1, 2)), axis)
    found = rows_of_cache(cache, 32, axis or 0)
    assert torch.equal(found[0], keys) and torch.equal(found[1], values)
    cache.zero_()
    assert not found[0].any() and not found[1].any()


def test_an_operation_that_no_layer_took_is_told(tmp_path: Path) -> None:
    session = opened(tmp_path, (product("torch", 1), entry("gpu-decode", HEADS)))
    layer(session)
    assert session.report().notes == ("no layer took what the selection lists of attention",)
    session.gpu_attentions.add("model.layers.0.attn", HEADS, PROMPT)
    assert session.report().notes == () == read_reports(tmp_path)[0].notes


def test_a_device_of_another_kind_is_refused() -> None:
    with pytest.raises(UnavailableError, match="not xpu"):
        open_machine("xpu", None)
