"""Stories of database writes that happen once, on SQLite and a real PostgreSQL, in each of their modes."""

from __future__ import annotations

import sqlite3
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.rows import dict_row
from tests.gateway_desk import Desk

import holdfast as hf
from holdfast import sql

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytest_plugins = ["tests.postgres"]

CALL = hf.Call(id="call_1", key="hf_k1", run="run_1", dispatch=1)
TABLES = (
    "CREATE TABLE ledger (cents INTEGER)",
    "CREATE TABLE owners (id INTEGER PRIMARY KEY)",
    "CREATE TABLE owned (owner INTEGER REFERENCES owners DEFERRABLE INITIALLY DEFERRED)",
)
MODES: dict[str, dict[str, Any]] = {
    "sqlite": {},
    "sqlite by hand": {"level": None},
    "sqlite odd": {},
    "postgres": {},
    "postgres autocommit": {"autocommit": True},
    "postgres odd": {
        "cursor_factory": psycopg.RawCursor,
        "row_factory": dict_row,
        "client_encoding": "SQL_ASCII",
    },
}
if sys.version_info >= (3, 12):
    MODES |= {"sqlite autocommit": {"autocommit": True}, "sqlite always": {"autocommit": False}}
BY_ITSELF = ("sqlite by hand", "sqlite autocommit", "postgres autocommit")


@dataclass
class Bank:
    """A database with a ledger that takes the same entry as often as it is made."""

    mode: str
    address: str

    def connect(self) -> Any:
        options = MODES[self.mode]
        if self.mode.startswith("postgres"):
            return psycopg.connect(self.address, **options)
        connection = sqlite3.connect(self.address, timeout=600, isolation_level=options.get("level", ""))
        connection.execute("PRAGMA foreign_keys = ON")
        if "autocommit" in options:
            setattr(connection, "autocommit", options["autocommit"])  # noqa: B010 (since Python 3.12)
        if self.mode == "sqlite odd":
            connection.text_factory = bytes
            connection.row_factory = lambda _, row: {"row": row}
        return connection

    def run(self, *statements: str) -> list[tuple[Any, ...]]:
        """On a plain connection of its own."""
        postgres = self.mode.startswith("postgres")
        plain: Any = psycopg.connect(self.address) if postgres else sqlite3.connect(self.address)
        with closing(plain) as connection:
            for statement in statements:
                cursor = connection.execute(statement)
            found = cursor.fetchall() if cursor.description else []
            connection.commit()
        return [tuple(row) for row in found]

    def moved(self) -> list[int]:
        return [cents for (cents,) in self.run("SELECT cents FROM ledger ORDER BY cents")]

    def rows(self) -> list[tuple[Any, ...]]:
        return self.run("SELECT key, dispatch, state, result FROM holdfast_once ORDER BY key")

    def move(self, call: hf.Call, cents: int = 5, result: object = None, *, then: Any = None) -> object:
        with closing(self.connect()) as connection, sql.once(connection, call) as once:
            connection.execute(f"INSERT INTO ledger VALUES ({cents})")
            once.result = result
            if then is not None:
                then(connection)
            return once.result

    def ask(self, call: hf.Call, timeout: float = 5.0) -> object:
        return sql.reconcile(self.connect, timeout=timeout)(call)


@pytest.fixture(params=MODES)
def bank(request: pytest.FixtureRequest, tmp_path: Path) -> Bank:
    mode: str = request.param
    postgres = mode.startswith("postgres")
    opened = Bank(mode, request.getfixturevalue("postgres") if postgres else str(tmp_path / "bank.db"))
    opened.run(*TABLES)
    return opened


on_postgres = pytest.mark.parametrize("bank", ["postgres"], indirect=True)


def dispatch(number: int) -> hf.Call:
    return replace(CALL, dispatch=number)


def raising(error: BaseException) -> Callable[[object], None]:
    def act(_: object) -> None:
        raise error

    return act


def test_it_is_done_once_and_later_dispatches_get_the_first_result_whatever_they_do(bank: Bank) -> None:
    assert bank.move(CALL, 5, {"balance": 5}) == {"balance": 5}
    assert bank.move(dispatch(2), 7, {"balance": 12}) == {"balance": 5}
    assert bank.move(CALL, 9, then=lambda connection: connection.execute("DELETE FROM ledger")) == {
        "balance": 5
    }
    with closing(bank.connect()) as connection, sql.once(connection, dispatch(3)) as once:
        assert (once.done, once.result) == (True, {"balance": 5})
    assert bank.moved() == [5]
    assert bank.rows() == [("hf_k1", 1, "done", '{"balance":5}')]
    bank.move(replace(CALL, key="hf_k2"), 6)
    assert bank.moved() == [5, 6]


