"""The files of a catalogue: the original's three, cleaned here, or cleaned products with instructions.

items_shuffle.json, items_shuffle_1000.json     [{"asin": "B09KP78G37", "name": ..., "pricing": "$19.99", ...}, ...]
items_ins_v2.json, items_ins_v2_1000.json       {"B09KP78G37": {"attributes": ["faux fur"],
                                                 "instruction": "Find me ...", "instruction_attributes": [...]}}
items_human_ins.json                            {"B09KP78G37": [{"instruction": "i am looking for ...",
                                                 "instruction_attributes": [...], "instruction_options": [...]}]}
shop.jsonl, shop.jsonl.gz                       one cleaned product per line, with the original's keys and with
                                                instructions, instruction_text and instruction_attributes

Products are cleaned by the rules of the original's engine/engine.py, and read one by one: WebShop's 1.18 million
products are one JSON array of 5.5 gigabytes.

    load("/data/webshop")     a folder with either kind of files
    load("shop.jsonl.gz")     what `mem1 webshop load` wrote

The original's files lie on Google Drive (docs/webshop.md). Product texts have no licence of their own: they are for
research and must not be redistributed.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, TextIO

from mem1.envs.webshop.catalogue import PRICE_UNKNOWN, Catalogue, Entry, Instruction, Product, texts
from mem1.errors import UserError
from mem1.jsonl import read_objects, write_objects

NO_ATTRIBUTES = ("DUMMY_ATTR",)
"""Attributes of a product without known ones."""
_LONGEST_ASIN = 10
_NOT_IN_PRICE = re.compile(r"[^\d.]")


def why_left_out(asin: str, seen: Mapping[str, object]) -> str | None:
    """Why the shop rejects a product, given the asins `seen` before it; None: it accepts it."""
    if asin == "nan":
        return "no asin"
    if len(asin) > _LONGEST_ASIN:
        return "asin of more than 10 characters"
    return "asin stood before" if asin in seen else None


def clean(raw: Mapping[str, Any], attributes: Sequence[str] | None) -> Product:
    """Clean a product of the original's files.

        {"asin": "B09KP78G37", "name": "Winter Coat", "pricing": "$19.99 - $1,027.50", "query": "Coats ", ...,
         "customization_options": {"Color": [{"value": "Wine/Red "}], "Size": null}}
    ->  Product(asin="B09KP78G37", title="Winter Coat", pricing=(19.99, 1027.5), price_tag="$19.99 to $1027.5",
                query="coats", options={"color": ("wine | red",)}, ...)

    `attributes` come from the attribute file; None: it lists none for this product. Raises KeyError for a missing
    field, and ValueError, TypeError or AttributeError for a malformed one.
    """
    bullets = raw["small_description"]
    prices, price_tag = read_price(raw.get("pricing"))
    options, images = _options(raw["customization_options"] or {})
    return Product(
        asin=raw["asin"],
        name=raw["name"],
        title=raw["name"],
        description=raw["full_description"] or "",
        bullet_points=(bullets,) if isinstance(bullets, str) else texts(bullets or None, "small_description"),
        attributes=NO_ATTRIBUTES if attributes is None else texts(attributes, "attributes"),
        options=options,
        option_images=images,
        pricing=prices,
        price_tag=price_tag,
        category=raw["category"],
        query=raw["query"].lower().strip(),
        product_category=raw["product_category"],
        main_image=next(iter(raw["images"] or ()), ""),
    )


def read_price(text: str | None) -> tuple[tuple[float, ...], str]:
    """Prices in dollars, lowest first, and the price as shown; from a text with more than two prices the first two.

        "$10.00 - $1,020.50"  ->  ((10.0, 1020.5), "$10.0 to $1020.5")      None, ""  ->  ((100.0,), "$100.0")

    Three products of the small set name the higher price first and are shown that way, as in the original.
    Raises ValueError for a text without a price.
    """
    if not text:
        return (PRICE_UNKNOWN,), f"${PRICE_UNKNOWN}"
    prices = [float(_NOT_IN_PRICE.sub("", part)) for part in text.split("$")[1:]][:2]
    if not prices:
        raise ValueError(f"no price in dollars in {text!r}")
    return tuple(sorted(prices)), " to ".join(f"${price}" for price in prices)


def _options(raw: Mapping[str, Any]) -> tuple[dict[str, tuple[str, ...]], dict[str, str]]:
    options: dict[str, tuple[str, ...]] = {}
    images: dict[str, str] = {}
    for name, contents in raw.items():
        if contents is None:
            continue
        values = [content["value"].strip().replace("/", " | ").lower() for content in contents]
        options[name.lower()] = tuple(values)
        images |= {v: content.get("image") for v, content in zip(values, contents, strict=True)}
    return options, {value: image for value, image in images.items() if image}


_CHUNK = 1 << 20
_LARGEST = 1 << 26
"""Characters of one object; a file in which they form none is broken and not read further."""
_BETWEEN = re.compile(r"[\s,]*")


def read_array(path: str | os.PathLike[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (number from 1, object). Raises UserError for a file that is missing, truncated or no array of objects."""
    try:
        with open(path, encoding="utf-8-sig") as file:
            yield from _objects(file, path)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text ({error.reason})") from error


