"""Builds a kernel's source with the machine's compiler and loads it.

A kernel is plain C ABI (`extern "C"`, no torch headers), so one compiler call makes a shared library and
ctypes loads it: no build system, and no match between a compiler and the one that torch was built with.
Libraries are cached under a hash of everything that decides their code, so a cache that several machines
share is safe.
"""

import ctypes
import functools
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from harness.devices.cpu import cpu_flags
from harness.errors import UnavailableError
from harness.resources import cache_dir, kernels_dir

# No -Werror: a compiler we never saw may warn of something harmless, and a user's run must not die of it. The
# tests add it.
FLAGS = ("-std=c++17", "-O3", "-march=native", "-fPIC", "-shared", "-pthread", "-Wall", "-Wextra")

_INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)


def kernel_source(op: str, file: str = "cpu.cpp") -> Path:
    """`kernels/<op>/<file>`; UnavailableError where there is none."""
    source = kernels_dir() / op / file
    if not source.is_file():
        raise UnavailableError(f"there is no kernel source {source}", "reinstall llm-decode-harness")
    return source


def load_kernel(source: Path, extra_flags: tuple[str, ...] = ()) -> ctypes.CDLL:
    """The shared library of a C++ source, built where the cache has none.

    extra_flags come last, so they override ours: `-march=haswell` builds the AVX2 variant of a kernel.
    Two processes may build the same kernel at once: each writes its own file and renames it into place.

    Raises UnavailableError without a compiler, when the source does not compile, and when the cache can't be
    used.
    """
    return load_library(build_kernel(source, extra_flags).path)


@dataclass(frozen=True)
class Library:
    """A shared library in the cache."""

    path: Path
    is_new: bool
    """Built by this call; else the cache had it."""


def build_kernel(source: Path, extra_flags: tuple[str, ...] = ()) -> Library:
    """As load_kernel, and not loaded."""
    return build_library(source, find_compiler(), (*FLAGS, *extra_flags), *cpu_flags())


def build_library(source: Path, compiler: list[str], flags: tuple[str, ...], *target: str) -> Library:
    """What this command makes of a source, built where the cache has none. target: what else decides it."""
    path = cache_dir() / "kernels" / f"{source.parent.name}-{_digest(source, compiler, flags, target)}.so"
    is_new = not path.is_file()
    if is_new:
        _build(source, compiler, flags, path)
    return Library(path, is_new)


def load_library(library: Path) -> ctypes.CDLL:
    """UnavailableError for one that is damaged, or that lies where nothing may be executed."""
    try:
        return ctypes.CDLL(str(library), use_errno=True)
    except OSError as error:
        raise UnavailableError(
            f"the built kernel can't be loaded: {error}",
            f"remove {library}, or set XDG_CACHE_HOME to a folder on a file system that allows executing",
        ) from error


def find_compiler() -> list[str]:
    """The C++ compiler's command: $CXX (with its arguments), else g++, c++ or clang++ on the PATH."""
    names = ("g++", "c++", "clang++")
    return find_command("CXX", names, "no C++ compiler is on the PATH", "install g++ (apt install g++), or set CXX")


def find_command(variable: str, names: tuple[str, ...], what: str, mend: str) -> list[str]:
    """The command in an environment variable (with its arguments), else the first of these names or paths there is."""
    try:
        wanted = shlex.split(os.environ.get(variable, ""))
    except ValueError as fault:
        raise UnavailableError(f"{variable} is not a command: {fault}", "mend its quotes, or unset it") from None
    if wanted:
        if shutil.which(wanted[0]) is None:
            missing = f"{variable} names {wanted[0]!r}, which is not on the PATH"
            raise UnavailableError(missing, f"unset {variable}, or install it")
        return wanted
    for name in names:
        if shutil.which(name):
            return [name]
    raise UnavailableError(what, mend)


def compiler_version() -> str:
    """First line of what the C++ compiler says of itself; UnavailableError without one."""
    return _compiler_version(tuple(find_compiler())).partition("\n")[0]


@functools.cache
def _compiler_version(command: tuple[str, ...]) -> str:
    """What `--version` says, nvcc only in its last lines; empty for a compiler that does not know the flag."""
    result = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False)
    return result.stdout


def _digest(source: Path, compiler: list[str], flags: tuple[str, ...], target: tuple[str, ...]) -> str:
    """Hash of all that decides the library's code; -march=native makes the CPU's flags (`target`) part of that."""
    digest = hashlib.sha256()
    for path in _with_headers(source):
        digest.update(path.read_bytes() + b"\0")
    command = (*compiler, *flags)
    digest.update("\0".join((*command, _compiler_version(tuple(compiler)), *target)).encode())
    return digest.hexdigest()[:20]


def _with_headers(source: Path) -> list[Path]:
    """The source and, transitively, what it includes in quotes from its own folder or from kernels/."""
    found: list[Path] = []
    waiting = [source]
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        found.append(path)
        for name in _INCLUDE.findall(path.read_text()):
            candidates = (path.parent / name, kernels_dir() / name)
            waiting += [header for header in candidates if header.is_file()][:1]
    return found


def _build(source: Path, compiler: list[str], flags: tuple[str, ...], library: Path) -> None:
    """Compiles into a temporary folder beside `library` and renames: nobody ever loads half a library."""
    try:
        library.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=library.parent) as folder:
            built = Path(folder) / library.name
            command = [*compiler, *flags, f"-I{kernels_dir()}", str(source), "-o", str(built)]
            _compile(command, library.with_suffix(".log"))
            built.replace(library)
    except OSError as error:
        raise UnavailableError(
            f"the kernel cache {library.parent} can't be written: {error}",
            "set XDG_CACHE_HOME to a folder that you may write, with space left",
        ) from error


def _compile(command: list[str], log: Path) -> None:
    """Runs the compiler; on failure its first error is our message, its whole answer is in `log`."""
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode == 0:
        return
    log.write_text(f"{shlex.join(command)}\n{result.stdout}{result.stderr}")
    errors = (line.strip() for line in result.stderr.splitlines() if "error: " in line)
    first = next(errors, f"exit code {result.returncode} of {command[0]}")
    raise UnavailableError(f"a kernel does not compile: {first}", f"the compiler's whole answer: {log}")
