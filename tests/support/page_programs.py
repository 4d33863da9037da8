"""Programs that stand in the docs."""

from __future__ import annotations

import re
from pathlib import Path

PAGES = Path(__file__).parents[2] / "docs" / "memory"


def program(page: str, title: str) -> str:
    """The block of a page that is a file."""
    found = re.search(rf'^```python title="{title}"\n(.*?)^```$', (PAGES / page).read_text("utf-8"), re.M | re.S)
    assert found is not None
    return found[1]
