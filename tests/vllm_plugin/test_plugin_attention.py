"""Attention over vLLM's cache in blocks, without vLLM: both ways of reading it, who attends, what is counted."""

import math
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from harness.backends.base import BlockCache, Executor  # noqa: E402  # behind the skip
from harness.backends.registry import attention_backends  # noqa: E402
from harness.errors import ConfigError, UnavailableError  # noqa: E402
from harness.specs.device import DeviceInfo  # noqa: E402
from harness.specs.problem import AttentionProblem  # noqa: E402
from harness.specs.selection import Evidence, SelectionEntry, SelectionTable  # noqa: E402
from harness.vllm_plugin.attention import OnBlocks, OnGathered, PlaceWriter, keys_and_values  # noqa: E402
from harness.vllm_plugin.attentions import NO_PROMPT, AttentionLayer, Request  # noqa: E402
from harness.vllm_plugin.counts import OpCounts  # noqa: E402
from harness.vllm_plugin.machine import Machine  # noqa: E402
from harness.vllm_plugin.session import Session  # noqa: E402
from harness.vllm_plugin.settings import Settings  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

CPU = DeviceInfo(kind="cpu", name="a test's CPU")
HEADS, KV_HEADS, HEAD_DIM, BLOCKS = 4, 2, 32, 9
DECODE = AttentionProblem(m=1, num_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=HEAD_DIM, max_context=256, dtype="F32")
PROMPT = DECODE.model_copy(update={"m": 64})
EVIDENCE = Evidence(run_id="r", outcome="winner", call_s=1e-3, baseline="torch-sdpa")


def vllm_cache(block_size: int) -> torch.Tensor:
    """Poisoned: whoever reads a place that nobody wrote shows it."""
    return torch.full((BLOCKS, KV_HEADS, block_size, 2 * HEAD_DIM), torch.nan)


