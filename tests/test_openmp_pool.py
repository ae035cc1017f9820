"""Kernels on OpenMP's threads: the same products, no threads of our own, and a clear word where there are none."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from harness.backends.base import Executor  # noqa: E402  # behind the skip
from harness.backends.registry import linear_backends  # noqa: E402
from harness.openmp_pool import OpenMpPool  # noqa: E402
from harness.specs.device import DeviceInfo  # noqa: E402
from harness.specs.problem import LinearProblem  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]


@pytest.fixture(params=[1, 2, 3])
def pool(request):
    """OpenMP makes as many threads as it is asked for, whatever the cores."""
    pool = OpenMpPool(request.param)
    yield pool
    pool.close()


@pytest.mark.parametrize("n, k", [(1, 1), (33, 31), (200, 65)])
def test_a_product_on_its_threads(n, k, pool):
    problem = LinearProblem(m=2, n=n, k=k, dtype="F32")
    x, weight = torch.randn(2, k), torch.randn(n, k)
    out = torch.full((2, n), torch.nan)
    backend = linear_backends.get("cpu-gemv")(Executor(DeviceInfo(kind="cpu", name="a test's CPU"), pool))
    launch = backend.bind(x, backend.prepare(weight, None, problem), out)
    launch()
    assert torch.allclose(out.double(), x.double() @ weight.double().T, atol=1e-4)
    launch()  # torch's own product had a team of another size
    threads = {task.name for task in Path("/proc/self/task").iterdir()}
    launch()
    assert {task.name for task in Path("/proc/self/task").iterdir()} == threads


def test_a_closed_pool_is_no_pool():
    pool = OpenMpPool(2)
    pool.close()
    pool.close()
    with pytest.raises(ValueError, match="closed"):
        _ = pool.handle


@pytest.mark.parametrize(
    "before, limit, words",
    [("import torch", "1", "OpenMP gives 1 of 2 threads"), ("", "9", "no OpenMP runtime is loaded")],
)
def test_a_process_that_has_none(before, limit, words):
    code = f"{before}\nfrom harness.openmp_pool import OpenMpPool\nOpenMpPool(2)"
    environment = {**os.environ, "OMP_THREAD_LIMIT": limit}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 1
    assert f"UnavailableError: {words}" in done.stderr.splitlines()[-1].rpartition("harness.errors.")[2]
