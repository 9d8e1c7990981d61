"""Installs the wheels of a dist folder, and their requirements, into an environment: the steps of train.Dockerfile.

    install.py dependencies ENVIRONMENT [--cuda install|leave-out]   makes it; the requirements of torch and torch_xla
    install.py torch|torch_xla ENVIRONMENT                           the wheel; libtpu with torch_xla, for a TPU
    install.py check ENVIRONMENT [--cuda …]                          checks that nothing is missing or changed

The folder is beside this file, dist/, with its manifest.json. A wheel with another hash than the manifest says is
refused. Runs with the tools' Python, needs uv beside it, and the standard library only.
"""

import argparse
import email.parser
import hashlib
import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

CONTEXT = Path(__file__).resolve().parent
DIST = CONTEXT / "dist"
PYTHON = "3.11"  # Debian 12's
NETWORK = Path("/run/secrets/network")


class RefusedError(Exception):
    """The folder does not have the wheels for the image."""


def read_manifest(dist: Path) -> dict:
    """Return the manifest of a dist folder.

    Raises:
        RefusedError: It is missing, or its wheels are for another CPython than the image's.
    """
    try:
        manifest = json.loads((dist / "manifest.json").read_text(encoding="utf-8"))
        python = manifest["python"]
    except (OSError, ValueError, KeyError) as error:
        raise RefusedError(f"expected manifest.json of a castoff build in {dist}, found {error!r}") from error
    if python != PYTHON:
        raise RefusedError(
            f"expected wheels for CPython {PYTHON}, which Debian 12 has, found {python}; ./build.sh --python {PYTHON}"
        )
    return manifest


def wheels(dist: Path, manifest: dict, project: str) -> list[Path]:
    """Return a project's wheel, and libtpu's with torch_xla's, where the manifest has one.

    Raises:
        RefusedError: One is missing, or has another hash than the manifest says.
    """
    entries = [manifest["wheels"][project]]
    if project == "torch_xla" and "libtpu" in manifest:
        entries.append(manifest["libtpu"])
    for entry in entries:
        path = dist / entry["file"]
        found = sha256(path) if path.is_file() else "no such file"
        if found != entry["sha256"]:
            raise RefusedError(
                f"{entry['file']} is not the wheel that was built: expected sha256 {entry['sha256']}, as "
                f"manifest.json says, found {found}; build it again"
            )
    return [dist / entry["file"] for entry in entries]


def sha256(path: Path) -> str:
    """Return a file's sha256."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def cuda_requirements(wheel: Path, names: list[str]) -> list[str]:
    """Return the requirements of a wheel on the packages of these names."""
    with zipfile.ZipFile(wheel) as archive:
        member = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = email.parser.BytesParser().parsebytes(archive.read(member))
    lines = map(str, metadata.get_all("Requires-Dist", []))
    return [line for line in lines if re.match(r"[\w.-]+", line)[0] in names]


def missing(report: str) -> set[str]:
    """Return the packages that `uv pip check` reports as missing."""
    return set(re.findall(r"requires `([\w.-]+)[^`]*`, but it's not installed", report))


def uv(*arguments: str | Path, check: bool = True) -> str:
    """Run uv, and return its output."""
    tool = Path(sys.executable).with_name("uv")
    network = f'[ ! -f {NETWORK} ] || . {NETWORK}; exec "$@"'
    command = ["/bin/sh", "-c", network, "sh", tool, *arguments, "--no-cache", "--no-progress"]
    done = subprocess.run(command, check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if check and done.returncode != 0:
        raise RefusedError(f"expected uv {' '.join(map(str, arguments[:2]))} to succeed, found\n{done.stdout}")
    return done.stdout


def install(environment: Path, *arguments: str | Path) -> None:
    """Install into an environment, with byte code: the image's file system may be read-only."""
    uv("pip", "install", "--python", environment, "--compile-bytecode", "--no-deps", *arguments)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=["dependencies", "torch", "torch_xla", "check"])
    parser.add_argument("environment", type=Path)
    parser.add_argument("--cuda", choices=["install", "leave-out"], default="install")
    options = parser.parse_args()
    manifest = read_manifest(DIST)
    cuda = manifest["cuda_packages"]
    if options.step == "check":
        left_out = set(cuda) if options.cuda == "leave-out" else set()
        report = uv("pip", "check", "--python", options.environment, check=False)
        problems = len(re.findall("^The package ", report, re.MULTILINE))
        if missing(report) != left_out or problems != len(left_out):
            raise RefusedError(
                f"expected all that the wheels require{' but CUDA' if left_out else ''}, found\n{report}"
            )
    elif options.step == "dependencies":
        uv("venv", "--no-project", "--python", f"/usr/bin/python{PYTHON}", options.environment)
        install(options.environment, "--require-hashes", "--only-binary", ":all:", "-r", CONTEXT / "train.lock")
        if cuda and options.cuda == "install":
            install(options.environment, *cuda_requirements(wheels(DIST, manifest, "torch")[0], cuda))
        elif cuda:
            (options.environment / "lib" / f"python{PYTHON}" / "site-packages" / "nvidia").mkdir()  # to mount them at
    else:
        install(options.environment, "--offline", *wheels(DIST, manifest, options.step))


if __name__ == "__main__":
    try:
        main()
    except RefusedError as error:
        sys.exit(f"refused: {error}")
