"""The base of everything that is written down."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class Frozen(BaseModel):
    """Immutable, and strict about its keys; field docstrings become the JSON schema (`harness schema`).

    NaN and infinity are refused: a missing figure is null, and nothing else means "not known".
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False, protected_namespaces=()
    )


Count = Annotated[int, Field(strict=True, ge=1)]
"""A whole number of at least 1 as users write it: YAML's `true` and `2.0` are not counts."""
