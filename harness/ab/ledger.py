"""The record of a comparison while it grows."""

from __future__ import annotations

from collections.abc import Sequence

from harness.devices.contention import WaitBooks
from harness.figures import cpu_wait_frac
from harness.records import RunFolder
from harness.specs.ab import AbRecord, AbRow


class Ledger:
    """On disk after each problem, so that whatever ends the comparison, a kill too, leaves the rows of those that are
    finished, and how far others had our cores until then."""

    def __init__(self, folder: RunFolder, record: AbRecord) -> None:
        self._folder, self.record = folder, record
        self._books = WaitBooks()
        folder.write(record)

    def update(self, **fields: object) -> None:
        """Of the record."""
        self.record = self.record.model_copy(update=fields)
        self._folder.write(self.record)

    def begin(self, **fields: object) -> None:
        """Problems are measured from now on."""
        self._books.open()
        self.update(**fields)

    def enter(self, rows: Sequence[AbRow], **fields: object) -> None:
        """All rows that there are."""
        on_cpu = self.record.device.kind == "cpu"
        waited = cpu_wait_frac([self._books.closed(repeat=0)]) if on_cpu else None
        self.update(rows=tuple(rows), cpu_wait_frac=waited, **fields)
