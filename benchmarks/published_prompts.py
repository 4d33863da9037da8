"""The prompts of MEM1's and Search-R1's code, taken from a clone of it, as files for `tasks.prompt.file` of a recipe.

    python benchmarks/published_prompts.py MEM1 --out prompts

    prompts_of("MEM1")         ->  {"mem1-qa.txt": "...{questions}...", "mem1-webshop.txt": "..."}
    prompts_of("Search-R1")    ->  {"search-r1.txt": "..."}

The clone's scripts are read as syntax trees, never run: a prompt for questions is the f-string with their field, MEM1's
for the shop the two instructions that its `make_prefix` joins.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from mem1.errors import UserError


def prompts_of(clone: str | Path) -> dict[str, str]:
    """File name -> template. Raises UserError for a folder that is no clone of MEM1 or Search-R1, or lacks a prompt."""
    for scripts in _PROMPTS:
        if any(Path(clone, script).exists() for script, _ in scripts.values()):
            return {name: _prompt(Path(clone, script), find) for name, (script, find) in scripts.items()}
    raise UserError(f"{Path(clone)} is no clone that is known; {_CLONES}")


def _prompt(script: Path, find: Callable[[ast.Module], str | None]) -> str:
    try:
        found = find(ast.parse(script.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, SyntaxError, ValueError, RecursionError) as error:
        raise UserError(f"{script} cannot be read ({error}); {_CLONES}") from error
    if found is None:
        raise UserError(f"{script} has no prompt that is known; {_CLONES}")
    return found


def _of_questions(tree: ast.Module) -> str | None:
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = ["{questions}" if part == "{question}" else part for part in _parts(node)]
            if "{questions}" in parts:
                return "".join(parts)
    return None


def _parts(text: ast.JoinedStr) -> Iterator[str]:
    for value in text.values:
        if isinstance(value, ast.FormattedValue):
            yield f"{{{ast.unparse(value.value)}}}"
        elif isinstance(value, ast.Constant):
            yield _escaped(str(value.value))


def _of_shop(tree: ast.Module) -> str | None:
    texts = {
        target.id: str(node.value.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    place = "{user_instruction}"
    before, found, after = texts.get("response_instruction", "").partition(place)
    if not found or "env_instruction" not in texts:
        return None
    return _escaped(f"{texts['env_instruction']}\n{before}") + "{questions}" + _escaped(after)


def _escaped(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


_PROMPTS: tuple[Mapping[str, tuple[str, Callable[[ast.Module], str | None]]], ...] = (
    {
        "mem1-qa.txt": ("Mem1/gen_data/data_process/qa_search_train_merge_multi.py", _of_questions),
        "mem1-webshop.txt": ("Mem1/gen_data/data_process/webshop.py", _of_shop),
    },
    {"search-r1.txt": ("scripts/data_process/nq_search.py", _of_questions)},
)
"""For each clone: file to write -> (script of the clone, what finds the prompt in it)."""
_CLONES = (
    "give a clone of github.com/MIT-MI/MEM1 (commit 6f22061 was read) or github.com/PeterGriffinJin/Search-R1 (a14dc3a)"
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Writes what the arguments say (None: those of the process) and replaces nothing; a mistake is one message."""
    parser = argparse.ArgumentParser(description="Take the prompts of MEM1's or Search-R1's code.")
    parser.add_argument("clone", type=Path, help="folder of a clone of MIT-MI/MEM1 or PeterGriffinJin/Search-R1")
    parser.add_argument("--out", type=Path, default=Path("prompts"), help="folder for the prompts, as .txt files")
    given = parser.parse_args(arguments)
    try:
        prompts = {given.out / name: text for name, text in prompts_of(given.clone).items()}
    except UserError as error:
        sys.exit(f"error: {error}")
    if there := [str(path) for path in prompts if path.exists()]:
        sys.exit(f"error: {there[0]} exists and is not replaced; delete it or give another --out")
    given.out.mkdir(parents=True, exist_ok=True)
    for path, text in prompts.items():
        path.write_text(text, encoding="utf-8")
    print(f"written: {', '.join(map(str, prompts))}")


if __name__ == "__main__":
    main()
