"""A hook of mkdocs: links into the repository, which the site does not have, become names with paths.

Where pages are read in the repository the links work as they stand.
"""

from __future__ import annotations

import re
from typing import Any

_LINK = re.compile(r"\[(`?)([^\]`]+)\1\]\((?:\.\./)+((?:src|lab|tests|examples|[A-Z]+\.md)[^)#]*)\)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Return a page whose symbols have their files as titles, and whose other links name theirs."""

    def shown(link: re.Match[str]) -> str:
        code, text, path = link.groups()
        return f'`{text}`{{: title="{path}"}}' if code else f"{text} (`{path}`)"

    return _LINK.sub(shown, markdown)
