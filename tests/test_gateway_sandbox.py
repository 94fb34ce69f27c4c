"""Stories of calls whose bodies run in a process of their own."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
from tests import sandboxed_tools as tools
from tests.gateway_desk import Desk

import holdfast as hf
from holdfast import gateway as gw
from holdfast.gateway import boxes

if TYPE_CHECKING:
    import threading
    from pathlib import Path


def boxed(policy: str | None = None, **options: Any) -> Desk:
    desk = Desk(policy=policy)
    desk.gate = hf.Gateway(desk.store, sandbox=hf.sandbox.Subprocess(**options))
    return desk


def marks(folder: Path) -> int:
    ledger = folder / "ledger"
    return len(ledger.read_text().splitlines()) if ledger.exists() else 0


def bodies(desk: Desk, kind: str) -> list[dict[str, Any]]:
    return [record.body for record in desk.store.read(desk.run) if record.kind == kind]


def test_a_body_runs_in_another_process_and_what_enforces_it_is_on_record(tmp_path: Path) -> None:
    desk = boxed()
    told = desk.call(tools.book, "k1", folder=str(tmp_path), how="result")
    assert told["pid"] != os.getpid()
    assert desk.call(tools.book, "k1", folder=str(tmp_path), how="result") == told
    (started,), (finished,) = bodies(desk, "sandbox.started"), bodies(desk, "sandbox.finished")
    assert started["tier"] == "subprocess"
    assert {"memory", "cpu", "time"} <= set(started["enforces"])
    assert finished == {"end": "exited", "exit_code": 0}
    assert (bodies(desk, "effect.settled")[0]["external_id"], marks(tmp_path)) == ("b-7", 1)
    assert desk.store.verify().ok


@pytest.mark.parametrize(
    ("how", "kind", "says"),
    [
        ("raise", "effect.doubted", "raised"),
        ("die", "effect.doubted", "raised"),
        ("hang", "effect.doubted", "timed_out"),
        ("nothing", "effect.settled", "no_effect"),
        ("fail", "effect.settled", "failed"),
    ],
)
def test_how_a_process_ends_says_what_is_known_of_the_effect(
    how: str, kind: str, says: str, tmp_path: Path
) -> None:
    desk = boxed()
    hurried = gw.Tool(tools.book.function, gw_options(tools.book, timeout=1.5 if how == "hang" else 10.0))
    with pytest.raises((hf.Suspended, hf.NoEffect, hf.EffectFailed)):
        desk.call(hurried, "k1", folder=str(tmp_path), how=how)
    (body,) = bodies(desk, kind)
    assert body.get("cause", body.get("status")) == says
    assert marks(tmp_path) == 1
    if kind == "effect.doubted":
        assert body["over"] is True  # everything of it is dead: the tool may be asked at once


def gw_options(tool: Any, **changes: Any) -> Any:
    from dataclasses import replace

    return replace(tool.options, **changes)


def test_a_tool_that_needs_a_sandbox_does_not_run_without_one(tmp_path: Path) -> None:
    desk = Desk()
    with pytest.raises(hf.NoEffect) as refused:
        desk.call(tools.book, "k1", folder=str(tmp_path), how="return")
    assert (refused.value.code, marks(tmp_path), bodies(desk, "effect.started")) == ("sandbox_missing", 0, [])
    assert desk.call(tools.pid, "k2") == os.getpid()  # preferred, and there is none
    assert boxed().call(tools.pid, "k1") != os.getpid()


def test_a_rule_obliges_to_a_sandbox_and_what_it_must_enforce(tmp_path: Path) -> None:
    for enforce, passes in ((["memory"], True), (["network"], False)):
        rule = f'[[rule]]\ndecide = "allow"\nsandbox = {{ tier = "subprocess", enforce = {enforce} }}\n'
        desk = boxed(rule)
        if passes:
            desk.call(tools.book, "k1", folder=str(tmp_path), how="return")
            continue
        with pytest.raises(hf.Denied) as denied:
            desk.call(tools.book, "k1", folder=str(tmp_path), how="return")
        assert denied.value.reasons[0]["code"] == "obligation.sandbox"
    assert marks(tmp_path) == 1


def test_hooks_see_a_process_start_and_exit_and_may_forbid_or_tighten_it(tmp_path: Path) -> None:
    desk = boxed()
    heard: list[Any] = []
    answers: list[Any] = [
        None,
        gw.rewrite({"limits": {"open_files": 32, "memory_bytes": 1 << 40}}),
        gw.deny("no"),
    ]

    @desk.gate.hook("before_isolation_process_start", rights=["deny", "modify_process_request"])
    def before(subject: gw.Subject) -> Any:
        heard.append(subject.value["tool"])
        return answers.pop(0)

    @desk.gate.hook("after_isolation_process_exit", rights=["request_cleanup_repair"])
    def after(subject: gw.Subject) -> Any:
        heard.append(subject.value["end"])
        return gw.request_cleanup("a folder is left")

    for key in ("k1", "k2"):
        desk.call(tools.book, key, folder=str(tmp_path), how="return")
    with pytest.raises(hf.NoEffect):
        desk.call(tools.book, "k3", folder=str(tmp_path), how="return")
    assert heard == ["book", "exited", "book", "exited", "book"]
    assert marks(tmp_path) == 2
    assert desk.store.verify().ok


def test_hooks_only_tighten_limits() -> None:
    limits = hf.sandbox.Limits(memory_bytes=100, cpu_seconds=None, processes=5)
    wanted = {"memory_bytes": 200, "cpu_seconds": 7, "processes": 2, "open_files": -1, "nonsense": 1}
    told = boxes.tightened(limits, wanted)
    assert (told.memory_bytes, told.cpu_seconds, told.processes) == (100, 7, 2)
    assert told.open_files == limits.open_files


def test_a_hook_that_fails_lets_no_process_start(tmp_path: Path) -> None:
    desk = boxed()

    @desk.gate.hook("before_isolation_process_start", failure="deny")
    def broken(_: gw.Subject) -> None:
        raise RuntimeError

    with pytest.raises(hf.NoEffect):
        desk.call(tools.book, "k1", folder=str(tmp_path), how="return")
    assert marks(tmp_path) == 0


def test_a_secret_reaches_the_process_and_nothing_else() -> None:
    desk = boxed()
    told = desk.call(tools.opened, "k1", token=hf.Secret("correct horse", name="t"))
    assert told == "13 [secret t]"
    assert "correct horse" not in "".join(str(record.value) for record in desk.store.read(desk.run))


def test_a_tool_that_a_sandbox_cannot_import_is_refused_when_it_is_registered() -> None:
    desk = boxed()
    with pytest.raises(hf.ToolError) as refused:
        desk.gate.tool(effect="write", sandbox="required")(lambda: None)
    assert refused.value.code == "bad_tool"


def test_a_pure_tool_runs_where_it_says(tmp_path: Path) -> None:
    import tests.sandboxed_tools as module

    pure = gw.Tool(module.pid.function, gw_options(module.pid, effect="pure", sandbox="required"))
    with pytest.raises(hf.NoEffect):
        Desk().call(pure, "k1")
    assert boxed().call(pure, "k1") != os.getpid()
    assert not (tmp_path / "ledger").exists()


@pytest.mark.parametrize("answer", [gw.rewrite([1]), gw.rewrite({"limits": 5}), gw.rewrite({"limits": [1]})])
def test_nonsense_in_the_place_of_limits_lets_nothing_start(answer: Any, tmp_path: Path) -> None:
    desk = boxed()
    rights = ["modify_process_request"]
    desk.gate.hook("before_isolation_process_start", rights=rights, name="odd")(lambda _: answer)
    with pytest.raises(hf.NoEffect):
        desk.call(tools.book, "k1", folder=str(tmp_path), how="return")
    assert marks(tmp_path) == 0


@pytest.mark.parametrize(("failure", "raised"), [("interrupt_run", hf.Suspended), ("fail_run", hf.Stopped)])
def test_a_hook_before_a_process_interrupts_or_fails_the_run(
    failure: Any, raised: Any, tmp_path: Path
) -> None:
    desk = boxed()

    @desk.gate.hook("before_isolation_process_start", failure=failure)
    def broken(_: gw.Subject) -> None:
        raise RuntimeError

    with pytest.raises(raised):
        desk.call(tools.book, "k1", folder=str(tmp_path), how="return")
    (settled,) = bodies(desk, "effect.settled")
    assert (settled["status"], marks(tmp_path)) == ("no_effect", 0)


def test_what_interrupts_a_hook_after_a_process_does_not_lose_its_outcome(tmp_path: Path) -> None:
    desk = boxed()

    @desk.gate.hook("after_isolation_process_exit", rights=["request_cleanup_repair"])
    def leave(_: gw.Subject) -> None:
        raise SystemExit

    with pytest.raises(SystemExit):
        desk.call(tools.book, "k1", folder=str(tmp_path), how="return")
    (settled,) = bodies(desk, "effect.settled")
    assert (settled["status"], marks(tmp_path)) == ("succeeded", 1)
    assert "pid" in desk.call(tools.book, "k1", folder=str(tmp_path), how="return")


def test_a_long_secret_is_taken_out_before_what_a_process_says_is_cut() -> None:
    desk = boxed()
    key = hf.Secret("k" * 16 + "3f9a" * 800, name="pem")
    with pytest.raises(hf.EffectFailed) as failed:
        desk.call(tools.told, "k1", token=key)
    assert "3f9a3f9a" not in str(failed.value)
    assert "3f9a3f9a" not in "".join(str(record.value) for record in desk.store.read(desk.run))


def test_a_plain_function_gets_its_types_and_its_secrets_there_too() -> None:
    desk = boxed()
    plain = desk.gate.tool(effect="read", sandbox="required", name="plain")(tools.plain)
    assert desk.call(plain, "k1", amounts={3, 1}, token=hf.Secret("correct horse", name="t")) == "set 13"


def test_a_function_that_never_returns_begins_all_the_same() -> None:
    desk = boxed()
    refuses = desk.gate.tool(effect="write", sandbox="required")(tools.refuses)
    with pytest.raises(hf.EffectFailed, match="the shop is closed"):
        desk.call(refuses, "k1", why="the shop is closed")


def test_a_runtime_takes_a_sandbox_of_ones_own_by_a_decorator() -> None:
    rt = hf.Runtime("memory:")
    jobs: list[str] = []

    @rt.sandbox
    class Watched(hf.sandbox.Subprocess):
        """The subprocess, and a list of what ran in it."""

        def run(self, job: hf.sandbox.Job, cancelled: threading.Event | None = None) -> hf.sandbox.Done:
            """Runs it."""
            jobs.append(job.target)
            return super().run(job, cancelled)

    rt.tool(effect="read", sandbox="required", timeout=10.0)(tools.pid.function)

    @rt.agent
    async def looks(ctx: hf.Context) -> int:
        return int(await ctx.call("pid"))

    jobs.clear()  # what its check had it try
    run = rt.run_sync(looks)
    assert (run.status, jobs) == ("completed", ["tests.sandboxed_tools:pid"])
    assert run.result != os.getpid()
    assert issubclass(Watched, hf.sandbox.Subprocess)  # what is decorated stays what it is
    with pytest.raises(hf.HoldfastError) as refused:
        rt.sandbox(hf.sandbox.Subprocess())
    assert refused.value.code == "sandbox_exists"
    assert type(rt.gateway.sandbox) is Watched
    rt.close()


def test_a_sandbox_that_does_not_work_here_is_not_registered() -> None:
    rt = hf.Runtime("memory:")

    class Broken(hf.sandbox.Subprocess):
        def check(self) -> None:
            raise hf.sandbox.SandboxError("no kernel for it", code="sandbox_unavailable", fix="get one")

    with pytest.raises(hf.sandbox.SandboxError, match="no kernel for it"):
        rt.sandbox(Broken)
    assert rt.gateway.sandbox is None
    assert rt.sandbox(made := hf.sandbox.Subprocess()) is made  # an object is one already
    rt.close()
