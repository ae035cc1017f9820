"""The rules that tell a kernel's work by its name: configs/kernel_classes.yaml."""

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from harness.specs.base import Frozen

KernelClass = Literal[
    "linear", "attention", "linear-attention", "norm", "elementwise", "rope", "kv-write", "sampling", "communication",
    "memcpy", "other",
]  # fmt: skip
"""linear: products with weights, of one row or many. memcpy: copies and fills. other: no rule knows the name."""


def _compiles(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as fault:
        raise ValueError(f"not a regular expression: {fault}") from None
    return pattern


class KernelRule(Frozen):
    """Names of one class."""

    kernel_class: KernelClass
    names: Annotated[tuple[Annotated[str, Field(min_length=1), AfterValidator(_compiles)], ...], Field(min_length=1)]
    """Regular expressions, looked for anywhere in the name, case ignored."""


class KernelRules(Frozen):
    """The first rule that knows a name decides."""

    rules: tuple[KernelRule, ...]
