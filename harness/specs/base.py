"""The base of everything that is written down."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


class Frozen(BaseModel):
    """Immutable, and strict about its keys; field docstrings become the JSON schema (`harness schema`).

    NaN and infinity are refused: a missing figure is null, and nothing else means "not known".
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False, protected_namespaces=()
    )


def flattened(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested keys with dots between: {"engine": {"fuse": True}} is {"engine.fuse": True}."""
    flat: dict[str, Any] = {}
    for key, inner in value.items():
        flat |= flattened(inner, f"{prefix}{key}.") if isinstance(inner, Mapping) else {prefix + key: inner}
    return flat


Count = Annotated[int, Field(strict=True, ge=1, le=1 << 53)]
"""A whole number of at least 1 as users write it: YAML's `true` and `2.0` are not counts."""


def _no_truth(value: object) -> object:
    """YAML's `true` would count as 1."""
    if isinstance(value, bool):
        raise ValueError(f"{str(value).lower()} is not a number")
    return value


Number = Annotated[float, BeforeValidator(_no_truth)]
"""A number as users write it."""
Magnitude = Annotated[Number, Field(ge=1e-24, le=1e24)]
"""A positive figure in SI units as users write it, within what the physical world has: products and quotients of a few
such neither overflow nor vanish."""
Share = Annotated[Number, Field(ge=0, le=1)]
"""A part of a whole."""
