"""The plugin's way on a GPU, inside vLLM on a CPU: the card is the host, where gpu.cu's lanes are fibres, and what
vLLM's attention for GPUs calls is written out in torch. No graph is captured."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selections import calls, save_attention_table, save_table
from test_vllm_plugin_attention import STEPS, answers, assert_agree, counted, num_attending
from tiny_vllm import opened, vllm_config

from harness.errors import ConfigError
from harness.specs.device import DeviceInfo
from harness.specs.problem import Parameters
from harness.vllm_plugin import install, open_session

pytestmark = [pytest.mark.vllm, pytest.mark.compiler]

HOST = DeviceInfo(kind="rocm", name="the host", arch="host", wave_width=32)
FEW_LANES: Parameters = {"rows_per_wave": 4, "waves_per_block": 1}
"""A fibre each takes its time."""
PROMPTS = ((5, 77, 13, 2, 99, 41, 8, 120, 64), tuple((31 * place + 5) % 131 for place in range(40)))


@pytest.fixture(autouse=True)
def on_host(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from harness.backends.base import Executor
    from harness.vllm_plugin import layers
    from harness.vllm_plugin.counts import CardCounts
    from harness.vllm_plugin.machine import Machine

    def machine(_: str, report: Path | None) -> Machine:
        return Machine(Executor(HOST), CardCounts(report, torch.device("cpu")))

    monkeypatch.setattr(layers, "open_machine", machine)
    monkeypatch.setattr(install, "ON_CPU", install.ON_GPU)


def written(keys: Any, values: Any, key_cache: Any, value_cache: Any, slots: Any, *_: Any) -> None:
    """Caches [blocks, block_size, num_kv_heads, head_dim]."""
    size = key_cache.shape[1]
    for row, slot in enumerate(slots.tolist()):
        if slot >= 0:
            key_cache[slot // size, slot % size] = keys[row]
            value_cache[slot // size, slot % size] = values[row]


def attended(
    *, q: Any, k: Any, v: Any, out: Any, cu_seqlens_q: Any, seqused_k: Any, softmax_scale: float, block_table: Any,
    **_: Any,
) -> None:  # fmt: skip
    import torch

    begins, (size, kv_heads) = cu_seqlens_q.tolist(), k.shape[1:3]
    for request, filled in enumerate(seqused_k.tolist()):
        rows = slice(begins[request], begins[request + 1])
        blocks = block_table[request, : -(-filled // size)].long()
        keys, values = (cache[blocks].flatten(0, 1)[:filled].double() for cache in (k, v))
        grouped = q[rows].double().unflatten(1, (kv_heads, -1))
        scores = torch.einsum("qhgd,phd->qhgp", grouped, keys) * softmax_scale
        num_rows = rows.stop - rows.start
        seen = torch.arange(filled) <= torch.arange(filled - num_rows, filled)[:, None]
        weights = torch.softmax(scores.masked_fill(~seen[:, None, None], -torch.inf), -1)
        out[rows] = torch.einsum("qhgp,phd->qhgd", weights, values).flatten(1, 2).to(out.dtype)


@pytest.fixture
def gpu_attention(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """CUSTOM in the place of CPU_ATTN, which a CPU always takes."""
    from vllm.v1.attention.backends import triton_attn
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
    from vllm.v1.attention.selector import _cached_get_attn_backend

    from harness.vllm_plugin.gpu_attention import SelectedAttentionBackend

    monkeypatch.setattr(triton_attn, "unified_attention", attended)
    monkeypatch.setattr(triton_attn, "triton_reshape_and_cache_flash", written)
    register_backend(AttentionBackendEnum.CPU_ATTN)(SelectedAttentionBackend)
    _cached_get_attn_backend.cache_clear()
    yield
    AttentionBackendEnum.CPU_ATTN.clear_override()
    _cached_get_attn_backend.cache_clear()


def test_products_and_decode_steps_count_in_their_kernels(tmp_path: Path, gpu_attention: None) -> None:
    """Over one cache, so each step may be attended by either; decode steps of different lengths by one launch."""
    model, table = vllm_config(tmp_path, "qwen3"), tmp_path / "t"
    save_table(table, model, "gpu-gemv", "F32", rows=(1, 2), device=HOST, parameters=FEW_LANES)
    save_attention_table(table, model, "gpu-decode", "torch-sdpa", "F32", device=HOST, parameters={"num_splits": 2})
    settings = {
        "dtype": "float32", "max_num_seqs": 2, "max_model_len": 96, "max_num_batched_tokens": 96,
        "extra_args": {"max_logprobs": -1},
        "environment": {"HARNESS_CONTEST": "1"},
    }  # fmt: skip
    with opened(model, batch=2, selection=str(table), **settings) as engine:
        assert "CUSTOM" in str(engine.report().resolved["attention_backends"])
        session, found = open_session(), {}
        assert session is not None
        layers = num_attending(model)
        for variant, product, decode in ((0, "gpu-gemv", "gpu-decode"), (-1, "vllm", "vllm")):
            session.paths.switch(variant)
            before = calls(session)
            found[variant] = answers(engine, *PROMPTS)
            steps = counted(before)
            assert steps.pop((variant, 1, decode)) == layers * (STEPS - 1), "one launch for both requests"
            assert steps.pop((variant, 2, product)) == 12 * (STEPS - 1) + STEPS
            prompts = {(0, None, "torch-sdpa"): 2 * layers, (0, None, "vllm"): 12}
            assert steps == (prompts if variant == 0 else {(-1, None, "vllm"): 12 + layers})
        engine.audit()
        assert "13 unchanged" in str(engine.report().resolved["selection_parameters"])
    assert_agree(found[0], found[-1], 1e-4)


def test_a_table_of_another_card_is_refused(tmp_path: Path) -> None:
    model = vllm_config(tmp_path, "qwen3")
    table = save_table(tmp_path / "t", model, "gpu-gemv", device=HOST.model_copy(update={"name": "another"}))
    with pytest.raises(ConfigError, match="measured elsewhere: device"), opened(model, selection=str(table)):
        pass
