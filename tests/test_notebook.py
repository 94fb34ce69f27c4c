"""The runtime in a notebook: a real kernel, whose loop runs while cells are executed."""

from __future__ import annotations

import nbformat
from nbclient import NotebookClient

CELLS = [
    """
import holdfast as hf

rt = hf.Runtime("memory:", suspend_grace=0.05)

@rt.tool(effect="write", approval="always")
def pay(cents: int) -> str:
    return f"paid {cents}"

@rt.agent
async def payer(ctx: hf.Context, cents: int) -> str:
    return await ctx.call(pay, cents=cents)
""",
    """
run = rt.run_sync(payer, 7)  # the kernel's own loop runs meanwhile
(request,) = rt.approvals.list()
rt.approvals.approve(request.id, by="dana")
print(rt.resume_sync(run).result)
""",
    """
again = await rt.run(payer, 8)
print(again.status, [wait["on"] for wait in again.waiting_on])
again
""",
    "rt.close()",
]


def test_a_notebook_runs_agents_with_and_without_await() -> None:
    cells = [nbformat.v4.new_code_cell(source) for source in CELLS]  # type: ignore[no-untyped-call]
    notebook = nbformat.v4.new_notebook(cells=cells)  # type: ignore[no-untyped-call]
    NotebookClient(notebook, timeout=100, kernel_name="python3").execute()
    told = ["".join(output.get("text", "") for output in cell.outputs) for cell in notebook.cells]
    assert told[1:3] == ["paid 7\n", "waiting ['approval']\n"]
    (shown,) = [output.data for output in notebook.cells[2].outputs if output.output_type == "execute_result"]
    assert "waiting" in shown["text/html"]
