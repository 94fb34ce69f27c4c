"""docs/LIMITS.md is current: its table is the constants of the core, and the codes are the ones raised."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import pytest
from tests.support import ROOT, refusal

from holdfast import _core, canonical
from holdfast.primitives import check_body, check_contract, check_record, new_id
from holdfast.records import base

if TYPE_CHECKING:
    from collections.abc import Callable

CORE = ROOT / "rust" / "core" / "src"
RUN = new_id("run")
PAGE = (ROOT / "docs" / "LIMITS.md").read_text()
ROW = r"^\| `([A-Z_]+)` \| ([\d,]+) \| (.+) \| (?:\[`(\w+)`\]\(errors/(\w+)\.md\)|none) \|$"
# Bounds beyond which nothing is refused: something is done in another way.
SILENT = {"AGEING_MS", "AUDIT_RECORDS_MIN", "AUDIT_THREADS_MAX", "AUDIT_TRIES", "BATCH_COMMANDS_MAX",
          "CACHED_STREAMS_MAX", "CANDIDATES_MAX", "CARRIED_TOGETHER_MAX", "CHORES_MAX",
          "ERASED_TOGETHER_MAX", "GATHERED_MIN",
          "INLINE_BYTES_MAX", "LINGER_MS", "OPEN_FRAMES_MAX", "OPEN_RECORDS_MAX", "PAGE_BYTES_MAX",
          "PAGE_RECORDS_MAX", "PROBLEMS_MAX", "SEALED_TOGETHER_MAX", "SERVER_PAUSE_MS", "SHARED_KEY_MS",
          "SNAPSHOT_RECORDS", "UNSYNCED_MAX", "WAL_BYTES",
          "WAL_BYTES_MAX"}  # fmt: skip


class Limit(NamedTuple):
    value: int
    about: str
    code: str
    page: str


def constants() -> dict[str, int]:
    """The constants as they stand in limits.rs, products multiplied out."""
    text = (CORE / "limits.rs").read_text()
    found = re.findall(r"^pub const (\w+): \w+ = ([\d_* ]+);", text, re.MULTILINE)
    assert len(found) == text.count("pub const "), "a constant of limits.rs that is no product of numbers"
    values = {}
    for name, product in found:
        values[name] = 1
        for factor in product.split("*"):
            values[name] *= int(factor)
    return values


LIMITS = {
    name: Limit(int(value.replace(",", "")), about, code, page)
    for name, value, about, code, page in re.findall(ROW, PAGE, re.MULTILINE)
}


def test_the_table_has_every_constant_with_its_value_in_order() -> None:
    shown = {name: limit.value for name, limit in LIMITS.items()}
    assert list(shown.items()) == list(constants().items()), "edit docs/LIMITS.md as limits.rs is"
    assert PAGE.count("| `") == len(LIMITS), "a row that is not read"


def test_every_code_exists_and_the_link_leads_to_its_page() -> None:
    codes = {code for code, _ in _core.error_codes()}
    assert {name for name, limit in LIMITS.items() if not limit.code} == SILENT
    for name, limit in LIMITS.items():
        assert limit.code in codes or name in SILENT, name
        assert limit.page == limit.code, name


def test_limit_exceeded_names_bounds_of_the_table_and_all_of_them() -> None:
    folders = (CORE / "run", CORE / "gateway", ROOT / "rust" / "store" / "src")
    places = [path for folder in folders for path in folder.rglob("*.rs")]
    sources = "".join(path.read_text() for path in places)
    named = set(re.findall(r'LimitExceeded\("(\w+)"\)', sources))
    told = {name.lower() for name, limit in LIMITS.items() if limit.code == "limit_exceeded"}
    assert named | {"name_chars_max"} == told | {"name_chars_max"}


def test_the_python_twins_have_the_same_bounds() -> None:
    for name in ("NAME_CHARS_MAX", "KEY_CHARS_MAX", "TEXT_CHARS_MAX", "RECORD_BYTES_MAX", "INTEGER_MAX"):
        assert getattr(base, name) == LIMITS[name].value, f"{name} in python/holdfast/records/base.py"


def told(message: str) -> dict[str, str]:
    return {"code": "internal", "fix": "Report it.", "message": message}


def denied(request: str) -> dict[str, object]:
    return {"record": {"reason_code": "no", "request_id": request}, "record_type": "denied"}


@pytest.mark.parametrize(
    ("name", "work"),
    [
        ("INTEGER_MAX", lambda limit: canonical.dumps(limit)),
        ("DEPTH_MAX", lambda limit: canonical.dumps_text("[" * limit + "]" * limit)),
        ("JSON_BYTES_MAX", lambda limit: canonical.loads(b" " * (limit - 1) + b"0")),
        ("JSON_VALUES_MAX", lambda limit: canonical.dumps([0] * (limit - 1))),
        ("RECORD_BYTES_MAX", lambda limit: check_record(b" " * limit)),
        ("TEXT_CHARS_MAX", lambda limit: check_contract("error_info", told("x" * limit))),
        ("NAME_CHARS_MAX", lambda limit: check_body("name.taken", {"name": "x" * limit, "run": RUN})),
        ("KEY_CHARS_MAX", lambda limit: check_contract("source_approval_record", denied("x" * limit))),
    ],
)
def test_a_bound_is_where_the_table_says(name: str, work: Callable[[int], object]) -> None:
    limit = LIMITS[name]
    within, beyond = refusal(work, limit.value)[0], refusal(work, limit.value + 1)[0]
    assert (within == limit.code, beyond == limit.code) == (False, True)
