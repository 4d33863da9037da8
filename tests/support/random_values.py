"""Command lines that nobody would write, drawn from a seed: for every option and every key of a recipe."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import pydantic
from commands import Option

_USUAL = """0 1 2 3 4 8 64 100 0.0 0.1 0.5 1.0 true false "x" [1] [1,2]"""
_NUMBERS = """
    0 1 2 3 7 64 100 -1 -5 1e9 999999999999 1000000000001 4294967296 2147483648 0x10 1_000 0.5 1.0 1e-400 1e-9 1e400
    -1e400 nan inf -inf -0.0 1,2 true null [] [1] {} one ١٢"""
_TEXTS = """
    x a=b = .. . / ~ - -- * a/b a/b/c ü 日本 🜁 [bold] [/] %s {} {0} $HOME `id` null None ' " \\ a,b , 1, 0,1 1,,2 1.5,x
    nan,nan -1,-1 1e400,1 http:// http://[ ftp://x http://a:99999 http://u:p@h http://127.0.0.1:9 0x8H100 8xH100
    2x8xH100 xH100 0xH100 1e9xH100 99999999999xH100 NoSuchVariable rclone"""
_KNOWN = """
    constant full none masked fold fold(2) fold(0) fold(-1) fold(x) capped(3) window(99999999999) summary(2) external(4)
    external(0) paper released paper-web paper-shop paper-summary released-web mem1 plain cloze web shop atlas multihop
    webshop independent chain shared comparison file serper brave tavily searxng live replay offline synthetic human
    text html short train evaluation bm25 dense md csv stand-in shipped shipped-shop org/name completions
    chat auto anthropic atlas-quick cpu cuda ppo grpo 1,2 0.1,0.2"""
_FRAGMENTS = """
    [] {} [[]] [{}] {a=1} {kind='atlas'} {kind='x'} {name='ppo'} {name='rloo'} {name='dapo'} {steps=1} [0] [-1] [1e400]
    [nan] { [ ] 1979-05-27 07:32:00 "\\u0000" "\\u0007" [{steps=1}] [{steps=0}] a.b [{steps=1,objectives=[]}] {rank=8}
    {x={y={z=1}}} {steps=5,objectives=[1]} [true] {coefficient=0.1}"""
_PATHS = """
    file questions.jsonl recipe.toml folder missing missing/deep file/below / /dev/null /proc/1/x /sys/x/y . .. new.svg
    new.jsonl new.parquet new.jsonl.gz"""
USUAL = tuple(_USUAL.split())
NUMBERS = (*_NUMBERS.split(), "", " ", "9" * 24, "9" * 400, "9" * 5000, "-" + "9" * 30)
TEXTS = (
    *_TEXTS.split(),
    "",
    " ",
    "\n",
    "a\nb",
    "\t",
    "\x1b[31m",
    "\u202e",
    "\0",
    "a\0b",
    "\udcff",
    "A" * 300,
    "x/" * 3000,
)
KNOWN = (*_KNOWN.split(), "rclone copy {} x", "fold(" + "9" * 5000 + ")")
FRAGMENTS = (*_FRAGMENTS.split(), "[" * 500)
RECIPES = ("atlas-quick", "atlas-ppo", "atlas-warm-start", "webshop-quick", "own-documents", "qwen2.5-7b-multihop/grpo")
EXAMPLES = {
    "plan": "--prompt=500 --state=100 --action=20 --result=300 --turns=8 --gpus=8xH100",
    "eval": "--base-url=http://127.0.0.1:9 --model=m --tokenizer=stand-in",
    "run": "--question=Who? --corpus=file",
    "bench": "--base-url=http://127.0.0.1:9 --model=m",
}
"""What goes together, for commands that seldom find it by chance."""


class Drawn:
    """Draws command lines; the paths in them are in `folder`."""

    def __init__(self, seed: str, folder: Path) -> None:
        self.random = random.Random(seed)
        (folder / "file").write_text("{}\n")
        (folder / "questions.jsonl").write_text('{"id": "q", "text": "Who?", "answers": ["x"]}\n')
        (folder / "recipe.toml").write_text("seed = \n")
        (folder / "folder").mkdir(exist_ok=True)
        self.paths = (*_PATHS.split(), "", "n" * 300, "ü\n")

    def command(self, options: Sequence[Option]) -> list[str]:
        """Arguments of a command: those that it needs, and a few of the others."""
        needed = [option for option in options if option.required]
        others = [option for option in options if not option.required]
        chosen = [*needed, *self.random.sample(others, min(len(others), self.random.randint(0, 5)))]
        self.random.shuffle(chosen)
        words: list[str] = []
        for option in chosen:
            for _ in range(self.random.choice((1, 1, 2)) if option.several else 1):
                words += self._words(option)
        name = " ".join(options[0].command)
        if name in EXAMPLES and self.random.random() < 0.4:
            words = [*EXAMPLES[name].split(), *words]
        return [*options[0].command, *words]

    def _words(self, option: Option) -> list[str]:
        if option.kind is bool:
            return [option.name]
        value = self.value(option.kind)
        if option.name == "recipe" and self.random.random() < 0.8:
            value = self.random.choice(RECIPES)
        if option.argument:
            return [value]
        return [f"{option.name}={value}"] if self.random.random() < 0.5 else [option.name, value]

    def value(self, kind: type | None) -> str:
        """Mostly of the kind that is asked for, often with an edge to it."""
        own = NUMBERS if kind in (int, float) else self.paths if kind is Path else KNOWN
        draw = self.random.random()
        if draw < 0.25 and kind in (int, float):
            return str(self.random.choice((self.random.randint(0, 20), self.random.uniform(0, 1))))
        return self.random.choice(own if draw < 0.75 else (*NUMBERS, *TEXTS, *KNOWN, *self.paths, *FRAGMENTS))

    def settings(self, keys: Sequence[str]) -> list[str]:
        """A few overrides of a recipe, such as rl.tasks_per_step=0, or none."""
        odd = (*NUMBERS, *TEXTS, *KNOWN, *FRAGMENTS)
        return [
            f"{self.random.choice(keys)}={self.random.choice(USUAL if self.random.random() < 0.6 else odd)}"
            for _ in range(self.random.choice((0, 1, 1, 1, 2, 3)))
        ]


def keys_of(model: type[pydantic.BaseModel], prefix: str = "", depth: int = 6) -> Iterator[str]:
    """Every dotted key of a configuration, through all members of unions; lists by their first entry."""
    for name, field in model.model_fields.items():
        yield prefix + name
        if depth:
            yield from _inside(field.annotation, f"{prefix}{name}.", depth - 1)


def _inside(kind: Any, prefix: str, depth: int) -> Iterator[str]:
    if isinstance(kind, type) and issubclass(kind, pydantic.BaseModel):
        yield from keys_of(kind, prefix, depth)
    elif get_origin(kind) in (Union, UnionType, Annotated):
        for member in get_args(kind):
            yield from _inside(member, prefix, depth)
    elif get_origin(kind) in (tuple, list):
        yield f"{prefix}0"
        yield from _inside(get_args(kind)[0], f"{prefix}0.", depth)
