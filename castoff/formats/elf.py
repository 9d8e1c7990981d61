"""Reading ELF files: what they need, what they export, and the slots of their calls.

pyelftools reads the formats. Only two loops over libtorch_cpu.so (400 MB, a million relocations)
are written here, because an object for each entry would take minutes.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from elftools.common.exceptions import ELFError
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection, GNUVerSymSection
from elftools.elf.sections import Section, SymbolTableSection

SectionT = TypeVar("SectionT", bound=Section)

_SLOT_TYPES = frozenset({1, 6, 7})
"""R_X86_64_64, R_X86_64_GLOB_DAT, R_X86_64_JUMP_SLOT: relocations that hold a symbol's address."""


@dataclass(frozen=True, order=True)
class VersionedSymbol:
    """A symbol that a library needs in a certain version."""

    library: str  # the library that has to provide it
    version: str  # the version, such as "GLIBC_2.14"
    name: str  # the symbol


def defined_symbols(path: Path) -> frozenset[str]:
    """Return the symbols that a shared library exports."""
    with path.open("rb") as file:
        table = _section(ELFFile(file), ".dynsym", SymbolTableSection)
        return frozenset(
            symbol.name
            for symbol in table.iter_symbols()
            if symbol["st_shndx"] != "SHN_UNDEF"
            and symbol["st_info"]["bind"] in ("STB_GLOBAL", "STB_WEAK", "STB_LOOS")
            and symbol["st_other"]["visibility"] in ("STV_DEFAULT", "STV_PROTECTED")
        )


def needed_versions(path: Path) -> tuple[VersionedSymbol, ...]:
    """Return each symbol that a shared library needs in a certain version."""
    with path.open("rb") as file:
        elf = ELFFile(file)
        needs = elf.get_section_by_name(".gnu.version_r")
        if not isinstance(needs, GNUVerNeedSection):
            return ()
        names: dict[int, tuple[str, str]] = {}  # library and version, by index
        for need, entries in needs.iter_versions():
            for entry in entries:
                names[entry["vna_other"]] = (str(need.name), entry.name)
        versions = _section(elf, ".gnu.version", GNUVerSymSection)
        found = []
        for symbol, version in zip(
            _section(elf, ".dynsym", SymbolTableSection).iter_symbols(), versions.iter_symbols(), strict=True
        ):
            index = version["ndx"]
            if isinstance(index, int) and index & 0x7FFF in names:
                found.append(VersionedSymbol(*names[index & 0x7FFF], symbol.name))
        return tuple(sorted(found))


def needed_libraries(path: Path) -> tuple[str, ...]:
    """Return the libraries that a shared library loads, in order."""
    with path.open("rb") as file:
        dynamic = _section(ELFFile(file), ".dynamic", DynamicSection)
        return tuple(str(vars(tag)["needed"]) for tag in dynamic.iter_tags("DT_NEEDED"))


def relocation_slots(path: Path, names: Collection[str]) -> dict[str, tuple[int, ...]]:
    """Return the places of a shared library that the loader fills with the addresses of symbols.

    Returns:
        For each name the offsets of its slots from the library's load address.
    """
    slots: dict[str, list[int]] = {name: [] for name in names}
    with path.open("rb") as file:
        elf = ELFFile(file)
        indexes = _symbol_indexes(elf, names)
        for section_name in (".rela.plt", ".rela.dyn"):
            section = elf.get_section_by_name(section_name)
            if section is None:
                continue
            for offset, info, _ in struct.iter_unpack("<QQq", section.data()):
                name = indexes.get(info >> 32)
                if name is not None and info & 0xFFFFFFFF in _SLOT_TYPES:
                    slots[name].append(offset)
    return {name: tuple(offsets) for name, offsets in slots.items()}


def _symbol_indexes(elf: ELFFile, names: Collection[str]) -> dict[int, str]:
    """Return the indexes of symbols in the dynamic symbol table."""
    wanted = {name.encode() + b"\0": name for name in names}
    strings = _section(elf, ".dynstr", Section).data()
    starts = {}
    for encoded, name in wanted.items():
        # The linker may store one string as the end of another, so every occurrence counts.
        at = strings.find(encoded)
        while at >= 0:
            starts[at] = name
            at = strings.find(encoded, at + 1)
    symbols = struct.iter_unpack("<IBBHQQ", _section(elf, ".dynsym", SymbolTableSection).data())
    return {index: starts[symbol[0]] for index, symbol in enumerate(symbols) if symbol[0] in starts}


def _section(elf: ELFFile, name: str, kind: type[SectionT]) -> SectionT:
    section = elf.get_section_by_name(name)
    if not isinstance(section, kind):
        raise ELFError(f"no section {name}")
    return section
