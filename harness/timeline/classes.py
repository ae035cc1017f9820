"""A kernel's class by its name. Pure."""

import re
from collections.abc import Callable, Iterable
from functools import cache

from harness.specs.kernel_classes import KernelClass, KernelRule

ClassOf = Callable[[str], KernelClass]


def classifier(rules: Iterable[KernelRule]) -> ClassOf:
    """Each name is looked up once: a trace has few names and many kernels."""
    compiled = [
        (re.compile("|".join(f"(?:{name})" for name in rule.names), re.IGNORECASE), rule.kernel_class) for rule in rules
    ]

    @cache
    def class_of(name: str) -> KernelClass:
        return next((found for pattern, found in compiled if pattern.search(name)), "other")

    return class_of
