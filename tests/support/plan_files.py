"""Plan files for tests: exported, edited at random, and broken at random."""

from __future__ import annotations

import json
from collections.abc import Callable
from math import prod
from pathlib import Path
from random import Random
from typing import Any

import einsql

Edit = Callable[[dict[str, Any]], None]
"""Changes the content of a plan file."""


def export(con: einsql.Connection, path: Path, sql: str) -> dict[str, Any]:
    """Writes the plan of a statement over a former one, and returns its content."""
    path.unlink(missing_ok=True)
    con.execute(f"EXPORT PLAN '{path}' FOR {sql}")
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def edit(path: Path, change: Edit) -> None:
    """Changes a plan file in place."""
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content, indent=1))


def recut(path: Path, **changes: Any) -> None:
    """Changes the entry of the first operation of a plan file in place."""
    edit(path, lambda content: content["graphs"][0]["nodes"][0].update(changes))


def report(con: einsql.Connection, sql: str) -> dict[str, Any]:
    """EXPLAIN's report of a statement without the line about its plan file."""
    (text,) = con.execute(f"EXPLAIN (FORMAT json) {sql}").fetchone() or ("{}",)
    parsed: dict[str, Any] = json.loads(text)
    parsed.pop("plan_file", None)
    return parsed


def cut_at_random(node: dict[str, Any], sites: int, chance: Random) -> None:
    """Gives a node of a plan file other parts, copies, a mesh and sites, all of which fit."""
    parts = dict.fromkeys(node["labels"], 1)
    for label in chance.sample(sorted(parts), len(parts)):
        room = sites // prod(parts.values())
        parts[label] = chance.randint(1, max(1, min(room, node["labels"][label])))
    cells = prod(parts.values())
    copies = chance.choice([1, 1, chance.randint(1, sites // cells)])
    node.update(parts=parts, copies=copies)
    node.pop("sites", None)
    node.pop("mesh", None)
    mesh = [x for x, n in {**parts, "*": copies}.items() if n > 1]
    if chance.random() < 0.7:
        node["mesh"] = chance.sample(mesh, len(mesh))
        if chance.random() < 0.5:
            node["sites"] = chance.sample(range(sites), cells * copies)
    elif chance.random() < 0.3:
        node["mesh"] = None
    if parts and chance.random() < 0.15:  # the planner chooses the parts of one label
        del node["parts"][chance.choice(sorted(parts))]
        for key in ("copies", "mesh", "sites"):
            node.pop(key, None)


_SPLINTERS = ["{", "}", "[", "]", ",", ":", '"', "0", "-1", "1e9", "99", "null", "true", "NaN", "é"]


def broken(text: str, chance: Random) -> str:
    """A plan file with one to three random faults; it may still be right."""
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(text) + 1)
        match chance.randrange(5):
            case 0:
                text = text[:at] + text[at + chance.randint(1, 9) :]
            case 1:
                text = text[:at] + chance.choice(_SPLINTERS) + text[at:]
            case 2:
                text = text[:at]
            case 3:
                numbers = [n for n, c in enumerate(text) if c.isdigit()]
                at = chance.choice(numbers or [0])
                text = text[:at] + chance.choice("0123456789") + text[at + 1 :]
            case _:
                words = ["parts", "mesh", "copies", "sites", "labels", "name", '"i"', '"j"', '"r0"']
                text = text.replace(chance.choice(words), chance.choice(words), 1)
    return text
