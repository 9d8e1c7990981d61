"""Splice: a changed copy of a zip file, at the speed of copying.

Unchanged members are copied as they are, compressed, with their local headers, many at a time
and inside the kernel if it can. Only changed and new members are compressed. The result depends
on the inputs alone: new members carry a fixed date.
"""

from __future__ import annotations

import errno
import os
import struct
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from castoff.core.console import Advance, no_advance

_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_EXTRA = struct.Struct("<HH")
_END64 = struct.Struct("<4sQ2H2I4Q")
_LOCATOR64 = struct.Struct("<4sIQI")
_END = struct.Struct("<4s4H2IH")

_BLOCK = 1 << 24
_MAX32 = 0xFFFFFFFF
_MAX16 = 0xFFFF
_ZIP64_EXTRA = 1
_ZIP64_VERSION = 45
_UTF8_FLAG = 0x800
_DATE = (1980, 1, 1, 0, 0, 0)
_NOT_IN_KERNEL = frozenset({errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EBADF})


@dataclass(frozen=True)
class Extent:
    """The bytes of a member in its zip file: local header, data and what may follow them."""

    start: int  # its first byte
    end: int  # the byte after its last


@dataclass(frozen=True)
class _Entry:
    """A record of the central directory to be written."""

    info: zipfile.ZipInfo
    offset: int


def extents(archive: zipfile.ZipFile) -> dict[str, Extent]:
    """Return the bytes of each member of an open zip file."""
    infos = sorted(archive.infolist(), key=lambda info: info.header_offset)
    ends = [info.header_offset for info in infos[1:]] + [archive.start_dir]
    return {info.filename: Extent(info.header_offset, end) for info, end in zip(infos, ends, strict=True)}


def splice(
    source: Path,
    target: Path,
    *,
    contents: Mapping[str, bytes],
    renames: Mapping[str, str],
    modes: Mapping[str, int],
    advance: Advance = no_advance,
    limit: int = _MAX32,
) -> None:
    """Write a zip file that has the members of another one, some of them changed.

    Args:
        source: The zip file to start from.
        contents: The contents of changed and new members, by their names in the target. New ones come
            last, in the order of their names.
        renames: New names of members, by their old ones.
        modes: File modes of new members that are not plain 0644.
        advance: Told how many bytes are written.
        limit: The first size or offset that needs zip64; only tests set it.
    """
    try:
        with zipfile.ZipFile(source) as archive, source.open("rb") as raw, target.open("wb") as out:
            writer = _Writer(raw, out, source.stat().st_size, advance, limit)
            where = extents(archive)
            for info in archive.infolist():
                name = renames.get(info.filename, info.filename)
                if name in contents:
                    writer.add(_like(info, name), contents[name])
                elif name != info.filename:
                    writer.add(_like(info, name), archive.read(info))
                else:
                    writer.keep(info, where[info.filename])
            present = {renames.get(name, name) for name in archive.namelist()}
            for name in sorted(contents.keys() - present):
                writer.add(_new(name, modes.get(name, 0o644)), contents[name])
            writer.close()
    except OSError as error:
        if error.filename is None:
            error.filename = str(target)  # an error of a call on an open file names no file
        raise


def _like(info: zipfile.ZipInfo, name: str) -> zipfile.ZipInfo:
    """Describe a member that replaces another: its date, its mode, its compression."""
    result = zipfile.ZipInfo(name, info.date_time)
    result.external_attr = info.external_attr
    result.create_system = info.create_system
    result.compress_type = zipfile.ZIP_STORED if info.compress_type == zipfile.ZIP_STORED else zipfile.ZIP_DEFLATED
    return result


def _new(name: str, mode: int) -> zipfile.ZipInfo:
    result = zipfile.ZipInfo(name, _DATE)
    result.external_attr = (0o100000 | mode) << 16
    result.create_system = 3  # Unix, whatever this runs on
    result.compress_type = zipfile.ZIP_DEFLATED
    return result


