"""Strict reading of TOML files: every key known, every value of its kind.

Pins and topics are data that people write by hand. A misspelt key that is silently ignored
would change what is built, so anything unexpected is an error that names the file and the key.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from castoff.core.errors import CastoffError


class Table:
    """One TOML table, read key by key.

    Args:
        path: The file it comes from, for messages.
        data: The table.
        error: The class of error to raise.
        where: The dotted name of this table in the file.
    """

    def __init__(self, path: Path, data: Mapping[str, object], error: type[CastoffError], where: str = "") -> None:
        self._path = path
        self._data = data
        self._error = error
        self._where = where
        self._read: set[str] = set()

    @classmethod
    def load(cls, path: Path, error: type[CastoffError]) -> Table:
        """Read a file's top table.

        Args:
            path: The TOML file.
            error: The class of error to raise if it is missing or malformed.
        """
        try:
            with path.open("rb") as file:
                return cls(path, tomllib.load(file), error)
        except FileNotFoundError as cause:
            raise error(
                f"{path.name} is missing", expected=str(path), found="no such file", next_step=f"Add {path}."
            ) from cause
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as cause:
            raise error(
                f"{path.name} is not TOML", expected="valid TOML in UTF-8", found=str(cause), next_step=f"Mend {path}."
            ) from cause

    def names(self) -> list[str]:
        """Return the keys in the order of the file."""
        return list(self._data)

    def has(self, key: str) -> bool:
        """Tell whether there is such a key."""
        return key in self._data

    def text(self, key: str, pattern: str = r"(?s).*\S.*", *, example: str = "a non-empty string") -> str:
        """Return a string.

        Args:
            key: Its key.
            pattern: What the whole of it must match.
            example: What a right one is like, for the message.
        """
        value = self._get(key, example)
        if not isinstance(value, str) or re.fullmatch(pattern, value) is None:
            self.fail(key, example, repr(value))
        return value

    def texts(self, key: str, pattern: str = r"(?s).*\S.*", *, example: str = "strings") -> tuple[str, ...]:
        """Return a list of strings without repetitions; empty if the key is absent.

        Args:
            key: Its key.
            pattern: What the whole of each must match.
            example: What right ones are like, for the message.
        """
        if key not in self._data:
            return ()
        values = self._get(key, example)
        if not isinstance(values, list):
            self.fail(key, f"a list of {example}", repr(values))
        for value in values:
            if not isinstance(value, str) or re.fullmatch(pattern, value) is None:
                self.fail(key, f"a list of {example}", repr(value))
        if len(set(values)) != len(values):
            self.fail(key, "no entry twice", repr(values))
        return tuple(values)

    def number(self, key: str, allowed: tuple[int, ...]) -> int:
        """Return a whole number that is one of ``allowed``."""
        expected = " or ".join(map(str, allowed))
        value = self._get(key, expected)
        if not isinstance(value, int) or isinstance(value, bool) or value not in allowed:
            self.fail(key, expected, repr(value))
        return value

    def table(self, key: str) -> Table:
        """Return a table within this one."""
        value = self._get(key, "a table")
        if not isinstance(value, dict):
            self.fail(key, "a table", repr(value))
        return Table(self._path, value, self._error, self._name(key))

    def tables(self, key: str) -> list[Table]:
        """Return a non-empty list of tables within this one."""
        values = self._get(key, f"[[{key}]] entries")
        if not isinstance(values, list) or not values or not all(isinstance(value, dict) for value in values):
            self.fail(key, f"[[{key}]] entries", repr(values))
        return [
            Table(self._path, value, self._error, f"{self._name(key)}[{index}]") for index, value in enumerate(values)
        ]

    def done(self) -> None:
        """Check that no key was left unread: it would be one that nobody knows."""
        unknown = [key for key in self._data if key not in self._read]
        if unknown:
            self.fail(unknown[0], f"only the keys {', '.join(sorted(self._read))}", "an unknown key")

    def fail(self, key: str, expected: str, found: str) -> NoReturn:
        """Raise this file's error about a key.

        Args:
            key: The key at fault.
            expected: What it had to be.
            found: What it is.
        """
        name = self._name(key)
        raise self._error(
            f"{self._path.name}: {name} is wrong",
            expected=expected,
            found=found,
            next_step=f"Mend {name} in {self._path}.",
        )

    def _get(self, key: str, expected: str) -> object:
        self._read.add(key)
        if key not in self._data:
            self.fail(key, expected, "no such key")
        return self._data[key]

    def _name(self, key: str) -> str:
        return f"{self._where}.{key}" if self._where else key
