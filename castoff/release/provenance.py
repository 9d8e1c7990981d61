"""Provenance of a release: an in-toto statement v1 with a SLSA provenance v1 predicate.

It has no times and no number of the run: the same tree gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from pydantic.alias_generators import to_camel

LOCAL_BUILDER = "urn:castoff:builder:local"
"""The builder of a release that is made by hand: nobody vouches for it."""

_Uri = Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9+.-]*:\S+$")]
_Digest = dict[
    Literal["sha256", "gitCommit"], Annotated[str, StringConstraints(pattern=r"^([0-9a-f]{40}|[0-9a-f]{64})$")]
]


class _Model(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True)


class Resource(_Model):
    """An in-toto resource descriptor: a file, or a tree at a commit."""

    name: str | None = None
    uri: _Uri | None = None
    digest: _Digest = Field(min_length=1)
    annotations: dict[str, str] | None = None


class BuildDefinition(_Model):
    """What was asked for, and what went in."""

    build_type: Literal["urn:castoff:build:release:v1"] = "urn:castoff:build:release:v1"  # docs/install.md
    external_parameters: dict[str, list[str]]
    internal_parameters: dict[str, list[str]]
    resolved_dependencies: tuple[Resource, ...] = Field(min_length=1)


class Builder(_Model):
    """Who made it."""

    id: _Uri
    version: dict[str, str]


class RunDetails(_Model):
    """How it was made."""

    builder: Builder


class Predicate(_Model):
    """A SLSA provenance v1."""

    build_definition: BuildDefinition
    run_details: RunDetails


class Statement(_Model):
    """An in-toto statement v1 about the wheels of a release."""

    type: Literal["https://in-toto.io/Statement/v1"] = Field(default="https://in-toto.io/Statement/v1", alias="_type")
    subject: tuple[Resource, ...] = Field(min_length=1)
    predicate_type: Literal["https://slsa.dev/provenance/v1"] = "https://slsa.dev/provenance/v1"
    predicate: Predicate

    def text(self) -> str:
        """Return it as JSON."""
        return self.model_dump_json(by_alias=True, exclude_none=True, indent=1) + "\n"

    def tree(self) -> Resource:
        """Return castoff's tree among what went in.

        Raises:
            ValueError: It is not there.
        """
        found = [part for part in self.predicate.build_definition.resolved_dependencies if "gitCommit" in part.digest]
        if len(found) != 1:
            raise ValueError(f"{len(found)} trees among resolvedDependencies")
        return found[0]


def tree_resource(revision: str, repository: str | None) -> Resource:
    """Return castoff's tree as an input.

    Args:
        revision: Its commit, with "-dirty" behind it if it has changes that are not committed.
        repository: Its address, if it is known.
    """
    commit, _, dirty = revision.partition("-")
    return Resource(
        name="castoff",
        uri=f"git+{repository}@{commit}" if repository else None,
        digest={"gitCommit": commit},
        annotations={"dirty": "it has changes that are not committed"} if dirty else None,
    )


def statement(
    *,
    subject: Sequence[Resource],
    inputs: Sequence[Resource],
    asked: dict[str, list[str]],
    tools: dict[str, list[str]],
    builder: str,
    version: str,
) -> Statement:
    """Return the provenance of a release.

    Args:
        tools: What made them besides castoff.
        builder: The URI of who made it.
    """
    definition = BuildDefinition(
        external_parameters=asked, internal_parameters=tools, resolved_dependencies=tuple(inputs)
    )
    details = RunDetails(builder=Builder(id=builder, version={"castoff": version}))
    return Statement(subject=tuple(subject), predicate=Predicate(build_definition=definition, run_details=details))
