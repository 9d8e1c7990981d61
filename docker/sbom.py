"""Writes the training image's bill of materials, in CycloneDX 1.6: sbom.py ENVIRONMENT TARGET.

It has the Python packages that cyclonedx-py finds, castoff's wheels with their hashes, and Debian's packages, which
cyclonedx-py does not find. Runs with the tools' Python, as a step of train.Dockerfile.
"""

import json
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

VERSION = SchemaVersion.V1_6
DIST = Path(__file__).resolve().parent / "dist"
FIELDS = ("binary:Package", "Version", "Architecture", "source:Package", "source:Version")


def python_packages(environment: Path) -> dict:
    """Return the bill of materials of a Python environment."""
    tool = Path(sys.executable).with_name("cyclonedx-py")
    command = [tool, "environment", "--output-reproducible", "--spec-version", VERSION.to_version(), environment]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def debian_packages() -> list[dict]:
    """Return the packages that dpkg knows, as components."""
    form = "\t".join(f"${{{name}}}" for name in FIELDS) + "\n"
    listing = subprocess.run(["dpkg-query", "-W", "-f", form], check=True, stdout=subprocess.PIPE, text=True).stdout
    return [debian_component(*line.split("\t")) for line in listing.splitlines()]


def debian_component(package: str, version: str, architecture: str, source: str, source_version: str) -> dict:
    """Return one of Debian's packages as a component."""
    name = package.partition(":")[0]
    purl = f"pkg:deb/debian/{quote(name)}@{quote(version)}?arch={architecture}&distro=debian-12"
    properties = [
        {"name": "debian:source", "value": source},
        {"name": "debian:source:version", "value": source_version},
    ]
    return {
        "type": "library",
        "bom-ref": purl,
        "name": name,
        "version": version,
        "purl": purl,
        "properties": properties,
    }


def with_hashes(bom: dict, manifest: dict) -> None:
    """Add the hashes of the manifest to castoff's wheels."""
    hashes = {project.replace("_", "-"): wheel["sha256"] for project, wheel in manifest["wheels"].items()}
    if "libtpu" in manifest:
        hashes["libtpu"] = manifest["libtpu"]["sha256"]
    for component in bom["components"]:
        name = component["name"].replace("_", "-")
        if name in hashes:
            component["hashes"] = [{"alg": "SHA-256", "content": hashes[name]}]


def main() -> None:
    environment, target = map(Path, sys.argv[1:])
    manifest = json.loads((DIST / "manifest.json").read_text(encoding="utf-8"))
    bom = python_packages(environment)
    with_hashes(bom, manifest)
    bom["components"] += debian_packages()
    version = manifest["wheels"]["torch_xla"]["version"]
    bom["metadata"]["component"] = {"type": "container", "bom-ref": "castoff", "name": "castoff", "version": version}
    text = json.dumps(bom, indent=1)
    problem = JsonStrictValidator(VERSION).validate_str(text)
    if problem is not None:
        sys.exit(f"expected a valid CycloneDX {VERSION.to_version()} document, found {problem}")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
