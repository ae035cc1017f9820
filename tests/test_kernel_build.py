"""Kernels are built once, and anew when what decides their code changes; a failure says what to do."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.errors import UnavailableError
from harness.kernel_build import find_compiler, kernel_source, load_kernel

X86_BUILDS = ((), ("-march=haswell",), ("-march=x86-64",))


@pytest.fixture
def answer(tmp_path: Path) -> Path:
    """A kernel whose answer is in a header of its own, and which can be overridden by a flag."""
    folder = tmp_path / "answer"
    folder.mkdir()
    (folder / "number.h").write_text("#ifndef NUMBER\n#define NUMBER 42\n#endif\n")
    source = folder / "cpu.cpp"
    lines = ('#include "number.h"', '#include "cpu_pool.h"', 'extern "C" int answer() { return NUMBER; }')
    source.write_text("\n".join(lines))
    return source


def libraries(cache: Path) -> list[Path]:
    return sorted((cache / "kernels").glob("*.so"))


def test_known_sources_are_found() -> None:
    assert kernel_source("cpu_pool").name == "cpu.cpp"
    with pytest.raises(UnavailableError, match="no kernel source"):
        kernel_source("no_such_op")


@pytest.mark.compiler
def test_a_kernel_is_built_once(answer: Path, empty_cache: Path) -> None:
    assert load_kernel(answer).answer() == 42
    (built,) = libraries(empty_cache)
    built_ns = built.stat().st_mtime_ns
    assert load_kernel(answer).answer() == 42
    assert libraries(empty_cache) == [built] and built.stat().st_mtime_ns == built_ns
    assert list(built.parent.iterdir()) == [built], "building leaves nothing behind"


@pytest.mark.compiler
def test_flags_header_and_source_decide_the_library(answer: Path, empty_cache: Path) -> None:
    assert load_kernel(answer).answer() == 42
    assert load_kernel(answer, ("-DNUMBER=7",)).answer() == 7
    (answer.parent / "number.h").write_text("#define NUMBER 43\n")
    assert load_kernel(answer).answer() == 43
    answer.write_text(answer.read_text().replace("return NUMBER", "return NUMBER + 1"))
    assert load_kernel(answer).answer() == 44
    assert len(libraries(empty_cache)) == 4


@pytest.mark.compiler
def test_the_cpu_decides_the_library(answer: Path, empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load_kernel(answer)
    monkeypatch.setattr("harness.kernel_build.cpu_flags", lambda: ("another", "machine"))
    load_kernel(answer)
    assert len(libraries(empty_cache)) == 2


@pytest.mark.compiler
def test_extra_flags_override_ours(answer: Path, empty_cache: Path) -> None:
    (answer.parent / "number.h").write_text("#ifdef __OPTIMIZE__\n#define NUMBER 1\n#else\n#define NUMBER 0\n#endif\n")
    assert load_kernel(answer).answer() == 1
    assert load_kernel(answer, ("-O0",)).answer() == 0


@pytest.mark.compiler
def test_processes_may_build_at_once(answer: Path, empty_cache: Path) -> None:
    code = "from harness.kernel_build import *; import sys; print(load_kernel(Path(sys.argv[1])).answer())"
    command = [sys.executable, "-c", code, str(answer)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert [process.communicate()[0].strip() for process in processes] == ["42"] * 3
    assert len(libraries(empty_cache)) == 1


@pytest.mark.compiler
def test_a_compile_error_names_line_and_log(answer: Path, empty_cache: Path) -> None:
    answer.write_text('extern "C" int answer() { return nonsense; }\nint other() { return more; }\n')
    with pytest.raises(UnavailableError, match=r"cpu\.cpp:1.*nonsense") as raised:
        load_kernel(answer)
    log = Path(raised.value.mend.rpartition(" ")[2])
    assert "more" in log.read_text() and "-march=native" in log.read_text()
    assert libraries(empty_cache) == []


@pytest.mark.compiler
def test_a_cache_that_is_no_folder(answer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(UnavailableError, match="can't be written") as raised:
        load_kernel(answer)
    assert "XDG_CACHE_HOME" in raised.value.mend


@pytest.mark.compiler
def test_a_damaged_library_is_named(
    answer: Path, empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_kernel(answer)
    (built,) = libraries(empty_cache)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))  # a path that is not loaded yet
    damaged = tmp_path / "other/llm-decode-harness/kernels" / built.name
    damaged.parent.mkdir(parents=True)
    damaged.write_text("not a library")
    with pytest.raises(UnavailableError, match="can't be loaded") as raised:
        load_kernel(answer)
    assert str(damaged) in raised.value.mend


def test_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UnavailableError, match=r"no C\+\+ compiler") as raised:
        find_compiler()
    assert "install g++" in raised.value.mend


def test_cxx_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler --fast")
    with pytest.raises(UnavailableError, match="no-such-compiler"):
        find_compiler()


@pytest.mark.compiler
def test_cxx_may_have_arguments(answer: Path, empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", f"{find_compiler()[0]} -DNUMBER=5")
    assert load_kernel(answer).answer() == 5


@pytest.mark.compiler
@pytest.mark.parametrize("op", ["cpu_pool", "read_probe"])
@pytest.mark.parametrize("flags", X86_BUILDS if os.uname().machine == "x86_64" else ((),))
def test_kernels_compile_without_a_warning(op: str, flags: tuple[str, ...]) -> None:
    load_kernel(kernel_source(op), flags)
