"""What a bound launch would compile, compiled for cards that are not here, and what its assembly says.

A launch bound to tensors of the `meta` device (shapes without memory) is run with Triton's own run replaced: that gives
each kernel with the very arguments that a card would get, of any size. As at run time, they are specialised: pointers
and sizes that are multiples of 16 are known to be, and 1 and None are constants.
"""

from __future__ import annotations

import functools
import re
import subprocess
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

# gfx906 stands in for Hygon's gfx926, gfx928 and gfx936, which upstream LLVM does not know: unverified on those.
TARGETS = {
    "sm_80": ("cuda", 80, 32),
    "sm_90": ("cuda", 90, 32),
    "gfx906": ("hip", "gfx906", 64),
    "gfx90a": ("hip", "gfx90a", 64),
    "gfx942": ("hip", "gfx942", 64),
}
# A load to registers, or an asynchronous copy to shared memory. AMD's reloads of what was spilled look alike.
LOADS = {
    "cuda": r"\bld\.global[\w.:]*?(?:\.v(?P<count>\d))?\.[bfsu](?P<bits>\d+)\b"
    r"|\bcp\.async\.\w+\.shared\.global[^;]*?\],\s*(?P<bytes>\w+)",
    "hip": r"\b(?:global|buffer|flat)_load_(?P<type>\w+)\b(?!.*Folded Reload)",
}
AMD_BYTES = {"dword": 4, "dwordx2": 8, "dwordx3": 12, "dwordx4": 16}


@dataclass(frozen=True)
class Call:
    """One kernel with the arguments of one launch."""

    kernel: Any
    arguments: tuple[Any, ...]
    options: dict[str, Any]


@dataclass(frozen=True)
class Compiled:
    loads: dict[tuple[str, int], list[int]]
    """Source file and line: bytes a lane that each of its instructions loads from global memory; those of an unrolled
    or pipelined loop are there each time. Line 0: the compiler has lost it."""
    spilled: int
    """Registers (AMD) or bytes (CUDA) that a lane keeps in memory for want of registers."""
    lanes: int
    """Of a program."""


def calls_of(launch: Callable[[], None]) -> list[Call]:
    """What the launch would run, in order; nothing is run."""
    from triton.runtime.jit import JITFunction

    calls: list[Call] = []

    def record(kernel, *arguments, grid, warmup, **options):
        calls.append(Call(kernel, arguments, options))

    with mock.patch.object(JITFunction, "run", record):
        launch()
    return calls


def compile_for(call: Call, target: str) -> Compiled:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    values = dict(zip(call.kernel.arg_names, call.arguments, strict=False))
    values |= {name: value for name, value in call.options.items() if name in call.kernel.arg_names}
    options = {name: value for name, value in call.options.items() if name not in values}
    types, constants, hints = {}, {}, {}
    for index, parameter in enumerate(call.kernel.params):
        value = values[parameter.name]
        if parameter.is_constexpr or value is None or (isinstance(value, int) and value == 1):
            types[parameter.name], constants[parameter.name] = "constexpr", value
            continue
        types[parameter.name] = _type_of(value)
        if not isinstance(value, float) and (not isinstance(value, int) or value % 16 == 0):
            hints[(index,)] = [["tt.divisibility", 16]]
    backend, arch, lanes = TARGETS[target]
    source = ASTSource(call.kernel, types, constexprs=constants, attrs=hints)
    binary = triton.compile(source, target=GPUTarget(backend, arch, lanes), options=options)
    text = binary.asm["ptx" if backend == "cuda" else "amdgcn"]
    spilled = _spilled_cuda(binary.asm["cubin"]) if backend == "cuda" else _spilled_amd(text)
    return Compiled(_loads(text, backend), spilled, lanes * options["num_warps"])


def _loads(text: str, backend: str) -> dict[tuple[str, int], list[int]]:
    """By the assembly's `.loc`, which is where an instruction's innermost inlined source lies.

    CUDA's masked loads are inline assembly, whose lines LLVM counts up from the tl.load's: the first counts for all.
    """
    names = {number: re.findall(r'[^"/]+(?=")', path)[-1] for number, path in re.findall(r"\.file\s+(\d+) (.*)", text)}
    loads, place, is_inline, is_first = defaultdict(list), ("", 0), False, True
    for line in text.splitlines():
        if "inline asm" in line:
            is_inline, is_first = "begin" in line, True
        elif found := re.match(r"\s*\.loc\s+(\d+) (\d+)", line):
            if is_first:
                place = names[found[1]], int(found[2])
            is_first = not is_inline
        elif found := re.search(LOADS[backend], line):
            loads[place].append(_bytes(found.groupdict()))
    return dict(loads)


def _bytes(load: dict[str, str]) -> int:
    if "type" in load:
        return AMD_BYTES.get(load["type"], 2)  # bytes and halves, into registers of all kinds
    if load["bytes"]:
        return int(load["bytes"], 0)
    return int(load["count"] or 1) * int(load["bits"]) // 8


def _type_of(value: Any) -> str:
    if isinstance(value, float):
        return "fp32"
    if isinstance(value, int):
        return "i32" if -(2**31) <= value < 2**31 else "i64"
    names = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "int64": "i64", "int32": "i32"}
    return "*" + names[str(value.dtype).removeprefix("torch.")]


def _spilled_amd(text: str) -> int:
    counts = re.findall(r"\.(?:vgpr|sgpr)_spill_count:\s*(\d+)", text)
    assert len(counts) == 2, "the assembly does not say what was spilled"
    return sum(map(int, counts))


def _spilled_cuda(cubin: bytes) -> int:
    """PTX has registers without end: only the binary shows what did not fit."""
    import tempfile

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [_cuobjdump(), "--dump-resource-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"STACK:(\d+).*?LOCAL:(\d+)", text)
    assert found, f"cuobjdump does not say what was spilled: {text}"
    return int(found[1]) + int(found[2])


@functools.cache
def _cuobjdump() -> str:
    import triton

    return str(Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump")