def test_a_result_comes_back_as_it_was_kept(bank: Bank) -> None:
    values: list[Any] = [None, 0, "", [], {"text": "\u00fc \x00", "list": [1, None, 0.5]}]
    with closing(bank.connect()) as connection:
        for number, value in enumerate(values):
            call = replace(CALL, key=f"k{number}")
            with sql.once(connection, call) as once:
                assert (once.done, once.result) == (False, None)
                if value is not None:
                    once.result = value
            with sql.once(connection, call) as once:
                assert (once.done, once.result) == (True, value)
            assert bank.ask(call) == hf.Happened(value)


def test_one_connection_does_many_calls_and_is_in_its_own_mode_between_them(bank: Bank) -> None:
    with closing(bank.connect()) as connection:
        for number in range(3):
            with sql.once(connection, replace(CALL, key=f"k{number}")):
                connection.execute(f"INSERT INTO ledger VALUES ({number})")
            connection.execute("INSERT INTO ledger VALUES (100)")
            connection.rollback()
    assert bank.moved() == ([0, 1, 2, 100, 100, 100] if bank.mode in BY_ITSELF else [0, 1, 2])


def test_a_block_that_raises_did_not_happen_and_its_error_is_not_told(bank: Bank) -> None:
    wrong = ValueError("hunter2")
    with pytest.raises(hf.NoEffect) as told:
        bank.move(CALL, then=raising(wrong))
    assert (told.value.args[0], told.value.__cause__) == ("rolled back after ValueError", wrong)
    for error in (hf.NoEffect("no"), hf.EffectFailed("declined"), KeyboardInterrupt()):
        with pytest.raises(type(error)) as same:
            bank.move(CALL, then=raising(error))
        assert same.value is error
    assert bank.moved() == []
    bank.move(dispatch(2))
    assert (bank.moved(), bank.rows()) == ([5], [("hf_k1", 2, "done", "null")])


def test_a_result_that_is_not_json_is_refused_and_nothing_is_written(bank: Bank) -> None:
    with pytest.raises(hf.NoEffect, match=r"not JSON: .*type object.* \(at \$\.a\)"):
        bank.move(CALL, 5, {"a": object()})
    assert (bank.moved(), bank.ask(CALL)) == ([], hf.DidNotHappen())


def test_a_transaction_that_is_open_is_left_alone(bank: Bank) -> None:
    with closing(bank.connect()) as connection:
        if bank.mode in BY_ITSELF:
            connection.execute("BEGIN")
        connection.execute("INSERT INTO ledger VALUES (1)")
        if bank.mode == "sqlite always":  # which is in one at any time, and has the block take part
            with sql.once(connection, CALL):
                connection.execute("INSERT INTO ledger VALUES (2)")
        else:
            for use in (lambda: sql.once(connection, CALL).__enter__(), lambda: sql.create(connection)):
                with pytest.raises(sql.SqlError, match="sql_in_transaction"):
                    use()
            connection.execute("INSERT INTO ledger VALUES (2)")
            connection.execute("COMMIT")
    assert bank.moved() == [1, 2]


def test_other_connections_and_calls_without_a_key_are_refused(postgres: str) -> None:
    class Connection:
        def close(self) -> None: ...

    def refused(connection: Any, call: hf.Call = CALL) -> str:
        with pytest.raises(sql.SqlError, match="sql_unsupported") as error:
            sql.once(connection, call).__enter__()
        return str(error.value.args[0])

    assert refused(Connection()).endswith("Connection is not known here")
    unknown: Any = Connection
    assert sql.reconcile(unknown)(CALL) == hf.CannotTell()
    with closing(sqlite3.connect(":memory:")) as connection:
        assert "the call has no key" in refused(connection, replace(CALL, key=""))
    with psycopg.connect(postgres) as piped, piped.pipeline():
        assert refused(piped) == "the connection is in pipeline mode"


