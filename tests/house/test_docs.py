"""Every code block of README, docs and research: Python runs, recipes are valid, commands find what they name.

A page's blocks run in order, in one scratch folder. Python with a title is a file that is only compiled here; TOML may
be an excerpt of a recipe. Blocks of `text`, `json` or without a language are output or data. Commands are checked up to
where their work would begin: nothing is served or downloaded.

The pages in `TYPED` are typed as they stand, their programs started and their commands run to the end, `small` ones in
place of minutes; what cannot be is in `NOT_RUN` with the reason. Tutorials begin in an empty folder.

Links of every page lead to a file of the repository, and to a heading where they name one.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from chat_templates import QWEN3_LIKE
from samples import MUSIQUE, write_lines
from typer.testing import CliRunner

import mem1.api
from mem1.cli.main import app
from mem1.cli.options import only_checked
from mem1.configuration import load_toml
from mem1.configuration.toml import dumps, read_toml
from mem1.errors import UserError
from mem1.model_folder import asset
from mem1.planning.models import KNOWN
from mem1.recipe.recipe import Recipe
from mem1.tasks.atlas import make_world
from mem1.tasks.compose import Split

ROOT = Path(__file__).parents[2]
OWN_TEST = {"published-run.md"}
"""Pages whose commands another test runs: test_published_run.py."""
LINKED = [
    *(ROOT / name for name in ("README.md", "AGENTS.md", "CONTRIBUTING.md")),
    *(page for name in ("docs", "examples", "recipes", "research") for page in sorted((ROOT / name).rglob("*.md"))),
]
PAGES = [page for page in LINKED if page.name not in OWN_TEST]
LINK = re.compile(r"\[[^\]]*\]\((?!\w+:)([^)#\s]*)#?([^)\s]*)\)")
FENCE = re.compile(r"^( *)```(\w*)([^\n]*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
FOREIGN = {
    *(
        "cat",
        "cd",
        "cp",
        "curl",
        "docker",
        "echo",
        "git",
        "gzip",
        "hf",
        "inspect",
        "llama-server",
        "mkdir",
        "pytest",
        "python3.11",
        "ray",
        "source",
        "tensorboard",
        "vllm",
    ),
    *("venv-verl/bin/pip", "vf-eval", "vllm"),
}
"""Commands that are not ours."""
DOWNLOADED = (
    *("NQ-open.train.jsonl", "checkpoint-000040", "musique_ans_v1.0_train.jsonl", "originals", "search_r1"),
    *("webshop.jsonl.gz", "langchain is not installed"),
    *(
        "Conflict_Resolution.parquet",
        "browsecomp_plus_decrypted.jsonl",
        "browsecomp-plus-corpus.parquet",
        "scripts_build_index",
    ),
)
"""What a reader has and the test has not; a command may stop because one of them is missing."""
EXTRAS = set(read_toml(ROOT / "pyproject.toml")["project"]["optional-dependencies"])
SHIPPED = asset("atlas-warm-start")
WHOLE = """
[tasks]
kind = "multihop"
train_questions = "train/questions.jsonl"
questions = "test/questions.jsonl"
corpus = "passages.jsonl"
prompt = "plain"

