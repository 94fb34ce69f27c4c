"""Text whose every character can be seen.

What comes from a store may be hostile: controls that a terminal acts on, marks that turn the direction of
what is read, characters that show nothing. Whoever prints or draws such text does it through here.
"""

from __future__ import annotations

# Characters that count as printable and show nothing: fillers, selectors, joiners.
HIDDEN = frozenset((0x34F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, 0x3164, 0xFFA0)).union(
    range(0x180B, 0x1810), range(0xFE00, 0xFE10), range(0xE0100, 0xE01F0)
)


def visible(text: str) -> str:
    r"""The text, with JSON's escape in the place of every character that cannot be seen.

    >>> visible("a\u202eb")
    'a\\u202eb'
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(char if char.isprintable() and ord(char) not in HIDDEN else _escape(char) for char in text)


def _escape(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
