"""Each gpu.cu compiles for CUDA and HIP; the assembly shows no spills, and reads of 128 bits a lane."""

import os
import re
import shutil
import subprocess
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from compilers import command_for
from gpu_devices import card_device

from harness.errors import UnavailableError
from harness.gpu_build import compile_command, load_gpu_kernel, most_shared_bytes, platform_of, wave_widths
from harness.kernel_build import kernel_source
from harness.resources import kernels_dir

TARGETS = ("sm_80", "sm_90", "gfx906", "gfx90a")
# The kernels that read weights, caches, states or the probe's buffer. gemv_ragged reads x by elements.
READERS = {
    "read_probe": "read_packs", "gemv": "gemv_rows", "decode_attention": "attend_split",
    "gated_delta_rule": "update_state",
}  # fmt: skip
STREAMERS = {"gemv", "decode_attention"}
"""What they read once goes by streaming loads, and nothing else does: those are the weight's and the cache's."""
TURN_PLACES = 2
"""Of decode attention, that a lane has in flight."""
STATE_PACKS = 8
"""Of a state's columns, that a lane loads."""
WIDE = {"cuda": r"ld\.global[.\w:]*\.v4", "hip": r"(?:global|flat|buffer)_load_dwordx4"}
ANY = {"cuda": r"ld\.(?:volatile\.)?global", "hip": r"(?:global|flat|buffer)_load_"}
STREAMING = {"cuda": r"ld\.global\.cs\.", "hip": r"(?:global|flat|buffer)_load_\w+ [^\n]*\bslc"}
WIDE_STREAMING = {"cuda": r"ld\.global\.cs\.v4", "hip": r"(?:global|flat|buffer)_load_dwordx4 [^\n]*\bslc"}
SPILL = {"cuda": r"(\d+) bytes spill", "hip": r"\.(?:vgpr_spill_count|private_segment_fixed_size): *(\d+)"}
KERNEL_BODY = {"cuda": r"\.entry (\w+)\((.*?)\n}", "hip": r"\n(_Z\w+):(.*?)\n\.Lfunc_end"}


def command_of(target: str) -> list[str]:
    command, flags = command_for(target)
    return [*command, *(flag for flag in flags if flag != "-shared"), f"-I{kernels_dir()}"]


