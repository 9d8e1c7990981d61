"""The bill of materials of a release, in CycloneDX 1.6: its wheels, and the upstream wheels in them."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from email.message import Message
from email.parser import BytesParser

from cyclonedx.model import HashAlgorithm, HashType, Property, XsUri
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Commit, Component, ComponentType, Pedigree
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from castoff.release.index import wheel_metadata
from castoff.release.layout import Input, ReleasedWheel


def sbom(wheels: Sequence[ReleasedWheel], version: str, released: date) -> str:
    """Return the bill of materials as JSON: the same text for the same wheels.

    Args:
        released: The date of the release.
    """
    root = Component(name="castoff", type=ComponentType.APPLICATION, version=version, bom_ref=f"castoff {version}")
    metadata = {wheel.path.name: BytesParser().parsebytes(wheel_metadata(wheel.path)) for wheel in wheels}
    components = {wheel.path.name: _component(wheel, metadata[wheel.path.name]) for wheel in wheels}
    bom = Bom(
        serial_number=uuid.uuid5(uuid.NAMESPACE_OID, "\n".join(sorted(wheel.sha256 for wheel in wheels))),
        metadata=BomMetaData(
            component=root, timestamp=datetime(released.year, released.month, released.day, tzinfo=UTC)
        ),
        components=components.values(),
    )
    bom.register_dependency(root, components.values())
    for name, component in components.items():
        bom.register_dependency(component, [components[other] for other in _required(name, metadata)])
    return JsonV1Dot6(bom).output_as_string(indent=1) + "\n"


def _component(wheel: ReleasedWheel, metadata: Message) -> Component:
    name, version = wheel.path.name.split("-")[:2]
    return Component(
        name=name,
        version=version,
        description=metadata["Summary"],
        bom_ref=wheel.path.name,
        purl=_purl(name, version, wheel.path.name),
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=wheel.sha256)],
        properties=[
            Property(name="castoff:file", value=wheel.path.name),
            *(Property(name="castoff:requires", value=line) for line in metadata.get_all("Requires-Dist", [])),
        ],
        pedigree=_pedigree(wheel.base, name, wheel.topics) if wheel.base is not None else None,
    )


def _pedigree(base: Input, name: str, topics: Sequence[str]) -> Pedigree:
    ancestor = Component(
        name=name,
        version=base.version,
        bom_ref=f"{base.file} {base.sha256}",
        purl=_purl(name, base.version, base.file),
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=base.sha256)],
    )
    commit = Commit(uid=base.commit, url=XsUri(f"{base.repository}/commit/{base.commit}"))
    return Pedigree(ancestors=[ancestor], commits=[commit], notes=f"patched by {', '.join(topics)}")


def _required(file: str, metadata: Mapping[str, Message]) -> list[str]:
    """Return which wheels of this very release a wheel requires: torch_xla its torch, for the same CPython."""
    lines = metadata[file].get_all("Requires-Dist", [])
    exact = {
        (canonicalize_name(wanted.name), str(wanted.specifier).removeprefix("==")) for wanted in map(Requirement, lines)
    }
    found = []
    for other in metadata:
        name, version, python = other.split("-")[:3]
        if (canonicalize_name(name), version) in exact and python == file.split("-")[2]:
            found.append(other)
    return found


def _purl(name: str, version: str, file: str) -> PackageURL:
    return PackageURL(type="pypi", name=name, version=version, qualifiers={"file_name": file})
