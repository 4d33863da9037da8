"""bm25s is imported without JAX and Numba, whatever else looks for them meanwhile."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("first", [False, True])
def test_jax_and_numba_are_hidden_while_bm25s_is_imported_and_only_then(tmp_path: Path, first: bool):
    """scipy asks `sys.modules` for jax, as it does here; this numba cannot be imported, as beside an old coverage."""
    packages = {
        "jax": "class Array: ...\nprint('jax')\n",
        "numba": "raise AttributeError('coverage')\n",
        "scipy": "import sys\nif 'jax' in sys.modules:\n    sys.modules['jax'].Array\nraise ImportError('no scipy')\n",
    }
    for name, text in packages.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(text)
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
