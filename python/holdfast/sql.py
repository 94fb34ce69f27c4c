"""Exactly-once database writes: the key of a call is put into the transaction that does its work.

.. code-block:: python

    @gate.tool(effect="write", reconcile=hf.sql.reconcile(connect))  # connect: () -> a fresh connection
    def move(account: str, cents: int, call: hf.Call) -> dict[str, int]:
        with closing(connect()) as connection, hf.sql.once(connection, call) as once:
            if not once.done:  # no earlier dispatch of this very call has committed
                connection.execute("UPDATE ...")
                once.result = {"balance": 5}
            return once.result

The row of a key is committed together with the work, or not at all. Where nobody knows the outcome,
``reconcile`` looks for the row, and puts a fence in its place if there is none: then neither the dispatch
that it was asked about nor an older one can commit, however late its worker wakes up. Only the next can.

- The block is one transaction, the outermost, and all that the tool does to the world. It is committed when
  the block ends, and rolled back when it raises, which says :class:`holdfast.NoEffect`.
- Inside it nobody commits (``with connection:`` does): a person would have to look at what was written.
  Nobody rolls back either, and goes on.
- One block per call. ``connect`` leads to the same database and schema each time.
- A block that is done already is rolled back whatever it does, and its result stays the first one.
- A commit is as durable as the database makes it.

Connections of ``sqlite3`` and psycopg 3 are known. One of ``sqlite3`` with ``autocommit=False`` is always in
a transaction: what it did since its last commit is part of the block.
"""

from __future__ import annotations

import sqlite3
import sys
import time
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeAlias

from holdfast import canonical
from holdfast.errors import CanonicalError, HoldfastError
from holdfast.gateway.outcomes import CannotTell, DidNotHappen, EffectFailed, Happened, NoEffect, fix
from holdfast.values import to_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import psycopg

    from holdfast.gateway.outcomes import Call

    Connection: TypeAlias = sqlite3.Connection | psycopg.Connection[Any]
    Answer: TypeAlias = Happened[Any] | DidNotHappen | CannotTell

__all__ = ["Once", "SqlError", "create", "once", "reconcile"]

# A row is `open` inside its own transaction. Others see that only if the block has committed by itself.
CREATE = """CREATE TABLE IF NOT EXISTS holdfast_once (
    key TEXT NOT NULL PRIMARY KEY, call TEXT NOT NULL, run TEXT NOT NULL, dispatch INTEGER NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('open', 'done', 'fenced')), result TEXT, at BIGINT NOT NULL)"""
TAKE = """INSERT INTO holdfast_once (key, call, run, dispatch, state, at) VALUES (?, ?, ?, ?, ?, ?)
    ON CONFLICT (key) DO UPDATE SET dispatch = excluded.dispatch, state = excluded.state, at = excluded.at
    WHERE holdfast_once.state = 'fenced' AND holdfast_once.dispatch < excluded.dispatch"""
LOOK = "SELECT state = 'done', state = 'fenced', result FROM holdfast_once WHERE key = ?"
KEEP = "UPDATE holdfast_once SET state = 'done', result = ?, at = ? WHERE key = ? AND state = 'open'"
# The witness that a transaction is still the one that we began: a savepoint is gone when that one has ended.
WITNESS = "SAVEPOINT holdfast_once"
NOT_UNDONE = "the block ended its transaction itself, or the connection was lost"


class SqlError(HoldfastError):
    """A connection that cannot be used here, or a block of which nobody can tell what it committed."""


def _refused(code: str, message: str) -> SqlError:
    return SqlError(message, code=code, fix=fix(code))


def _works(step: Callable[[str], object], word: str) -> bool:
    try:
        step(word)
    except Exception:
        return False
    return True