def expected(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Float64; q [m, heads, d] are the last of the places of keys and values [places, kv_heads, d]."""
    out = torch.empty(q.shape, dtype=torch.float64)
    for i in range(len(q)):
        seen = len(keys) - len(q) + 1 + i
        for head in range(HEADS):
            own = head // (HEADS // KV_HEADS)
            scores = keys[:seen, own].double() @ q[i, head].double() / math.sqrt(HEAD_DIM)
            out[i, head] = torch.softmax(scores, 0) @ values[:seen, own].double()
    return out


def request(num_rows: int, filled: int, block_size: int) -> Request:
    """Its blocks in no order; behind those that it needs the table holds none that exists."""
    needed = -(-filled // block_size)
    blocks = torch.randperm(BLOCKS, generator=torch.Generator().manual_seed(filled))[:needed]
    table = torch.full((needed + 3,), 10**6, dtype=torch.int32)
    table[:needed] = blocks
    return Request(slice(0, num_rows), filled, table)


def slots(of: Request, first: int, block_size: int) -> torch.Tensor:
    """Of places from `first` on."""
    places = torch.arange(first, of.filled)
    return of.table[places // block_size].long() * block_size + places % block_size


@pytest.mark.parametrize("block_size", [16, 32, 48, 112])
@pytest.mark.parametrize("filled", [1, 33, 97])
@pytest.mark.parametrize("way", ["blocks", "gathered", "gathered prompt"])
def test_places_that_were_written_are_read(block_size, filled, way, cpu_pool):
    """A prompt's keys at once, the last one by itself, as vLLM calls: rows of a larger tensor. 48 and 112 are no powers
    of two, as blocks of hybrid models are none."""
    if -(-filled // block_size) > BLOCKS:
        pytest.skip("more places than blocks")
    executor, cache = Executor(CPU, cpu_pool), vllm_cache(block_size)
    m = min(filled, 7) if "prompt" in way else 1
    of = request(m, filled, block_size)
    both = torch.randn(filled, 2 * KV_HEADS * HEAD_DIM + 5)
    keys, values = (part.unflatten(1, (KV_HEADS, HEAD_DIM)) for part in both[:, :-5].chunk(2, dim=1))
    writer = PlaceWriter(executor)
    places = slots(of, 0, block_size)
    for part in [slice(0, filled - 1)] * (filled > 1) + [slice(filled - 1, filled)]:
        writer(keys[part], values[part], keys_and_values(cache), places[part])
    q, out = torch.randn(m, HEADS, HEAD_DIM), torch.full((m, HEADS, HEAD_DIM), torch.nan)
    name, made, problem = ("cpu-decode", OnBlocks, DECODE) if way == "blocks" else ("torch-sdpa", OnGathered, PROMPT)
    attend = made(attention_backends.get(name)(executor), problem)
    block_cache = BlockCache(*keys_and_values(cache), of.table)
    for _ in range(2):
        out.fill_(torch.nan)
        attend(q, block_cache, filled, out)
        torch.testing.assert_close(out.double(), expected(q, keys, values), rtol=0, atol=2e-5)


def test_a_token_without_a_place_is_not_written(cpu_pool):
    cache = vllm_cache(16)
    given = torch.randn(2, KV_HEADS, HEAD_DIM)
    PlaceWriter(Executor(CPU, cpu_pool))(given, given, keys_and_values(cache), torch.tensor([-1, 20]))
    keys, values = keys_and_values(cache)
    assert torch.equal(keys[1, :, 4], given[1]) and torch.equal(values[1, :, 4], given[1])
    assert (~cache.isnan()).sum() == 2 * KV_HEADS * HEAD_DIM


def table(decode: str, prompt: str | None = "torch-sdpa", dtype: str = "F32") -> SelectionTable:
    entries = tuple(
        SelectionEntry(
            op="attention", role="-", problem=problem.model_copy(update={"dtype": dtype}), context=128, backend=backend,
            contest_legal=True, evidence=EVIDENCE,
        )
        for problem, backend in ((DECODE, decode), (PROMPT, prompt)) if backend
    )  # fmt: skip
    return SelectionTable(model="m", dtype=dtype, device=CPU, versions={}, entries=entries).sealed()


def opened(*tables: SelectionTable, keeps_prefixes: bool = False, dtype: str = "F32") -> tuple[Session, AttentionLayer]:
    files = tuple(Path(f"{place}.yaml") for place, _ in enumerate(tables))
    session = Session(Settings(files), tables, Machine(Executor(CPU), OpCounts(None)), keeps_prefixes=keeps_prefixes)
    problems = (problem.model_copy(update={"dtype": dtype}) for problem in (DECODE, PROMPT))
    return session, session.attentions.add("model.layers.0.self_attn.attn", *problems)


def step(session: Session, layer: AttentionLayer, *requests: Request) -> bool:
    """One by whoever attends: whether it was ours."""
    if not session.attentions.is_ours(layer):
        session.attentions.count(layer, requests)
        return False
    rows = sum(of.num_rows for of in requests)
    q, cache = torch.randn(rows, HEADS, HEAD_DIM), torch.zeros(BLOCKS, KV_HEADS, 16, 2 * HEAD_DIM)
    session.attentions.attend(layer, requests, q, cache, torch.empty_like(q))
    return True


def rows(session: Session) -> dict[tuple[int, int | None, str], tuple[int, str | None]]:
    return {(row.variant, row.m, row.backend): (row.num_calls, row.reason) for row in session.report().paths}


def test_each_request_of_a_step_is_counted_where_it_went():
    session, layer = opened(table("cpu-decode"), table("torch-sdpa"))
    prompt, one = request(5, 5, 16), request(1, 20, 16)
    for variant, steps in ((0, 3), (-1, 2), (1, 1)):
        session.paths.switch(variant)
        for _ in range(steps):
            assert step(session, layer, prompt, one._replace(rows=slice(5, 6))) == (variant >= 0)
    assert {key: calls for key, (calls, _) in rows(session).items()} == {
        (0, 1, "cpu-decode"): 3, (0, None, "torch-sdpa"): 3, (-1, 1, "vllm"): 2, (-1, None, "vllm"): 2,
        (1, 1, "torch-sdpa"): 1, (1, None, "torch-sdpa"): 1,
    }  # fmt: skip


def test_what_a_table_lacks_has_a_reason():
    session, _ = opened(table("cpu-decode", prompt=None))
    assert rows(session)[0, None, "torch-sdpa"] == (0, NO_PROMPT)
    assert rows(session)[-1, 1, "vllm"] == (0, None), "it was switched off"
    unlisted = DECODE.model_copy(update={"num_heads": 6})
    assert session.paths.lists("attention", DECODE) and not session.paths.lists("attention", unlisted)
    half, layer = opened(table("torch-sdpa", dtype="F16"), dtype="F16")
    assert rows(half)[0, 1, "vllm"] == (0, "no CPU kernel writes a cache of F16")
    assert not half.attentions.is_ours(layer)


def test_another_side_does_not_read_the_prefixes_that_one_left():
    session, layer = opened(table("cpu-decode"), table("torch-sdpa"), keeps_prefixes=True)
    for variant in (0, 1):
        session.paths.switch(variant)
        assert session.attentions.is_ours(layer), "of one layout"
    session.paths.switch(-1)
    with pytest.raises(UnavailableError, match="prefix caching may mix them"):
        session.attentions.is_ours(layer)


def test_a_variant_that_there_is_not():
    session, layer = opened(table("cpu-decode"))
    session.paths.switch(1)
    with pytest.raises(ConfigError, match="there is no variant 1"):
        session.attentions.is_ours(layer)


def test_a_switch_within_a_step_is_told():
    session, layer = opened(table("cpu-decode"))
    session.paths.switch(-1)
    arguments: Any = [request(1, 1, 16)], torch.randn(1, HEADS, HEAD_DIM), vllm_cache(16), torch.empty(1)
    with pytest.raises(UnavailableError, match="switched within a step"):
        session.attentions.attend(layer, *arguments)
