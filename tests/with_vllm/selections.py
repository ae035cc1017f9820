"""Selection tables for tiny models, as an A/B would have saved them here."""

from pathlib import Path
from typing import Any

from harness.ab.shapes import attention_cases, linear_cases
from harness.devices.cpu import detect_cpu
from harness.models import resolve_model
from harness.selection import save_entries
from harness.specs.problem import LinearProblem
from harness.specs.selection import Evidence, SelectionEntry

EVIDENCE = Evidence(run_id="r", outcome="winner", call_s=1e-3, baseline="torch")


def entry(problem: LinearProblem, backend: str, role: str = "qkv") -> SelectionEntry:
    legal = backend != "onednn"
    return SelectionEntry(
        op="linear", role=role, problem=problem, backend=backend, contest_legal=legal, evidence=EVIDENCE
    )


def save_table(path: Path, model: Path, backend: str, dtype: str = "BF16", rows: tuple[int, ...] = (1,)) -> Path:
    """Every product of the model by one backend."""
    entries = [
        entry(case.problem.model_copy(update={"dtype": dtype}), backend, case.role)
        for case in linear_cases(resolve_model(str(model)).spec, rows)
    ]
    save_entries(path, entries, model.name, dtype, detect_cpu())
    return path


def attention_table(
    path: Path, model: Path, decode: str = "cpu-decode", prefill: str | None = "torch-sdpa", dtype: str = "BF16"
) -> Path:  # fmt: skip
    """Attention of the model's heads at one context, and none of its products."""
    entries = [
        SelectionEntry(
            op="attention", role=case.role, problem=case.problem.model_copy(update={"dtype": dtype}),
            context=case.context, backend=backend, contest_legal=True, evidence=EVIDENCE,
        )
        for case in attention_cases(resolve_model(str(model)).spec, (128,), (1, 32))
        if (backend := decode if case.problem.m == 1 else prefill)
    ]  # fmt: skip
    save_entries(path, entries, model.name, dtype, detect_cpu())
    return path


def calls(session: Any) -> dict[tuple[str, int, int | None, str], int]:
    """(layer, variant, rows, backend): counted calls."""
    return {(p.layer, p.variant, p.m, p.backend): p.num_calls for p in session.report().paths if p.num_calls}
