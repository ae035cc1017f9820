"""A test that has no compiler skips, or fails where HARNESS_REQUIRE_COMPILERS=1 says that all are here."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from compilers import command_for


@pytest.mark.parametrize("target, what", [("host", "no C.. compiler"), ("sm_90", "nvcc"), ("gfx906", "hipcc")])
def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch, target: str, what: str) -> None:
    for variable in ("CXX", "NVCC", "HIPCC"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("harness.kernel_build.shutil.which", lambda name: None)
    for required, outcome in (("", pytest.skip.Exception), ("1", pytest.fail.Exception)):
        monkeypatch.setenv("HARNESS_REQUIRE_COMPILERS", required)
        with pytest.raises((pytest.skip.Exception, pytest.fail.Exception), match=f"{what} is ") as raised:
            command_for(target)
        assert raised.type is outcome


@pytest.mark.parametrize("required, code, said", [("", 0, "1 skipped"), ("1", 1, "1 error")])
def test_a_test_that_is_marked(required: str, code: int, said: str) -> None:
    """It would run no compiler itself."""
    test = Path(__file__).with_name("test_cpu_pool.py")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"{test}::test_no_wake_up_is_lost[plain]"],
        env={**os.environ, "CXX": "/no/such/compiler", "HARNESS_REQUIRE_COMPILERS": required},
        cwd=test.parents[1], capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == code and said in done.stdout and "/no/such/compiler" in done.stdout
