"""TunableOp's results on disk: which library kernel torch found the fastest for each product.

Lines are `Validator,NAME,VALUE` and `OPERATION,PARAMETERS,SOLUTION[,MILLISECONDS[,BLAS_PARAMS: ...]]`
(aten/src/ATen/cuda/tunable/Tunable.cpp). What validators there are, and whether PARAMETERS has the strides, differs
between versions of torch. torch compares validators as text, to the end of the line: where one differs, is missing, is
unknown to it or ends in a carriage return, it ignores the whole file without an error.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.config_io import replace_file
from harness.errors import ConfigError

FILENAME = "PYTORCH_TUNABLEOP_FILENAME"
"""torch's own variable, which vLLM's process reads as well."""
DEFAULT_FILENAME = "tunableop_results.csv"
_VALIDATOR = "Validator"
_BLAS = "BLAS_PARAMS:"
_ALLOWED = "allowed: Validator,NAME,VALUE and OPERATION,PARAMETERS,SOLUTION[,MILLISECONDS]"


@dataclass(frozen=True)
class Result:
    """One product and the kernel for it."""

    operation: str
    """With type and layout: GemmTunableOp_BFloat16_TN."""
    parameters: str
    """tn_M_N_K, columns first as BLAS has it, and in newer versions _ld_ and the strides."""
    solution: str
    """Gemm_Hipblaslt_1219; Default is what torch takes without tuning."""
    time_s: float | None = None


@dataclass(frozen=True)
class Tunings:
    """A file's content. Of lines that say the same thing twice torch takes the last validator and the first result."""

    validators: dict[str, str]
    results: tuple[Result, ...]
    has_crlf: bool = False
    """As an editor on Windows or a checkout with autocrlf leaves it: torch ignores the file."""


def results_path(variables: Mapping[str, str], ordinal: int) -> Path:
    """Where torch keeps the results of a device: its ordinal stands for %d, else before the name's last dot."""
    name, number = variables.get(FILENAME) or DEFAULT_FILENAME, str(ordinal)
    if "%d" in name:
        return Path(name.replace("%d", number, 1))
    stem, dot, suffix = name.rpartition(".")
    return Path(f"{stem}{number}.{suffix}" if dot else name + number)


def read_tunings(path: Path) -> Tunings:
    """ConfigError where the file can't be read, and for a line that torch would drop or misread."""
    text = _text(path)
    validators: dict[str, str] = {}
    results: dict[tuple[str, str], Result] = {}
    reader = csv.reader(io.StringIO(text, newline=""), quoting=csv.QUOTE_NONE)
    try:
        for fields in reader:
            if fields and fields[0] == _VALIDATOR:
                name, value = _validator(fields, path, reader.line_num)
                validators[name] = value
            elif fields:
                result = _result(fields, path, reader.line_num)
                results.setdefault((result.operation, result.parameters), result)
    except csv.Error as fault:
        raise ConfigError(f"{path}:{reader.line_num}: {fault}", _ALLOWED) from None
    return Tunings(validators, tuple(results.values()), has_crlf="\r" in text)


def mend_line_ends(path: Path) -> None:
    """Make a file's lines end as torch wants them; all else stays. ConfigError where it can't be read or written."""
    replace_file(path, _text(path).replace("\r\n", "\n").replace("\r", "\n"))


def write_tunings(path: Path, validators: Mapping[str, str], results: Iterable[Result]) -> None:
    """Replace the file as a whole, in torch's own format. ConfigError where it can't be written."""
    rows = [(_VALIDATOR, name, value) for name, value in validators.items()] + [_fields(one) for one in results]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_NONE, quotechar=None).writerows(rows)
    replace_file(path, text.getvalue())


def differences(found: Mapping[str, str], here: Mapping[str, str]) -> list[str]:
    """Why torch would ignore a file with these validators; empty where it takes it."""
    return [
        f"{name} {found.get(name, 'none')}, here {here.get(name, 'none')}"
        for name in dict.fromkeys((*found, *here))
        if found.get(name) != here.get(name)
    ]


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except OSError as fault:
        raise ConfigError(f"{path}: {fault.strerror}", f"give {FILENAME} a file that can be read") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is no text", f"give {FILENAME} a CSV file of TunableOp") from None


def _validator(fields: list[str], path: Path, line: int) -> tuple[str, str]:
    if len(fields) != 3 or not all(fields):
        raise _malformed(fields, path, line)
    return fields[1], fields[2]


def _result(fields: list[str], path: Path, line: int) -> Result:
    has_blas = len(fields) > 4 and fields[4].lstrip().startswith(_BLAS)  # of PYTORCH_TUNABLEOP_BLAS_LOG, commas inside
    if len(fields) < 3 or not all(fields[:3]) or (len(fields) > 4 and not has_blas):
        raise _malformed(fields, path, line)
    try:
        time_s = None if len(fields) < 4 else float(fields[3]) / 1e3
    except ValueError:
        raise _malformed(fields, path, line) from None
    return Result(fields[0], fields[1], fields[2], measured(time_s))


def measured(time_s: float | None) -> float | None:
    """A time, or null: torch writes 0 for one that it read no time for, and inf where it could time no kernel."""
    return time_s if time_s is not None and math.isfinite(time_s) and time_s > 0 else None


def _malformed(fields: list[str], path: Path, line: int) -> ConfigError:
    text = ",".join(fields)
    return ConfigError(f"{path}:{line}: found {text[:80]!r}", _ALLOWED)


def _fields(result: Result) -> tuple[str, ...]:
    time = () if result.time_s is None else (f"{result.time_s * 1e3:.6g}",)
    return (result.operation, result.parameters, result.solution, *time)
