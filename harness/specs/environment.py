"""What a run's surroundings were: everything that could explain a figure which does not come back."""

from pydantic import NonNegativeFloat, NonNegativeInt

from harness.specs.base import Frozen

SECRET_WORDS = ("KEY", "TOKEN", "SECRET", "PASSWORD", "CREDENTIAL")
"""In the names of variables whose values are written nowhere."""


def is_secret_field(name: str) -> bool:
    """Of a request's body or of an engine's arguments, which have `max_tokens` and its like: by the last word."""
    return name.upper().replace("-", "_").rpartition("_")[2] in (*SECRET_WORDS, "APIKEY", "AUTHORIZATION")


class PackageVersion(Frozen):
    """A package as it is installed, not as it is claimed."""

    version: str
    record_sha256: str | None
    """Hash of the wheel's RECORD, which itself holds every file's hash; null for an editable install."""


class Environment(Frozen):
    """Surroundings of a run. What could not be read is null."""

    utc: str
    harness_version: str
    git_commit: str | None
    """Of the harness's own checkout."""
    git_dirty: bool | None
    python: str
    platform: str
    packages: dict[str, PackageVersion]
    load_average: tuple[NonNegativeFloat, NonNegativeFloat, NonNegativeFloat] | None
    cpu_governor: str | None
    transparent_huge_pages: str | None
    affinity: tuple[int, ...]
    """Logical CPUs that this process may use."""
    available_memory_bytes: NonNegativeInt | None
    container: str | None
    """docker, podman, kubernetes, ...: as far as it shows."""
    variables: dict[str, str]
    """Environment variables that engines read."""
    secret_variables: tuple[str, ...]
    """Those among them that may hold a secret: by name only."""
