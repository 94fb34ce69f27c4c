"""A Parquet file that grows by groups of rows."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, Any

import pyarrow
from pyarrow import parquet

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

TYPES = {
    "string": pyarrow.string(),
    "int64": pyarrow.int64(),
    "time": pyarrow.timestamp("ms", tz="UTC"),
}


class Table:
    """Rows go in one by one and to the file in groups; the file ends with the block."""

    def __init__(self, file: IO[bytes], columns: Mapping[str, str], group: int) -> None:
        self._schema = pyarrow.schema([(name, TYPES[kind]) for name, kind in columns.items()])
        self._writer = parquet.ParquetWriter(file, self._schema, compression="zstd")
        self._group = group
        self._waiting: list[dict[str, Any]] = []
        self.rows = 0

    def add(self, row: dict[str, Any]) -> None:
        """Adds a row."""
        self._waiting.append(row)
        self.rows += 1
        if len(self._waiting) == self._group:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            self._writer.write_table(pyarrow.Table.from_pylist(self._waiting, schema=self._schema))
            self._waiting = []

    def __enter__(self) -> Table:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._flush()
        self._writer.close()
