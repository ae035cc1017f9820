"""What `harness backends --build` compiles in one process, an A/B's launches find in another."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.absent_card import compiling_for
from harness.errors import UnavailableError
from harness.specs.device import DeviceInfo
from harness.specs.problem import AttentionProblem, DeltaProblem, LinearProblem
from harness.specs.selection import Evidence, SelectionEntry, SelectionTable

CARD = DeviceInfo(kind="cuda", name="some card", arch="sm_90", wave_width=32)
LINEAR = LinearProblem(m=2, n=48, k=256, dtype="BF16", bias=True)
HEADS = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 64, "max_context": 80, "dtype": "BF16"}
DELTA = {
    "num_key_heads": 1, "num_value_heads": 2, "key_head_dim": 32, "value_head_dim": 32, "conv_kernel": 4,
    "dtype": "BF16",
}  # fmt: skip
GEMV = {"block_n": 8, "block_k": 256, "split_k": 1, "num_warps": 1, "cache": ".cg"}
CHOICES = [
    ("linear", LINEAR, "triton-gemv", GEMV),
    ("linear", LINEAR, "torch", {}),
    ("attention", AttentionProblem(m=1, **HEADS), "triton-decode", {}),
    ("attention", AttentionProblem(m=16, **HEADS), "triton-prefill", {}),
    ("linear-attention", DeltaProblem(m=1, **DELTA), "triton-delta", {}),
    ("linear-attention", DeltaProblem(m=20, **DELTA), "triton-delta", {}),
]
KERNELS = {"triton-gemv": 1, "triton-decode": 2, "triton-prefill": 1}  # triton-delta: 3 for a token, 4 for a prompt


def entry(op, problem, backend, parameters) -> SelectionEntry:
    return SelectionEntry(
        op=op, role="-", problem=problem, context=70 if op == "attention" else None, backend=backend,
        parameters=parameters, contest_legal=True,
        evidence=Evidence(run_id="r", outcome="winner", call_s=1e-5, baseline="torch"),
    )  # fmt: skip


@pytest.fixture
def table() -> SelectionTable:
    entries = tuple(entry(*choice) for choice in CHOICES)
    return SelectionTable(model="m", dtype="BF16", device=CARD, versions={}, entries=entries).sealed()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    return tmp_path / "triton"


def build_in_another_process(table: SelectionTable, target: str, folder: Path) -> list[dict]:
    path = folder / "table.yaml"
    path.write_text(table.model_dump_json())
    arguments = ["backends", "--build", "--target", target, "--selection", str(path), "--format", "json"]
    done = subprocess.run(
        [sys.executable, "-m", "harness.cli.main", *arguments], capture_output=True, text=True, check=False,
        env={**os.environ, "NVCC": "none", "HIPCC": "none"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [row for row in json.loads(done.stdout) if row["what"] == "triton"]


def launched_by_an_ab(table: SelectionTable, target: str, monkeypatch: pytest.MonkeyPatch):
    """What the launches of an A/B's sides need, by backend and m: real operands, on every place."""
    import torch

    from harness.ab.ahead import jobs_of_table
    from harness.ab.operands import arena
    from harness.backends.base import Executor

    monkeypatch.setattr(arena, "MIN_ROTATION_BYTES", 1 << 18)
    needed = {}
    for job in jobs_of_table(table):
        memory = arena.Arena([job.case], table.dtype, CARD, torch.device("cpu"), seed=0)
        bound = memory.operands(job.case, seed=0).bind(job.backend, job.settings[0], Executor(CARD))
        assert len(bound.launches) > 2
        with compiling_for(target) as found:
            for launch in bound.launches:
                launch()
        needed[job.backend.name, job.case.problem.m] = found
    return needed


@pytest.mark.parametrize("target", ["sm_90", "gfx90a"])
def test_an_ab_compiles_nothing_after_it(table, target, cache, tmp_path, monkeypatch):
    rows = build_in_another_process(table, target, tmp_path)
    assert [row["outcome"] for row in rows] == ["built"] * 6
    (in_vllm,) = [row for row in rows if row["kernel"].endswith("in vLLM's blocks")]
    rows.remove(in_vllm)
    needed = launched_by_an_ab(table, target, monkeypatch)
    assert {name: len(found) for (name, m), found in needed.items() if name in KERNELS} == KERNELS
    assert [len(needed["triton-delta", m]) for m in (1, 20)] == [3, 4]
    assert not any(each.is_new for found in needed.values() for each in found)
    sizes = [sum(each.num_bytes for each in found) for found in needed.values()]
    assert [row["num_bytes"] for row in rows] == sizes and all(size > 1000 for size in sizes)