[rl]
curriculum = [{ steps = 1, objectives = [1] }]
"""
TUTORIALS = ("tutorials/your-questions.md", "extending/environment.md", "extending/reward.md")
"""Begin in an empty folder."""
TYPED = (*TUTORIALS, "README.md", "tutorials/quickstart.md", "memory/probe.md")
"""Pages whose commands run to their end; those of `TUTORIALS` whenever tests run, the others if asked for (slow)."""
NOT_RUN = {
    "--base-url": "needs a model server",
    "proxy": "serves until it is stopped",
    "models/my-model": "needs a model that knows English",
    "langchain": "needs packages that tests do without",
    "mine.toml": "is the reader's own",
}
"""Word of a command -> why it is only checked; `mine.toml` only on pages that do not write it."""
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    language: str
    title: str | None
    """Name of the file that the block is; None: it is none."""
    text: str
    where: str
    """Page and line."""


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for found in FENCE.finditer(text):
        indent, language, options, body = found.groups()
        title = re.search(r'title="([^"]+)"', options)
        line = text.count("\n", 0, found.start()) + 1
        body = "".join(row.removeprefix(indent) for row in body.splitlines(keepends=True))
        yield Block(language, title and title[1], body, f"{page.relative_to(ROOT)}:{line}")


def commands(text: str) -> Iterator[list[str]]:
    """The words of each command of a shell block, comments and line continuations resolved."""
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line.rstrip(" &"), comments=True)
        while words and re.fullmatch(r"\w+=.*", words[0]):
            words = words[1:]
        for start in [i for i, word in enumerate(words) if word == "&&"][::-1]:
            yield words[start + 1 :]
            words = words[:start]
        if words and words[0] != "export":
            yield words


def small(recipe: Recipe) -> Recipe:
    """The same with a step of each stage and few tasks."""
    changed: dict[str, object] = {"workers": 1, "tasks": recipe.tasks.sample()}
    asked = recipe.evaluation
    changed["evaluation"] = asked.model_copy(update={"tasks": min(2, asked.tasks), "objectives": asked.objectives[:2]})
    if (sft := recipe.sft) is not None:
        changed["sft"] = sft.model_copy(update={"steps": 2, "tasks": min(8, sft.tasks)})
    if (rl := recipe.rl) is not None:
        phase = rl.curriculum[0].model_copy(update={"steps": 1})
        changed["rl"] = rl.model_copy(update={"curriculum": (phase,), "tasks_per_step": 2, "group_size": 2})
    return recipe.model_copy(update=changed)


def runs_whole(page: Path, words: list[str], scene: Path) -> bool:
    """Whether the command runs to its end."""
    own = {"mine.toml"} if (scene / "mine.toml").exists() and str(page).endswith(TUTORIALS) else set()
    return not any(word in words for word in NOT_RUN.keys() - own)


def run_command(words: list[str], where: str) -> None:
    result = CliRunner().invoke(app, words[1:])
    assert result.exit_code == 0, f"{where}: {shlex.join(words)}\n{result.output}{result.exception!r}"


def check_command(words: list[str], scene: Path, where: str) -> None:
    name, *arguments = words
    if name == "torchrun":
        start = arguments.index("mem1")
        name, arguments = "mem1", arguments[start + 1 :]
    if name == "mem1":
        with only_checked():
            result = CliRunner().invoke(app, arguments)
        missing = isinstance(result.exception, UserError) and any(name in str(result.exception) for name in DOWNLOADED)
        assert result.exit_code == 0 or missing, f"{where}: {shlex.join(words)}\n{result.output}{result.exception}"
    elif name == "make":
        assert set(a for a in arguments if "=" not in a) <= TARGETS, where
    elif name == "pip":
        for asked in re.findall(r"mem1\[([\w,]+)\]", shlex.join(arguments)):
            assert set(asked.split(",")) <= EXTRAS, f"{where}: no such extra: {asked}"
    elif name == "python" and arguments[0] != "-m":
        script = next(a for a in arguments if not a.startswith("-"))
        there = any((folder / script).exists() for folder in (scene, ROOT))
        assert there or script.startswith(DOWNLOADED), f"{where}: there is no {script}"
    elif name != "python":
        assert name in FOREIGN, f"{where}: {name} is neither ours nor in FOREIGN"


def check_recipe(texts: list[str], scene: Path) -> None:
    """The last excerpt is valid by itself or after the page's earlier ones; WHOLE has the rest of the recipe."""
    for excerpts in (texts[-1:], texts):
        whole = read_toml(scene / "whole.toml")
        for text in excerpts:
            (scene / "excerpt.toml").write_text(text, encoding="utf-8")
            excerpt = read_toml(scene / "excerpt.toml")
            whole.update(excerpt, rl={**whole["rl"], **excerpt.get("rl", {})})
        (scene / "recipe-of-page.toml").write_text(dumps(whole), encoding="utf-8")
        try:
            load_toml(scene / "recipe-of-page.toml", Recipe)
            return
        except UserError:
            if len(excerpts) == len(texts):
                raise


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What pages name: questions, passages, documents, models, runs."""
    at = tmp_path_factory.mktemp("docs")
    parts: tuple[tuple[Split, str], ...] = (("train", "train"), ("evaluation", "test"))
    for split, name in parts:
        make_world(0, split=split, entities=60).save(at / name, questions=50)
    passages = [(at / name / "passages.jsonl").read_text() for name in ("train", "test")]
    (at / "passages.jsonl").write_text("".join(passages))
    shutil.copy(at / "test" / "questions.jsonl", at / "questions.jsonl")
    (at / "models").mkdir()
    for name in ("my-model", "qwen", "Qwen2.5-7B-Instruct", "Qwen3-1.7B"):
        (at / "models" / name).mkdir()
        for file in ("config.json", "model.safetensors", "tokenizer.json"):  # without what says that mem1 trained it
            (at / "models" / name / file).symlink_to(SHIPPED / file)
    (at / "models" / "Qwen3-1.7B" / "chat_template.jinja").write_text(QWEN3_LIKE)
    evaluate = ["eval", "--objectives", "1", "--limit", "1", "--out", str(at / "runs" / "quickstart-seed0")]
    assert CliRunner().invoke(app, evaluate).exit_code == 0
    for name in ("a", "b", "c"):
        shutil.copytree(at / "runs" / "quickstart-seed0", at / "runs" / name)
    (at / "notes").mkdir()
    (at / "notes" / "mill.md").write_text("# Mill\n\nAfter the fire of 1923 Jonas Toll rebuilt the mill.")
    for name in ("notes.index", "notes.dense", "notes.both"):
        assert CliRunner().invoke(app, ["index", str(at / "notes"), "--out", str(at / name)]).exit_code == 0
    for name in ("mine.toml", "recipe.toml", "whole.toml"):
        (at / name).write_text(WHOLE)
    write_lines(at / "musique_ans_v1.0_dev.jsonl", MUSIQUE)
    for name in ("benchmarks", "recipes"):
        (at / name).symlink_to(ROOT / name)
    return at


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_code_of_a_page_runs(page: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    scene = tmp_path / "scene"
    shutil.copytree(folder, scene, symlinks=True)
    monkeypatch.chdir(scene)
    two_layers = {name: (shape[0], 2, *shape[2:]) for name, shape in KNOWN.items()}
    monkeypatch.setattr("mem1.planning.models.KNOWN", two_layers)  # a plan counts each of 28 layers
    excerpts: list[str] = []
    names: dict[str, object] = {"__name__": "__main__"}
    for block in blocks(page):
        if block.title:
            (scene / block.title).write_text(block.text, encoding="utf-8")
        if block.language == "python":
            code = compile(block.text, block.where, "exec")
            if not block.title:
                exec(code, names)
        elif block.language == "toml":
            excerpts.append(block.text)
            check_recipe(excerpts, scene)
        elif block.language == "bash":
            for words in commands(block.text):
                check_command(words, scene, block.where)
        else:
            assert block.language in ("", "json", "text"), f"{block.where}: no test runs {block.language}"
            assert not re.search(r"^(mem1|make|pip|python) ", block.text, re.MULTILINE), f"{block.where}: mark it bash"


def typed(page: Path, scene: Path) -> int:
    """Types what stands on a page, and returns how many commands ran to their end."""
    names: dict[str, object] = {"__name__": "__main__"}
    ran = 0
    for block in blocks(page):
        if block.title:
            (scene / block.title).write_text(block.text, encoding="utf-8")
        if block.language == "python" and block.title in (None, "train.py"):
            exec(compile(block.text, block.where, "exec"), names)
        elif block.language == "bash":
            for words in commands(block.text):
                if words[0] == "mem1" and runs_whole(page, words, scene):
                    run_command(words, block.where)
                    ran += 1
    return ran


@pytest.fixture
def small_recipes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every recipe that is loaded is a small one, and `mem1 verify` attempts one task."""

    def loaded(path: Path | None, kind: type, overrides: Sequence[str] = ()) -> object:
        found = load_toml(path, kind, overrides)
        return small(found) if isinstance(found, Recipe) else found

    for module in ("mem1.api", "mem1.configuration"):
        monkeypatch.setattr(f"{module}.load_toml", loaded)
    monkeypatch.setattr("mem1.cli.verify._TASKS", 1)


