"""Values that people look at, as a rich terminal and a notebook show them; nothing in them is markup."""

from __future__ import annotations

import io
from dataclasses import dataclass
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

from rich.console import Console
from tests.runtime_desk import Provider, address, provider, rt

import holdfast as hf
from holdfast.visible import LONGEST, Listing, Shown

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["address", "provider", "rt"]  # fixtures

HOSTILE = "<script>alert(1)</script>[red]a[/red]\u202eb"


def in_terminal(value: object) -> str:
    """What a terminal shows, with every colour and style that rich would take from the text."""
    console = Console(file=io.StringIO(), force_terminal=True, color_system="standard", width=4000)
    console.print(value)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


class Page(HTMLParser):
    """The tags of a page, and its words."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, _: Any) -> None:
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def both(value: Any, *words: str) -> None:
    """Both show these words, and the page has nothing but tables."""
    page, terminal = Page(value._repr_html_()), in_terminal(value)
    assert page.tags <= {"table", "tr", "th", "td"}
    for word in words:
        assert word in "\n".join(page.words), (word, page.words)
        assert word in terminal, (word, terminal)


def test_a_request_for_approval_is_shown_whole_and_harmless(rt: hf.Runtime, provider: Provider) -> None:
    @rt.tool(effect="write", approval="always", risk="high")
    def post(text: str) -> str:
        return provider.send(text)

    @rt.agent
    async def posts(ctx: hf.Context) -> str:
        return await ctx.call(post, text=HOSTILE)

    run = rt.run_sync(posts)
    (request,) = requests = rt.approvals.list()
    seen = '{"text": "<script>alert(1)</script>[red]a[/red]\\u202eb"}'
    both(request, request.id, "post", "high", seen, "requested_at")
    assert f"<td>{request.id}</td>" in request._repr_html_()
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in request._repr_html_()
    both(requests, request.id, "risk", seen)
    assert "Z</td>" in request._repr_html_()  # a time for people
    assert isinstance(run, hf.Run)
    both(run, run.id, "waiting")
    both(rt.runs.list(), run.id, "posts")
    rt.approvals.approve(request.id, by="dana")
    both(rt.grants.list(), "post", "uses")
    both(rt.grants.list()[0], "post", "spent")


def test_doubts_costs_artifacts_and_counts_are_shown(rt: hf.Runtime) -> None:
    @rt.tool(effect="write")
    def pay(cents: int) -> str:
        raise OSError(f"lost {cents}")

    @rt.agent
    async def works(ctx: hf.Context) -> str:
        await ctx.cost(usd=0.25, tokens=7, model="<b>big</b>")
        await ctx.artifact("<i>sketch</i>", "a line")
        return await ctx.call(pay, cents=5)

    run = rt.run_sync(works)
    (doubt,) = doubts = rt.effects.list()
    both(doubt, doubt.key, '{"cents": 5}')
    both(doubts, doubt.id)
    both(rt.costs.list(run), "<b>big</b>", "0.25")
    both(rt.artifacts.list(run)[0], "<i>sketch</i>")
    both(rt.artifacts.list(run), "<i>sketch</i>")
    both(rt.metrics(), '{"waiting": 1}', "queued")
    both(rt.capabilities.list(run.id), "(none)")
    assert rt.costs.list(run) == rt.costs.list(run.id)
    assert rt.costs.total(run) == {"tokens": 7, "usd": 0.25}


def test_reports_say_first_what_they_came_to(rt: hf.Runtime, tmp_path: Path) -> None:
    @rt.agent(attempts=1)
    async def fails(ctx: hf.Context, ok: bool) -> str:
        await ctx.cost(usd=0.5)
        if not ok:
            raise ValueError(HOSTILE)
        return "fine"

    run, failed = rt.run_sync(fails, True), rt.run_sync(fails, False)
    both(rt.store.verify(), "guarantee", "records")
    evidence = rt.evidence
    review = evidence.review(failed)
    both(review, "findings", review.failed[0].check.value)
    assert review._repr_html_().startswith("<table><tr><th>ok</th><td>false</td></tr>")
    both(evidence.replay(run), "verdict", "same")
    both(evidence.replay_safety(run), "safe", "true")
    both(evidence.diff(run, failed), "same", "differences", "dimension")
    both(evidence.shadow(run), "same", "served")
    both(evidence.at(run), "state_version")
    both(evidence.costs(), "fails", "usd")
    both(evidence.failures(), "ValueError")
    exported = evidence.export(run, tmp_path / "bundle")
    both(exported, str(exported.path))
    both(evidence.verify(exported.path), "shows", "sealed")


def test_what_is_long_is_cut_and_what_is_odd_is_shown() -> None:
    @dataclass(frozen=True)
    class Odd(Shown):
        long: str
        made_at: int
        inner: Any = None

    odd = Odd("x" * (LONGEST + 1), 10**20, {"a": {1, 2}, (1,): 2})
    assert f"... ({LONGEST + 1} characters)" in odd._repr_html_()
    both(odd, "x" * LONGEST, str(10**20), '{"a": "{1, 2}"}')
    both(Listing([1, 2]), "value", "1", "2")
    assert Listing([1, 2]) == [1, 2]
