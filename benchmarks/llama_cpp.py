"""Whether llama.cpp answers like this process: the same tasks, greedily, by a policy and by its GGUF file.

    pip install xllamacpp                                            # llama.cpp with its server, compiled
    python benchmarks/llama_cpp.py runs/real-seed0/train/best        # 20 tasks of the recipe smollm2/eval

The policy is exported (`mem1 export POLICY FILE.gguf`), served by llama.cpp, and asked through `mem1 eval --base-url`.
Equal are attempts with the same text in every turn. Of the others the first turn that differs is printed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import xllamacpp  # pyright: ignore[reportMissingImports]

from mem1.evaluation.report.rows import read_evaluations
from mem1.records import Trajectory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("policy", type=Path)
    parser.add_argument("--recipe", default="smollm2/eval")
    parser.add_argument("--tasks", type=int, default=20)
    parser.add_argument("--objectives", type=int, default=2)
    parser.add_argument("--type", default="f32", help="type of the file's weights, as of mem1 export --gguf-type")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        file = folder / "policy.gguf"
        _mem1("export", given.policy, file, "--gguf-type", given.type)
        server = _served(file)
        asked = (given.recipe, f"evaluation.tasks={given.tasks}", f"evaluation.objectives=[{given.objectives}]")
        _mem1("eval", *asked, "--model", given.policy, "--out", folder / "here")
        at = ("--base-url", f"{server.listening_address}/v1", "--tokenizer", given.policy)
        _mem1("eval", *asked, *at, "--model", "policy", "--out", folder / "there")
        compare(_attempts(folder / "here"), _attempts(folder / "there"))


def _mem1(*arguments: object) -> None:
    subprocess.run([sys.executable, "-m", "mem1", *map(str, arguments)], check=True, stdout=subprocess.DEVNULL)


def _served(file: Path) -> xllamacpp.Server:
    settings = xllamacpp.CommonParams()
    settings.model.path, settings.model_alias = str(file), "policy"
    settings.n_ctx, settings.n_parallel, settings.port = 8192, 1, 0
    return xllamacpp.Server(settings)


def _attempts(folder: Path) -> Sequence[Trajectory]:
    (attempts,) = read_evaluations(folder)
    return attempts.trajectories


def compare(here: Sequence[Trajectory], there: Sequence[Trajectory]) -> None:
    """Print how many attempts are equal, and where the others part."""
    equal = 0
    for one, other in zip(here, there, strict=True):
        parts = [(a.text, b.text) for a, b in zip(one.turns, other.turns, strict=False) if a.text != b.text]
        equal += not parts and one.answer == other.answer
        if parts:
            print(f"here   {parts[0][0]}\nthere  {parts[0][1]}\n")
    right = [sum((t.reward or 0.0) for t in attempts) for attempts in (here, there)]
    print(f"{equal} of {len(here)} attempts are equal; reward {right[0]:g} here, {right[1]:g} by llama.cpp")


if __name__ == "__main__":
    main()
