"""bm25s, imported without JAX and Numba: every room takes it from here.

Where jax is installed, bm25s calls it as soon as it is imported, and JAX takes three quarters of a GPU's memory for as
long as the process lives. It would select the best documents with it, which mem1 does with numpy; nor does mem1 use its
backend for Numba, which is slow to import and fails beside a module named coverage. So neither can be found while
bm25s is imported. None in `sys.modules` would say the same to Python, but scipy takes it for a module.
"""

from __future__ import annotations

import sys

_HIDDEN = ("jax", "numba")


class _Hides:
    """Finds every module but these."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name in _HIDDEN:
            raise ModuleNotFoundError(f"{name} is hidden from bm25s", name=name)


_loaded = {name: sys.modules.pop(name) for name in _HIDDEN if name in sys.modules}
sys.meta_path.insert(0, _Hides)
try:
    import bm25s as bm25s
finally:
    sys.meta_path.remove(_Hides)
    sys.modules.update(_loaded)