@pytest.mark.parametrize("num_requests, num_blocks, place", [(1, 17, 0), (3, 256, 1)])
def test_decode_attention_inside_vllm_compiles_nothing_after_it(
    num_requests, num_blocks, place, table, cache, tmp_path
):  # fmt: skip
    """As vLLM's own cache is taken apart, for other numbers of requests and blocks, and another layer's counter."""
    import torch

    from harness.ab.ahead import jobs_of_table
    from harness.backends.base import BlockCache, Executor
    from harness.vllm_plugin.gpu_attentions import rows_of_cache

    table = table.model_copy(update={"entries": (table.entries[2],)}).sealed()
    _, in_vllm = build_in_another_process(table, "sm_90", tmp_path)
    assert in_vllm["kernel"].startswith("triton-decode") and in_vllm["outcome"] == "built"
    (job,) = jobs_of_table(table)
    q, contexts = torch.zeros(num_requests, 4, 64, dtype=torch.bfloat16), torch.zeros(num_requests, dtype=torch.int32)
    keys, values = rows_of_cache(torch.zeros(20, 2, 16, 128, dtype=torch.bfloat16), 64, 0)
    blocks = BlockCache(keys, values, torch.zeros(num_requests, num_blocks, dtype=torch.int32))
    calls = torch.zeros(4, dtype=torch.int64)[place]
    made = job.backend(Executor(CARD))
    with compiling_for("sm_90") as found:
        made.bind_requests(q, blocks, contexts, torch.empty_like(q), calls, job.case.problem)()
    assert len(found) == 2 and not any(each.is_new for each in found)
    assert in_vllm["num_bytes"] == sum(each.num_bytes for each in found)


def test_what_was_not_asked_for_is_compiled_at_its_launch(table, cache, tmp_path, monkeypatch):
    """A size that is no multiple of 16, another architecture: the test above would see them."""
    asked, odd = table.entries[0], table.entries[0].model_copy(update={"problem": LINEAR.model_copy(update={"k": 255})})
    table = table.model_copy(update={"entries": (asked,)}).sealed()
    (row,) = build_in_another_process(table, "sm_90", tmp_path)
    assert row["outcome"] == "built"
    for entries, target in (((odd,), "sm_90"), ((asked,), "sm_80")):
        needed = launched_by_an_ab(table.model_copy(update={"entries": entries}), target, monkeypatch)
        assert any(each.is_new for each in needed["triton-gemv", 2])


def test_a_setting_that_does_not_compile_is_named_and_the_others_go_on(cache):
    from harness.ab.ahead import Job, compile_jobs
    from harness.ab.shapes import Calls, Case
    from harness.backends.linear.triton_gemv import TritonGemv

    bad = {**GEMV, "block_n": 17}  # no power of two
    job = Job(Case("linear", "-", LINEAR, Calls(0, 0)), TritonGemv, (bad, GEMV))
    (build,) = compile_jobs([job], "BF16", "sm_90", CARD, lambda line: None)
    assert build.outcome == "failed" and build.why.startswith("1 of 2 settings, {'block_n': 17")
    assert "power of" in build.why and build.num_bytes > 0


WIDE_HEADS = AttentionProblem(m=64, **{**HEADS, "head_dim": 256})
SMALL_TILES = {"block_queries": 16, "block_keys": 16, "num_warps": 4, "num_stages": 1}
LARGE_TILES = {"block_queries": 64, "block_keys": 64, "num_warps": 4, "num_stages": 2}


def prefill_builds(target, settings):
    from harness.ab.ahead import Job, compile_jobs
    from harness.ab.shapes import Calls, Case
    from harness.backends.attention.triton_prefill import TritonPrefill

    job = Job(Case("attention", "prefill", WIDE_HEADS, Calls(0, 0), 70), TritonPrefill, settings)
    return list(compile_jobs([job], "BF16", target, CARD, lambda line: None))