def test_the_example_of_the_front_door_runs(tmp_path: Path, small_recipes: None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    served = "mem1.connect("  # the second example is about a model on a server
    first, second = re.findall(r"(?:^    .*\n)+", str(mem1.api.__doc__), re.MULTILINE)
    assert served in second and served not in first
    names: dict[str, Any] = {"mem1": mem1}
    exec(first.replace("tasks=100", "tasks=2").replace("    ", "", 1).replace("\n    ", "\n"), names)
    assert [row.tasks for row in names["rows"]] == [2]


@pytest.mark.timeout(0)  # how long it takes is the machine's affair
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in TUTORIALS else pytest.mark.slow) for name in TYPED]
)
def test_a_page_can_be_typed(
    name: str, tmp_path: Path, request: pytest.FixtureRequest, small_recipes: None, monkeypatch: pytest.MonkeyPatch
):
    scene = tmp_path / "scene"
    if name in TUTORIALS:
        scene.mkdir()
    else:
        shutil.copytree(request.getfixturevalue("folder"), scene, symlinks=True)
    monkeypatch.chdir(scene)
    page = next(page for page in PAGES if str(page.relative_to(ROOT)) in (name, f"docs/{name}"))
    assert typed(page, scene) >= 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "command", "least"),
    [
        ("tutorials/your-questions.md", ["train", "mine.toml", "--out", "runs/mine"], [0.7, 0.7, 0.6]),
        ("extending/environment.md", ["train", "recipe.toml", "--out", "runs/sums"], [0.7, 0.3]),
        ("extending/reward.md", ["train", "recipe.toml", "--out", "runs/concise"], [0.6, 0.3]),
    ],
)
def test_a_tutorial_ends_with_what_it_says(
    name: str, command: list[str], least: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    for block in blocks(ROOT / "docs" / name):
        if block.title:
            (tmp_path / block.title).write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            exec(compile(block.text, block.where, "exec"), {})
    run_command(["mem1", *command], name)
    rows = json.loads((tmp_path / command[-1] / "result.json").read_text())["rows"]
    found = [row["em"] if row["em"] is not None else row["right"] for row in rows]
    assert all(score >= bound for score, bound in zip(found, least, strict=True)), found


def headings(page: Path) -> set[str]:
    """Anchors of the headings of a page: "## Adding things, in short" -> adding-things-in-short."""
    titles = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower()) for title in titles}


