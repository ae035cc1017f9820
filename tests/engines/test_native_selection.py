"""The engine with a table of winners: what it lists is run, what it lacks falls back and says so."""

from contextlib import nullcontext
from pathlib import Path

import pytest
from native_engines import opened, tiny_config

torch = pytest.importorskip("torch")

from harness.backends.linear.cpu_gemv import CpuGemv  # noqa: E402
from harness.backends.registry import check_table  # noqa: E402
from harness.devices.cpu import detect_cpu  # noqa: E402
from harness.errors import ConfigError  # noqa: E402
from harness.selection import save_entries  # noqa: E402
from harness.specs.problem import AttentionProblem, LinearProblem  # noqa: E402
from harness.specs.request import Request  # noqa: E402
from harness.specs.selection import Evidence, SelectionEntry  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

EVIDENCE = Evidence(run_id="r", outcome="winner", call_s=1e-3, baseline="torch")
AUTO = dict.fromkeys(("linear", "attention", "linear_attention", "prefill_linear_attention"), "auto")


def entry(problem, backend: str) -> SelectionEntry:
    op = "linear" if isinstance(problem, LinearProblem) else "attention"
    context = None if op == "linear" else 64
    return SelectionEntry(
        op=op, role="x", problem=problem, context=context, backend=backend, contest_legal=True, evidence=EVIDENCE
    )  # fmt: skip


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny_config(tmp_path, "qwen3")


def choices(model: Path, **engine):
    """Decode's, by (op, role), and the engine's notes."""
    with opened(model, **AUTO | engine) as decoding:
        list(decoding.generate(Request(None, (tuple(range(2, 8)),), 3, ignore_eos=True)))
        report = decoding.report()
    return {(row.op, row.role): row for row in report.ops if row.phase == "decode"}, report.notes


def test_what_the_table_lists_is_run_and_the_rest_falls_back(model: Path, tmp_path: Path) -> None:
    before, _ = choices(model)
    o = before["linear", "o"]
    assert not o.selected
    m, n, k = map(int, o.shape.split("x"))
    heads, kv_heads, head_dim = (
        int(part) for part in before["attention", "decode"].shape.replace("/", " ").split() if part.isdigit()
    )
    path = tmp_path / "table.yaml"
    linear = LinearProblem(m=m, n=n, k=k, dtype="F32")
    attention = AttentionProblem(
        m=1, num_heads=heads, num_kv_heads=kv_heads, head_dim=head_dim, max_context=64, dtype="F32"
    )
    save_entries(path, [entry(linear, "torch-mv"), entry(attention, "torch-sdpa")], "tiny", "F32", detect_cpu())
    after, notes = choices(model, selection=str(path))
    assert (after["linear", "o"].backend, after["linear", "o"].selected) == ("torch-mv", True)
    assert (after["attention", "decode"].backend, after["attention", "decode"].selected) == ("torch-sdpa", True)
    qkv = after["linear", "qkv"]
    assert (qkv.backend, qkv.selected, qkv.fallback_from) == (before["linear", "qkv"].backend, False, "selection")
    assert "does not list" in (qkv.fallback_reason or "")
    assert not any("forced" in note for note in notes)


def test_a_setting_by_name_stands_above_the_table(model: Path, tmp_path: Path) -> None:
    o = choices(model)[0]["linear", "o"]
    m, n, k = map(int, o.shape.split("x"))
    path = tmp_path / "table.yaml"
    save_entries(path, [entry(LinearProblem(m=m, n=n, k=k, dtype="F32"), "torch-mv")], "t", "F32", detect_cpu())
    found = choices(model, selection=str(path), linear="torch")[0]["linear", "o"]
    assert (found.backend, found.selected, found.fallback_from) == ("torch", False, None)


def test_a_backend_that_is_gone_is_an_error(model: Path, tmp_path: Path) -> None:
    o = choices(model)[0]["linear", "o"]
    m, n, k = map(int, o.shape.split("x"))
    path, problem = tmp_path / "table.yaml", LinearProblem(m=m, n=n, k=k, dtype="F32")
    save_entries(path, [entry(problem, "no-such")], "t", "F32", detect_cpu())
    with pytest.raises(ConfigError, match=r"table\.yaml: entry 1 \(linear x\): no linear backend is called 'no-such'"):
        choices(model, selection=str(path))