@pytest.mark.parametrize(
    "target, wanted, limit", [("sm_86", "106,496", "101,376"), ("gfx942", "73,728", "65,536"), ("sm_90", None, None)]
)
def test_a_setting_that_the_card_can_not_launch_is_too_large(target, wanted, limit, cache):
    built, *too_large = prefill_builds(target, (LARGE_TILES, SMALL_TILES))
    assert built.outcome == "built" and built.why is None
    if wanted is None:
        assert too_large == [] and built.shared_bytes > 100_000
        return
    (row,) = too_large
    assert row.outcome == "too large" and str(LARGE_TILES) in row.why and row.kernel == built.kernel
    assert row.why.endswith(f"a block wants {wanted} B of shared memory, {target} has {limit}")
    assert row.shared_bytes == int(wanted.replace(",", "")) and 0 < built.shared_bytes < row.shared_bytes
    assert [each.outcome for each in prefill_builds(target, (SMALL_TILES, LARGE_TILES))] == ["cached", "too large"]
    assert [each.outcome for each in prefill_builds(target, (LARGE_TILES,))] == ["too large"]


def test_a_block_of_too_many_threads_is_too_large(cache):
    """32 waves of 64 lanes are no block; 32 warps are one."""
    from harness.ab.ahead import Job, compile_jobs
    from harness.ab.shapes import Calls, Case
    from harness.backends.linear.triton_gemv import TritonGemv

    job = Job(Case("linear", "-", LINEAR, Calls(0, 0)), TritonGemv, ({**GEMV, "num_warps": 32},))
    (row,) = compile_jobs([job], "BF16", "gfx90a", CARD, lambda line: None)
    assert row.outcome == "too large" and row.why.endswith("a block wants 2,048 threads, gfx90a has 1,024")
    assert [row.outcome for row in compile_jobs([job], "BF16", "sm_90", CARD, lambda line: None)] == ["built"]


def test_a_model_asks_for_every_setting_of_every_triton_backend():
    from harness.ab.ahead import jobs_of_model
    from harness.backends.triton import declared
    from harness.models import resolve_model

    jobs, reasons = jobs_of_model("m", resolve_model("qwen3.5-1b-scaled").spec, CARD)
    assert reasons == []
    ops = {
        "triton-gemv": "gemv", "triton-decode": "decode_attention", "triton-prefill": "prefill_attention",
        "triton-delta": "gated_delta_rule",
    }  # fmt: skip
    assert {job.backend.name for job in jobs} == set(ops)
    assert all(list(job.settings) == declared(ops[job.backend.name]) for job in jobs)
    dense, reasons = jobs_of_model("m", resolve_model("qwen3-0.6b").spec, CARD)
    assert "triton-delta" not in {job.backend.name for job in dense}
    assert ["linear-attention" in reason for reason in reasons] == [True]


@pytest.mark.parametrize("wave_width, counts", [(32, [11, 11, 6, 2]), (64, [11, 11, 11, 6]), (None, [11, 11, 6, 2])])
def test_a_gemv_of_many_rows_is_built_with_the_tiles_that_fit(wave_width, counts):
    from harness.backends.linear.triton_gemv import TritonGemv

    card = CARD.model_copy(update={"wave_width": wave_width})
    problems = [LINEAR.model_copy(update={"m": m}) for m in (1, 2, 4, 8)]
    assert [len(TritonGemv.tuning(problem, card)) for problem in problems] == counts


@pytest.mark.parametrize(
    "target, seen",
    [("sm_90", ("cuda", 90, 32)), ("sm_120a", ("cuda", 120, 32)), ("gfx90a:sramecc+:xnack-", ("hip", "gfx90a", 64)),
     ("gfx1100", ("hip", "gfx1100", 32))],
)  # fmt: skip
def test_a_target_is_what_the_driver_of_such_a_card_says(target, seen, monkeypatch):
    from triton.runtime import driver

    monkeypatch.setattr(driver, "_default", "the card that is here")
    with compiling_for(target):
        found = driver.active.get_current_target()
        assert (found.backend, found.arch, found.warp_size) == seen
    assert driver.active == "the card that is here"
    driver.set_active(None)


@pytest.mark.parametrize("target, why", [("host", "no code for a CPU"), ("sm90", "no GPU kernels can be built")])
def test_a_target_that_triton_has_no_code_for(target, why):
    with pytest.raises(UnavailableError, match=why), compiling_for(target):
        pass
