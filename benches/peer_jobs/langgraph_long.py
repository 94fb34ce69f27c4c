"""One thread of LangGraph with many steps: what it leaves on the disk."""

from __future__ import annotations

import asyncio
from typing import Annotated, TypedDict

import aiosqlite
from job import arguments, done, receipt
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph

folder, steps, _ = arguments()


def added(old: list[dict[str, str]], new: list[dict[str, str]]) -> list[dict[str, str]]:
    """Messages are kept, as its agents keep them."""
    return [*old, *new]


class State(TypedDict):
    """What its agents have: a list of messages."""

    messages: Annotated[list[dict[str, str]], added]


async def refund(state: State) -> dict[str, object]:
    """One step: about a kilobyte."""
    order = str(len(state["messages"]))
    return {"messages": [receipt(order, 1999) | {"text": order.rjust(1000, ".")}]}


async def main() -> None:
    """So many steps in one thread."""
    async with aiosqlite.connect(folder / "langgraph.db") as connection:
        saver = AsyncSqliteSaver(connection)
        await saver.setup()
        graph = StateGraph(State)
        graph.add_node("refund", refund)
        graph.add_edge(START, "refund")
        graph.add_conditional_edges("refund", lambda s: END if len(s["messages"]) >= steps else "refund")
        app = graph.compile(checkpointer=saver)
        config = {"configurable": {"thread_id": "1"}, "recursion_limit": steps + 10}
        await app.ainvoke({"messages": []}, config)
    done(1.0, steps)


asyncio.run(main())
