"""Rows of a result as a table for people, or as md, csv or json for programs. No arithmetic but units."""

import json
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

from harness.cli.options import Format

if TYPE_CHECKING:
    from rich.console import Console

TEXT_WIDTH, ROW_WIDTH = 120, 10_000
"""In a pipe: text is wrapped as a page is, and a row stays a line."""
Row = Mapping[str, Any]


def show(rows: Sequence[Row], format: Format, title: str = "") -> None:
    """Print rows that share their keys. json is a list of objects; nested values stay nested only there."""
    if format is Format.json:
        typer.echo(json.dumps([dict(row) for row in rows], indent=2, ensure_ascii=False))
    elif format is Format.csv:
        import pandas as pd

        typer.echo(pd.DataFrame([_flat(row) for row in rows]).to_csv(index=False), nl=False)
    elif format is Format.md:
        from tabulate import tabulate

        typer.echo(tabulate([_flat(row) for row in rows], headers="keys", tablefmt="github", disable_numparse=True))
    else:
        _table(rows, title)


def show_object(row: Row, format: Format, lines: Sequence[tuple[str, str]], title: str = "") -> None:
    """Print one result: `lines` for people, the whole row for programs (json: one object)."""
    if format is Format.json:
        typer.echo(json.dumps(dict(row), indent=2, ensure_ascii=False))
    elif format is Format.table:
        _lines(lines, title)
    elif format is Format.md:
        show([{"figure": name, "value": value} for name, value in lines], format)
    else:
        show([row], format)


def _flat(row: Row) -> dict[str, Any]:
    """Cells: lists and objects as compact JSON, null as an empty cell."""
    return {
        key: ""
        if value is None
        else json.dumps(value, ensure_ascii=False)
        if isinstance(value, list | dict | tuple)
        else value
        for key, value in row.items()
    }


def _console(pipe_width: int) -> "Console":
    """The terminal's width; in a pipe the one given."""
    from rich.console import Console

    return Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else pipe_width)


def _table(rows: Sequence[Row], title: str) -> None:
    from rich.table import Table

    table = Table(title=title or None, title_justify="left", box=None, pad_edge=False)
    for index, key in enumerate(rows[0] if rows else ()):
        table.add_column(key, overflow="fold", no_wrap=index == 0)
    for row in rows:
        table.add_row(*("-" if value in (None, "") else str(value) for value in row.values()))
    _console(ROW_WIDTH).print(table)


def _lines(lines: Sequence[tuple[str, str]], title: str) -> None:
    from rich.table import Table

    table = Table(title=title or None, title_justify="left", box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in lines:
        table.add_row(name, value)
    _console(TEXT_WIDTH).print(table)
