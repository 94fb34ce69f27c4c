"""Approvals, effects and policies from the command line: another process decides, and the run goes on."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import holdfast as hf

if TYPE_CHECKING:
    from pathlib import Path


def holdfast(folder: Path, *arguments: str) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "holdfast", *arguments, "--store", str(folder / "runs")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout, done.stderr


def told(folder: Path, *arguments: str) -> Any:
    code, out, errors = holdfast(folder, *arguments, "--json")
    assert code == 0, errors
    return json.loads(out)


def attempt(folder: Path, body: Any) -> str:
    """One attempt at the run's step, by a process that has the tools."""
    with hf.open(folder / "runs") as store:
        gate = hf.Gateway(store)

        @gate.tool(effect="write", risk="high")
        def wire(cents: int, to: str) -> dict[str, int]:
            return body(cents, to)  # type: ignore[no-any-return]

        claim = store.claim(worker="w1", lease=30)
        assert claim is not None
        return gate.attempt(claim, lambda step: step.call(wire, key="k1", cents=7, to="a\u202eb"))


def test_a_request_is_shown_approved_once_and_the_run_goes_on(tmp_path: Path) -> None:
    with hf.open(tmp_path / "runs") as store:
        store.create_run(agent="support")
    assert attempt(tmp_path, lambda *_: {}) == "waiting"
    (request,) = told(tmp_path, "approvals")
    assert (request["tool"], request["arguments"]) == ("wire", {"cents": 7, "to": "a\u202eb"})
    code, out, _ = holdfast(tmp_path, "approvals", "show", request["id"])
    assert code == 0
    assert "\\u202e" in out
    assert "\u202e" not in out
    approved = told(tmp_path, "approvals", "approve", request["id"], "--by", "dana", "--reason", "seen")
    assert approved["status"] == "approved"
    code, _, errors = holdfast(tmp_path, "approvals", "deny", request["id"], "--by", "eve")
    assert (code, errors.split(":")[0]) == (1, "approval_over")
    assert told(tmp_path, "approvals", "list") == []
    code, _, errors = holdfast(
        tmp_path, "approvals", "approve", "apr_01m7kwsnzjfvfafgkfjcsnat52", "--by", "x"
    )
    assert (code, errors.split(":")[0]) == (1, "no_such_approval")
    assert attempt(tmp_path, lambda cents, _: {"sent": cents}) == "completed"


def test_a_doubt_is_listed_with_its_key_and_resolved_from_a_file(tmp_path: Path) -> None:
    with hf.open(tmp_path / "runs") as store:
        store.create_run(agent="support")
    attempt(tmp_path, lambda *_: {})
    (request,) = told(tmp_path, "approvals")
    told(tmp_path, "approvals", "approve", request["id"], "--by", "dana")

    def lost(*_: object) -> None:
        raise ConnectionError("hunter2")

    assert attempt(tmp_path, lost) == "waiting"
    (doubt,) = told(tmp_path, "effects")
    assert (doubt["tool"], doubt["cause"], doubt["key"][:3]) == ("wire", "raised", "hf_")
    assert holdfast(tmp_path, "effects")[0] == 0
    result = tmp_path / "result.json"
    code, _, errors = holdfast(tmp_path, "effects", "resolve", doubt["id"], "--by", "dana")
    assert (code, "say one of" in errors) == (2, True)
    code, _, errors = holdfast(
        tmp_path, "effects", "resolve", doubt["id"], "--by", "dana", "--happened", str(result)
    )
    assert code == 2
    result.write_text('{"sent": 7}')
    told(tmp_path, "effects", "resolve", doubt["id"], "--by", "dana", "--happened", str(result))
    assert told(tmp_path, "effects") == []
    assert attempt(tmp_path, lost) == "completed"


def test_a_policy_is_checked_activated_and_shown(tmp_path: Path) -> None:
    with hf.open(tmp_path / "runs"):
        pass
    assert told(tmp_path, "policy") is None
    file = tmp_path / "policy.toml"
    file.write_text('[[rule]]\nname = "never"\ntool = "wire"\ndecide = "deny"\n')
    command = [sys.executable, "-m", "holdfast", "policy", "check", str(file), "--json"]
    digest = json.loads(subprocess.check_output(command, text=True))["digest"]
    assert told(tmp_path, "policy", "activate", str(file), "--by", "dana") == {"digest": digest}
    shown = told(tmp_path, "policy", "show")
    assert (shown["digest"], shown["policy"]["rules"][0]["name"]) == (digest, "never")
    file.write_text('[[rule]]\ndescide = "deny"\n')
    code, _, errors = holdfast(tmp_path, "policy", "activate", str(file), "--by", "dana")
    assert (code, errors.split(":")[0]) == (1, "bad_policy")
    assert told(tmp_path, "policy", "show")["digest"] == digest


