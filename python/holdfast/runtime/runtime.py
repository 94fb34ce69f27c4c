"""The runtime: agents, tools, hooks and people over one store, and runs that survive."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from holdfast import _core, config
from holdfast.gateway import Approvals, Capabilities, Effects, Gateway, Grants
from holdfast.runtime import budgets, looking, plans
from holdfast.runtime.agents import Agent, Options, refuse
from holdfast.runtime.runs import Run, Runs
from holdfast.runtime.worker import Worker
from holdfast.store import asks, open_store
from holdfast.store.commands import human, new_run, new_step, payload

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence
    from types import TracebackType

    from holdfast.evidence import Evidence
    from holdfast.gateway.hooks import Hook
    from holdfast.gateway.policy import Policy
    from holdfast.runtime.plans import Planned
    from holdfast.sandbox import Sandbox
    from holdfast.store import Claim, Record, Store
    from holdfast.store.asks import Asked
    from holdfast.store.clock import FakeClock

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
B = TypeVar("B", bound="Sandbox | type[Sandbox]")
Json = dict[str, Any]


class _Gate(Gateway):
    """A gateway whose store is opened when it is first used."""

    def __init__(self, runtime: Runtime, sandbox: Sandbox | None) -> None:
        self._runtime = runtime
        super().__init__(None, sandbox=sandbox)  # type: ignore[arg-type]

    @property
    def store(self) -> Store:
        """The runtime's store."""
        return self._runtime.store

    @store.setter
    def store(self, _: object) -> None:
        pass


