"""LangGraph with its SQLite checkpointer: no policy, no ledger, no chain; synchronous=FULL set by hand."""

from __future__ import annotations

import asyncio
from typing import TypedDict

import aiosqlite
from job import arguments, at_once, receipt
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph

folder, jobs, most = arguments()


class State(TypedDict):
    """The run's state."""

    order: str
    receipt: dict[str, str]


async def refund(state: State) -> dict[str, object]:
    """The write, as a node."""
    return {"receipt": receipt(state["order"], 1999)}


async def main() -> None:
    """All jobs over one connection, as its saver wants it."""
    async with aiosqlite.connect(folder / "langgraph.db") as connection:
        await connection.execute("PRAGMA journal_mode=WAL")
        await connection.execute("PRAGMA synchronous=FULL")
        saver = AsyncSqliteSaver(connection)
        await saver.setup()
        graph = StateGraph(State)
        graph.add_node("refund", refund)
        graph.add_edge(START, "refund")
        graph.add_edge("refund", END)
        app = graph.compile(checkpointer=saver)

        async def job(n: int) -> None:
            config = {"configurable": {"thread_id": str(n)}}
            await app.ainvoke({"order": str(n)}, config, durability="sync")

        await at_once(job, jobs, most)


asyncio.run(main())
