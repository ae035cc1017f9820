"""Every registered backend as a row."""

from typing import Any

from harness.backends.base import Support
from harness.backends.registry import Registry, attention_backends, linear_attention_backends, linear_backends
from harness.devices.cpu import detect_cpu
from harness.devices.gpu import gpus_here
from harness.specs.device import DeviceInfo
from harness.specs.problem import AttentionProblem, DeltaProblem, LinearProblem

STEP, PROMPT = 1, 512
"""New tokens: many backends do only the one or only the other."""
_LINEAR = LinearProblem(m=STEP, n=1024, k=1024, dtype="BF16")
_ATTENTION = AttentionProblem(m=STEP, num_heads=16, num_kv_heads=8, head_dim=128, max_context=1024, dtype="BF16")
_LINEAR_ATTENTION = DeltaProblem(
    m=STEP, num_key_heads=16, num_value_heads=32, key_head_dim=128, value_head_dim=128, conv_kernel=4, dtype="BF16"
)


def backend_rows() -> list[dict[str, Any]]:
    """One row a backend, and one for each module or plugin that could not be loaded. `here` is this machine's GPU, or
    its CPU where torch sees no GPU: what the engine's and the A/B's device `auto` is."""
    device = next(iter(gpus_here().values()), None) or detect_cpu()
    return [
        *_rows("linear", linear_backends, _LINEAR, device),
        *_rows("attention", attention_backends, _ATTENTION, device),
        *_rows("linear-attention", linear_attention_backends, _LINEAR_ATTENTION, device),
    ]


def _rows(op: str, registry: Registry[Any], problem: Any, device: DeviceInfo) -> list[dict[str, Any]]:
    rows = []
    for name, backend in registry.all().items():
        rows.append(
            {
                "op": op,
                "backend": name,
                "here": _here(*(backend.supports(problem.model_copy(update={"m": m}), device) for m in (STEP, PROMPT))),
                "contest_legal": backend.contest_legal,
                "what it is": (backend.__doc__ or "").partition("\n")[0],
            }
        )
    return rows + [
        {"op": op, "backend": module, "here": f"no: {why}", "contest_legal": None, "what it is": "could not be loaded"}
        for module, why in registry.unavailable().items()
    ]


def _here(step: Support, prompt: Support) -> str:
    if step.ok and prompt.ok:
        return "yes"
    if step.ok or prompt.ok:
        return "steps only" if step.ok else "prompts only"
    return f"no: {'; '.join(dict.fromkeys((step.why, prompt.why)))}"