class Runtime:
    """Agents, tools, hooks and people over one store.

    Nothing is opened before it is used. A runtime may be used from any thread; a forked child opens the store
    for itself.

    Args:
        store: a folder, ``memory:``, or a store that is open; else as :mod:`holdfast.config` has it, which
            also sets ``policy``, ``strict_packages`` and the graces where they are not given.
        policy: a policy, the path of its file or its content; it becomes the store's active policy.
        budget: of every run that is given none.
        hooks: declared before, by :func:`holdfast.hook`; several runtimes may have the same ones.
        sandbox: where bodies of tools run that ask for one.
        clock: the only clock that the store reads; for tests.
        strict_packages: a step whose run was begun by another version of this program waits for a person.
        suspend_grace: seconds without anything asked after which an attempt that waits is put to rest.
        replay_grace: the same before recorded calls that are not made again count as a divergence.
    """

    def __init__(
        self,
        store: str | Path | Store | None = None,
        *,
        policy: Policy | Mapping[str, Any] | str | Path | None = None,
        budget: Mapping[str, Any] | None = None,
        hooks: Sequence[Hook] = (),
        sandbox: Sandbox | None = None,
        clock: FakeClock | None = None,
        strict_packages: bool | None = None,
        suspend_grace: float | None = None,
        replay_grace: float | None = None,
    ) -> None:
        self._given = store
        self._policy = policy
        self._budget = dict(budget) if budget else None
        self._clock = clock
        self.strict_packages: bool = config.setting("strict_packages", strict_packages, False)
        self.suspend_grace: float = config.setting("suspend_grace", suspend_grace, 1.0)
        self.replay_grace: float = config.setting("replay_grace", replay_grace, 30.0)
        self.agents: dict[str, Agent[..., Any]] = {}
        self.step_functions: dict[str, Agent[..., Any]] = {}
        self.gateway: Gateway = _Gate(self, sandbox)
        # Registration is the gateway's; these are its methods under the runtime's name.
        self.tool = self.gateway.tool
        self.foreign_tool = self.gateway.foreign_tool
        self.hook = self.gateway.hook
        self.approver = self.gateway.approver
        self.evaluator = self.gateway.evaluator
        for hook in hooks:
            self.gateway.add_hook(hook)
        self._lock = threading.RLock()
        self._opened: tuple[int, Store] | None = None
        self._thread: tuple[int, asyncio.AbstractEventLoop, threading.Thread] | None = None
        self._frozen = False
        self._fingerprint: tuple[int, dict[str, str]] | None = None
        self.runs = Runs(self)

    # The store.

    @property
    def store(self) -> Store:
        """The store, opened when it is first asked for."""
        opened = self._opened
        if opened is not None and opened[0] == os.getpid():
            return opened[1]
        with self._lock:
            if self._opened is None or self._opened[0] != os.getpid():
                if self._given is None:
                    self._given = config.setting("store", None, "./runs")
                if isinstance(self._given, str | Path):
                    self._policy = config.setting("policy", self._policy, None)
                    store = open_store(self._given, clock=self._clock)
                else:
                    store = self._given
                self._opened = (os.getpid(), store)
                if self._policy is not None:
                    self.gateway.activate(self._policy, by="holdfast")
            return self._opened[1]

    def close(self) -> None:
        """Closes the store, if this runtime opened it, and ends its thread."""
        with self._lock:
            thread, self._thread = self._thread, None
            opened, self._opened = self._opened, None
        if thread is not None and thread[0] == os.getpid():
            thread[1].call_soon_threadsafe(thread[1].stop)
            if thread[2] is not threading.current_thread():
                thread[2].join()
        if opened is not None and opened[0] == os.getpid() and isinstance(self._given, str | Path):
            opened[1].close()

    def __enter__(self) -> Runtime:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Runtime:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.close)

    # Registration.

    @overload
    def agent(self, function: Callable[..., Any], /) -> Agent[..., Any]: ...
    @overload
    def agent(self, /, **options: object) -> Callable[[Callable[..., Any]], Agent[..., Any]]: ...
    def agent(self, function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        """Registers a function as an agent. Its first parameter is its context.

        Args:
            function: an ``async def``, or a plain function, which then runs in a thread.
            options: ``name``, ``version``, ``attempts``, ``backoff`` and ``backoff_max`` in seconds,
                ``queue``, ``role``, ``budget``, ``concurrency_key`` (one step under it runs at a time),
                ``step_timeout`` (seconds after which an attempt that hangs is ended and tried again).
        """
        return self._registers(self.agents, "agent", function, options)

    @overload
    def step(self, function: Callable[..., Any], /) -> Agent[..., Any]: ...
    @overload
    def step(self, /, **options: object) -> Callable[[Callable[..., Any]], Agent[..., Any]]: ...
    def step(self, function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        """Registers a function that runs may add as a further step: ``ctx.add_step(fn, ...)``."""
        return self._registers(self.step_functions, "step", function, options)

    def sandbox(self, box: B, /) -> B:
        """Registers where the bodies of tools run that ask for a sandbox; as a decorator on a class of your
        own, which is made without arguments, or with an object that is one already.

        It has to work here: what its ``check`` raises is raised here, and nothing is registered.
        """
        made = box() if isinstance(box, type) else box
        if self.gateway.sandbox is not None:
            raise refuse("sandbox_exists", f"tools run in the sandbox {self.gateway.sandbox.tier} already")
        made.check()
        self.gateway.sandbox = made
        self.gateway.changes += 1
        return box

    def _registers(
        self, kept: dict[str, Agent[..., Any]], what: str, function: Callable[..., Any] | None, options: Json
    ) -> Any:  # noqa: ANN401
        def register(function: Callable[..., Any]) -> Agent[..., Any]:
            made: Agent[..., Any] = Agent(function, Options(**options))
            if made.name in kept:
                raise refuse("agent_exists", f"another {what} is called {made.name}")
            kept[made.name] = made
            self._fingerprint = None
            return made

        return register if function is None else register(function)

    # Runs.

    def _found(self, agent: Agent[..., Any] | str) -> Agent[..., Any]:
        found = self.agents.get(agent) if isinstance(agent, str) else agent
        if found is None:
            raise refuse("no_such_agent", f"no agent is called {agent}")
        return found

    agent_of = _found

    def step_of(self, function: Callable[..., Any] | str) -> Agent[..., Any]:
        """A function that was registered by ``rt.step``."""
        name = function if isinstance(function, str) else getattr(function, "__name__", "")
        found = self.step_functions.get(name)
        if found is None:
            raise refuse("no_such_agent", f"no step function is called {name}: register it with rt.step")
        return found

    def creates(
        self, agent: Agent[..., Any], given: Json, options: Mapping[str, Any], *, barrier: bool
    ) -> Asked[str]:
        """What makes a run of an agent."""
        own = agent.options
        budget = options.get("budget") or own.budget or self._budget
        chosen: Json = _settings(own) | {
            "budget": dict(budget) if budget else None,
            "package": self.package(),
            "role": own.role,
        }
        apart = ("arguments", "budget", "steps")
        given_here = {name: value for name, value in options.items() if name not in apart}
        chosen |= {name: value for name, value in given_here.items() if value is not None}
        if chosen["budget"] is not None:
            chosen["budget"].setdefault("on_exceeded", "refuse")
        chosen = {name: value for name, value in chosen.items() if value is not None}
        if options.get("steps"):
            return plans.creates(self, agent, given, chosen, options["steps"], barrier=barrier)
        return asks.create_run(self.store._core, agent=agent.name, input=given, barrier=barrier, **chosen)

    async def start(
        self,
        agent: Agent[..., Any] | str,
        /,
        *args: object,
        arguments: Mapping[str, object] | None = None,
        key: str | None = None,
        budget: Mapping[str, Any] | None = None,
        session: str | None = None,
        labels: Mapping[str, str] | None = None,
        priority: int | None = None,
        deadline: int | None = None,
        concurrency_key: str | None = None,
        role: str | None = None,
        capabilities: Sequence[Mapping[str, Any]] | None = None,
        steps: Mapping[str, Planned] | None = None,
        **kwargs: object,
    ) -> Run:
        """Makes a run, durably, for a worker to take.

        Args:
            agent: an agent of this runtime, or its name.
            args, kwargs: the agent's.
            arguments: all of them, by name, whatever they are called; instead of ``args`` and ``kwargs``.
            key: a run that has it is returned instead, if agent and input are the same.
            budget, session, labels, priority, role, capabilities: as the run has them.
            deadline: milliseconds since the epoch; of the same priority and age, the earlier one is claimed
                first. It ends nothing by itself.
            concurrency_key: of its own step, instead of the agent's: of all steps that have it one runs at a
                time, so that a session or an account has its turns one after another.
            steps: further steps that the run has from its beginning, by name: functions of ``rt.step``, as in
                ``{"eu": fetch.planned("eu"), "sum": total.planned(after=["eu"])}``. Any worker claims each as
                soon as those that it comes after are done; the agent's own step is called ``main``.
        """
        found = self._found(agent)
        options = {
            "arguments": arguments,
            "budget": budget,
            "capabilities": capabilities,
            "concurrency_key": concurrency_key,
            "deadline": deadline,
            "key": key,
            "labels": labels,
            "priority": priority,
            "role": role,
            "session": session,
            "steps": steps,
        }
        asked = self.creates(found, found.whole(args, kwargs, options), options, barrier=True)
        assert asked.call is not None
        return Run(self, asked.answer(await self.store.aio.run(asked.call)))

    async def run(self, agent: Agent[..., Any] | str, /, *args: object, **options: Any) -> Run:  # noqa: ANN401
        """Makes a run and drives it here until it ends, or until only a person or another run can help.

        Takes what :meth:`start` takes.
        """
        run, claim = await looking.begun(self, self._found(agent), args, options)
        return await looking.drive(self, run, 60.0, claim)

    async def resume(self, run: str | Run, *, lease: float = 60.0) -> Run:
        """Drives a run here until it ends, or until only a person or another run can help."""
        return await looking.drive(self, _id(run), lease)

    def start_sync(self, agent: Agent[..., Any] | str, /, *args: object, **options: Any) -> Run:  # noqa: ANN401
        """See :meth:`start`."""
        return self._sync(self.start(agent, *args, **options))

    def run_sync(self, agent: Agent[..., Any] | str, /, *args: object, **options: Any) -> Run:  # noqa: ANN401
        """See :meth:`run`."""
        return self._sync(self.run(agent, *args, **options))

    def resume_sync(self, run: str | Run, *, lease: float = 60.0) -> Run:
        """See :meth:`resume`."""
        return self._sync(self.resume(run, lease=lease))

    def worker(self, *, concurrency: int | None = None, lease: float | None = None, **options: Any) -> Worker:  # noqa: ANN401
        """A worker for the agents of this runtime; what is not given is as :mod:`holdfast.config` has it."""
        options["poll"] = config.setting("poll", options.get("poll"), Worker.poll)
        concurrency = config.setting("concurrency", concurrency, Worker.concurrency)
        return Worker(self, concurrency, config.setting("lease", lease, Worker.lease), **options)

    # What people do.

    def signal(self, run: str | Run, name: str, value: object = None, *, by: str = "holdfast") -> None:
        """Sends a signal to a run."""
        self.store.signal(_id(run), name, value, by=by)

    def cancel(self, run: str | Run, *, by: str) -> None:
        """Asks a run to stop: its code is cancelled, its cleanups run, and it ends. May be asked again.

        A run that nobody works on ends at once, and the hooks of its end are asked here.
        """
        self.gateway.cancel(_id(run), by=by)

    def retry(self, run: str | Run, *, by: str) -> None:
        """Opens a failed run again."""
        self.store.retry(_id(run), by=by)

    def pause(self, run: str | Run, *, by: str, reason: str | None = None) -> None:
        """Nobody claims its steps any more, and one that runs stops at its next call."""
        self._people(run, {"command": "pause"}, by, reason)

    def unpause(self, run: str | Run, *, by: str, reason: str | None = None) -> None:
        """Lets a paused run go on."""
        self._people(run, {"command": "unpause"}, by, reason)

    def release(self, run: str | Run, *, by: str) -> None:
        """Lets steps go on that waited for a person: after a restore, an interruption or for the budget."""
        self.store.resume(_id(run), by=by)

    def _people(self, run: str | Run, command: Json, by: str, reason: str | None) -> None:
        if reason is not None:
            command["reason"] = payload(reason, "internal")
        self.store._core.run(_core.Call.command(_id(run), human(by), command, "barrier"))

    def decide(self, run: str | Run, decision: str, *, by: str, reason: str | None = None) -> Run:
        """Decides about a step that waits because its code diverged, or its package changed.

        Returns the run that goes on: this one, or its fork.

        Args:
            run: the run.
            decision: after a divergence ``retry`` (the code was fixed), ``accept`` (what it no longer does is
                abandoned) or ``fork`` (this run stays as it is, and its fork from before those calls has the
                new code); about a package ``continue``, ``wait`` or ``refuse``.
            by: who decides.
            reason: why.
        """
        command = looking.decision(self, _id(run), decision)
        going = Run(self, _id(run))
        if decision == "fork":
            going = looking.forked(self, _id(run), command, by, reason)
        self._people(run, command, by, reason)
        return going

    def fork(
        self, run: str | Run, *, at: int, by: str, effects: str = "serve", reason: str | None = None
    ) -> Run:
        """A new run that begins with another's records up to ``at``. What that has done is not done again: an
        equal write gets what it came to there, unless ``effects`` is ``"perform"``.
        """
        return looking.fork(self, _id(run), at, by, effects, reason)

    @property
    def approvals(self) -> Approvals:
        """Requests for approval."""
        return Approvals(self.store)

    @property
    def grants(self) -> Grants:
        """Leave that people gave."""
        return Grants(self.store)

    @property
    def effects(self) -> Effects:
        """Effects in doubt."""
        return Effects(self.store)

    @property
    def capabilities(self) -> Capabilities:
        """What runs may reach."""
        return Capabilities(self.store)

    @property
    def artifacts(self) -> looking.Artifacts:
        """What runs made."""
        return looking.Artifacts(self)

    @property
    def costs(self) -> looking.Costs:
        """What runs cost."""
        return looking.Costs(self)

    @property
    def evidence(self) -> Evidence:
        """The past of runs: travel, replay, comparison, review."""
        from holdfast.evidence import Evidence  # it reads runs, so it stands above them

        return Evidence(self)

    def budget(self, run: str | Run) -> Json:
        """A run's budget: limits, what was used, what is left, by account."""
        return budgets.told(self, _id(run))

    def raise_budget(
        self, run: str | Run, *, by: str, reason: str | None = None, **amounts: int | None
    ) -> None:
        """Gives a run more of what its budget bounds.

        Accounts are ``tool_calls``, ``tokens``, ``usd_micros`` and ``children``.

        Steps that wait for the budget (``on_exceeded: ask``) go on.
        """
        command = budgets.raises(amounts, reason)
        self.store._core.run(_core.Call.command(_id(run), human(by), command, "barrier"))

    def metrics(self) -> looking.Metrics:
        """Counts of what is queued, running and waiting, and why."""
        return looking.Metrics.of(self)

    # What workers ask.

    def agent_names(self) -> list[str]:
        """The agents that this runtime has."""
        return list(self.agents)

    def agent_for(self, claim: Claim) -> Agent[..., Any] | None:
        """What a claimed step runs."""
        if claim.step_input:
            return self.step_functions.get(claim.step_input.get("function", ""))
        return self.agents.get(claim.agent)

    def hears(self, point: str) -> bool:
        """Whether a hook is registered at a point."""
        hooks = self.gateway.hooks
        return bool(hooks) and any(hook.spec["point"] == point for hook in hooks.values())

    def status_of(self, run: str) -> str:
        """A run's status. Reading waits for nobody, so that an event loop may do it."""
        rows = self.store._core.sql("SELECT status FROM runs WHERE id = ?", [run])[1]
        return str(rows[0][0]) if rows else "unknown"

    def package(self) -> dict[str, str]:
        """The fingerprint of this program: agents, tools, hooks, policy."""
        gate = self.gateway
        if self._fingerprint is None or self._fingerprint[0] != gate.changes:
            known = {**self.step_functions, **self.agents}
            versions = ", ".join(sorted(f"{name} {agent.options.version}" for name, agent in known.items()))
            digest = _core.canonical_digest(versions, domain="holdfast/package/v1")
            changes = gate.changes  # asking for the package opens the store, which may activate a policy
            self._fingerprint = (changes, gate.package(digest))
        return self._fingerprint[1]

    def fingerprint(self) -> str:
        """The same in one digest, as the column ``package`` of the table ``steps`` has it."""
        return _core.canonical_digest(self.package(), domain="holdfast/package/v1")

    def new_step(self, agent: Agent[..., Any], step: str, given: Json, after: list[str]) -> Json:
        """A step, as the core reads it."""
        made = new_step(agent.name, _settings(agent.options), self.store._core.wall_ms)
        return made | {"after": after, "id": step, "input": payload(given, "internal")}

    def child_call(
        self, claim: Claim, agent: Agent[..., Any], spawned: Record, *, restricted: bool
    ) -> _core.Call:
        """The call of the store that makes a child's run, from what the parent's journal says of it."""
        own, run, given = agent.options, spawned.body["child"], spawned.value["input"]
        options: Json = {"package": self.package(), "role": own.role}
        budget = budgets.child_budget(own.budget or self._budget, spawned.body["escrow"])
        if budget is not None:
            options["budget"] = budget
        if restricted:
            options["capabilities"] = []  # a restricted run's children reach nothing until they are given it
        if claim.session is not None:
            options["session"] = claim.session
        at_ms = self.store._core.wall_ms
        made = new_run(agent.name, given, {}, options, at_ms) | {"id": run, "parent": claim.run}
        return _core.Call.create(claim.by(), made, [new_step("main", _settings(own), at_ms)], "barrier")

    def result_of(self, run: str, value: Any) -> Any:  # noqa: ANN401
        """A run's result through the type that its agent declares."""
        if value is None:
            return None
        rows = self.store.sql("SELECT agent FROM runs WHERE id = ?", [run])
        agent = self.agents.get(rows[0]["agent"]) if rows else None
        return value if agent is None else agent.result(value)

    def next_due(self, run: str | None) -> int | None:
        """When the next timer or retry of this runtime's agents is due."""
        return looking.next_due(self, run)

    # Without an event loop.

    def _loop(self) -> asyncio.AbstractEventLoop:
        """A loop of this runtime's own, in a thread of its own."""
        with self._lock:
            if self._thread is None or self._thread[0] != os.getpid() or not self._thread[2].is_alive():
                loop = asyncio.new_event_loop()
                thread = threading.Thread(
                    target=self._serve, args=(loop,), name="holdfast-runtime", daemon=True
                )
                thread.start()
                self._thread = (os.getpid(), loop, thread)
            return self._thread[1]

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        """The loop until it is stopped; what was left then is cancelled, unless it is to stay as it is."""
        asyncio.set_event_loop(loop)
        loop.run_forever()
        if self._frozen:
            return
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left, timeout=5.0))
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()

    def _freeze(self) -> asyncio.AbstractEventLoop | None:
        """Stops the loop and leaves everything in it as it is, as in a process that has died."""
        with self._lock:
            thread, self._thread, self._frozen = self._thread, None, True
        if thread is None:
            return None
        thread[1].call_soon_threadsafe(thread[1].stop)
        thread[2].join()
        return thread[1]

    def _sync(self, work: Coroutine[Any, Any, T]) -> T:
        """Waits for work on that loop, also inside another loop that runs (a notebook's)."""
        if self._thread is not None and self._thread[2] is threading.current_thread():
            work.close()
            told = "this runs on the runtime's own loop, which would wait for itself: await the async form"
            raise RuntimeError(told)
        future = asyncio.run_coroutine_threadsafe(work, self._loop())
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def __repr__(self) -> str:
        return f"<Runtime {self._given or 'as configured'}>"


def _settings(own: Options) -> Json:
    """What an agent's options say about its steps."""
    return {
        "attempts": own.attempts,
        "backoff_max_ms": round(own.backoff_max * 1000),
        "backoff_ms": round(own.backoff * 1000),
        "concurrency_key": own.concurrency_key,
        "kind": "replayed",
        "queue": own.queue,
        "timeout_ms": None if own.step_timeout is None else round(own.step_timeout * 1000),
    }


def _id(run: str | Run) -> str:
    return run if isinstance(run, str) else run.id
