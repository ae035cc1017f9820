"""Every registered backend as a row."""

from typing import Any

from harness.backends.registry import BROKEN, attention_backends, linear_backends
from harness.devices.cpu import detect_cpu
from harness.specs.problem import AttentionProblem, LinearProblem

_LINEAR = LinearProblem(m=1, n=1024, k=1024, dtype="BF16")
_ATTENTION = AttentionProblem(m=1, num_heads=16, num_kv_heads=8, head_dim=128, max_context=1024, dtype="BF16")


def backend_rows() -> list[dict[str, Any]]:
    """One row a backend, and one for each plugin that could not be loaded."""
    device = detect_cpu()
    rows = []
    for op, backends, problem in (
        ("linear", linear_backends(), _LINEAR),
        ("attention", attention_backends(), _ATTENTION),
    ):
        for name, backend in sorted(backends.items()):
            support = backend.supports(problem, device)
            rows.append(
                {
                    "op": op,
                    "backend": name,
                    "here": "yes" if support.ok else f"no: {support.why}",
                    "contest legal": "yes" if backend.contest_legal else "no",
                    "what it is": (backend.__doc__ or "").partition("\n")[0],
                }
            )
    return rows
