"""pip's configuration as uv's environment variables.

uv does not read pip's configuration. If a user has configured only pip, uv gets the same
indexes and certificates through its environment variables.
"""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # castoff.container has the standard library only
    from castoff.core.runner import Runner

_SETTING = re.compile(r"(?P<section>[^.\s]+)\.(?P<name>[\w-]+)=(?P<value>.*)")
_SECTIONS = {"global": 0, "install": 1, ":env:": 2}
# uv has the option --no-index, and no variable for it. An index without packages does the same.
_NO_INDEX = "file:///no-index"
_UV_INDEX_VARIABLES = ("UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS")


def pip_settings(listing: str) -> dict[str, str]:
    """Return pip's settings for installing.

    Returns:
        The settings by name, without section; the environment's over those of `pip install` over
        the global ones.
    """
    found: dict[str, tuple[int, str]] = {}
    for line in listing.splitlines():
        match = _SETTING.fullmatch(line.strip())
        if match is None or match["section"] not in _SECTIONS:
            continue
        rank = _SECTIONS[match["section"]]
        if match["name"] not in found or found[match["name"]][0] <= rank:
            found[match["name"]] = (rank, str(ast.literal_eval(match["value"])))
    return {name: value for name, (_, value) in found.items()}


def uv_environment(settings: Mapping[str, str], environment: Mapping[str, str], has_uv_config: bool) -> dict[str, str]:
    """Return the environment to run uv in.

    Args:
        has_uv_config: Whether the user has a configuration file of uv.
    """
    result = dict(environment)
    # castoff itself chooses the scratch environment and its Python.
    for name in ("VIRTUAL_ENV", "UV_PYTHON", "UV_SYSTEM_PYTHON", "UV_CONSTRAINT", "UV_OVERRIDE", "PYTHONPATH"):
        result.pop(name, None)
    result["UV_PYTHON_DOWNLOADS"] = "never"
    result["UV_NO_PROGRESS"] = "1"
    if "cert" in settings:
        result.setdefault("SSL_CERT_FILE", settings["cert"])
    if "proxy" in settings:
        result.setdefault("ALL_PROXY", settings["proxy"])
    if "trusted-host" in settings:
        result.setdefault("UV_INSECURE_HOST", " ".join(settings["trusted-host"].split()))
    if "timeout" in settings or "default-timeout" in settings:
        result.setdefault("UV_HTTP_TIMEOUT", settings.get("timeout", settings.get("default-timeout", "")))
    if not has_uv_config and not any(name in environment for name in _UV_INDEX_VARIABLES):
        result.update(_indexes(settings))
        # pip takes the best version of all indexes; uv by default the first index that knows the name.
        result.setdefault("UV_INDEX_STRATEGY", "unsafe-best-match")
    return result


def _indexes(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the places where pip looks for packages, as uv's variables."""
    result = {}
    if "find-links" in settings:
        result["UV_FIND_LINKS"] = ",".join(settings["find-links"].split())
    if settings.get("no-index", "").lower() in ("1", "true", "yes", "on"):
        return {**result, "UV_DEFAULT_INDEX": _NO_INDEX}
    if "index-url" in settings:
        result["UV_DEFAULT_INDEX"] = settings["index-url"]
    if "extra-index-url" in settings:
        result["UV_INDEX"] = " ".join(settings["extra-index-url"].split())
    return result


def current_uv_environment(runner: Runner) -> dict[str, str]:
    """Return the environment to run uv in, from this machine's configuration."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "config", "list"]
    listing = runner.run(command, name="pip-config").output
    home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    files = (home / "uv" / "uv.toml", Path("/etc/uv/uv.toml"))
    has_uv_config = "UV_CONFIG_FILE" in os.environ or any(path.is_file() for path in files)
    return uv_environment(pip_settings(listing), os.environ, has_uv_config)
