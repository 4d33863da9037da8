"""The prompts of MEM1's released code, taken from a clone of github.com/MIT-MI/MEM1 as templates for `prompt.file`.

    write_prompts("MEM1", "prompts")    ->  prompts/mem1-qa.txt, prompts/mem1-webshop.txt

The clone's scripts are read as syntax trees and never run: the prompt for questions is the f-string with {questions},
that for the shop the two instructions that its `make_prefix` joins.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from mem1.errors import UserError

SCRIPTS = "Mem1/gen_data/data_process"
QA, SHOP = "qa_search_train_merge_multi.py", "webshop.py"
_CLONE = "give a clone of github.com/MIT-MI/MEM1 (commit 6f22061 was read)"


def write_prompts(clone: str | Path, out: str | Path) -> list[Path]:
    """Write both templates into a folder. Raises UserError, before anything is written, where the clone lacks one."""
    found = {"mem1-qa.txt": _of_questions(_tree(clone, QA)), "mem1-webshop.txt": _of_shop(_tree(clone, SHOP))}
    missing = [script for script, text in zip((QA, SHOP), found.values(), strict=True) if text is None]
    if missing:
        raise UserError(f"{Path(clone, SCRIPTS, missing[0])} has no prompt that is known; {_CLONE}")
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in found.items():
        (folder / name).write_text(text or "", encoding="utf-8")
    return [folder / name for name in found]


def _tree(clone: str | Path, script: str) -> ast.Module:
    path = Path(clone, SCRIPTS, script)
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, SyntaxError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read ({error}); {_CLONE}") from error


def _of_questions(tree: ast.Module) -> str | None:
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = list(_parts(node))
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
