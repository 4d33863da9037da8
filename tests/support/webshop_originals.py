"""Files as WebShop's authors publish them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ASKED = {
    "instruction": "i need a rug.",
    "instruction_attributes": ["non slip"],
    "instruction_options": ["navy"],
    "options": ["color: navy"],
}


def write_originals(folder: Path, products: list[dict[str, Any]]) -> Path:
    (folder / "items_shuffle_1000.json").write_text(json.dumps(products))
    attributes = {
        "B1": {"attributes": ["non slip"], "instruction": "Find me rugs", "instruction_attributes": ["non slip"]},
        "B2": {"attributes": []},
    }
    (folder / "items_ins_v2_1000.json").write_text(json.dumps(attributes))
    (folder / "items_human_ins.json").write_text(json.dumps({"B2": [ASKED], "B9": [ASKED]}))
    return folder
