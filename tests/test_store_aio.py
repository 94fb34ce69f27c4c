"""The store for asyncio: many tasks, one thread, shared syncs, and a loop that is never held up."""

from __future__ import annotations

import asyncio
import fcntl
import gc
import os
import sys
import threading
import weakref
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

import holdfast as hf
from holdfast import _core
from holdfast.store.aio import GIVEN_AT_ONCE
from holdfast.store.commands import SYSTEM

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterator

T = TypeVar("T")
NOTE = "note.logged"
ENTRY = {"body": {"level": "info", "text": "x"}, "kind": NOTE, "privacy": "internal"}


@pytest.fixture(params=["memory", "folder"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[hf.Store]:
    with hf.open("memory:" if request.param == "memory" else tmp_path / "s") as opened:
        yield opened


LEADER = "holdfast-leader"


def ours() -> list[Path]:
    """Where the names of this process's threads are, those of the core too."""
    return list(Path("/proc/self/task").glob("*/comm"))


def threads_of_ours() -> set[str]:
    return {task.read_text().strip() for task in ours()}


async def awaited(work: Awaitable[T]) -> T:
    """The same as a coroutine, which is what a loop runs."""
    return await work


async def code(work: Awaitable[Any]) -> str:
    """What a refused command raises."""
    try:
        return f"accepted: {await work!r}"
    except hf.HoldfastError as error:
        return error.code


def test_a_run_from_its_creation_to_its_end(store: hf.Store) -> None:
    async def story() -> None:
        aio = store.aio
        run = await aio.create_run(agent="import", input={"n": 1}, state={"n": 0})
        assert await aio.append(run, NOTE, {"text": "one"}) == 3
        assert await aio.append_many(run, [(NOTE, {"text": "two"}), (NOTE, {"text": "three"})]) == range(4, 6)
        assert await aio.append_many(run, []) == range(0)
        claim = await aio.claim(worker="w1")
        assert claim is not None
        assert (claim.run, claim.input, await aio.claim(worker="w2")) == (run, {"n": 1}, None)
        await aio.heartbeat(claim, lease=30)
        assert await aio.patch(claim, {"n": 1}, expected_version=0) == 1
        assert await code(aio.patch(claim, {"n": 2}, expected_version=0)) == "state_conflict"
        await aio.wait(claim, [{"on": "signal", "subject": "go"}])
        await aio.signal(run, "go", 1)
        claim = await aio.claim(worker="w1")
        assert claim is not None
        await aio.release(claim)
        claim = await aio.claim(worker="w1")
        assert claim is not None
        await aio.finish(claim, result=2)
        failing = await aio.create_run(agent="import", attempts=1)
        claim = await aio.claim(worker="w1")
        assert claim is not None
        await aio.fail(claim, "no", retryable=False)
        await aio.retry(failing, by="dana")
        await aio.cancel(failing, by="dana")
        assert [store.state(each)["status"] for each in (run, failing)] == ["completed", "cancelled"]

    asyncio.run(story())
    assert store.verify().ok


def test_tasks_share_turns_and_syncs(tmp_path: Path) -> None:
    with hf.open(tmp_path / "s") as store:
        runs = [store.create_run(agent="a") for _ in range(8)]

        async def story() -> list[int]:
            appends = [
                store.aio.append(run, NOTE, {"text": f"{n}"}, barrier=True) for n in range(40) for run in runs
            ]
            return list(await asyncio.gather(*appends))

        before = store.stats()
        seqs = asyncio.run(story())
        after = store.stats()
        assert sorted(seqs) == sorted(list(range(3, 43)) * 8)
        for run in runs:
            notes = [record.value["text"] for record in store.read(run) if record.kind == NOTE]
            assert notes == [f"{n}" for n in range(40)], "in the order in which they were asked for"
        assert after["commands"] - before["commands"] == 320
        assert after["syncs"] - before["syncs"] <= after["commits"] - before["commits"] < 32


def test_one_refused_command_does_not_touch_the_others_of_its_batch(store: hf.Store) -> None:
    run = store.create_run(agent="a")
    longer = {**store.put_blob(b"x"), "bytes": 7}  # refused before the turn

    async def story() -> list[str]:
        works = [
            store.aio.append(run, NOTE, {"text": "first"}),
            store.aio.append(run, "run.finished", {"status": "completed"}),
            store.aio.append(run, NOTE, {"text": "second"}, barrier=True),
            store.aio.append(run, NOTE, {"wrong": 1}),
            store.aio.append(run, "x.test.n", {"data": {}}, blobs={"content": longer}),
            store.aio.append(run, NOTE, {"text": "third"}),
        ]
        return [await work for work in [asyncio.ensure_future(code(work)) for work in works]]

    assert asyncio.run(story()) == [
        "accepted: 3", "kind_reserved", "accepted: 4", "unknown_field", "bad_value", "accepted: 5",
    ]  # fmt: skip
    assert [record.value["text"] for record in store.read(run) if record.kind == NOTE] == [
        "first", "second", "third",
    ]  # fmt: skip


def test_the_loop_goes_on_while_another_process_has_the_turn(tmp_path: Path) -> None:
    with hf.open(tmp_path / "s") as store, (tmp_path / "s" / "holdfast.lock").open("rb") as turn:
        run = store.create_run(agent="a")
        fcntl.flock(turn, fcntl.LOCK_EX)

        async def story() -> tuple[bool, int]:
            append = asyncio.ensure_future(store.aio.append(run, NOTE, {"text": "waits"}))
            for _ in range(1000):
                await asyncio.sleep(0)  # a turn of the loop, not a pause
            waited = not append.done()
            fcntl.flock(turn, fcntl.LOCK_UN)
            return waited, await append

        assert asyncio.run(story()) == (True, 3)


def test_a_cancelled_task_takes_nothing_back(tmp_path: Path) -> None:
    with hf.open(tmp_path / "s") as store, (tmp_path / "s" / "holdfast.lock").open("rb") as turn:
        run = store.create_run(agent="a")
        fcntl.flock(turn, fcntl.LOCK_EX)

        complaints: list[dict[str, Any]] = []

        async def story() -> list[int]:
            asyncio.get_running_loop().set_exception_handler(lambda _, told: complaints.append(told))
            asked = [asyncio.ensure_future(store.aio.append(run, NOTE, {"text": f"{n}"})) for n in range(9)]
            await asyncio.sleep(0)
            for each in asked[::2]:
                each.cancel()
            fcntl.flock(turn, fcntl.LOCK_UN)
            return [await each for each in asked[1::2]]

        assert (asyncio.run(story()), complaints) == ([4, 6, 8, 10], [])
        notes = [record.value["text"] for record in store.read(run) if record.kind == NOTE]
        assert notes == [f"{n}" for n in range(9)]


def test_closing_makes_what_was_asked_for_even_if_the_loop_is_gone(tmp_path: Path) -> None:
    store = hf.open(tmp_path / "s")
    run = asyncio.run(awaited(store.aio.create_run(agent="a")))
    assert LEADER in threads_of_ours()

    async def story() -> None:
        asked = [asyncio.ensure_future(store.aio.append(run, NOTE, {"text": f"{n}"})) for n in range(9)]
        await asyncio.sleep(0)
        for each in asked:
            each.cancel()

    with (tmp_path / "s" / "holdfast.lock").open("rb") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        asyncio.run(story())
        closer = threading.Thread(target=store.close)
        closer.start()
        fcntl.flock(turn, fcntl.LOCK_UN)
        closer.join()
    assert LEADER not in threads_of_ours()

    async def late() -> list[str]:
        return [
            await code(store.aio.append(run, NOTE, {"text": "late"})),
            await code(store.aio.create_run(agent="a")),
        ]

    assert asyncio.run(late()) == ["store_closed", "store_closed"]
    with hf.open(tmp_path / "s") as again:
        notes = [record.value["text"] for record in again.read(run) if record.kind == NOTE]
    assert notes == [f"{n}" for n in range(9)]


def test_several_loops_are_served_at_once(store: hf.Store) -> None:
    run = store.create_run(agent="a")
    seqs: list[int] = []

    def loop() -> None:
        async def story() -> list[int]:
            return list(
                await asyncio.gather(*(store.aio.append(run, NOTE, {"text": "x"}) for _ in range(50)))
            )

        seqs.extend(asyncio.run(story()))

    threads = [threading.Thread(target=loop) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seqs) == list(range(3, 203))


def test_a_forked_child_is_told(tmp_path: Path) -> None:
    with hf.open(tmp_path / "s") as store:
        run = store.create_run(agent="a")
        asyncio.run(code(store.aio.append(run, NOTE, {"text": "the leader runs"})))
        child = os.fork()
        if child == 0:
            told = asyncio.run(code(store.aio.append(run, NOTE, {"text": "child"})))
            os._exit(0 if told == "store_forked" else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert store.append(run, NOTE, {"text": "parent"}) == 4


def test_answers_are_heard_in_their_order_and_some_in_each_turn_of_the_loop(tmp_path: Path) -> None:
    """A large batch does not keep the loop from its timers, and nobody overtakes anybody."""

    async def story(store: hf.Store) -> tuple[list[int], int]:
        run = await store.aio.create_run(agent="a")
        loop, heard, turns = asyncio.get_running_loop(), list[int](), Counter[int]()
        turn = 0

        def beat() -> None:
            nonlocal turn
            turn += 1
            loop.call_soon(beat)

        async def append() -> None:
            heard.append(await store.aio.append(run, NOTE, {"text": "x"}))
            turns[turn] += 1

        beat()
        await asyncio.gather(*(append() for _ in range(200)))
        return heard, max(turns.values())

    with hf.open(tmp_path / "s") as store:
        heard, most = asyncio.run(story(store))
    assert (heard, most <= GIVEN_AT_ONCE) == (list(range(3, 203)), True)


def test_a_store_that_is_closed_leaves_nothing_in_a_loop_that_goes_on(tmp_path: Path) -> None:
    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    async def opened(name: str) -> list[int]:
        store = hf.open(tmp_path / name)
        run = await store.aio.create_run(agent="a")
        asked = [asyncio.ensure_future(store.aio.append(run, NOTE, {"text": "x"})) for _ in range(20)]
        await asyncio.sleep(0)
        await asyncio.to_thread(store.close)  # what was asked for is made, and heard
        return list(await asyncio.gather(*asked))

    async def story() -> tuple[int, int, list[int]]:
        heard = await opened("first")
        gc.collect()
        before = descriptors()
        for n in range(3):
            heard += await opened(f"{n}")
        gc.collect()
        return before, descriptors(), heard

    before, after, heard = asyncio.run(story())
    assert (after, heard) == (before, list(range(3, 23)) * 4)


def test_a_loop_that_ended_in_the_middle_of_a_command_is_not_kept(tmp_path: Path) -> None:
    with hf.open(tmp_path / "s") as store, (tmp_path / "s" / "holdfast.lock").open("rb") as turn:
        run = asyncio.run(awaited(store.aio.create_run(agent="a")))
        ended: list[weakref.ref[asyncio.AbstractEventLoop]] = []

        async def story() -> None:
            ended.append(weakref.ref(asyncio.get_running_loop()))
            store.aio.submit(_core.Call.append(run, SYSTEM, None, [ENTRY], "commit"), lambda _: None)

        fcntl.flock(turn, fcntl.LOCK_EX)
        asyncio.run(story())
        fcntl.flock(turn, fcntl.LOCK_UN)
        assert asyncio.run(awaited(store.aio.append(run, NOTE, {"text": "after it"}))) == 4
        gc.collect()
        assert [loop() for loop in ended] == [None]


def test_an_answer_that_nobody_waits_for_holds_up_no_other(tmp_path: Path) -> None:
    """Whoever asked was interrupted before it knew under which number its answer would come."""

    async def story(store: hf.Store) -> list[int]:
        run = await store.aio.create_run(agent="a")
        assert store.aio._leader is not None
        (post,) = store.aio._leader._posts.values()
        post._core.submit(_core.Call.append(run, SYSTEM, None, [ENTRY], "commit"))
        asked = [asyncio.ensure_future(store.aio.append(run, NOTE, {"text": "x"})) for _ in range(5)]
        return list(await asyncio.gather(*asked))

    with hf.open(tmp_path / "s") as store:
        assert asyncio.run(story(store)) == [4, 5, 6, 7, 8]


def test_loops_that_begin_and_end_in_several_threads_share_one_leader(tmp_path: Path) -> None:
    failed: list[BaseException] = []
    begin = threading.Barrier(6)

    def loops(store: hf.Store) -> None:
        begin.wait()
        for _ in range(40):
            try:
                asyncio.run(awaited(store.aio.create_run(agent="a", barrier=False)))
            except BaseException as error:
                failed.append(error)

    before, leaders = sys.getswitchinterval(), set[int]()
    sys.setswitchinterval(1e-6)
    try:
        with hf.open(tmp_path / "s") as store:
            threads = [threading.Thread(target=loops, args=(store,)) for _ in range(6)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            leaders = {int(task.parent.name) for task in ours() if task.read_text().strip() == LEADER}
            assert (failed, len(leaders), store.stats()["streams"]) == ([], 1, 241)
    finally:
        sys.setswitchinterval(before)