def _objects(file: TextIO, path: str | os.PathLike[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    decode = json.JSONDecoder().raw_decode
    text = file.read(_CHUNK).lstrip()
    if not text.startswith("["):
        raise UserError(f"{path}: expected a JSON array of products, but it begins with {text[:20]!r}")
    number, at = 1, 1
    while True:
        at += len(_BETWEEN.match(text, at)[0])  # type: ignore[index]  # it matches everywhere
        if text.startswith("]", at):
            return
        try:
            value, at = decode(text, at)
        except (json.JSONDecodeError, RecursionError) as error:
            # perhaps the object is not read to its end; doubling what is read keeps long objects linear
            more = file.read(max(_CHUNK, len(text) - at)) if len(text) - at < _LARGEST else ""
            if not more:
                raise UserError(f"{path}: product {number} is not complete JSON; is the file truncated?") from error
            text, at = text[at:] + more, 0
            continue
        if not isinstance(value, dict):
            raise UserError(f"{path}: product {number} must be a JSON object, not {type(value).__name__}")
        yield number, value
        number += 1


_NAMES = {
    "products": ("items_shuffle*.json", "*.jsonl", "*.jsonl.gz"),
    "attributes": ("items_ins*.json",),
    "human": ("items_human_ins*.json",),
}
_KNOWN = ", ".join(name for names in _NAMES.values() for name in names)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShopFiles:
    """The files of a catalogue."""

    products: Path
    attributes: Path | None = None
    """None: cleaned products, which include them."""
    human: Path | None = None
    """None: cleaned products, which include them, or a shop without goals by people."""
    left_out: Counter[str] = field(default_factory=Counter)
    """Reason -> number of rejected products, counted while `entries` is read."""

    @classmethod
    def find(cls, *paths: str | os.PathLike[str]) -> ShopFiles:
        """Find the files by their names, in one folder or among the paths.

        Raises UserError without a product file, for the original's without attributes, and for two files of a kind.
        """
        given = [Path(path) for path in paths]
        in_folder = len(given) == 1 and given[0].is_dir()
        where = ", ".join(map(str, given)) or "no file"
        found: dict[str, Path] = {}
        for path in sorted(given[0].iterdir()) if in_folder else given:
            if not path.exists():
                raise UserError(f"no file or folder {path}; check the path")
            kind = next((kind for kind, names in _NAMES.items() if any(fnmatch(path.name, n) for n in names)), None)
            if kind is None and not in_folder:
                raise UserError(f"{path}: not the name of a shop's file; known: {_KNOWN}")
            if kind in found:
                raise UserError(f"{where}: {found[kind].name} and {path.name} both hold {kind}; name the files to read")
            if kind is not None:
                found[kind] = path
        if "products" not in found:
            raise UserError(
                f"{where}: no products; known: {_KNOWN}. docs/webshop.md says where the original's files lie"
            )
        if found["products"].suffix == ".json" and "attributes" not in found:
            raise UserError(f"{where}: {found['products'].name} has no attributes; put items_ins_v2*.json beside it")
        return cls(products=found["products"], attributes=found.get("attributes"), human=found.get("human"))

    def entries(self) -> Iterator[Entry]:
        """Yield the products in the order of the file. Raises UserError for a malformed file."""
        attributes = read_object(self.attributes) if self.attributes else {}
        human = read_object(self.human) if self.human else {}
        if self.products.suffix == ".json":
            return self._originals(attributes, human)
        return self._cleaned(attributes, human)

    def _originals(self, attributes: Mapping[str, Any], human: Mapping[str, Any]) -> Iterator[Entry]:
        seen: dict[str, None] = {}
        for number, raw in read_array(self.products):
            with _as_user_error(f"{self.products}: product {number}"):
                asin = str(raw["asin"])
                reason = why_left_out(asin, seen)
                if reason is not None:
                    self.left_out[reason] += 1
                    continue
                seen[asin] = None
                known = attributes.get(asin, {})
                product = clean({**raw, "asin": asin}, known.get("attributes"))
            with _as_user_error(f"{self.attributes}: {asin}"):
                synthetic = _synthetic(known.get("instruction"), known)
            with _as_user_error(f"{self.human}: {asin}"):
                asked = _human(human.get(asin, ()))
            yield Entry(product, asked, synthetic)

    def _cleaned(self, attributes: Mapping[str, Any], human: Mapping[str, Any]) -> Iterator[Entry]:
        seen: dict[str, int] = {}
        for line, keys in read_objects(self.products):
            with _as_user_error(f"{self.products}:{line}"):
                product = Product.from_keys(keys)
                if not product.asin or "Title" not in keys:
                    raise ValueError("a product needs an asin and a Title")
                if seen.setdefault(product.asin, line) != line:
                    raise ValueError(f"product {product.asin!r} is already on line {seen[product.asin]}")
                asked, synthetic = _human(keys.get("instructions", ())), _synthetic(keys.get("instruction_text"), keys)
            with _as_user_error(f"{self.attributes}: {product.asin}"):
                known = attributes.get(product.asin, {})
                synthetic = _synthetic(known.get("instruction"), known) or synthetic
            with _as_user_error(f"{self.human}: {product.asin}"):
                asked = _human(human.get(product.asin, ())) or asked
            yield Entry(product, asked, synthetic)


def load(*paths: str | os.PathLike[str]) -> Catalogue:
    """The catalogue of a folder or of the files themselves (see `ShopFiles.find`).

    Raises UserError for a missing, truncated or malformed file.
    """
    return Catalogue.of(ShopFiles.find(*paths).entries())


def write_entries(path: str | os.PathLike[str], entries: Iterable[Entry]) -> None:
    """Write one JSONL file that `ShopFiles` reads, gzipped if its name ends in .gz. Raises UserError."""
    write_objects(path, map(_keys, entries))


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object that a file consists of. Raises UserError."""
    try:
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not complete JSON ({error}); is the file truncated?") from error
    if not isinstance(value, dict):
        raise UserError(f"{path}: expected one JSON object, asin -> instructions, not {type(value).__name__}")
    return value


def _human(asked: Iterable[Mapping[str, Any]]) -> tuple[Instruction, ...]:
    return tuple(_instruction(one["instruction"], one) for one in asked)


def _synthetic(text: Any, keys: Mapping[str, Any]) -> Instruction | None:
    return None if text is None else _instruction(text, keys)


def _instruction(text: Any, keys: Mapping[str, Any]) -> Instruction:
    if not isinstance(text, str):
        raise ValueError(f"an instruction must be a text, not {text!r:.80}")
    attributes, options = (texts(keys.get(name), name) for name in ("instruction_attributes", "instruction_options"))
    return Instruction(text=text, attributes=attributes, options=options)


def _keys(entry: Entry) -> dict[str, Any]:
    keys = entry.product.to_keys()
    if entry.human:
        keys["instructions"] = [
            {"instruction": i.text, "instruction_attributes": i.attributes, "instruction_options": i.options}
            for i in entry.human
        ]
    if entry.synthetic is not None:
        keys |= {"instruction_text": entry.synthetic.text, "instruction_attributes": entry.synthetic.attributes}
    return keys


@contextmanager
def _as_user_error(where: str) -> Iterator[None]:
    try:
        yield
    except KeyError as error:
        raise UserError(f"{where}: {error} is missing") from error
    except (ValueError, TypeError, AttributeError) as error:
        raise UserError(f"{where}: not in WebShop's format ({error})") from error
