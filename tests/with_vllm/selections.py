"""Selection tables for tiny models, as an A/B would have saved them here."""

from pathlib import Path
from typing import Any

from harness.ab.shapes import attention_cases, delta_cases, linear_cases
from harness.devices.cpu import detect_cpu
from harness.models import resolve_model
from harness.selection import save_entries
from harness.specs.ab import Op
from harness.specs.problem import LinearProblem
from harness.specs.selection import Evidence, Problem, SelectionEntry

EVIDENCE = Evidence(run_id="r", outcome="winner", call_s=1e-3, baseline="torch")
HALVES = ((128, 64), (64, 64), (112, 64), (64, 56), (96, 64), (35, 64))
"""(n, k) of a worker of two of the tiny qwen3: qkv, o, gate_up, down, and the head's 131 rows, the first with 96."""


def entry(problem: Problem, backend: str, role: str = "qkv", op: Op = "linear") -> SelectionEntry:
    legal = backend != "onednn"
    return SelectionEntry(op=op, role=role, problem=problem, backend=backend, contest_legal=legal, evidence=EVIDENCE)


def save_table(path: Path, model: Path, backend: str, dtype: str = "BF16", rows: tuple[int, ...] = (1,)) -> Path:
    """Every product of the model by one backend."""
    entries = [
        entry(case.problem.model_copy(update={"dtype": dtype}), backend, case.role)
        for case in linear_cases(resolve_model(str(model)).spec, rows)
    ]
    save_entries(path, entries, model.name, dtype, detect_cpu())
    return path


def save_attention_table(
    path: Path, model: Path, decode: str = "cpu-decode", prefill: str | None = "torch-sdpa", dtype: str = "BF16"
) -> Path:  # fmt: skip
    """Attention of the model's heads at one context, and none of its products."""
    entries = [
        entry(case.problem.model_copy(update={"dtype": dtype}), backend, case.role, "attention").model_copy(
            update={"context": case.context}
        )
        for case in attention_cases(resolve_model(str(model)).spec, (128,), (1, 32))
        if (backend := decode if case.problem.m == 1 else prefill)
    ]  # fmt: skip
    save_entries(path, entries, model.name, dtype, detect_cpu())
    return path


def save_delta_table(path: Path, model: Path, backend: str) -> Path:
    """The decode step of the model's gated delta rules by one backend, and no other operation."""
    entries = [
        entry(case.problem.model_copy(update={"dtype": "BF16"}), backend, case.role, "linear-attention")
        for case in delta_cases(resolve_model(str(model)).spec, (1,))
    ]
    save_entries(path, entries, model.name, "BF16", detect_cpu())
    return path


def half_table(path: Path) -> Path:
    """A worker's products of the tiny qwen3 on two workers."""
    entries = [entry(LinearProblem(m=1, n=n, k=k, dtype="BF16"), "cpu-gemv") for n, k in HALVES]
    save_entries(path, entries, "qwen3", "BF16", detect_cpu())
    return path


def calls(session: Any) -> dict[tuple[str, int, int | None, str], int]:
    """(layer, variant, rows, backend): counted calls."""
    return {(p.layer, p.variant, p.m, p.backend): p.num_calls for p in session.report().paths if p.num_calls}
