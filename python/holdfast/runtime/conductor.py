"""The conductor of one attempt at a replayed step. Agent code asks; the core says what each call is; outcomes
reach agent code one at a time, in the order of the journal, live and in replay; and when nothing can go on
without somebody else, the attempt ends and the step waits without a process.

Nothing here decides about an effect: the gateway and the player do. What is here is the loop's side of it:
when agent code is quiet, what is running, and what to do when nothing is.
"""

from __future__ import annotations

import asyncio
import weakref
from typing import TYPE_CHECKING, Any

from holdfast import _core
from holdfast.errors import CommandError, StoreError
from holdfast.gateway.courier import Courier, Frozen
from holdfast.gateway.outcomes import Stopped, Suspended, fix
from holdfast.runtime import lanes
from holdfast.runtime.ends import Cancelled, Diverged, Ended, Lost, Waits, tamed

if TYPE_CHECKING:
    from holdfast.gateway.way import Way
    from holdfast.runtime.attempt import Attempt
    from holdfast.runtime.operations import Operation
    from holdfast.store import Record

Json = dict[str, Any]
TURNS = 32
"""Turns of the loop without anything asked after which agent code counts as quiet: a gather inside a gather
needs some before its first call."""
SETTLED = 8
"""Turns after which tasks that all wait for us are really blocked: the end of a task takes some to be heard
of."""
POLL = 0.25
"""Seconds after which what others decide is looked for while bodies run."""
LOST = frozenset(("stale_fence", "run_ended", "step_status", "no_such_run", "no_such_step"))
GONE = frozenset(("no_such_call",))
"""A crashed server has lost what no barrier had reached: the attempt is ahead of the journal, and ends."""