@pytest.mark.parametrize("page", LINKED, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of_a_page_lead_somewhere(page: Path):
    for target, heading in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        path = (page.parent / target).resolve() if target else page
        assert path.exists() and path.is_relative_to(ROOT), f"there is no {target}"
        assert not heading or heading in headings(path), f"{target} has no heading #{heading}"


def test_links_are_found():
    text = "[a](b.md) ![c](d/e.png) [f](../g.md#h-i) [j](#k) [l](https://m.n/o#p)"
    assert LINK.findall(text) == [("b.md", ""), ("d/e.png", ""), ("../g.md", "h-i"), ("", "k")]
    assert headings(ROOT / "AGENTS.md") == {"for-coding-assistants", "commands", "map", "rules", "adding-things"}


def test_the_map_names_rooms_and_files_that_exist():
    text = (ROOT / "AGENTS.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.+?) \|", text.split("## Map")[1].split("\n## ")[0], re.MULTILINE)
    named = [room for row in rows for room in re.findall(r"`(\w+)`", row)]
    missing = [room for room in named if not any((ROOT / "src" / "mem1" / p).exists() for p in (room, f"{room}.py"))]
    paths = re.findall(r"`((?:[\w.-]+/)+[\w.]*)`", text)
    assert len(named) > 20 and len(paths) > 10
    assert missing == [] and [path for path in paths if not (ROOT / path).exists()] == []


def test_the_folder_of_research_says_what_each_of_its_pages_is():
    folder = ROOT / "research"
    listed = {target for target, _ in LINK.findall((folder / "README.md").read_text(encoding="utf-8"))}
    assert {page.name for page in folder.glob("*.md")} - listed == {"README.md"}


def test_pages_have_code():
    found = [block.language for page in PAGES for block in blocks(page)]
    assert found.count("python") > 10 and found.count("toml") > 10 and found.count("bash") > 20
