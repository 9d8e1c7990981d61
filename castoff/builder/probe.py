"""A script for the scratch environment: prints which torch it has and where its call slots point.

Its argument is a file with JSON ``{"projects": [name, …], "slots": {library: {symbol: [offset, …]}}, "stubs": name}``;
the last line of standard output is the answer. The loader has filled the slots: LD_BIND_NOW is set. A slot that
points to one of the stubs leads to where that jumps.
"""

import ctypes
import importlib
import json
import os
import sys


def _mappings() -> list[tuple[int, int, int, str]]:
    """Return (start, end, file offset, path) of everything that is mapped from a file."""
    found = []
    with open("/proc/self/maps", encoding="utf-8") as file:
        for line in file:
            fields = line.rstrip("\n").split(None, 5)
            if fields[-1].startswith("/"):
                start, end = (int(value, 16) for value in fields[0].split("-"))
                found.append((start, end, int(fields[2], 16), fields[-1]))
    return found


def _owner(address: int, maps: list[tuple[int, int, int, str]]) -> str:
    return next((path for start, end, _, path in maps if start <= address < end), "no library")


def _jumps(stubs: str, maps: list[tuple[int, int, int, str]]) -> dict[str, str]:
    """Return the library to which each stub jumps."""
    path = next((path for *_, path in maps if os.path.basename(path) == stubs), None)
    if path is None:
        return {}
    library = ctypes.CDLL(path)
    names = ctypes.c_char.in_dll(library, "castoff_interposed_names")
    symbols = ctypes.string_at(ctypes.addressof(names)).decode().split()
    addresses = (ctypes.c_uint64 * len(symbols)).in_dll(library, "castoff_interposed")
    return {symbol: _owner(addresses[at], maps) for at, symbol in enumerate(symbols)}


def main() -> None:
    """Answer the question in the file."""
    with open(sys.argv[1], encoding="utf-8") as file:
        question = json.load(file)
    modules = {project: importlib.import_module(project) for project in question["projects"]}
    maps = _mappings()
    stubs = question["stubs"]
    jumps = _jumps(stubs, maps)

    def leads_to(symbol: str, address: int) -> str:
        owner = _owner(address, maps)
        return jumps[symbol] if os.path.basename(owner) == stubs else owner

    slots: dict[str, dict[str, list[str]]] = {}
    for library, symbols in question["slots"].items():
        base = min(start for start, _, offset, path in maps if offset == 0 and os.path.basename(path) == library)
        slots[library] = {
            symbol: [leads_to(symbol, ctypes.c_uint64.from_address(base + offset).value) for offset in offsets]
            for symbol, offsets in symbols.items()
        }
    imported = {project: [module.__version__, module.__file__] for project, module in modules.items()}
    answer = {**imported, "slots": slots}
    print("\n" + json.dumps(answer))


if __name__ == "__main__":
    main()