class _Transaction:
    """A transaction on a connection, with the row of a key in it; patience is for others, in seconds."""

    def __init__(self, connection: Any, patience: float | None = None) -> None:  # noqa: ANN401 (two kinds)
        self._patience = None if patience is None else max(1, round(patience * 1000))
        self._connection = connection
        self._open = False
        self._witnessed = False  # only then may the block have run
        self._postgres = not isinstance(connection, sqlite3.Connection)
        if self._postgres:  # the cursors are without the connection's own factories
            psycopg = _psycopg(connection)
            self._cursor = psycopg.Cursor(connection, row_factory=psycopg.rows.tuple_row)
            self._own = connection.autocommit
        else:
            self._cursor = sqlite3.Cursor(connection)
            self._own = getattr(connection, "autocommit", None) is not False  # it came with Python 3.12

    def run(self, statement: str, *values: object) -> tuple[int, list[Any]]:
        """How many rows a statement changed, and what it found."""
        self._cursor.execute(statement.replace("?", "%s") if self._postgres else statement, values)
        return self._cursor.rowcount, self._cursor.fetchall() if self._cursor.description else []

    def begin(self) -> None:
        if self._busy():
            raise _refused("sql_in_transaction", "the connection is in a transaction already")
        self._open, self._witnessed = True, False
        if self._patience and not self._postgres:
            self.run(f"PRAGMA busy_timeout = {self._patience}")
        if self._own:
            self.run("BEGIN" if self._postgres else "BEGIN IMMEDIATE")
        if self._patience and self._postgres:  # only this level sees what those commit who are waited for
            self.run("SET TRANSACTION ISOLATION LEVEL READ COMMITTED READ WRITE")
            self.run(f"SET LOCAL lock_timeout = {self._patience}")
        self.run(WITNESS)
        self._witnessed = True

    def _busy(self) -> bool:
        if self._postgres:
            return str(self._connection.info.transaction_status.name) not in ("IDLE", "UNKNOWN")
        return self._own and bool(self._connection.in_transaction)

    def take(self, call: Call, state: str) -> tuple[bool, bool, str] | None:
        """Begins, and takes the row of a key; or says whether it is done or fenced, and its result."""
        self.begin()
        row = (call.key, call.id, call.run, call.dispatch, state, time.time_ns() // 1_000_000)
        try:
            taken, _ = self.run(TAKE, *row)
        except Exception as error:
            if "holdfast_once" not in str(error):  # the table, which is missing as a rule
                raise
            self.make()
            taken, _ = self.run(TAKE, *row)
        return None if taken == 1 else self.run(LOOK, call.key)[1][0]

    def make(self) -> None:
        """Makes the table, when nothing else was done in the transaction yet."""
        if not self._postgres:
            self.run(CREATE)  # there is one writer at a time, and it may be rolled back with the rest
            return
        # On its own: its locks are held for a moment only, and it stays when the rest does not.
        self.undo()
        errors = _psycopg(self._connection).errors
        made = (errors.UniqueViolation, errors.DuplicateTable, errors.DuplicateObject)
        with suppress(*made), self._connection.transaction():  # by somebody else, at the same moment
            self.run(CREATE)
        self.begin()

    def keep(self, call: Call, value: object) -> None:
        """Makes the row that of a call that is done."""
        try:
            result = canonical.dumps(to_json(value)).decode()
        except CanonicalError as error:
            raise NoEffect(f"rolled back, for the result is not JSON: {error.args[0]}") from error
        self.run(f"RELEASE {WITNESS}")  # fails if this is not our transaction any more
        self.run(WITNESS)
        if self.run(KEEP, result, time.time_ns() // 1_000_000, call.key)[0] != 1:
            raise _refused("sql_in_doubt", "the block changed the row of its key")

    def commit(self) -> None:
        """If this raises, nobody knows whether it was committed."""
        self._open = False
        try:
            self._end("COMMIT")
        except BaseException:
            _works(self._end, "ROLLBACK")  # it may still be open, and is nobody else's to commit
            raise

    def undo(self) -> bool:
        """Rolls back, and says whether that provably undid everything."""
        if not self._open:
            return True
        self._open = False
        ours = _works(self.run, f"ROLLBACK TO {WITNESS}")
        return (_works(self._end, "ROLLBACK") and ours) or not self._witnessed

    def _end(self, word: str) -> None:
        if self._postgres or not self._own:  # these know what has to follow
            self._connection.commit() if word == "COMMIT" else self._connection.rollback()
        elif word == "COMMIT" or self._connection.in_transaction:
            self.run(word)


def _psycopg(connection: object) -> Any:  # noqa: ANN401 (a module)
    """psycopg, which whoever has a connection of it has imported."""
    module = sys.modules.get("psycopg")
    if module is None or not isinstance(connection, module.Connection):
        kind = type(connection)
        raise _refused("sql_unsupported", f"a {kind.__module__}.{kind.__qualname__} is not known here")
    if connection.pgconn.pipeline_status:
        raise _refused("sql_unsupported", "the connection is in pipeline mode")
    return module


class Once:
    """What :func:`once` gives to its block.

    Attributes:
        done: an earlier dispatch of the call has committed; whatever this block does is rolled back.
    """

    def __init__(self) -> None:
        self.done = False
        self._result: Any = None

    @property
    def result(self) -> Any:  # noqa: ANN401 (any JSON)
        """What the call came to: JSON, kept with the work. Where it is done it stays what it is."""
        return self._result

    @result.setter
    def result(self, value: object) -> None:
        if not self.done:
            self._result = value


@contextmanager
def once(connection: Connection, call: Call) -> Iterator[Once]:
    """A block that does its work once, on a connection that is in no transaction.

    Raises:
        NoEffect: it was rolled back: the block raised, the result is not JSON, or the dispatch was fenced.
        SqlError: ``sql_unsupported`` or ``sql_in_transaction``, before anything was touched;
            ``sql_in_doubt`` where nobody can tell what was committed.
    """
    if not call.key:
        raise _refused("sql_unsupported", "the call has no key: a tool that writes is not pure")
    transaction, block = _Transaction(connection), Once()
    try:
        row = transaction.take(call, "open")
        if row is not None:
            done, fenced, result = row
            if fenced:
                raise NoEffect("this dispatch was declared as not happened, and may no longer write")
            if not done:
                raise _refused("sql_in_doubt", "an earlier dispatch committed inside its block")
            block.done = True
            block._result = canonical.loads(result)
        yield block
        if not block.done:
            transaction.keep(call, block.result)
    except BaseException as error:
        _rolled_back(error, undone=transaction.undo(), done=block.done)
        raise
    if not block.done:
        transaction.commit()
    elif not transaction.undo():
        raise _refused("sql_in_doubt", NOT_UNDONE)


def _rolled_back(error: BaseException, *, undone: bool, done: bool) -> None:
    """Raises what an error means after the rollback; returns where it says so itself."""
    if not isinstance(error, Exception):
        return
    if not undone:
        raise _refused("sql_in_doubt", NOT_UNDONE) from error
    said = isinstance(error, NoEffect | EffectFailed)
    if done and said:
        raise _refused("sql_in_doubt", "an earlier dispatch did it, and this one denies it") from error
    if not (done or said or isinstance(error, SqlError)):
        raise NoEffect(f"rolled back after {type(error).__qualname__}") from error


def create(connection: Connection) -> None:
    """Makes the table ``holdfast_once`` and commits. Where it is missing, the first block makes it too."""
    transaction = _Transaction(connection)
    try:
        transaction.begin()
        transaction.make()
        transaction.commit()
    finally:
        transaction.undo()


def reconcile(connect: Callable[[], Connection], *, timeout: float = 5.0) -> Callable[[Call], Answer]:
    """What a tool that uses :func:`once` gives as its ``reconcile=``.

    ``connect`` opens a fresh connection, which is closed again. A transaction that holds the key is waited
    for, so many seconds at the most; then nobody can tell.
    """

    def ask(call: Call) -> Answer:
        try:
            with closing(connect()) as connection:
                transaction = _Transaction(connection, patience=timeout)
                row = transaction.take(call, "fenced")
                if row is None:
                    transaction.commit()
                    return DidNotHappen()
                done, fenced, result = row
                if done:
                    return Happened(canonical.loads(result))
                return DidNotHappen() if fenced else CannotTell()
        except Exception:
            return CannotTell()

    return ask
