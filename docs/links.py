"""Links of the pages to files outside docs/ lead nowhere on the site: they become plain text there."""

from __future__ import annotations

import re
from typing import Any

OUTSIDE = re.compile(r"\[([^\]]+)\]\(\.\./[^)]*\)")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Called by mkdocs for each page; pages in a folder may link one level up within docs/."""
    return markdown if "/" in page.file.src_uri else OUTSIDE.sub(r"\1", markdown)
