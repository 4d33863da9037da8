"""bm25s, imported without JAX: every room takes it from here.

Where jax is installed, bm25s calls it as soon as it is imported, and JAX takes three quarters of a GPU's memory for as
long as the process lives. It would select the best documents with it, which mem1 does with numpy. So jax is hidden
while bm25s is imported.
"""

from __future__ import annotations

import sys

_jax = sys.modules.get("jax")
sys.modules["jax"] = None  # type: ignore[assignment]  # Python's own mark of a module that cannot be imported
try:
    import bm25s as bm25s
finally:
    del sys.modules["jax"]
    if _jax is not None:
        sys.modules["jax"] = _jax
