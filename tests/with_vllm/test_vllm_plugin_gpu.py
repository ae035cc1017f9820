"""The plugin's way on a GPU, inside vLLM on a CPU: the card is the host, where gpu.cu's lanes are fibres, and what
vLLM's attention for GPUs calls is written out in torch. No graph is captured."""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from agreement import FORCED, STEPS, Fault, distance, read
from selections import calls, save_attention_table, save_table
from test_vllm_plugin_attention import counted, num_attending
from tiny_vllm import opened, vllm_config

from harness.errors import ConfigError, UnavailableError
from harness.specs.device import DeviceInfo
from harness.specs.problem import Parameters
from harness.vllm_plugin import install, open_session

pytestmark = [pytest.mark.vllm, pytest.mark.compiler]

HOST = DeviceInfo(kind="rocm", name="the host", arch="host", wave_width=32)
FEW_LANES: Parameters = {"rows_per_wave": 4, "waves_per_block": 1, "split_k": 1, "double_buffer": 0}
"""A fibre each takes its time."""
PROMPTS = ((5, 77, 13, 2, 99, 41, 8, 120, 64), tuple((31 * place + 5) % 131 for place in range(40)))

FAULTS: tuple[dict[str, Any], ...] = ({"layer": "layers.1.mlp.down", "factor": 0.0}, {"overlooked": 1})


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


@pytest.mark.reference
def test_products_and_decode_steps_count_in_their_kernels(
    gpu_attention: None, saved: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over one cache, so each step may be attended by either; decode steps of different lengths by one launch. What
    would be wrong shows."""
    model, table, fault = saved("qwen3"), tmp_path / "t", Fault()
    fault.bury(monkeypatch)
    save_table(table, model, "gpu-gemv", "F32", rows=(1, 2), device=HOST, parameters=FEW_LANES)
    save_attention_table(table, model, "gpu-decode", "torch-sdpa", "F32", device=HOST, parameters={"num_splits": 8})
    settings = {
        "load_format": "auto", "max_num_seqs": 2, "max_model_len": 96, "max_num_batched_tokens": 96,
        "extra_args": FORCED,
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
            found[variant] = read(engine, *PROMPTS)
            steps = counted(before)
            assert steps.pop((variant, 1, decode)) == layers * (STEPS - 1), "one launch for both requests"
            assert steps.pop((variant, 2, product)) == 12 * (STEPS - 1) + STEPS
            prompts = {(0, None, "torch-sdpa"): 2 * layers, (0, None, "vllm"): 12}
            assert steps == (prompts if variant == 0 else {(-1, None, "vllm"): 12 + layers})
        engine.audit()
        assert "13 unchanged" in str(engine.report().resolved["selection_parameters"])
        session.paths.switch(0)
        for values in FAULTS:
            with fault.planted(**values):
                assert distance(model, read(engine, *PROMPTS), found[-1]) > 1, values
    assert distance(model, found[0], found[-1]) < 1


def test_a_setting_that_nothing_tried_is_refused(tmp_path: Path) -> None:
    model = vllm_config(tmp_path, "qwen3")
    table = save_table(tmp_path / "t", model, "gpu-gemv", device=HOST, parameters=FEW_LANES | {"split_k": -1})
    with (
        pytest.raises(ConfigError, match=r"entry 1 \(linear .*gpu-gemv has no setting"),
        opened(model, selection=str(table)),
    ):
        pass


def test_a_table_of_another_card_is_refused(tmp_path: Path) -> None:
    model = vllm_config(tmp_path, "qwen3")
    table = save_table(tmp_path / "t", model, "gpu-gemv", device=HOST.model_copy(update={"name": "another"}))
    with pytest.raises(ConfigError, match="measured elsewhere: device"), opened(model, selection=str(table)):
        pass


def config_of(backend: Any = None, **parallel: Any) -> Any:
    """What the plugin asks of vLLM's configuration."""
    return SimpleNamespace(
        parallel_config=SimpleNamespace(**parallel), attention_config=SimpleNamespace(backend=backend),
        model_config=SimpleNamespace(rswa_window=None),
    )  # fmt: skip


def test_attention_is_asked_for_where_the_table_lists_it_and_nobody_else_was(tmp_path: Path) -> None:
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    from harness.selection import load_table
    from harness.vllm_plugin.layers import _settle_gpu

    model = vllm_config(tmp_path, "qwen3")
    products = load_table(save_table(tmp_path / "p", model, "gpu-gemv", device=HOST))
    attention = load_table(save_attention_table(tmp_path / "a", model, "gpu-decode", None, device=HOST))
    for tables, asked, found in (
        ((products,), None, None),
        ((products, attention), None, AttentionBackendEnum.CUSTOM),
        ((attention,), AttentionBackendEnum.TRITON_ATTN, AttentionBackendEnum.TRITON_ATTN),
    ):
        config = config_of(asked, enable_dbo=False)
        _settle_gpu(config, tables)
        assert config.attention_config.backend is found
    with pytest.raises(UnavailableError, match="dual-batch overlap"):
        _settle_gpu(config_of(enable_dbo=True), (products,))


@pytest.mark.parametrize(
    "parallel, window, shares",
    [
        ({}, None, False),  # 0.18 knows neither
        ({"decode_context_parallel_size": 1, "prefill_context_parallel_size": 1}, None, False),
        ({"decode_context_parallel_size": 2, "prefill_context_parallel_size": 1}, None, True),
        ({"decode_context_parallel_size": 1, "prefill_context_parallel_size": 4}, None, True),
        ({}, 128, True),
    ],
)
def test_a_part_of_a_context_is_not_ours(
    parallel: dict[str, int], window: int | None, shares: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from harness.vllm_plugin import attention_problem

    config = config_of(**parallel)
    config.model_config.rswa_window = window
    monkeypatch.setattr(attention_problem, "get_current_vllm_config", lambda: config)
    assert attention_problem._shares_contexts() is shares


def test_an_output_that_is_quantized_within_is_vllms(monkeypatch: pytest.MonkeyPatch) -> None:
    from harness.vllm_plugin import gpu_attention

    ours = object.__new__(gpu_attention.SelectedAttention)
    monkeypatch.setattr(gpu_attention.StockImpl, "forward", lambda self, *arguments, **named: "vllm's")
    monkeypatch.setattr(gpu_attention.SelectedAttention, "_known", lambda self, layer: "a layer")
    monkeypatch.setattr(gpu_attention.SelectedAttention, "_attends", lambda self, *arguments: True)
    assert ours.forward("layer", "q", "k", "v", "cache", "metadata", "out", None, None) == "out"
    assert ours.forward("layer", "q", "k", "v", "cache", "metadata", "out", output_scale=None) == "out"
    assert ours.forward("layer", "q", "k", "v", "cache", "metadata", "out", "scale", None) == "vllm's"
    assert ours.forward("layer", "q", "k", "v", "cache", "metadata", "out", output_block_scale="scale") == "vllm's"
    assert ours.forward("layer", "q", "k", "v", "cache", None, "out") == "vllm's"


def test_graphs_hold_steps_of_one_new_token_alone() -> None:
    from vllm.v1.attention.backend import AttentionCGSupport

    from harness.vllm_plugin.gpu_attention import SelectedAttentionBackend, Stock

    builder = SelectedAttentionBackend.get_builder_cls()
    assert issubclass(builder, Stock.get_builder_cls())
    assert builder.get_cudagraph_support(None, None) == AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE
    assert Stock.get_builder_cls()._cudagraph_support == AttentionCGSupport.ALWAYS