class _Writer:
    """Writes the target, front to back."""

    def __init__(self, raw: BinaryIO, out: BinaryIO, total: int, advance: Advance, limit: int) -> None:
        self._raw = raw
        self._out = out
        self._total = total
        self._advance = advance
        self._limit = limit
        self._entries: list[_Entry] = []
        self._offset = 0
        self._pending = Extent(0, 0)

    def keep(self, info: zipfile.ZipInfo, extent: Extent) -> None:
        """Copy a member as it is; neighbours are copied together."""
        if self._pending.end != extent.start:
            self._flush()
            self._pending = Extent(extent.start, extent.start)
        self._entries.append(_Entry(info, self._offset))
        self._pending = Extent(self._pending.start, extent.end)
        self._offset += extent.end - extent.start

    def add(self, info: zipfile.ZipInfo, data: bytes) -> None:
        """Compress a member."""
        self._flush()
        body = data
        if info.compress_type == zipfile.ZIP_DEFLATED:
            packer = zlib.compressobj(6, zlib.DEFLATED, -15)
            body = packer.compress(data) + packer.flush()
        info.CRC = zlib.crc32(data)
        info.file_size = len(data)
        info.compress_size = len(body)
        name, info.flag_bits = _encoded(info.filename)
        extra = b""
        sizes = (info.compress_size, info.file_size)
        if max(sizes) >= self._limit:
            extra = struct.pack("<HHQQ", _ZIP64_EXTRA, 16, info.file_size, info.compress_size)
            sizes = (_MAX32, _MAX32)
        info.extract_version = info.create_version = _ZIP64_VERSION if extra else 20
        header = _LOCAL.pack(
            b"PK\3\4", info.extract_version, info.flag_bits, info.compress_type, *_dos_time(info), info.CRC,
            *sizes, len(name), len(extra),
        )  # fmt: skip
        self._entries.append(_Entry(info, self._offset))
        self._write(header + name + extra + body)

    def close(self) -> None:
        """Write the central directory and what ends the file."""
        self._flush()
        start = self._offset
        for entry in self._entries:
            self._write(self._central(entry))
        size = self._offset - start
        count = len(self._entries)
        if max(start, size) >= self._limit or count >= _MAX16:
            record = self._offset
            self._write(
                _END64.pack(b"PK\6\6", 44, _ZIP64_VERSION, _ZIP64_VERSION, 0, 0, count, count, size, start)
                + _LOCATOR64.pack(b"PK\6\7", 0, record, 1)
            )
        short = min(count, _MAX16)
        self._write(_END.pack(b"PK\5\6", 0, 0, short, short, self._clip(size), self._clip(start), 0))

    def _central(self, entry: _Entry) -> bytes:
        info = entry.info
        name = _encoded(info.filename)[0]
        wide = [value for value in (info.file_size, info.compress_size, entry.offset) if value >= self._limit]
        extra = _without_zip64(info.extra)
        version = info.extract_version
        if wide:
            extra = struct.pack(f"<HH{len(wide)}Q", _ZIP64_EXTRA, 8 * len(wide), *wide) + extra
            version = max(version, _ZIP64_VERSION)
        head = _CENTRAL.pack(
            b"PK\1\2",
            info.create_version | info.create_system << 8,
            version,
            info.flag_bits,
            info.compress_type,
            *_dos_time(info),
            info.CRC,
            self._clip(info.compress_size),
            self._clip(info.file_size),
            len(name),
            len(extra),
            len(info.comment),
            0,
            info.internal_attr,
            info.external_attr,
            self._clip(entry.offset),
        )
        return head + name + extra + info.comment

    def _clip(self, value: int) -> int:
        return _MAX32 if value >= self._limit else value

    def _write(self, data: bytes) -> None:
        self._out.write(data)
        self._offset += len(data)

    def _flush(self) -> None:
        """Copy the members that are waiting."""
        start, end = self._pending.start, self._pending.end
        self._pending = Extent(0, 0)
        if start == end:
            return
        self._out.flush()
        self._raw.seek(start)
        while start < end:
            start += _copy(self._raw, self._out, start, min(end - start, _BLOCK))
            self._advance(start, self._total)


def _copy(raw: BinaryIO, out: BinaryIO, start: int, count: int) -> int:
    """Copy bytes from one file's offset to another's end; return how many."""
    try:
        copied = os.copy_file_range(raw.fileno(), out.fileno(), count, start)
    except OSError as error:
        if error.errno not in _NOT_IN_KERNEL:
            raise
        copied = 0
    if copied:
        return copied
    data = os.pread(raw.fileno(), count, start)
    if not data:
        raise EOFError(f"{raw.name} ends before its central directory says")
    out.write(data)
    out.flush()
    return len(data)


def _encoded(name: str) -> tuple[bytes, int]:
    """Return a member's name as zip files store it, and the flag of its encoding."""
    try:
        return name.encode("ascii"), 0
    except UnicodeEncodeError:
        return name.encode("utf-8"), _UTF8_FLAG


def _dos_time(info: zipfile.ZipInfo) -> tuple[int, int]:
    year, month, day, hour, minute, second = info.date_time
    return hour << 11 | minute << 5 | second // 2, (year - 1980) << 9 | month << 5 | day


def _without_zip64(extra: bytes) -> bytes:
    """Return extra fields without the zip64 one, which is written again where needed."""
    kept = b""
    while len(extra) >= _EXTRA.size:
        kind, size = _EXTRA.unpack_from(extra)
        if kind != _ZIP64_EXTRA:
            kept += extra[: _EXTRA.size + size]
        extra = extra[_EXTRA.size + size :]
    return kept
