"""MkDocs hook: links to what the site leaves out.

    [The frontier](../research/beyond.md#the-frontier)  ->  The frontier (`research/beyond.md`)
    [research/beyond.md](../research/beyond.md)         ->  `research/beyond.md`

Whoever reads the Markdown of a checkout follows the link; the site, which has only docs/, names the file.
tests/house/test_docs.py checks that the file and the heading exist.
"""

from __future__ import annotations

import posixpath
import re

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

_UPWARDS = re.compile(r"\[([^\]]+)\]\((\.\./[^)#]+)(?:#[^)]*)?\)")


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    folder = posixpath.dirname(page.file.src_uri)

    def named(found: re.Match[str]) -> str:
        text, target = found.groups()
        path = posixpath.normpath(posixpath.join("docs", folder, target))
        if path.startswith("docs/"):
            return found[0]
        return f"`{path}`" if text.strip("`") == path else f"{text} (`{path}`)"

    return _UPWARDS.sub(named, markdown)