def test_a_request_is_edited_approved_for_the_session_and_the_grant_taken_back(tmp_path: Path) -> None:
    with hf.open(tmp_path / "runs") as store:
        store.create_run(agent="support", session=store.create_session())
    attempt(tmp_path, lambda *_: {})
    (first,) = told(tmp_path, "approvals")
    changed = tmp_path / "arguments.json"
    edit = ("approvals", "edit", first["id"], str(changed), "--by", "dana")
    code, _, errors = holdfast(tmp_path, *edit)
    assert (code, "cannot be read" in errors, "Traceback" in errors) == (2, True, False)
    changed.write_text("7")
    assert holdfast(tmp_path, *edit)[0] == 2
    changed.write_text('{"cents": 5, "to": "b"}')
    assert told(tmp_path, *edit)["status"] == "superseded"
    attempt(tmp_path, lambda *_: {})
    (second,) = told(tmp_path, "approvals")
    assert second["arguments"] == {"cents": 5, "to": "b"}
    session = ("--session-uses", "3", "--session-when", '{"args.cents": {"max": 9}}')
    approve = ("approvals", "approve", second["id"], "--by", "dana")
    code, _, errors = holdfast(tmp_path, *approve, "--session-uses", "3", "--session-when", "[]")
    assert (code, "not a JSON object" in errors) == (2, True)
    assert told(tmp_path, *approve, *session)["status"] == "approved_for_session"
    grants = told(tmp_path, "grants")
    standing = next(grant for grant in grants if grant["stream"].startswith("ses_"))
    assert (standing["uses"], standing["spent"], standing["revoked"], len(grants)) == (3, 0, False, 2)
    assert holdfast(tmp_path, "grants", "list", "--of", standing["stream"])[0] == 0
    revoke = ("grants", "revoke", standing["id"], "--by", "dana")
    assert told(tmp_path, *revoke) == {"grant": standing["id"], "revoked": True}
    (standing,) = told(tmp_path, "grants", "list", "--of", standing["stream"])
    assert standing["revoked"] is True
    assert attempt(tmp_path, lambda cents, _: {"sent": cents}) == "completed"


def test_what_a_run_holds_is_listed_and_taken_back(tmp_path: Path) -> None:
    with hf.open(tmp_path / "runs") as store:
        run = store.create_run(agent="support", capabilities=[hf.capability("wire")])
    (held,) = told(tmp_path, "capabilities", "list", run)
    assert (held["run"], held["target"], held["rights"], held["revoked"]) == (run, "wire", ["call"], False)
    with hf.open(tmp_path / "runs") as store:
        other = store.create_run(agent="nobody's", capabilities=[hf.capability("pay"), hf.capability("see")])
    alone = told(tmp_path, "capabilities")  # of all runs, the newest first
    assert sorted((one["run"], one["target"]) for one in alone) == sorted(
        [(other, "pay"), (other, "see"), (run, "wire")]
    )
    assert [one["run"] for one in alone] == [other, other, run]
    assert held["id"] in holdfast(tmp_path, "capabilities")[1]
    pay = next(one["id"] for one in alone if one["target"] == "pay")
    said = holdfast(tmp_path, "capabilities", "revoke", other, pay, "--by", "dana")
    assert said[:2] == (0, f"revoked {pay}\n")
    revoke = ("capabilities", "revoke", run, held["id"], "--by", "dana", "--reason", "enough")
    assert told(tmp_path, *revoke) == {"run": run, "capability": held["id"], "revoked": True}
    code, out, _ = holdfast(tmp_path, "capabilities", "list", run)
    assert (code, "yes" in out) == (0, True)
    assert attempt(tmp_path, lambda *_: {}) == "failed"


def test_a_status_that_no_request_has_is_refused_with_those_that_there_are(tmp_path: Path) -> None:
    with hf.open(tmp_path / "runs") as store:
        store.create_run(agent="support")
    code, out, errors = holdfast(tmp_path, "approvals", "list", "--status", "wrong\x1b")
    said = " ".join(errors.replace("\u2502", " ").split())
    assert (code, out, "\x1b" in errors) == (2, "", False)
    assert (
        "it is one of pending, approved, approved_for_session, denied, timed_out, superseded, cancelled"
        in said
    )
    assert told(tmp_path, "approvals", "list", "--status", "superseded") == []
