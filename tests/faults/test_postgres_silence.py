"""A server that vanishes without a word, as when its machine or the network dies: no answer, no refusal, no
end of the line. Whoever waits for it must notice by itself, and nothing is done twice when it is back.
"""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, NoReturn

import pytest
from tests.faults.elsewhere import PORT, Elsewhere

import holdfast as hf

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.postgres import Server

    NotRun = Callable[[str], NoReturn]

pytest_plugins = ["tests.postgres"]


@pytest.fixture
def elsewhere(postgres_running: Server, not_run: NotRun) -> Iterator[Elsewhere]:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        not_run("another machine is a network namespace, which needs root and iproute2")
    with Elsewhere(str(postgres_running.folder / ".s.PGSQL.5432")) as machine:
        yield machine


def test_a_server_that_vanishes_is_noticed_and_nothing_is_written_twice(
    elsewhere: Elsewhere, postgres_url: str
) -> None:
    schema = postgres_url.rpartition("schema=")[2]
    url = f"postgresql://holdfast@{elsewhere.address}:{PORT}/postgres?schema={schema}&connect_timeout=2"
    with hf.open(f"{url}&sslmode=disable", turn_wait=5) as store:
        run = store.create_run(agent="a")
        store.append(run, "note.logged", {"text": "before"}, barrier=True)
        elsewhere.cut()
        with pytest.raises(hf.errors.StoreError) as caught:
            store.append(run, "note.logged", {"text": "into the silence"}, barrier=True)
        assert caught.value.code == "store_unreachable"
        elsewhere.mend()
        store.append(run, "note.logged", {"text": "after"}, barrier=True)
        said = [record.value["text"] for record in store.read(run) if record.kind == "note.logged"]
        assert said == ["before", "after"]
        assert store.verify().ok
