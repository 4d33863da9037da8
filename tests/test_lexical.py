"""bm25s is imported without JAX, whatever else looks for it meanwhile."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("first", [False, True])
def test_jax_is_hidden_while_bm25s_is_imported_and_only_then(tmp_path: Path, first: bool):
    """A package that asks `sys.modules` for jax, as array_api_compat does, is imported by bm25s' numba here."""
    (tmp_path / "jax").mkdir()
    (tmp_path / "jax" / "__init__.py").write_text("class Array: ...\nprint('jax')\n")
    (tmp_path / "numba").mkdir()
    asks = "import sys\nif 'jax' in sys.modules:\n    sys.modules['jax'].Array\nraise ImportError('no numba')\n"
    (tmp_path / "numba" / "__init__.py").write_text(asks)
    program = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
if {first}:
    import jax
from mem1.retrieval import BM25
print("jax" in sys.modules)
import jax
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.stdout.split(), done.stderr) == (["jax", "True"] if first else ["False", "jax"], "")
