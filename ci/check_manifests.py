"""Checks Kubernetes manifests of the examples.

    .venv/bin/python ci/check_manifests.py examples/cluster/jobset.yaml

They are checked against the types of the JobSet API and of the Kubernetes API under it, from the JobSet
controller's own OpenAPI document (in the package kubeflow-trainer-api). An unknown field, which a server drops
silently, is an error. So is a wrong number of pods for a slice, which only the controllers check.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

from kubeflow_trainer_api.models.jobset_v1alpha2_job_set import JobsetV1alpha2JobSet
from pydantic import ValidationError
from ruamel.yaml import YAML

API = ("jobset.x-k8s.io/v1alpha2", "JobSet")
CHIPS = "google.com/tpu"


def check(manifest: object) -> Iterator[str]:
    """Yield the problems of a manifest."""
    if not isinstance(manifest, dict) or (manifest.get("apiVersion"), manifest.get("kind")) != API:
        yield f"expected apiVersion and kind {API}"
        return
    try:
        understood = JobsetV1alpha2JobSet.from_dict(manifest)
    except ValidationError as error:
        for problem in error.errors():
            yield f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}"
        return
    assert understood is not None
    yield from differences(manifest, understood.to_dict(), "")
    for job in manifest["spec"].get("replicatedJobs") or []:
        yield from slice_problems(job)


def differences(given: object, understood: object, place: str) -> Iterator[str]:
    """Yield the fields of a manifest that the types do not have."""
    if isinstance(given, dict) and isinstance(understood, dict):
        for name, value in given.items():
            if name not in understood:
                yield f"{place}{name}: no such field"
            else:
                yield from differences(value, understood[name], f"{place}{name}.")
    elif isinstance(given, list) and isinstance(understood, list) and len(given) == len(understood):
        for number, (one, other) in enumerate(zip(given, understood, strict=True)):
            yield from differences(one, other, f"{place}{number}.")
    elif given != understood:
        yield f"{place.rstrip('.')}: {given!r} was read as {understood!r}"


def slice_problems(job: dict) -> Iterator[str]:
    """Yield the jobs whose pods do not match the slice that they request."""
    spec = job["template"]["spec"]
    pod = spec["template"]["spec"]
    topology = pod.get("nodeSelector", {}).get("cloud.google.com/gke-tpu-topology")
    limits = [container["resources"]["limits"][CHIPS] for container in pod["containers"]]
    wanted = 1
    for length in str(topology).split("x"):
        wanted *= int(length)
    if spec["parallelism"] != spec["completions"] or spec["parallelism"] * sum(limits) != wanted:
        found = f"{spec['parallelism']} pods with {sum(limits)} each, {spec['completions']} completions"
        yield f"{job['name']}: expected {wanted} chips for {topology}, each pod completed once, found {found}"


def main() -> int:
    """Check the files that are named, and return the exit status."""
    problems = [f"{name}: {problem}" for name in sys.argv[1:] for problem in check(YAML(typ="safe").load(Path(name)))]
    print(*problems, sep="\n", end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
