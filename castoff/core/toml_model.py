"""Models of the TOML files that people write: pins, topics, recipes for upstream.

A misspelt key that was silently ignored would change what is built. So a file may have the keys of its model
only, and everything that is wrong with it is reported at once, by key. The docstring under a key documents it.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any, NoReturn, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from castoff.core.errors import CastoffError


class Model(BaseModel):
    """A table of a TOML file."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


M = TypeVar("M", bound=Model)


def wrong(expected: str, found: str, key: str = "") -> PydanticCustomError:
    """Return the error of a validator.

    Args:
        key: The key at fault, for validators of a whole table.
    """
    return PydanticCustomError("wrong", "{expected}", {"expected": expected, "found": found, "key": key})


def matching(pattern: str, expected: str) -> AfterValidator:
    """Return the check that a whole string matches a pattern.

    Args:
        expected: What a correct string looks like, for the message.
    """

    def check(value: str) -> str:
        if re.fullmatch(pattern, value) is None:
            raise wrong(expected, repr(value))
        return value

    return AfterValidator(check)


def _check_unique(values: tuple[object, ...]) -> tuple[object, ...]:
    if len(set(values)) != len(values):
        raise wrong("no entry twice", repr(list(values)))
    return values


unique = AfterValidator(_check_unique)
"""The check that a list has no entry twice."""

not_empty = matching(r"(?s).*\S.*", "a non-empty string")


def read_toml(path: Path, model: type[M], error: type[CastoffError]) -> M:
    """Read a TOML file.

    Args:
        model: What it must be.
        error: The class of error to raise.

    Raises:
        CastoffError: The file is missing or not TOML, or has wrong, missing or unknown keys: all of them.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as cause:
        raise error(
            f"{path.name} is missing", expected=str(path), found="no such file", next_step=f"Add {path}."
        ) from cause
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as cause:
        raise error(
            f"{path.name} is not TOML", expected="valid TOML in UTF-8", found=str(cause), next_step=f"Correct {path}."
        ) from cause
    try:
        return model.model_validate(data)
    except ValidationError as cause:
        fail(path, error, [_problem(details, model) for details in cause.errors(include_url=False)])


def fail(path: Path, error: type[CastoffError], problems: list[tuple[str, str, str]]) -> NoReturn:
    """Raise the error of a file.

    Args:
        error: The class of error to raise.
        problems: For each wrong key its name, what was expected and what was found.
    """
    keys = ", ".join(dict.fromkeys(key for key, _, _ in problems))
    if len(problems) == 1:
        [(_, expected, found)] = problems
    else:
        expected = "".join(f"\n  {key}: {text}" for key, text, _ in problems)
        found = "".join(f"\n  {key}: {text}" for key, _, text in problems)
    verb = "is" if ", " not in keys else "are"
    raise error(
        f"{path.name}: {keys} {verb} wrong", expected=expected, found=found, next_step=f"Correct {keys} in {path}."
    )


def _problem(details: ErrorDetails, model: type[Model]) -> tuple[str, str, str]:
    """Return the key that an error is about, what was expected and what was found."""
    table = _table_at(model, details["loc"])
    last = details["loc"][-1] if details["loc"] else ""
    context = details.get("ctx", {})
    key = ""
    for part in (*details["loc"], context.get("key", "")):
        if isinstance(part, int):
            key += f"[{part}]"
        elif part not in ("", "[key]"):
            key += f".{part}" if key else part
    if details["type"] == "missing":
        return key, table.model_fields[str(last)].description or "a value", "no such key"
    if details["type"] == "extra_forbidden":
        return key, f"only the keys {', '.join(table.model_fields)}", "an unknown key"
    return key, details["msg"], str(context.get("found") or repr(details["input"]))


def _table_at(model: type[Model], place: tuple[int | str, ...]) -> type[Model]:
    """Return the model of the table that an error's key is in."""
    for part in place[:-1]:
        field = model.model_fields.get(str(part))
        if field is not None:
            model = _model_in(field.annotation) or model
    return model


def _model_in(annotation: Any) -> type[Model] | None:
    """Return the model that an annotation such as ``tuple[Wheel, ...]`` or ``Wheel | None`` is about."""
    if isinstance(annotation, type) and issubclass(annotation, Model):
        return annotation
    return next((found for part in get_args(annotation) if (found := _model_in(part)) is not None), None)
