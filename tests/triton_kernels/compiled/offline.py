"""What a bound launch would compile, compiled for cards that are not here, and what its assembly says.

A launch bound to tensors of the `meta` device (shapes without memory) is run with Triton's own run replaced: that gives
each kernel with the very arguments that a card would get, of any size. As at run time, they are specialised: pointers
and sizes that are multiples of 16 are known to be, and 1 and None are constants.
"""

from __future__ import annotations

import functools
import re
import subprocess
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
# 128 bits a lane in any spelling: a load to registers, or an asynchronous copy of 16 bytes to shared memory.
WIDE = {
    "cuda": r"ld\.global[\w.:]*\.(?:v4\.[bfu]32|v2\.[bfu]64)\b|cp\.async\.\w+\.shared\.global[^;]*,\s*(?:0x10|16)\b",
    "hip": r"\b(?:global|buffer|flat)_load_(?:dwordx4|b128)\b",
}


@dataclass(frozen=True)
class Call:
    """One kernel with the arguments of one launch."""

    kernel: Any
    arguments: tuple[Any, ...]
    options: dict[str, Any]


@dataclass(frozen=True)
class Compiled:
    wide_loads: int
    """Instructions that load 128 bits a lane; those of an unrolled or pipelined loop count each time."""
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
    return Compiled(len(re.findall(WIDE[backend], text)), spilled, lanes * options["num_warps"])


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
