"""A hook of mkdocs: docstrings name things as ``:class:`Store```, which a site shows as the name alone."""

import re

ROLE = re.compile(r":(?:attr|class|func|meth|mod):(?=<code>)")


def on_page_content(html: str, **_: object) -> str:
    """The page without the words before such names."""
    return ROLE.sub("", html)
