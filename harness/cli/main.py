"""The command's entry: the list of subcommands, and how a fault becomes two lines and an exit code.

Nothing heavy is imported here: `harness --help` answers at once, and each command imports what it needs in its body.
"""

import errno
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import harness
from harness.errors import ConfigError, HarnessError


class ExplainingGroup(TyperGroup):
    """Turns a HarnessError into one line what, one line how to mend, and its exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except HarnessError as fault:
            if ctx.params.get("debug"):
                raise
            typer.echo(f"error: {fault.what}", err=True)
            typer.echo(f"mend:  {fault.mend}", err=True)
            ctx.exit(fault.exit_code)
        except KeyboardInterrupt:
            if ctx.params.get("debug"):
                raise
            typer.echo("interrupted: what was measured is kept (harness runs list)", err=True)
            ctx.exit(130)


app = typer.Typer(
    cls=ExplainingGroup,
    name="harness",
    help="How far is one LLM decode from the memory wall, and why.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(harness.__version__)
        raise typer.Exit


@app.callback()
def root(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """How far is one LLM decode from the memory wall, and why."""


def _add_commands() -> None:
    from harness.cli import ab, bench, look, plan, profile, runs

    bench.add_to(app)
    plan.add_to(app)
    profile.add_to(app)
    look.add_to(app)
    app.add_typer(ab.app, name="ab")
    app.add_typer(runs.app, name="runs")


_add_commands()


def _stdout_is_full() -> bool:
    """Whether one more byte can't be written either: any other file may be the full one."""
    try:
        os.write(sys.stdout.fileno(), b"\n")
    except OSError as fault:
        return fault.errno == errno.ENOSPC
    return False


def main() -> None:
    """Console entry point."""
    sys.stdout = sys.stdout or Path(os.devnull).open("w")  # noqa: SIM115 - stands for what the shell closed: >&-
    try:
        sys.exit(app())
    except OSError as fault:
        if "--debug" in sys.argv or fault.errno != errno.ENOSPC or not _stdout_is_full():
            raise
        sys.stdout = None  # what Python flushes as it ends would fail once more
        typer.echo("error: standard output is full\nmend:  free some space where it is written to", err=True)
        sys.exit(ConfigError.exit_code)


if __name__ == "__main__":
    main()