def test_what_was_declared_as_not_happened_can_no_longer_happen(bank: Bank) -> None:
    assert bank.ask(CALL) == hf.DidNotHappen()
    with pytest.raises(hf.NoEffect, match="may no longer write"):
        bank.move(CALL)
    assert bank.ask(dispatch(3)) == bank.ask(CALL) == hf.DidNotHappen()
    assert bank.rows() == [("hf_k1", 3, "fenced", None)]
    for late in (1, 2, 3):
        with pytest.raises(hf.NoEffect, match="may no longer write"):
            bank.move(dispatch(late))
    assert bank.moved() == []
    with pytest.raises(hf.NoEffect, match="ValueError"):
        bank.move(dispatch(4), then=raising(ValueError()))
    assert bank.rows() == [("hf_k1", 3, "fenced", None)]
    assert bank.move(dispatch(4), 5, "moved") == "moved"
    assert bank.move(CALL, 6) == "moved", "a zombie hears that the call is done"
    assert bank.ask(dispatch(4)) == bank.ask(CALL) == hf.Happened("moved")
    assert (bank.moved(), bank.rows()) == ([5], [("hf_k1", 4, "done", '"moved"')])


@pytest.mark.parametrize("ends", [None, ValueError()])
def test_while_a_worker_is_in_its_block_nobody_can_tell(bank: Bank, ends: Exception | None) -> None:
    with suppress(hf.NoEffect), closing(bank.connect()) as connection, sql.once(connection, CALL) as once:
        connection.execute("INSERT INTO ledger VALUES (5)")
        once.result = "moved"
        assert bank.ask(CALL, timeout=0.05) == hf.CannotTell()
        if ends is not None:
            raise ends
    assert bank.ask(CALL) == (hf.DidNotHappen() if ends else hf.Happened("moved"))
    assert bank.moved() == ([] if ends else [5])


@on_postgres
@pytest.mark.parametrize("level", list(psycopg.IsolationLevel))
def test_a_worker_that_ends_meanwhile_is_waited_for(bank: Bank, level: psycopg.IsolationLevel) -> None:
    asking = psycopg.connect(bank.address)
    asking.isolation_level = level
    ask = sql.reconcile(lambda: asking, timeout=60)
    waits = f"SELECT 1 FROM pg_locks WHERE pid = {asking.info.backend_pid} AND NOT granted"
    with ThreadPoolExecutor(1) as threads:
        with closing(bank.connect()) as connection, sql.once(connection, CALL) as once:
            once.result = "moved"
            asked = threads.submit(ask, CALL)
            while not bank.run(waits):
                assert not asked.done()
        assert asked.result() == hf.Happened("moved")


def test_a_commit_inside_the_block_is_noticed_and_left_to_a_person(bank: Bank) -> None:
    for number, after in enumerate((lambda _: None, raising(ValueError()), raising(hf.NoEffect()))):
        call = replace(CALL, key=f"k{number}")

        def act(connection: Any, after: Callable[[object], None] = after) -> None:
            connection.execute("COMMIT")
            if bank.mode == "sqlite":
                connection.execute("INSERT INTO ledger VALUES (100)")
            after(connection)

        with pytest.raises(sql.SqlError, match="sql_in_doubt: the block ended its transaction itself"):
            bank.move(call, number, then=act)
        assert bank.ask(call) == hf.CannotTell()
        with pytest.raises(sql.SqlError, match="sql_in_doubt: an earlier dispatch committed"):
            bank.move(replace(call, dispatch=2), 7)
    assert bank.moved() == [0, 1, 2]
    assert {state for _, _, state, _ in bank.rows()} == {"open"}


def test_a_connection_that_is_lost_inside_the_block_is_a_doubt_that_can_be_ended(bank: Bank) -> None:
    with pytest.raises(sql.SqlError, match="sql_in_doubt"):
        bank.move(CALL, then=lambda connection: connection.close())
    assert bank.ask(CALL) == hf.DidNotHappen()
    bank.move(dispatch(2), 6)
    assert bank.moved() == [6]


def test_a_commit_that_fails_is_never_called_no_effect_and_leaves_nothing_open(bank: Bank) -> None:
    with closing(bank.connect()) as connection:

        def own(call: hf.Call, owner: int) -> None:
            with sql.once(connection, call):
                connection.execute(f"INSERT INTO owned VALUES ({owner})")

        with pytest.raises((sqlite3.IntegrityError, psycopg.IntegrityError)):
            own(CALL, 404)
        bank.run("INSERT INTO owners VALUES (1)")
        assert bank.ask(CALL) == hf.DidNotHappen()
        own(dispatch(2), 1)
    assert bank.run("SELECT owner FROM owned") == [(1,)]


