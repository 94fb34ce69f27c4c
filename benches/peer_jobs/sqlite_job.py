"""By hand: sqlite3 with WAL and synchronous=FULL, an intent row before the write, an outcome and a state
row after."""

from __future__ import annotations

import json
import sqlite3

from job import arguments, one_after_another, receipt

folder, jobs, most = arguments()
connection = sqlite3.connect(folder / "by-hand.db", isolation_level=None)
connection.execute("PRAGMA journal_mode=WAL")
connection.execute("PRAGMA synchronous=FULL")
connection.execute(
    "CREATE TABLE runs (id INTEGER PRIMARY KEY, status TEXT, intent TEXT, outcome TEXT, state TEXT)"
)


def job(n: int) -> None:
    """One run: its intent is on the disk before the write, its end after."""
    sql = "INSERT INTO runs (status, intent) VALUES ('running', ?)"
    run = connection.execute(sql, (json.dumps({"tool": "refund", "order": str(n)}),)).lastrowid
    told = json.dumps(receipt(str(n), 1999))
    sql = "UPDATE runs SET status = 'completed', outcome = ?, state = ? WHERE id = ?"
    connection.execute(sql, (told, told, run))


one_after_another(job, jobs)
