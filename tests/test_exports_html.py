"""The page about a run: what a person reads on it, and that nothing on it acts, whatever tools returned."""

from __future__ import annotations

import base64
import hashlib
import io
import re
from html import escape
from html.parser import HTMLParser
from typing import TYPE_CHECKING

import pytest
from tests.exports_desk import Office, office, told
from tests.hostile_page import HOSTILE

import holdfast as hf
from holdfast import exports
from holdfast.exports import html as make
from holdfast.exports import style

if TYPE_CHECKING:
    from pathlib import Path

    from tests.chromium import Browser

pytest_plugins = ["tests.chromium"]
__all__ = ["office", "told"]  # fixtures
Told = tuple[hf.Store, str]
TAGS = {
    *("html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "span", "code", "pre", "br", "div"),
    *("dl", "dt", "dd", "ul", "li", "table", "thead", "tbody", "tr", "th", "td", "svg", "rect"),
    *("details", "summary"),
}
ATTRIBUTES = {
    *("charset", "name", "content", "http-equiv", "lang", "class"),
    *("viewbox", "preserveaspectratio", "aria-hidden", "x", "y", "width", "height"),
}


def page(store: hf.Store | hf.Runtime, run: hf.Run | str, **options: bool) -> str:
    out = io.BytesIO()
    make(store, run, out, **options)
    return out.getvalue().decode()


class Reader(HTMLParser):
    """Collects tags, attributes and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_a_person_reads_what_happened_on_it(told: Told) -> None:
    store, run = told
    text = page(store, run)
    heads = re.findall(r"<h2>(.*?)</h2>", text)
    assert heads == [
        "Timeline", "Approvals", "Effects", "Doubts", "Costs", "State at the end", "Package", "Records",
    ]  # fmt: skip
    words = " ".join("".join(Reader(text).texts).split())
    for said in (
        "support completed",
        "lasted 1 min 37 s",
        "cost 0.0125 USD, 120 tokens",
        "verified 58 records.",
        "denied by person",
        "policy: ask tool.approval_always",
        "human dana 2025-11-16 00:01:01.000Z",
        "cut: 3,000,090 characters in all",
        "1: in_doubt",
        "happened human dana",
    ):
        assert said.replace(" ", "") in words.replace(" ", ""), said
    head = store.verify(run).head
    assert head is not None
    assert head in text
    keys = {call["permit_key"] for call in store.state(run)["calls"].values() if "permit_key" in call}
    writes = re.search(r"<h2>Effects</h2>(.*?)<h2>", text, re.DOTALL)
    assert writes is not None
    assert sum(key in writes[1] for key in keys) == 2
    rows = re.findall(r"<tr><td>(\d+)</td>", text.split("<h2>Records</h2>")[1])
    assert [int(row) for row in rows] == list(range(1, 59))
    assert len(text) < 100_000


def test_hostile_values_are_text_and_what_hides_is_seen(told: Told) -> None:
    store, run = told
    text = page(store, run)
    reader = Reader(text)
    assert reader.tags <= TAGS, reader.tags - TAGS
    assert reader.attributes <= ATTRIBUTES, reader.attributes - ATTRIBUTES
    read = "".join(reader.texts)
    for name in ("script", "handler", "dialog", "link", "style", "frame", "refresh", "entities"):
        assert escape(HOSTILE[name].replace('"', '\\"'), quote=True) in text, name
    assert r"invoice\u202efdp.exe\u2066\u200b\u200d\u00ad\ufeff" in read
    assert r"nul\u0000 bell\u0007 escape\u001b[2J del\u007f line\u2028" in read
    assert not [char for char in text if not char.isprintable() and char != "\n"]


def test_the_policy_allows_the_sheet_and_nothing_else(told: Told) -> None:
    text = page(*told)
    policy = re.search(r'http-equiv="Content-Security-Policy" content="(.*?)"', text)
    sheet = re.search(r"<style>(.*?)</style>", text, re.DOTALL)
    assert policy is not None
    assert sheet is not None
    digest = base64.b64encode(hashlib.sha256(sheet[1].encode()).digest()).decode()
    assert policy[1] == (
        f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    ), f"set HASH in style.py to sha256-{digest}"
    assert text.index("Content-Security-Policy") < text.index("<style>") < text.index("<body>")
    assert "prefers-color-scheme:dark" in style.STYLE


def test_a_browser_runs_nothing_of_it_and_asks_for_nothing(
    told: Told, browser: Browser, tmp_path: Path
) -> None:
    store, run = told
    exports.html(store, run, tmp_path / "run.html")
    opened = browser.open(tmp_path / "run.html")
    title = f"<title>support {run}</title>"
    assert title in opened.dom
    assert Reader(opened.dom).tags <= TAGS
    assert "Refused to" not in opened.said
    assert _hostile(opened.asked) == []
    assert "denied by person" in opened.dom

    # The same values without our care: the browser would notice, and so do we.
    text = (tmp_path / "run.html").read_text()
    kept = HOSTILE.keys() - {"dialog", "style", "refresh"}  # these would leave nothing to look at
    raw = "".join(HOSTILE[name] for name in sorted(kept))
    careless = text.replace("<body>", f"<body>{raw}")
    (tmp_path / "careless.html").write_text(careless)
    walled = browser.open(tmp_path / "careless.html")
    assert title in walled.dom, "the policy is a second wall"
    assert ("violates" in walled.said, _hostile(walled.asked)) == (True, [])

    (tmp_path / "open.html").write_text(re.sub(r"<meta http-equiv=.*?>", "", careless))
    naked = browser.open(tmp_path / "open.html")
    assert "<title>owned</title>" in naked.dom
    assert _hostile(naked.asked) != []


def _hostile(asked: list[str]) -> list[str]:
    return [line for line in asked if "evil.example" in line]


def test_the_sheet_is_applied_by_its_hash(told: Told, browser: Browser, tmp_path: Path) -> None:
    store, run = told
    text = page(store, run)
    (tmp_path / "run.html").write_text(text)
    assert "style" not in browser.open(tmp_path / "run.html").said
    (tmp_path / "changed.html").write_text(text.replace("max-width:76rem", "max-width:77rem"))
    assert "style" in browser.open(tmp_path / "changed.html").said


def test_open_runs_say_what_they_wait_for(office: Office) -> None:
    run = office.rt.run_sync("support", "t")
    text = page(office.rt, run)
    assert "waits for approval since" in text
    assert '<span class="tag warn">waiting</span>' in text
    office.rt.cancel(run.id, by="dana")
    assert '<span class="tag warn">cancelled</span>' in page(office.rt, run)


def test_values_can_stay_out_of_it(told: Told) -> None:
    store, run = told
    text = page(store, run, content=False)
    assert "owned" not in text
    assert "AAAA" not in text
    assert "withheld (internal" in text


def test_a_failed_run_says_how(office: Office) -> None:
    @office.rt.agent(attempts=1)
    async def failing(_: hf.Context) -> None:
        raise ValueError("<b>plans</b>")

    text = page(office.rt, office.rt.run_sync(failing))
    assert '<span class="tag bad">failed</span>' in text
    assert "&lt;b&gt;plans&lt;/b&gt;" in text
    assert "ValueError" in text


@pytest.mark.parametrize(
    ("ms", "said"),
    [(0, "0 ms"), (999, "999 ms"), (1500, "1.5 s"), (61_000, "1 min 1 s"), (7_260_000, "2 h 1 min"),
     (90_000_000, "1 d 1 h"), (8_640_000_000, "100 d 0 h")],
)  # fmt: skip
def test_durations_are_said_as_people_say_them(ms: int, said: str) -> None:
    from holdfast.exports.page import lasted

    assert lasted(ms) == said


def test_a_run_of_many_calls_is_drawn_up_to_a_bound() -> None:
    with hf.Runtime("memory:") as rt:

        @rt.tool(effect="read")
        def add(n: int) -> int:
            if n == 2100:
                raise hf.EffectFailed("too many")
            return n + 1

        @rt.agent(attempts=1)
        async def many(ctx: hf.Context) -> None:
            for n in range(2101):
                await ctx.call(add, n=n)

        text = page(rt, rt.run_sync(many))
    timeline = text.split("<h2>Timeline</h2>")[1].split("<h2>")[0]
    assert timeline.count('<tr class="call">') == 2001
    assert "100 calls are not drawn here" in timeline
    assert "too many" in timeline, "what went wrong is drawn in any case"
