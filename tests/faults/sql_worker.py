"""Workers that move money in a database, say where they are, and are killed there.

``python -m tests.faults.sql_worker zygote FD`` forks them like those of workers.py. A worker takes steps
until there are none; each makes a few calls that write one entry into a ledger. ``how`` is ``once``, or
``keyed``: the control, which says that its key protects it and does not put it into the database.
"""

from __future__ import annotations

import os
import sqlite3
import sys
from contextlib import closing
from typing import TYPE_CHECKING, Any

import psycopg
from tests.faults import workers

import holdfast as hf
from holdfast import sql

if TYPE_CHECKING:
    from tests.faults.workers import Line

CALLS = 3
LEDGER = "CREATE TABLE ledger (name TEXT, cents INTEGER)"


def connect(address: str) -> Any:
    """A fresh connection: to a PostgreSQL, or to a SQLite file."""
    return psycopg.connect(address) if "host=" in address else sqlite3.connect(address, timeout=60)


def mover(line: Line, folder: str, address: str, how: str, *stops: str) -> None:
    """Says ``before``, ``inside``, ``after`` and ``asked``; where it is to stop it waits for an order."""

    def reach(point: str) -> None:
        line.say(point)
        if point in stops:
            line.hear()

    def ask(call: hf.Call) -> object:
        told = sql.reconcile(lambda: connect(address), timeout=30)(call)
        reach("asked")
        return told

    def moves(name: str, call: hf.Call) -> str:
        entry = f"INSERT INTO ledger VALUES ('{name}', 1)"
        reach("before")
        with closing(connect(address)) as connection:
            if how == "once":
                with sql.once(connection, call) as once:
                    if not once.done:
                        connection.execute(entry)
                        once.result = name
                    reach("inside")
            else:
                connection.execute(entry)
                connection.commit()
        reach("after")
        return name

    protected: dict[str, Any] = {"reconcile": ask} if how == "once" else {"idempotent": hf.Keyed(ttl=3600)}
    store = hf.open(folder)
    gate = hf.Gateway(store)
    move = gate.tool(effect="write", name="move", attempts=5, **protected)(moves)

    def work(step: hf.gateway.Step) -> list[str]:
        run = step.claim.run
        return [step.call(move, key=f"{number}", name=f"{run} {number}") for number in range(CALLS)]

    while (claim := store.claim(worker=f"w{os.getpid()}", lease=60)) is not None:
        line.say("ended", gate.attempt(claim, work))
    store.close()


if __name__ == "__main__":
    workers.PROGRAMS["mover"] = mover
    workers.zygote(int(sys.argv[2]))
