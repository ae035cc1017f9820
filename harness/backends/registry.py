"""Finds backends by name, and chooses one for a problem.

A backend registers where it is defined, with a decorator; this module knows none of them. The first look-up
imports the modules of `harness/backends/linear` (or `attention`, `linear_attention`), and what other packages offer:

    [project.entry-points."harness.linear_backends"]
    mine = "my_package.my_backend"            # a module whose @linear_backend registers
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from harness.backends.base import AttentionBackend, LinearAttentionBackend, LinearBackend, Support
from harness.errors import ConfigError, UnavailableError
from harness.specs.ab import Op
from harness.specs.device import DeviceInfo
from harness.specs.problem import Parameters
from harness.specs.selection import SelectionEntry, SelectionTable

AUTO = "auto"
REQUIRED = ("contest_legal", "supports", "read_bytes", "bind")
"""What every backend has, whatever its operation: a plugin that lacks one is refused when it registers."""


class _Backend(Protocol):
    """What choosing needs of a backend of any operation."""

    name: ClassVar[str]

    @staticmethod
    def supports(problem: Any, device: DeviceInfo) -> Support: ...


B = TypeVar("B", bound=_Backend)
C = TypeVar("C", bound=type[Any])


@dataclass(frozen=True)
class Choice:
    """The backend to use and, where it is not the one that was asked for, why."""

    backend: type[Any]
    parameters: Parameters = field(default_factory=dict)
    selected: bool = False
    """By a selection table."""
    fallback_from: str | None = None
    fallback_reason: str | None = None


class Registry(Generic[B]):
    """The backends of one operation. `auto` tries those in `preference`, in that order; others go by name."""

    def __init__(self, op: str, protocol: type[Any], preference: tuple[str, ...]) -> None:
        """protocol: what a backend is; a class that is none of its subclasses gets the defaults that it lacks."""
        self._op, self._protocol = op, protocol
        self._preference = preference
        self._backends: dict[str, type[B]] = {}
        self._unavailable: dict[str, str] = {}
        self._discovered = False

    def register(self, name: str) -> Callable[[C], C]:
        """Decorator: sets the class's name and makes it known by it.

        ConfigError for a name that is taken, and for a class that is no backend.
        """

        def add(backend: C) -> C:
            missing = [attribute for attribute in REQUIRED if not hasattr(backend, attribute)]
            if missing:
                raise ConfigError(
                    f"{self._op} backend {name!r} lacks {', '.join(missing)}", "see harness/backends/base.py"
                )
            if name in self._backends or name == AUTO:
                raise ConfigError(
                    f"a second {self._op} backend wants to be called {name!r}: {backend.__module__}",
                    "rename it, or uninstall the package that brings it",
                )
            for attribute, default in vars(self._protocol).items():
                if not attribute.startswith("_") and not hasattr(backend, attribute):
                    setattr(backend, attribute, default)
            backend.name = name
            self._backends[name] = backend
            return backend

        return add

    def all(self) -> dict[str, type[B]]:
        """Every backend by name, sorted."""
        self._discover()
        return dict(sorted(self._backends.items()))

    def unavailable(self) -> dict[str, str]:
        """Modules and entry points that could not be imported, each with the reason."""
        self._discover()
        return dict(self._unavailable)

    def get(self, name: str) -> type[B]:
        """The backend of that name; ConfigError lists the known ones, and those that failed to load."""
        known = self.all()
        if name not in known:
            failed = "".join(f"; {module} failed to load: {why}" for module, why in self._unavailable.items())
            raise ConfigError(f"no {self._op} backend is called {name!r}", f"known: {', '.join(known)}{failed}")
        return known[name]

    def choose(self, requested: str, problem: Any, device: DeviceInfo) -> Choice:
        """The requested backend, else the first in the preference order that supports the problem.

        UnavailableError where there is none, with what each one says.
        """
        if requested == AUTO:
            return Choice(self._preferred(problem, device))
        asked = self.get(requested)
        support = asked.supports(problem, device)
        if support.ok:
            return Choice(asked)
        why = f"{support.why} ({support.mend})"
        return Choice(self._preferred(problem, device), fallback_from=requested, fallback_reason=why)

    def choose_selected(self, entry: SelectionEntry | None, otherwise: str, problem: Any, device: DeviceInfo) -> Choice:
        """What a selection table says; where it lists nothing, or something that can't be had here, as `otherwise`
        says, and the choice tells why."""
        if entry is None:
            why = "the table does not list this problem"
            return replace(self.choose(otherwise, problem, device), fallback_from="selection", fallback_reason=why)
        choice = self.choose(entry.backend, problem, device)
        return choice if choice.fallback_from else replace(choice, parameters=entry.parameters, selected=True)

    def _preferred(self, problem: Any, device: DeviceInfo) -> type[B]:
        known = self.all()
        refusals = []
        for name in self._preference:
            if name not in known:
                continue
            support = known[name].supports(problem, device)
            if support.ok:
                return known[name]
            refusals.append(f"{name}: {support.why} ({support.mend})")
        reasons = refusals or [f"{module}: {why}" for module, why in self._unavailable.items()]
        raise UnavailableError(f"no {self._op} backend can do {problem} on {device.name}", "; ".join(reasons))

    def _discover(self) -> None:
        """Imports every module that may register; ours first, so that no plugin takes one of our names."""
        if self._discovered:
            return
        self._discovered = True
        package = importlib.import_module(f"harness.backends.{self._op}")
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            self._load(module.name, ImportError, partial(importlib.import_module, module.name))
        for plugin in entry_points(group=f"harness.{self._op}_backends"):
            # Any fault of somebody else's package: it must not take our own backends with it.
            self._load(plugin.value, Exception, plugin.load)

    def _load(self, name: str, expected: type[Exception], load: Callable[[], Any]) -> None:
        try:
            load()
        except expected as error:
            self._unavailable[name] = f"{type(error).__name__}: {error}"


linear_backends: Registry[LinearBackend] = Registry(
    "linear", LinearBackend, preference=("cpu-gemv", "torch-widened", "torch")
)
attention_backends: Registry[AttentionBackend] = Registry(
    "attention", AttentionBackend, preference=("cpu-decode", "torch-sdpa")
)
linear_attention_backends: Registry[LinearAttentionBackend] = Registry(
    "linear_attention", LinearAttentionBackend, preference=("cpu-recurrent", "torch-recurrent")
)
REGISTRIES: dict[Op, Registry[Any]] = {
    "linear": linear_backends, "attention": attention_backends, "linear-attention": linear_attention_backends,
}  # fmt: skip
linear_backend, choose_linear = linear_backends.register, linear_backends.choose
attention_backend, choose_attention = attention_backends.register, attention_backends.choose
linear_attention_backend, choose_linear_attention = linear_attention_backends.register, linear_attention_backends.choose


def check_table(table: SelectionTable, path: Path) -> None:
    """ConfigError for an entry whose backend is not here, or has no such setting: only what `harness ab` tried can have
    won. Asked is the device that the table was measured on, whose settings may be others than this one's."""
    for place, entry in enumerate(table.entries, start=1):
        where = f"{path}: entry {place} ({entry.op} {entry.role})"
        try:
            backend = REGISTRIES[entry.op].get(entry.backend)
        except ConfigError as fault:
            raise ConfigError(f"{where}: {fault.what}", f"measure again, or install it; {fault.mend}") from None
        if entry.parameters and not _can_be_set(backend, entry, table.device):
            raise ConfigError(
                f"{where}: {entry.backend} has no setting {entry.parameters} for this problem",
                "measure again with `harness ab ... --save`",
            )


def _can_be_set(backend: type[Any], entry: SelectionEntry, device: DeviceInfo) -> bool:
    """Among the settings that the backend lists; where it lists none (its library is not here), whether it takes such
    keys at all."""
    if settings := backend.tuning(entry.problem, device):
        return entry.parameters in settings
    try:
        inspect.signature(backend).bind(None, **entry.parameters)
    except TypeError:
        return False
    return True
