"""`harness backends --build`: a first use finds everything made, and what can't be made is a row with its reason."""

import ctypes
from pathlib import Path

import pytest
from command import harness, json_of

from harness.gpu_build import load_gpu_kernel
from harness.kernel_build import kernel_source, load_kernel
from harness.resources import kernels_dir
from harness.specs.build import Build
from harness.specs.device import DeviceInfo
from harness.specs.selection import SelectionEntry, SelectionTable

ANSWER = 'extern "C" int answer() { return 42; }\n'


@pytest.fixture
def sources(tmp_path: Path, empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A kernels/ of one op, which a CPU and a GPU source have."""
    folder = tmp_path / "kernels"
    (folder / "answer").mkdir(parents=True)
    for file in ("cpu.cpp", "gpu.cu"):
        (folder / "answer" / file).write_text(ANSWER)
    for module in ("prebuild", "kernel_build"):
        monkeypatch.setattr(f"harness.{module}.kernels_dir", lambda: folder)
    return folder


@pytest.fixture
def no_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is on the PATH, nor where toolkits are usually installed."""
    for variable in ("CXX", "NVCC", "HIPCC"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("harness.kernel_build.shutil.which", lambda name: None)


def build(*targets: str, code: int = 0) -> list[dict]:
    return json_of("backends", "--build", *(word for target in targets for word in ("--target", target)), code=code)


def forbid_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    def compiled(*arguments: object) -> None:
        raise AssertionError("compiled at a first use")

    monkeypatch.setattr("harness.kernel_build._compile", compiled)


@pytest.mark.compiler
def test_a_first_use_compiles_nothing(sources: Path, empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = build("cpu", "host")
    assert [(row["target"], row["kernel"], row["outcome"]) for row in rows] == [
        ("cpu", "answer/cpu.cpp", "built"),
        ("host", "answer/gpu.cu", "built"),
    ]
    sizes = sorted(path.stat().st_size for path in (empty_cache / "kernels").iterdir())
    assert sorted(row["num_bytes"] for row in rows) == sizes and all(row["time_s"] > 0 for row in rows)
    forbid_compiling(monkeypatch)
    assert load_kernel(sources / "answer/cpu.cpp").answer() == 42
    assert load_gpu_kernel(sources / "answer/gpu.cu", "host").answer() == 42
    assert [row["outcome"] for row in build("cpu", "host")] == ["cached", "cached"]
    (sources / "answer/cpu.cpp").write_text(ANSWER.replace("42", "43"))
    with pytest.raises(AssertionError, match="compiled at a first use"):
        load_kernel(sources / "answer/cpu.cpp")


@pytest.mark.compiler
def test_every_cpu_kernel_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the session's cache, which other tests share."""
    ops = sorted(path.parent.name for path in kernels_dir().glob("*/cpu.cpp"))
    assert [row["kernel"] for row in build("cpu")] == [f"{op}/cpu.cpp" for op in ops] and "gemv" in ops
    forbid_compiling(monkeypatch)
    for op in ops:
        load_kernel(kernel_source(op))


@pytest.mark.compiler
def test_building_loads_nothing(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library for a card may need a runtime that is not here."""

    def loaded(*arguments: object, **options: object) -> None:
        raise AssertionError("loaded")

    monkeypatch.setattr(ctypes, "CDLL", loaded)
    assert [row["outcome"] for row in build("cpu", "host")] == ["built", "built"]


@pytest.mark.compiler
def test_a_source_that_does_not_compile_fails_and_the_others_are_built(sources: Path) -> None:
    (sources / "broken").mkdir()
    (sources / "broken/cpu.cpp").write_text('extern "C" int answer() { return nonsense; }\n')
    answer, broken = build("cpu", code=3)
    assert answer["outcome"] == "built"
    assert broken["outcome"] == "failed" and "nonsense" in broken["why"] and ".log" in broken["why"]
    assert broken["num_bytes"] is None
    text = harness("backends", "--build", "--target", "cpu", code=3).output
    assert "1 of 2 could not be built: broken/cpu.cpp for cpu" in text and "mend:" in text


def test_a_missing_compiler_is_no_failure(sources: Path, no_tools: None) -> None:
    rows = [row for row in build("cpu", "sm_90", "gfx90a") if row["what"] == "library"]
    assert [(row["target"], row["outcome"]) for row in rows] == [
        ("cpu", "skipped"), ("sm_90", "skipped"), ("gfx90a", "skipped"),
    ]  # fmt: skip
    for row, why in zip(rows, ("no C++ compiler", "nvcc is not on the PATH", "hipcc is not on the PATH"), strict=True):
        assert row["why"].startswith(why)
        assert row["time_s"] is None and row["num_bytes"] is None
    assert "skipped: nvcc is not on the PATH" in harness("backends", "--build", "--target", "sm_90").output


def test_what_a_card_can_not_launch_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    row = Build(target="sm_86", what="triton", kernel="some kernel", outcome="too large", why="a block wants 200,000 B")
    monkeypatch.setattr("harness.prebuild.prebuild", lambda *arguments: iter([row]))
    assert "too large: a block wants 200,000 B" in harness("backends", "--build", "--target", "sm_86").output


def test_without_targets_this_machine_is_built_for(
    sources: Path, no_tools: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.prebuild.gpus_here", dict)
    assert [row["target"] for row in build()] == ["cpu"]
    card = DeviceInfo(kind="cuda", name="some card", arch="sm_90")
    monkeypatch.setattr("harness.prebuild.gpus_here", lambda: {"sm_90": card})
    cpu, library, triton = build()
    assert [cpu["target"], library["target"], triton["target"]] == ["cpu", "sm_90", "sm_90"]
    assert (triton["what"], triton["outcome"]) == ("triton", "skipped") and "--model" in triton["why"]


def test_a_table_of_a_backend_that_is_not_here_is_refused_before_anything_is_built(
    sources: Path, empty_cache: Path, tmp_path: Path
) -> None:
    evidence = {"run_id": "r", "outcome": "winner", "call_s": 1e-5, "baseline": "torch"}
    entry = SelectionEntry.model_validate(
        {
            "op": "linear", "role": "-", "problem": {"m": 1, "n": 16, "k": 16, "dtype": "BF16"},
            "backend": "of-another-package", "contest_legal": True, "evidence": evidence,
        }
    )  # fmt: skip
    card = DeviceInfo(kind="cuda", name="some card", arch="sm_90")
    table = SelectionTable(model="m", dtype="BF16", device=card, versions={}, entries=(entry,)).sealed()
    path = tmp_path / "table.yaml"
    path.write_text(table.model_dump_json())
    answer = harness("backends", "--build", "--target", "sm_90", "--target", "host", "--selection", str(path), code=2)
    assert "of-another-package" in answer.output and "mend:" in answer.output
    assert not empty_cache.exists()


@pytest.mark.parametrize(
    "arguments, what",
    [
        (("--target", "cpu"), "add --build"),
        (("--model", "qwen3-0.6b"), "add --build"),
        (("--build", "--target", "sm90"), "no GPU kernels can be built for 'sm90'"),
        (("--build", "--target", "cpu", "--model", "no-such-model"), "no-such-model"),
        (("--build", "--target", "cpu", "--selection", "no-such-table.yaml"), "no-such-table.yaml"),
        (("--build", "--model", "qwen3-0.6b", "--selection", "t.yaml"), "give one of them"),
    ],
)
def test_what_can_not_be_asked_for_is_refused_before_anything_is_built(
    sources: Path, empty_cache: Path, arguments: tuple[str, ...], what: str
) -> None:
    assert what in harness("backends", *arguments, code=2).output
    assert not empty_cache.exists()