class Conductor:
    """One attempt, from its claim to its end."""

    def __init__(self, attempt: Attempt, *, suspend_grace: float, replay_grace: float) -> None:
        self.attempt = attempt
        store, claim = attempt.store, attempt.claim
        self.store = store
        self.core = store._core
        self.claim = claim
        self.player = claim.player or _core.Player(self.core, claim.run, claim.step)
        self.loop = asyncio.get_running_loop()
        self.tasks: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()
        self.lane = lanes.Lane("0", self.tasks)
        self.closed: Ended | None = None
        self.main_done = False
        self._graces = (suspend_grace, replay_grace)
        self._end: asyncio.Future[Ended | None] = self.loop.create_future()
        self._operations: dict[str, Operation] = {}
        self._awaited: dict[str, Operation] = {}
        self._fresh: dict[str, Operation] = {}
        self._waiting: dict[str, Operation] = {}
        self._held: dict[str, Operation] = {}
        self._parked: list[Operation] = []
        self._late: list[Operation] = []
        self._elsewhere: list[Operation] = []
        self._running = 0
        self._loading = False
        self._activity = 0
        self._seen = -1
        self._turns = 0
        self._scheduled = False
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._idle: asyncio.Future[None] | None = None
        self.version = claim.state_version
        """Of the state after this step's newest commit."""
        self._commits: list[Operation] = []
        self.given: set[str] = set()
        """Calls whose outcome agent code has been given, in this attempt."""
        self.undone: set[str] = set()
        """Calls that agent code has undone, as far as it has come."""
        self.doubts: dict[str, Json] = {}
        """Writes in doubt that nobody awaits any more: the step does not end with them."""

    # What agent code asks.

    def ask(self, operation: Operation) -> asyncio.Future[Any]:
        """Begins an operation; the future hears its outcome when that is due."""
        self.check_open()
        operation.began = self.loop.time()
        self._moved()
        self._begin(operation, quiet=False)
        return operation.future

    def check_open(self) -> None:
        """Past the end of an attempt nothing is asked any more."""
        if self.closed is not None:
            raise Suspended("", {"on": "paused"})

    def _begin(self, operation: Operation, *, quiet: bool) -> None:
        what, call, detail = self.player.ask(
            self.core,
            operation.call,
            operation.kind,
            operation.name,
            operation.effect,
            operation.lane,
            operation.key,
            operation.arguments,
            quiet,
        )
        match what:
            case "new":
                self.player.opened(operation.call)
                self._launch(operation)
            case "serve" | "run_again" | "ask_again" | "go_on" | "resolve":
                if call in self._operations:
                    return self._share(operation, call)
                operation.call, operation.recorded = call, True
                self._recorded(operation, what)
                parked, self._parked = self._parked, []
                for other in parked:  # one recorded call less is unaccounted for: they may be free to go
                    self._begin(other, quiet=False)
            case "when_quiet":
                self._elsewhere.append(operation)
            case "parked":
                self._parked.append(operation)
            case "busy":
                self._share(operation, call)
            case "diverged":
                self.close(Diverged(detail))
            case "conflict":
                told = "the key was used for another call, or with other arguments"
                operation.future.set_exception(_refused("idempotency_conflict", told))
            case _:
                operation.future.set_exception(_refused("key_needed", "a call of this step needs a key"))
        self._wake()
        return None

    def _recorded(self, operation: Operation, what: str) -> None:
        elapsed = self.player.cancelled(operation.call)
        self._operations[operation.call] = operation
        if elapsed is not None and what != "serve":
            # Its await was cancelled then: it is given the time to be cancelled again before it goes on.
            self._held[operation.call] = operation
            operation.resolves = what == "resolve"
            self.loop.call_later(elapsed / 1000 + self._graces[1], self._unheld, operation)
        elif what == "serve":
            self._awaited[operation.call] = operation
        elif operation.kind == "timer" and self.player.replays:
            self._late.append(operation)  # it did not fire before what was recorded, so it does not now
        else:
            self._launch(operation)

    def _unheld(self, operation: Operation) -> None:
        if self._held.pop(operation.call, None) is not None and self.closed is None:
            self.player.lift(operation.call)
            self._launch(operation)
            self._wake()

    def _share(self, operation: Operation, call: str) -> None:
        """The same call is on its way, or waits to be delivered: both get its outcome."""
        other = self._operations.get(call)
        if other is None:
            told = "another step of the run is making the call"
            operation.future.set_exception(_refused("call_busy", told))
            return
        operation.call, operation.recorded = call, True
        other.sharers.append(operation)

    def _inherited(self, operation: Operation) -> bool:
        """Whether somebody else awaits the same call: it takes the place of one that no longer does."""
        heirs = [heir for heir in operation.sharers if not heir.future.done()]
        if not heirs:
            return False
        heir, heir.sharers = heirs[0], heirs[1:]
        heir.value, heir.error, heir.wait = operation.value, operation.error, operation.wait
        heir.running = operation.running
        self._operations[operation.call] = heir
        for kept in (self._awaited, self._fresh, self._waiting, self._held):
            if kept.get(operation.call) is operation:
                kept[operation.call] = heir
        return True

    def cancelled(self, operation: Operation) -> None:
        """Agent code no longer awaits it. What it does goes on; that it was cancelled is written down."""
        if self.closed is not None or operation.abandoned:
            return None
        operation.abandoned = True
        for other in self._operations.values():
            if operation in other.sharers:
                other.sharers.remove(operation)
                return None
        if self._inherited(operation):
            return None
        self._doubted(operation)
        self._moved()
        self._parked = [parked for parked in self._parked if parked is not operation]
        self._elsewhere = [other for other in self._elsewhere if other is not operation]
        again = self.player.cancelled(operation.call) is not None
        self.player.lift(operation.call)
        self._awaited.pop(operation.call, None)
        self._fresh.pop(operation.call, None)
        self._waiting.pop(operation.call, None)
        self._late = [late for late in self._late if late is not operation]
        if self._held.pop(operation.call, None) is not None and operation.resolves:
            self._launch(operation)  # it was sent off: somebody has to find out whether it happened
        known = operation.call in self._operations
        if not operation.running:
            self._operations.pop(operation.call, None)
        if again or not known:
            return self._wake()
        elapsed = max(0, round((self.loop.time() - operation.began) * 1000))
        command = {"call": operation.call, "command": "cancel_await", "elapsed_ms": elapsed}
        return self._note(command)

    def _doubted(self, operation: Operation) -> None:
        if operation.abandoned and operation.wait is not None and operation.wait["on"] == "doubt":
            self.doubts[operation.call] = operation.wait

    def drop(self, operation: Operation) -> None:
        """Agent code has no more use for it, and never waited for it by itself."""
        operation.abandoned = True
        for kept in (self._awaited, self._fresh, self._waiting, self._held):
            kept.pop(operation.call, None)
        self._late = [late for late in self._late if late is not operation]
        self.player.lift(operation.call)
        self._moved()
        self._wake()

    def child_of(self, call: str) -> str:
        """The run of the child that a call has spawned: its id follows from the call's."""
        return f"run_{call.partition('_')[2]}"

    def makes_child(self, run: str) -> _core.Call | None:
        """What makes the run of a child that the journal speaks of; None if it is there."""
        if self.store.sql("SELECT 1 FROM runs WHERE id = ?", [run]):
            return None
        spawned, runtime = self._spawned(run), self.attempt.runtime
        restricted = self.store.state(self.claim.run)["capabilities"]["restricted"]
        agent = runtime.agent_of(spawned.body["agent"])
        return runtime.child_call(self.claim, agent, spawned, restricted=restricted)

    def _spawned(self, child: str) -> Record:
        """What the journal says of a child: hooks may have changed what agent code gave."""
        records = self.store.read(self.claim.run)
        return next(r for r in records if r.kind == "child.spawned" and r.body["child"] == child)

    def _note(self, command: Json) -> None:
        """Writes something down that nobody waits for but the end of the attempt."""
        claim = self.claim
        call = _core.Call.command(claim.run, claim.by(), {**command, "claim": claim.core()}, "commit")
        self._running += 1

        def heard(future: asyncio.Future[Any]) -> None:
            self._one_less()
            error = None if future.cancelled() else future.exception()
            if isinstance(error, CommandError) and error.code != "no_such_call":
                self._failed(error)
            self._wake()

        if not self.core.is_memory:
            return self.store.aio.submit(call, heard)
        done: asyncio.Future[Any] = (
            self.loop.create_future()
        )  # in memory others do not hop to a thread either
        try:
            done.set_result(self.store._run(call))
        except Frozen:
            return None
        except Exception as error:
            done.set_exception(error)
        return heard(done)

    # What is under way.

    def _launch(self, operation: Operation) -> None:
        self._operations[operation.call] = operation
        if operation.kind == "commit":
            self._commits.append(operation)
            if len(self._commits) > 1:
                return  # each is for the version that the one before makes
        self._go(operation)

    def _go(self, operation: Operation) -> None:
        operation.wait = None
        try:
            way = operation.way(self)
        except Exception as error:  # what was asked for is no call at all
            self._operations.pop(operation.call, None)
            if not operation.future.done():
                operation.future.set_exception(error)
            return
        self._running += 1
        operation.running = True
        Courier(self.store, way, lambda value, error: self._ended(operation, value, error)).go()

    def _ended(self, operation: Operation, value: object, error: BaseException | None) -> None:
        self._one_less()
        self._moved()
        error = tamed(error)
        operation.running = False
        operation = self._operations.get(operation.call, operation)  # somebody may have taken its place
        operation.running = False
        if operation.kind == "commit" and operation in self._commits:
            self._commits.remove(operation)
            if self._commits and self.closed is None:
                self._go(self._commits[0])
        if isinstance(error, Suspended):
            operation.wait = error.wait
            operation.recorded = True
            self._doubted(operation)
            if not operation.abandoned:
                self._waiting[operation.call] = operation
                self._set_timer(operation)
        elif error is not None and self._failed(error):
            pass
        else:
            operation.value, operation.error = value, error
            self.player.settled(operation.call)
            if not operation.abandoned:
                self._fresh[operation.call] = operation
        if operation.abandoned:
            self._operations.pop(operation.call, None)
        self._wake()

    def _failed(self, error: BaseException) -> bool:
        """Whether an error is about the attempt and not about the call."""
        if isinstance(error, Stopped):
            self.close(Ended(error))
        elif isinstance(error, CommandError) and error.code == "cancel_requested":
            self.close(Cancelled())
        elif isinstance(error, CommandError) and error.code == "run_paused":
            self.pause()
        elif isinstance(error, StoreError) or (isinstance(error, CommandError) and error.code in LOST | GONE):
            self.close(Lost(error))  # nothing that agent code could do about it would be written down
        else:
            return False
        return True

    def _set_timer(self, operation: Operation) -> None:
        """A timer is looked at when it is due; what others decide, now and then while something runs."""
        if operation.call in self._timers:
            self._timers.pop(operation.call).cancel()
        until = (operation.wait or {}).get("until") if operation.kind == "timer" else None
        delay = POLL if until is None else max(0.0, (until - self.core.wall_ms) / 1000)
        self._timers[operation.call] = self.loop.call_later(delay, self._look, operation)

    def _look(self, operation: Operation) -> None:
        """Goes on with an operation that waits, if that may help."""
        self._timers.pop(operation.call, None)
        if self.closed is not None or self._waiting.get(operation.call) is not operation:
            return
        due = operation.kind == "timer" and operation.wait is not None
        if due and operation.wait is not None and operation.wait["until"] > self.core.wall_ms:
            if self.store.clock is None:
                self._set_timer(operation)  # somebody has set the clock back
            return  # a clock that stands: whoever moves it has the step claimed again
        if due or self._running:
            del self._waiting[operation.call]
            self._launch(operation)
        else:
            self._set_timer(operation)

    # Outcomes, one at a time.

    def _moved(self) -> None:
        self._activity += 1

    def _one_less(self) -> None:
        self._running -= 1
        if not self._running and self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    def _wake(self) -> None:
        if not self._scheduled and self.closed is None:
            self._scheduled = True
            self.loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._scheduled = False
        if self.closed is not None or self._loading:
            return None
        if self._seen != self._activity:
            self._seen, self._turns = self._activity, 0
        if self._late and not self.player.replays:
            late, self._late = self._late, []
            for operation in late:
                self._launch(operation)
        if self._deliver("busy"):
            return None
        if not (
            self._awaited or self._fresh or self._elsewhere or self._parked or self._waiting or self._late
        ):
            if self.main_done:
                self._settle_down()
            return None
        if not self._is_quiet():
            self._turns += 1
            return self._wake()
        if self._elsewhere:
            self._moved()
            return self._begin(self._elsewhere.pop(0), quiet=True)
        if not self._deliver("quiet") and not self._running:
            if self.main_done:
                self._give_up()
            else:
                self._stand_still()
        return None

    def _is_quiet(self) -> bool:
        settled = self._turns >= SETTLED and lanes.blocked(self.tasks, self._is_ours)
        return settled or self._turns >= TURNS

    def _is_ours(self, future: object) -> bool:
        return getattr(future, "holdfast", None) is self

    def _deliver(self, calm: str) -> bool:
        if not self._fresh and not self._awaited:
            return False
        pure = next((call for call, one in self._fresh.items() if one.effect == "pure"), None)
        if pure is not None and (calm != "busy" or not self._awaited):
            call: str | None = pure  # it has no place in the journal, so it holds up nothing that has
        elif len(self._fresh) == 1 and not self._awaited and not self.player.replays:
            call = next(iter(self._fresh))
        else:
            call = self.player.next(list(self._awaited), list(self._fresh), calm)
        if call is None:
            return False
        self._moved()
        operation = self._fresh.pop(call, None)
        if operation is not None:
            self._awaited.pop(call, None)
            self._give(operation)
        else:
            self._load(self._awaited.pop(call))
        return True

    def _load(self, operation: Operation) -> None:
        """Gives a recorded outcome, once it is read."""
        self._loading = True

        def heard(value: object, error: BaseException | None) -> None:
            self._loading = False
            error = tamed(error)
            if isinstance(error, Suspended):  # it is recorded, and yet somebody has to say something
                operation.wait = error.wait
                self._waiting[operation.call] = operation
            elif error is None or not self._failed(error):
                operation.value, operation.error = value, error
                self._give(operation)
            self._wake()

        Courier(self.store, self._serves(operation), heard).go()

    def _serves(self, operation: Operation) -> Way:
        return operation.served(self)

    def _give(self, operation: Operation) -> None:
        self._operations.pop(operation.call, None)
        self.given.add(operation.call)
        for future in (operation.future, *(sharer.future for sharer in operation.sharers)):
            if future.done():
                continue
            if operation.error is not None:
                future.set_exception(operation.error)
                future.exception()  # a lane that has gone away is no reason for a warning
            else:
                future.set_result(operation.value)
        self._wake()

    # When nothing moves.

    def _stand_still(self) -> None:
        """Nothing of ours runs and nothing may be given: wait for agent code, then end the attempt."""
        suspend, replay = self._graces
        stuck = bool(self._awaited or self._fresh)
        if lanes.blocked(self.tasks, self._is_ours):
            grace = suspend if self._parked else 0.0
        else:
            grace = replay if stuck or self._parked or self._late else suspend
        outstanding = self.player.outstanding()
        if outstanding is not None and stuck:
            grace = max(grace, outstanding[1] / 1000 + replay)
        if grace <= 0:
            self._still(self._activity)
        else:
            self.loop.call_later(grace, self._still, self._activity)

    def _still(self, activity: int) -> None:
        """It has been still for the whole grace."""
        if self.closed is not None or activity != self._activity or self._running or self._loading:
            return None
        outstanding = self.player.outstanding()
        if outstanding is not None and (self._awaited or self._fresh):
            self.player.lift(outstanding[0])
            self._moved()
            return self._wake()
        if self._deliver("still"):
            return None
        if self._late:
            late, self._late = self._late, []
            for operation in late:
                self._launch(operation)
            return None
        if self._parked:
            parked = self._parked[0]
            diverged = self.player.stuck(
                self.core, parked.kind, parked.name, parked.effect, parked.lane, parked.key, parked.arguments
            )
            return self.close(Diverged(diverged))
        if self._waiting:
            timers = [wait for wait in self._waiting.values() if wait.kind == "timer"]
            near = self._graces[0] * 1000 + self.core.wall_ms
            due = any(wait.wait is not None and wait.wait["until"] <= near for wait in timers)
            if due and self.store.clock is None:
                return None  # in a moment, and its own timer sees to it; a fake clock would stand for ever
            return self.close(Waits([wait.wait for wait in self._waiting.values() if wait.wait is not None]))
        return None

    # The end.

    def returned(self) -> None:
        """Agent code has returned or raised: bodies settle, and lanes may still claim what was recorded."""
        self.main_done = True
        self._moved()
        self._wake()

    def _give_up(self) -> None:
        """Agent code has ended: what its lanes still wait for is not waited for, but for writes in doubt."""
        for operation in [*self._waiting.values()]:
            operation.abandoned = True
            self._doubted(operation)
        for kept in (self._waiting, self._awaited, self._fresh):
            kept.clear()
        self._parked, self._elsewhere, self._late = [], [], []
        self._wake()

    def _settle_down(self) -> None:
        if self._running:
            return None
        # Where no lane is left, nobody can still ask for what was recorded.
        if not all(task.done() for task in self.tasks) and not self._is_quiet():
            self._turns += 1
            return self._wake()
        if not self._end.done():
            self._end.set_result(None)
        return None

    def close(self, end: Ended) -> None:
        """Ends the attempt: whatever agent code does from here on, it asks for nothing any more."""
        if self.closed is None:
            self.closed = end
            if not self._end.done():
                self._end.set_result(end)

    def pause(self) -> None:
        """Somebody has paused the run: it stops here, and what runs settles first."""
        self.close(Waits([{"on": "paused"}]))

    async def quiet_end(self) -> Ended | None:
        """Why the attempt was ended; None when agent code came to its own end and everything has settled."""
        return await asyncio.shield(self._end)

    @property
    def running(self) -> int:
        """How many operations are under way."""
        return self._running

    async def settled(self) -> None:
        """Returns when no body and no commit of the attempt is under way."""
        while self._running:
            self._idle = self.loop.create_future()
            await self._idle

    def forget(self) -> None:
        """Lets go of what waited."""
        for timer in self._timers.values():
            timer.cancel()
        for operation in (*self._operations.values(), *self._parked, *self._elsewhere):
            if not operation.future.done():
                operation.future.cancel()


class Heard(asyncio.Future[Any]):
    """A future of a conductor: agent code that waits for it waits for nothing else."""

    holdfast: Conductor | None = None


def _refused(code: str, message: str) -> CommandError:
    return CommandError(message, code=code, fix=fix(code))
