"""`mem1 webshop`: the original's data, cleaned."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mem1.cli.options import Command, JsonOption, make_folder_of, new_file, work_begins

if TYPE_CHECKING:
    from mem1.envs.webshop.catalogue import Entry

app = typer.Typer(name="webshop", help="Clean the data of WebShop.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Clean the data of WebShop."""


@app.command("load", cls=Command)
def load(
    files: Annotated[
        list[Path], typer.Argument(help="Folder of the original's files, or the files.", show_default=False)
    ],
    out: Annotated[Path, typer.Option(help="The cleaned shop, .jsonl or .jsonl.gz.", show_default=False)],
    as_json: JsonOption = False,
) -> None:
    """Clean the original's files into one that a shop opens, and count its products and goals."""
    from mem1.cli.progress import stderr
    from mem1.envs.webshop.files import ShopFiles, write_entries
    from mem1.errors import UserError

    if not out.name.endswith((".jsonl", ".jsonl.gz")):
        raise UserError(f"--out {out}: the name of a cleaned shop ends in .jsonl or .jsonl.gz")
    work_begins()
    new_file(out)
    make_folder_of(out)
    shop = ShopFiles.find(*files)
    counts: Counter[str] = Counter()
    console = stderr()
    with console.status(f"Cleaning {shop.products}"):
        write_entries(out, _counted(shop.entries(), counts))
    if as_json:
        print(json.dumps({"out": str(out), **{name: counts[name] for name in _COUNTED}, "left_out": shop.left_out}))
        return
    console.print(
        f"{counts['products']:,} products, {counts['human_goals']:,} goals by people and "
        f"{counts['synthetic_goals']:,} synthetic goals of {counts['synthetic_products']:,} products, in {out}",
        markup=False,
    )
    reasons = {**shop.left_out, "instruction by a person without attributes": counts["human_without_attributes"]}
    for reason, number in reasons.items():
        if number:
            console.print(f"Left out: {number:,} x {reason}", markup=False)


_COUNTED = ("products", "human_goals", "human_without_attributes", "synthetic_goals", "synthetic_products")


def _counted(entries: Iterable[Entry], counts: Counter[str]) -> Iterator[Entry]:
    """The entries as they pass, each counted; never a million of them in memory."""
    from mem1.envs.webshop.catalogue import number_of_combinations

    for entry in entries:
        scored = sum(bool(asked.attributes) for asked in entry.human)
        counts["products"] += 1
        counts["human_goals"] += scored
        counts["human_without_attributes"] += len(entry.human) - scored
        if entry.synthetic is not None:
            counts["synthetic_products"] += 1
            counts["synthetic_goals"] += number_of_combinations(entry.product)
        yield entry
