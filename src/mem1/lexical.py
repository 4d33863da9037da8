"""bm25s, imported without JAX: every room takes it from here.

Where jax is installed, bm25s calls it as soon as it is imported, and JAX takes three quarters of a GPU's memory for as
long as the process lives. It would select the best documents with it, which mem1 does with numpy. So jax cannot be
found while bm25s is imported. `sys.modules["jax"] = None` would say the same to Python, but scipy's array_api_compat
takes what stands there for a module.
"""

from __future__ import annotations

import sys


class _NoJax:
    """Finds every module but jax."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name == "jax":
            raise ModuleNotFoundError("jax is hidden from bm25s", name=name)


_jax = sys.modules.pop("jax", None)
sys.meta_path.insert(0, _NoJax)
try:
    import bm25s as bm25s
finally:
    sys.meta_path.remove(_NoJax)
    if _jax is not None:
        sys.modules["jax"] = _jax
