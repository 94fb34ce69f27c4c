"""The low-level door: a durable journal that many processes share. ``holdfast.open`` opens one."""

from holdfast.store.aio import AsyncStore
from holdfast.store.clock import FakeClock
from holdfast.store.commands import Claim
from holdfast.store.door import Store, open_store
from holdfast.store.reading import Record
from holdfast.store.reports import Findings, Problem, Report, Seal, copy_store, doctor, migrations, restore

__all__ = [
    "AsyncStore",
    "Claim",
    "FakeClock",
    "Findings",
    "Problem",
    "Record",
    "Report",
    "Seal",
    "Store",
    "copy_store",
    "doctor",
    "migrations",
    "open_store",
    "restore",
]
