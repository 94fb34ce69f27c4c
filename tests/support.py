"""What several tests share: reading fixtures, and the code of an error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parent.parent
FIXTURES = ROOT / "fixtures"
REMAKE = "run: python -m fixtures.make"


def fixture(name: str) -> Any:
    path = FIXTURES / name
    assert path.exists(), f"{name} is missing; {REMAKE}"
    return json.loads(path.read_text())


def names(folder: str) -> list[str]:
    return sorted(path.stem for path in (FIXTURES / folder).glob("*.json"))


def refusal(work: Callable[..., object], *arguments: object) -> tuple[str, str | None]:
    """The code and the path of what a call raises."""
    try:
        result = work(*arguments)
    except HoldfastError as error:
        return error.code, error.path
    return f"accepted: {result!r}", None
