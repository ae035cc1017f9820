"""Selection tables for tiny models, as an A/B would have saved them here."""

from pathlib import Path
from typing import Any

from harness.ab.shapes import attention_cases, delta_cases, linear_cases
from harness.devices.cpu import detect_cpu
from harness.models import resolve_model
from harness.plan.ranks import rank_spec
from harness.selection import save_entries
from harness.specs.ab import Op
from harness.specs.device import DeviceInfo
from harness.specs.problem import Parameters
from harness.specs.selection import Evidence, Problem, SelectionEntry

EVIDENCE = Evidence(run_id="r", outcome="winner", call_s=1e-3, baseline="torch")


def entry(
    problem: Problem, backend: str, role: str = "qkv", op: Op = "linear", parameters: Parameters | None = None
) -> SelectionEntry:
    return SelectionEntry(
        op=op, role=role, problem=problem, backend=backend, parameters=parameters or {},
        contest_legal=backend != "onednn", evidence=EVIDENCE,
    )  # fmt: skip


def save_table(
    path: Path, model: Path, backend: str, dtype: str = "BF16", rows: tuple[int, ...] = (1,), workers: int = 1,
    device: DeviceInfo | None = None, parameters: Parameters | None = None,
) -> Path:  # fmt: skip
    """Every product of the model, or of a worker's share of it, by one backend."""
    entries = [
        entry(case.problem.model_copy(update={"dtype": dtype}), backend, case.role, parameters=parameters)
        for case in linear_cases(resolve_model(str(model)).spec, rows, workers)
    ]
    save_entries(path, entries, model.name, dtype, device or detect_cpu(), workers)
    return path


def save_attention_table(
    path: Path, model: Path, decode: str = "cpu-decode", prefill: str | None = "torch-sdpa", dtype: str = "BF16",
    workers: int = 1, device: DeviceInfo | None = None, parameters: Parameters | None = None,
) -> Path:  # fmt: skip
    """Attention of the model's heads, or of a worker's share of them, at one context, and no products. parameters: the
    decode backend's."""
    share, entries = rank_spec(resolve_model(str(model)).spec, workers), []
    for case in attention_cases(share, (128,), (1, 32)):
        backend, own = (decode, parameters) if case.problem.m == 1 else (prefill, None)
        if backend is not None:
            made = entry(case.problem.model_copy(update={"dtype": dtype}), backend, case.role, "attention", own)
            entries.append(made.model_copy(update={"context": case.context}))
    save_entries(path, entries, model.name, dtype, device or detect_cpu(), workers)
    return path


def save_delta_table(path: Path, model: Path, backend: str) -> Path:
    """The decode step of the model's gated delta rules by one backend, and no other operation."""
    entries = [
        entry(case.problem.model_copy(update={"dtype": "BF16"}), backend, case.role, "linear-attention")
        for case in delta_cases(resolve_model(str(model)).spec, (1,))
    ]
    save_entries(path, entries, model.name, "BF16", detect_cpu())
    return path


def calls(session: Any) -> dict[tuple[str, int, int | None, str], int]:
    """(layer, variant, rows, backend): counted calls."""
    return {(p.layer, p.variant, p.m, p.backend): p.num_calls for p in session.report().paths if p.num_calls}