def test_a_block_that_changes_the_row_of_its_key_is_rolled_back(bank: Bank) -> None:
    with pytest.raises(sql.SqlError, match="sql_in_doubt: the block changed the row of its key"):
        bank.move(CALL, then=lambda connection: connection.execute("DELETE FROM holdfast_once"))
    assert (bank.moved(), bank.ask(CALL)) == ([], hf.DidNotHappen())


def test_a_block_that_could_not_begin_did_not_happen(bank: Bank) -> None:
    with closing(bank.connect()) as busy, closing(bank.connect()) as connection:
        if bank.mode.startswith("sqlite"):
            connection.execute("PRAGMA busy_timeout = 1")
        else:
            connection.close()
        with sql.once(busy, CALL), pytest.raises(hf.NoEffect, match="after OperationalError"):
            sql.once(connection, replace(CALL, key="k2")).__enter__()
    assert bank.rows() == [("hf_k1", 1, "done", "null")]


@on_postgres
def test_a_database_error_that_a_block_hides_does_not_become_a_success(bank: Bank) -> None:
    def hide(connection: psycopg.Connection) -> None:
        with suppress(psycopg.Error):
            connection.execute("SELECT 1 / 0")

    with pytest.raises(hf.NoEffect, match="InFailedSqlTransaction"):
        bank.move(CALL, then=hide)
    assert bank.moved() == []


def test_a_block_that_is_done_cannot_deny_it(bank: Bank) -> None:
    bank.move(CALL, 5, "moved")
    for error in (hf.NoEffect("no money left"), hf.EffectFailed("no money left")):
        with pytest.raises(sql.SqlError) as denied:
            bank.move(dispatch(2), then=raising(error))
        assert (denied.value.code, denied.value.__cause__) == ("sql_in_doubt", error)
    with pytest.raises(ValueError):
        bank.move(dispatch(2), then=raising(ValueError()))
    assert (bank.moved(), bank.ask(CALL)) == ([5], hf.Happened("moved"))


def test_many_that_come_first_make_one_table(bank: Bank) -> None:
    if bank.mode.startswith("sqlite"):
        bank.run("PRAGMA journal_mode = wal")
    for turn in range(3):
        begin = threading.Barrier(8)

        def first(number: int, turn: int = turn, begin: threading.Barrier = begin) -> None:
            with closing(bank.connect()) as connection:
                begin.wait()
                if number % 2:
                    sql.create(connection)
                with sql.once(connection, replace(CALL, key=f"{turn} {number}")):
                    connection.execute(f"INSERT INTO ledger VALUES ({number})")

        with ThreadPoolExecutor(8) as threads:
            assert list(threads.map(first, range(8))) == [None] * 8
        assert len(bank.rows()) == 8
        bank.run("DROP TABLE holdfast_once")
    assert bank.moved() == sorted([*range(8)] * 3)


def test_at_the_gateway_each_doubt_ends_by_itself_and_the_money_moves_once(bank: Bank) -> None:
    desk = Desk()

    @desk.gate.tool(effect="write", reconcile=sql.reconcile(bank.connect), attempts=2)
    def move(cents: int, fails: str, call: hf.Call) -> dict[str, int]:
        def fail(where: str) -> None:
            if where == fails and call.dispatch == 1:
                raise ConnectionError(where)

        desk.happened.append(call.dispatch)
        fail("before")
        with closing(bank.connect()) as connection, sql.once(connection, call) as once:
            if not once.done:
                connection.execute(f"INSERT INTO ledger VALUES ({cents})")
                fail("inside")
                once.result = {"moved": cents}
        fail("after")
        return dict(once.result)

    effects = {
        "never": ([1], ["started", "settled"]),
        "before": ([1, 2], ["started", "doubted", "resolved", "started", "settled"]),
        "inside": ([1, 2], ["started", "settled", "started", "settled"]),
        "after": ([1], ["started", "doubted", "resolved"]),
    }
    for cents, (fails, (dispatches, kinds)) in enumerate(effects.items()):
        before = desk.kinds()
        desk.happened.clear()
        for _ in range(2):
            assert desk.call(move, fails, cents=cents, fails=fails) == {"moved": cents}
        assert desk.happened == dispatches
        assert [kind[7:] for kind in desk.since(before) if kind.startswith("effect.")] == kinds
    assert bank.moved() == [0, 1, 2, 3]
    assert {state for _, _, state, _ in bank.rows()} == {"done"}
    assert desk.store.verify().ok
