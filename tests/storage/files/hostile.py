"""Opens files that nobody should trust, in a process with little memory; for test_hostile_files.

Usage: hostile.py fuzz SEED COUNT SUFFIX… | hostile.py open PATH…
Prints `ok` or the error's reason for each file; anything else ends it.
"""

from __future__ import annotations

import os
import random
import resource
import shutil
import sys
from pathlib import Path

import numpy as np

import einsql

LIMIT = 3 * 2**30
"""Bytes of address space, most of which libraries reserve."""
PEAK = 700 * 2**20
"""Bytes that may have been resident."""
W = np.random.default_rng(0).standard_normal((6, 64)).astype(np.float32)
TENSOR = "CREATE OR REPLACE TENSOR r (i DIM(6), j DIM(64), val FLOAT)"


def attempt(con: einsql.Connection, path: str) -> list[str]:
    """What comes of reading a file in FROM, as a tensor and by COPY."""
    found = []
    for sql in (
        f"SELECT * FROM '{path}'", f"SELECT * FROM read_tensor('{path}')", f"COPY r FROM '{path}'"
    ):  # fmt: skip
        try:
            cursor = con.execute(sql)
            if sql.startswith("SELECT"):
                cursor.fetchall()
            found.append("ok")
        except einsql.Error as error:
            # A far key makes a relation that is too large for what reads all its keys.
            large = "sparse tensor of" in error.reason or "enough memory" in error.reason
            if path not in error.reason and not large:
                raise RuntimeError(f"The file is not named: {error.reason}") from error
            found.append(error.reason)
        con.execute(TENSOR)
    return found


def sound(suffix: str) -> str:
    """Writes a file of a format."""
    con = einsql.connect()
    con.register("w", W, dims=("i", "j"))
    kind, _, variant = suffix.partition("-")
    path = f"f.{kind}"
    if variant == "deflated":
        np.savez_compressed(path, val=W)
    elif kind == "gguf":
        import gguf

        writer = gguf.GGUFWriter(path, "llama")
        writer.add_array("tokenizer.ggml.tokens", ["<s>", "a"])
        if variant == "plain":
            writer.add_tensor("val", W)
        else:
            packed = gguf.quants.quantize(W, gguf.GGMLQuantizationType.Q8_0)
            writer.add_tensor("val", packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    elif kind == "zarr":
        import zarr

        codec = {"gzip": zarr.codecs.GzipCodec(), "blosc": zarr.codecs.BloscCodec(typesize=4)}
        made = zarr.create_array(
            path, shape=W.shape, dtype="f4", chunks=(2, 32), zarr_format=3,
            compressors=codec.get(variant, zarr.codecs.ZstdCodec()),
            shards=(4, 64) if variant == "sharded" else None,
        )  # fmt: skip
        made[...] = W
    else:
        few = "WHERE val > 0.5" if variant == "listed" else ""
        option = {"rows": "(ROWS true)", "tensor": "(TENSOR 'val')"}.get(variant, "")
        con.execute(f"COPY (SELECT * FROM w {few}) TO '{path}' {option}")
    return path


def damage(chance: random.Random, content: bytes) -> bytes:
    """Some bytes changed, or the end cut off."""
    changed = bytearray(content)
    if chance.random() < 0.15:
        del changed[chance.randrange(len(changed)) :]
    for _ in range(chance.choice((1, 1, 2, 3, 8))):
        if not changed:
            break
        end = min(len(changed), 400) if chance.random() < 0.5 else len(changed)
        at = chance.randrange(end) if chance.random() < 0.7 else chance.randrange(len(changed))
        changed[at] = chance.choice((chance.randrange(256), changed[at] ^ 1, 0, 255))
        if chance.random() < 0.1:
            changed[at : at + 8] = chance.choice((b"\xff" * 8, b"\x7f" + b"\xff" * 7, bytes(8)))
    return bytes(changed)


def fuzz(suffix: str, seed: int, count: int) -> None:
    """Damages a file at random, again and again."""
    shutil.rmtree("f.zarr", ignore_errors=True)
    path = sound(suffix)
    con = einsql.connect()
    con.execute(TENSOR)
    attempt(con, path)  # what is imported is imported
    names = [path]
    if os.path.isdir(path):
        names = sorted(os.path.join(r, n) for r, _, some in os.walk(path) for n in some)
    chance = random.Random(seed)
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT, LIMIT))
    for _ in range(count):
        name = chance.choice(names)
        with open(name, "rb") as file:
            content = file.read()
        with open(name, "wb") as file:
            file.write(damage(chance, content))
        print(*attempt(con, path), sep="\n")
        with open(name, "wb") as file:
            file.write(content)


def opened(paths: list[str]) -> None:
    """Reads files, one after the other."""
    con = einsql.connect()
    con.execute(TENSOR)
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT, LIMIT))
    for path in paths:
        print(*attempt(con, path), sep="\n")


def main() -> None:
    """Runs what the command line says, and looks at the memory it took."""
    what, *given = sys.argv[1:]
    if what == "fuzz":
        for suffix in given[2:]:
            print(suffix)
            fuzz(suffix, int(given[0]), int(given[1]))
    else:
        opened(given)
    # ru_maxrss would count what the process that started this one had resident.
    status = Path("/proc/self/status").read_text()
    peak = int(status.split("VmHWM:")[1].split()[0]) * 1024
    assert peak < PEAK, f"{peak} bytes"
    shutil.rmtree("f.zarr", ignore_errors=True)


if __name__ == "__main__":
    main()
