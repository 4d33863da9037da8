"""Prompts of a clone of somebody's code become templates, and none of that code runs."""

from __future__ import annotations

from pathlib import Path

from published_prompts import main

from mem1.protocol import PUBLISHED
from mem1.records import Question
from mem1.tasks.prompts import PromptFile, render


def taken(clone: Path, out: Path) -> str:
    """ "" where the command wrote prompts, else why it did not."""
    try:
        main([str(clone), "--out", str(out)])
    except SystemExit as ended:
        return str(ended.code)
    return ""


def test_the_prompts_of_a_clone_become_templates_without_running_it(tmp_path: Path):
    scripts = tmp_path / "MEM1" / "Mem1" / "gen_data" / "data_process"
    scripts.mkdir(parents=True)
    (scripts / "qa_search_train_merge_multi.py").write_text(
        'raise SystemExit\ndef make_prefix(dp):\n    return f"""Use <think> {{x}} </think>.\nAsked: {questions}\n"""\n'
    )
    assert "webshop.py cannot be read" in taken(tmp_path / "MEM1", tmp_path / "p")
    (scripts / "webshop.py").write_text(
        'env_instruction = "Shop {well}"\nresponse_instruction = "Do {user_instruction}!"'
    )
    assert taken(tmp_path / "MEM1", tmp_path / "p") == ""
    questions = [Question(id=text, text=text, answers=("x",)) for text in ("a?", "b?")]

    def filled(name: str) -> str:
        return render(PromptFile(file=str(tmp_path / "p" / name), separator="; ", numbered=False), questions, PUBLISHED)

    assert filled("mem1-qa.txt") == "Use <think> {x} </think>.\nAsked: a?; b?\n"
    assert filled("mem1-webshop.txt") == "Shop {well}\nDo a?; b?!"
    assert "exists and is not replaced" in taken(tmp_path / "MEM1", tmp_path / "p")
    (scripts / "webshop.py").write_text("")
    assert "has no prompt that is known" in taken(tmp_path / "MEM1", tmp_path / "q")
    assert not (tmp_path / "q").exists()


def test_the_prompt_of_search_r1_comes_from_its_own_clone(tmp_path: Path):
    script = tmp_path / "scripts" / "data_process" / "nq_search.py"
    script.parent.mkdir(parents=True)
    why = taken(tmp_path, tmp_path / "p")
    assert "is no clone that is known" in why and "PeterGriffinJin/Search-R1" in why
    script.write_text('def make_prefix(dp):\n    question = dp["question"]\n    return f"""Asked: {question}\n"""\n')
    assert taken(tmp_path, tmp_path / "p") == ""
    assert (tmp_path / "p" / "search-r1.txt").read_text() == "Asked: {questions}\n"