def assembly(source: Path, target: str, folder: Path) -> str:
    """PTX or amdgcn text with what the compiler says of registers."""
    if platform_of(target) == "cuda":
        how = ["-cubin", "-Xptxas", "-v", "-Werror", "all-warnings", "--keep", "--keep-dir", str(folder)]
    else:
        how = ["--cuda-device-only", "-S", "-Werror", "-Wno-unused-command-line-argument"]
    command = [*command_of(target), *how, str(source), "-o", str(folder / "out")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    text = folder / ("gpu.ptx" if platform_of(target) == "cuda" else "out")
    return text.read_text() + result.stderr + result.stdout


@pytest.fixture(scope="module")
def compiled(request, tmp_path_factory):
    """The assembly of an op for a target. What the session's tests ask for is compiled on all cores, in their order."""
    folder = tmp_path_factory.mktemp("assembly")

    def compile_into(op: str, target: str) -> str:
        into = folder / f"{op}-{target}"
        into.mkdir()
        return assembly(kernel_source(op, "gpu.cu"), target, into)

    tests = [item for item in request.session.items if "compiled" in getattr(item, "fixturenames", ())]
    pool = ThreadPoolExecutor(len(os.sched_getaffinity(0)))
    wanted = dict.fromkeys((test.callspec.params["op"], test.callspec.params["target"]) for test in tests)
    jobs = {(op, target): pool.submit(compile_into, op, target) for op, target in wanted}
    yield lambda op, target: jobs[op, target].result()
    pool.shutdown(cancel_futures=True)


def spilled(text: str, platform: str) -> list[int]:
    found = [int(count) for count in re.findall(SPILL[platform], text)]
    assert found, "the compiler says nothing of spills"
    return found


def loads(text: str, platform: str, kernel: str) -> dict[str, Counter]:
    """128-bit and narrower loads of global memory in each instance of a kernel."""
    found = {}
    for name, body in re.findall(KERNEL_BODY[platform], text, re.DOTALL):
        if kernel in name:
            wide, streams = (len(re.findall(of[platform], body)) for of in (WIDE, WIDE_STREAMING))
            found[name] = Counter(
                wide=wide, narrow=len(re.findall(ANY[platform], body)) - wide,
                streams=streams, narrow_streams=len(re.findall(STREAMING[platform], body)) - streams,
            )  # fmt: skip
    assert found, f"no kernel is called {kernel}"
    return found


def is_wide(op: str, kernel: str, count: Counter) -> bool:
    """Whether all that counts is loaded by 128 bits a lane. Where that has no mark of its own, most loads are to be
    wide: biases, tables and the like are few."""
    if op == "decode_attention":  # a key and a value of each place, and no query: attend_split<T, kTeam, kPacks, ...>
        packs = int(re.search(r"attend_splitI\w+?Li\d+ELi(\d+)E", kernel)[1])
        return count["streams"] == 2 * TURN_PLACES * packs and count["narrow_streams"] == 0
    if op in STREAMERS:
        return count["streams"] > 0 == count["narrow_streams"]
    if op == "gated_delta_rule":
        return count["wide"] >= STATE_PACKS
    return count["wide"] > count["narrow"]


def narrow_readers(text: str, platform: str, op: str) -> list[str]:
    """Instances of an op's reader that are not."""
    return [name for name, count in loads(text, platform, READERS[op]).items() if not is_wide(op, name, count)]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("op", READERS)
def test_values_stay_in_registers_and_loads_are_wide(compiled, op, target):
    text, platform = compiled(op, target), platform_of(target)
    assert not any(spilled(text, platform))
    assert narrow_readers(text, platform, op) == []


def kernels_by_words(folder: Path, loader: str, num_loaders: int) -> Path:
    """Our kernels, but that the loaders of this name load a pack word by word."""
    copy = shutil.copytree(kernels_dir(), folder / "kernels")
    header = copy / "portable_device.h"
    by_words = "const volatile uint32_t* w = (const volatile uint32_t*)from; return {{w[0], w[1], w[2], w[3]}}; }"
    found = re.compile(rf"(DEVICE Pack {loader}\(const void\* from\) \{{).*?;\s*\}}", re.DOTALL)
    planted, count = found.subn(rf"\1 {by_words}", header.read_text())
    assert count == num_loaders
    header.write_text(planted)
    return copy


@pytest.mark.parametrize("target", ["sm_90", "gfx906"])
def test_a_reader_by_words_is_found(tmp_path, target):
    kernels = kernels_by_words(tmp_path, r"load_pack\w*", 5)  # two on each platform, and one without HIP's builtin
    text = assembly(kernels / "read_probe/gpu.cu", target, tmp_path)
    assert len(narrow_readers(text, platform_of(target), "read_probe")) == 16


@pytest.mark.parametrize("op", sorted(STREAMERS))
@pytest.mark.parametrize("target", ["sm_90", "gfx906"])
def test_a_streaming_load_by_words_is_found(tmp_path, target, op):
    """The rows of x are still loaded by 128 bits: they must not hide it."""
    kernels = kernels_by_words(tmp_path, "load_pack_streaming", 3)
    text, platform = assembly(kernels / op / "gpu.cu", target, tmp_path), platform_of(target)
    assert len(narrow_readers(text, platform, op)) == len(loads(text, platform, READERS[op]))


def test_a_compiler_without_the_builtins_of_streaming_still_loads_packs(tmp_path):
    """Builtins that no compiler has stand for them."""
    copy = shutil.copytree(kernels_dir(), tmp_path / "kernels")
    header = copy / "portable_device.h"
    header.write_text(header.read_text().replace("__builtin_nontemporal_", "__builtin_that_is_missing_"))
    text = assembly(copy / "read_probe/gpu.cu", "gfx906", tmp_path)
    assert narrow_readers(text, "hip", "read_probe") == []
    assert not any(count["streams"] for count in loads(text, "hip", READERS["read_probe"]).values())


@pytest.mark.parametrize("target", ["sm_90", "gfx906"])
def test_a_spill_is_found(tmp_path, target):
    """An array whose index nobody knows can't lie in registers; 300 sums do not fit."""
    (tmp_path / "gpu.cu").write_text("""
#include "portable.h"
KERNEL(1024) spills(const float* x, float* out) {
  float sums[300];
  for (int pass = 0; pass < 2; ++pass)
    UNROLL for (int i = 0; i < 300; ++i)
      sums[i] = pass == 0 ? x[i * 1024 + thread_index()] : sums[i] * sums[(i + 7) % 300];
  barrier();
  UNROLL for (int i = 0; i < 300; ++i) out[(i * 7 + 1) * 1024 + thread_index()] = sums[(i * 11) % 300];
}
int start(const float* x, float* out) { return launch(spills, {}, 1024, 0, 0, x, out); }
""")
    assert any(spilled(assembly(tmp_path / "gpu.cu", target, tmp_path), platform_of(target)))


@pytest.mark.parametrize("target", ["sm_90", "gfx906:sramecc+:xnack-"])
def test_a_library_for_a_card_loads_anywhere(target):
    command_of(target)
    library = load_gpu_kernel(kernel_source("read_probe", "gpu.cu"), target)
    assert library.read_probe_num_variants() == 16


@pytest.mark.parametrize(
    "target, platform, waves",
    [("sm_90a", "cuda", (32,)), ("gfx906", "hip", (64,)), ("gfx936:xnack-", "hip", (64,)), ("gfx90a", "hip", (64,)),
     ("gfx1100", "hip", (32,)), ("host", "host", (32, 64))],
)  # fmt: skip
def test_targets(target, platform, waves):
    assert (platform_of(target), wave_widths(target)) == (platform, waves)


@pytest.mark.parametrize("target", ["", "sm90", "gfx", "native", "sm_90; rm"])
def test_a_target_of_no_kind_is_refused(target):
    with pytest.raises(UnavailableError, match="no GPU kernels can be built"):
        compile_command(target)


@pytest.mark.parametrize(
    "variable, target, mend", [("NVCC", "sm_90", "CUDA toolkit"), ("HIPCC", "gfx906", "apt install hipcc")]
)
def test_a_compiler_that_is_missing_or_given(monkeypatch, tmp_path, variable, target, mend):
    monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("harness.kernel_build.shutil.which", lambda name: None)
    with pytest.raises(UnavailableError, match="not on the PATH") as raised:
        compile_command(target)
    assert mend in raised.value.mend
    monkeypatch.setattr("harness.kernel_build.shutil.which", os.path.abspath)
    monkeypatch.setenv(variable, "/my/compiler --quick")
    assert compile_command(target)[0][-2:] == ["/my/compiler", "--quick"]


@pytest.mark.torch
def test_a_card_without_its_compiler_is_skipped(monkeypatch):
    card = SimpleNamespace(warp_size=32, major=9, minor=0)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda device: card)
    monkeypatch.setattr("torch.version.hip", None)
    monkeypatch.setenv("NVCC", "/no/such/nvcc")
    monkeypatch.delenv("HARNESS_REQUIRE_COMPILERS", raising=False)
    with pytest.raises(pytest.skip.Exception, match="/no/such/nvcc"):
        card_device()


@pytest.mark.parametrize(
    "target, num_bytes",
    [("sm_80", 166_912), ("sm_86", 101_376), ("sm_90", 232_448), ("sm_90a", 232_448), ("gfx906", 65_536),
     ("gfx90a:sramecc+:xnack-", 65_536), ("gfx950", 163_840), ("gfx928", None), ("gfx1100", None), ("sm_61", None)],
)  # fmt: skip
def test_what_a_block_may_have_of_shared_memory(target, num_bytes):
    """CUDA's as cudaDevAttrMaxSharedMemoryPerBlockOptin has it there; what nobody publishes is not known."""
    assert most_shared_bytes(target) == num_bytes
