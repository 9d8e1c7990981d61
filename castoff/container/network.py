"""The network settings of this machine for containers: package index, proxy and trusted certificates.

None of them stay in an image. While an image is built they are secrets; while a container runs, they are
environment variables and a mounted file.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from castoff.core.pipconfig import pip_settings, uv_environment

SECRETS = Path("/run/secrets")
_CERTIFICATE_VARIABLES = ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO")
_PASSED_ON = ("http_proxy", "https_proxy", "no_proxy", "all_proxy", "npm_config_registry")
_PASSED_ON_PREFIX = ("UV_DEFAULT_INDEX", "UV_INDEX", "UV_EXTRA_INDEX", "UV_INSECURE", "UV_HTTP_TIMEOUT")
_PIP_SETTINGS = ("index-url", "extra-index-url", "find-links", "no-index", "trusted-host", "proxy", "timeout")
_PLACES = ("index-url", "extra-index-url", "find-links")


@dataclass(frozen=True)
class Network:
    """The settings with which this machine reaches a package index."""

    variables: Mapping[str, str]  # environment variables for pip, uv and other programs
    certificates: Path | None  # the file of additional trusted certificates, or None
    folders: tuple[Path, ...]  # folders of this machine that serve as indexes

    def for_run(self) -> tuple[dict[str, str], dict[Path, str]]:
        """Return environment variables and volumes for a container."""
        variables, volumes = dict(self.variables), dict.fromkeys(self.folders, "ro")
        if self.certificates is not None:
            variables.update({name: str(self.certificates) for name in _CERTIFICATE_VARIABLES})
            volumes[self.certificates] = "ro"
        return variables, volumes

    def for_build(self, folder: Path) -> dict[str, Path]:
        """Return the secrets of an image's build, by name.

        Args:
            folder: Where to write the one that is not a file yet.
        """
        variables, secrets = dict(self.variables), {}
        if self.certificates is not None:
            secrets["ca.crt"] = self.certificates
            variables.update({name: str(SECRETS / "ca.crt") for name in _CERTIFICATE_VARIABLES})
        secrets["network"] = folder / "network"
        text = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in sorted(variables.items()))
        secrets["network"].touch(mode=0o600)
        secrets["network"].write_text(text, encoding="utf-8")
        return secrets


def machine_network(environment: Mapping[str, str], listing: str | None = None) -> Network:
    """Return the settings with which this machine reaches a package index.

    Args:
        listing: The output of `pip config list`; of the running Python's pip if not given.
    """
    settings = pip_settings(_ask_pip() if listing is None else listing)
    certificates = _certificates(environment, settings)
    folders, kept = [], {}
    for name in _PIP_SETTINGS:
        if name in settings:
            words = settings[name].split()
            local = [path for word in words if name in _PLACES and (path := _local(word)) is not None]
            folders += [path for path in local if path.is_dir()]
            # uv fails for a folder that does not exist.
            words = [word for word in words if name not in _PLACES or _local(word) is None or _local(word) in folders]
            if words:
                kept[name] = " ".join(words)
    variables = {"PIP_" + name.upper().replace("-", "_"): value for name, value in kept.items()}
    given = {name: value for name, value in environment.items() if name.startswith(_PASSED_ON_PREFIX)}
    uv = uv_environment(kept, given, has_uv_config=False)
    variables.update(
        {name: value for name, value in uv.items() if name not in ("UV_PYTHON_DOWNLOADS", "UV_NO_PROGRESS")}
    )
    variables.update({name: value for name, value in environment.items() if name.lower() in _PASSED_ON})
    return Network(variables, certificates, tuple(dict.fromkeys(folders)))


def without_folders(network: Network) -> Network:
    """Return the same without folders of this machine, which a build of an image cannot see."""
    variables = {}
    for name, value in network.variables.items():
        separator = "," if name == "UV_FIND_LINKS" else " "
        words = [word for word in value.split(separator) if _local(word) not in network.folders]
        if words:
            variables[name] = separator.join(words)
    return Network(variables, network.certificates, ())


def _local(word: str) -> Path | None:
    """Return the folder of this machine that a value of pip's settings is, or None."""
    parts = urlsplit(word)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    return Path(word) if word.startswith("/") else None


def _certificates(environment: Mapping[str, str], settings: Mapping[str, str]) -> Path | None:
    places: list[str | None] = [environment.get(name) for name in _CERTIFICATE_VARIABLES]
    places.insert(2, settings.get("cert"))
    return next((Path(place).resolve() for place in places if place and Path(place).is_file()), None)


def _ask_pip() -> str:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "config", "list"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ))
    return done.stdout if done.returncode == 0 else ""
