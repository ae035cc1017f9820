"""The faults a user can meet: each says in one line what is wrong and in one line how to mend it.

Exit codes are part of the interface (README, "Exit codes"); nothing else in the package calls sys.exit.
"""


class HarnessError(Exception):
    """A fault that is explained instead of traced.

    `what` and `mend` are one line each. `exit_code` is the process's exit code.
    """

    exit_code = 2

    def __init__(self, what: str, mend: str) -> None:
        super().__init__(f"{what} ({mend})")
        self.what = what
        self.mend = mend


class GateFailed(HarnessError):
    """A `gate:` of the run's configuration was not met."""

    exit_code = 1


class ConfigError(HarnessError):
    """What the user wrote, or a file that it names, is not usable."""

    exit_code = 2


class CheckpointError(ConfigError):
    """A checkpoint's files contradict themselves, each other, or the model's configuration."""


class UnavailableError(HarnessError):
    """A backend, device, compiler or package that the run needs is not here."""

    exit_code = 3


class MeasurementError(HarnessError):
    """The measurement was made, and can't be believed."""

    exit_code = 4


class RequestFailed(HarnessError):
    """One request to a server came to nothing; the run keeps why, and goes on with the next."""

    exit_code = 4

    def __init__(self, what: str, mend: str = "see the server's log") -> None:
        super().__init__(what, mend)