@pytest.mark.parametrize(
    ("backend", "parameters"),
    [
        ("cpu-gemv", {"num_streams": 8, "bogus": 3}),
        ("cpu-gemv", {"num_streams": "8", "prefetch_bytes": 1024}),
        ("cpu-gemv", {"num_streams": -5, "prefetch_bytes": 1024}),
        ("cpu-gemv", {"num_streams": 10**9, "prefetch_bytes": 1024}),
        ("torch", {"num_streams": 8}),
    ],
)
def test_a_setting_that_nothing_tried_is_an_error(
    model: Path, tmp_path: Path, backend: str, parameters: dict[str, int | str]
) -> None:
    """Where the problem is one of another model, too: it can't have been measured."""
    path, problem = tmp_path / "table.yaml", LinearProblem(m=1, n=8, k=8, dtype="F32")
    made = entry(problem, backend).model_copy(update={"parameters": parameters})
    save_entries(path, [made], "t", "F32", detect_cpu())
    with pytest.raises(ConfigError, match=rf"table\.yaml: entry 1 \(linear x\): {backend} has no setting"):
        choices(model, selection=str(path))


def test_a_setting_that_is_listed_is_run(model: Path, tmp_path: Path) -> None:
    m, n, k = map(int, choices(model)[0]["linear", "o"].shape.split("x"))
    path, parameters = tmp_path / "table.yaml", {"num_streams": 4, "prefetch_bytes": 0}
    made = entry(LinearProblem(m=m, n=n, k=k, dtype="F32"), "cpu-gemv").model_copy(update={"parameters": parameters})
    save_entries(path, [made], "t", "F32", detect_cpu())
    found = choices(model, selection=str(path))[0]["linear", "o"]
    assert (found.selected, dict(found.parameters)) == (True, parameters)


def test_a_backend_that_lists_no_settings_is_given_what_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plugin may list them only where its library is."""
    problem = LinearProblem(m=1, n=8, k=8, dtype="F32")
    monkeypatch.setattr(CpuGemv, "tuning", staticmethod(lambda problem, device: ()))
    for parameters, fits in (({"num_streams": 3}, True), ({"bogus": 3}, False)):
        made = entry(problem, "cpu-gemv").model_copy(update={"parameters": parameters})
        table = save_entries(tmp_path / f"{fits}.yaml", [made], "t", "F32", detect_cpu())
        with nullcontext() if fits else pytest.raises(ConfigError, match="no setting"):
            check_table(table, tmp_path / "t.yaml")


def test_a_foreign_table_is_refused_and_forced_it_is_noted(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "table.yaml"
    elsewhere = detect_cpu().model_copy(update={"name": "another"})
    save_entries(path, [entry(LinearProblem(m=1, n=8, k=8, dtype="F32"), "torch")], "t", "F32", elsewhere)
    with pytest.raises(ConfigError, match="measured elsewhere"):
        choices(model, selection=str(path))
    _, notes = choices(model, selection=str(path), selection_force=True)
    assert any("was forced, it is of device" in note for note in notes)


def test_a_table_of_another_model_is_noted(model: Path, tmp_path: Path) -> None:
    """Its shapes decide, so it is no refusal."""
    linear = entry(LinearProblem(m=1, n=8, k=8, dtype="F32"), "torch")
    for name, is_noted in (("other", True), ("Qwen3", False), (str(model), False)):
        save_entries(tmp_path / f"{is_noted}{len(name)}.yaml", [linear], name, "F32", detect_cpu())
        _, notes = choices(model, selection=str(tmp_path / f"{is_noted}{len(name)}.yaml"))
        assert any("is of another model, other" in note for note in notes) == is_noted


def test_what_a_backend_settled_on_by_itself_is_recorded(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, _ = choices(model, linear="cpu-gemv")
    assert {row.note for row in rows.values()} == {""}
    monkeypatch.setattr(CpuGemv, "note", "a library's kernel", raising=False)
    rows, _ = choices(model, linear="cpu-gemv")
    assert rows["linear", "o"].note == "a library's kernel" and rows["attention", "decode"].note == ""
