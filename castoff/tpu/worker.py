"""Compiles StableHLO for TPUs: run with the compiler environment's Python, one job a line of standard input.

A job is ``{"stablehlo": base64, "topology": "v5e:2x2", "partitions": 4, "options": {…}}``, or
``{"topology": …}`` to get the number of devices; the answer is one line of JSON on standard output. libtpu's own
output goes to standard error. No TPU is needed or used.
"""

import base64
import importlib.metadata
import io
import json
import os
import re
import sys

MAGIC = b"ML\xefR"  # of MLIR bytecode

FAMILIES = ("v2", "v3", "v4", "v5e", "v5p", "v6e", "tpu7x")
"""Names to try on libtpu if it does not know the user's name."""


class BadJobError(Exception):
    """An error in a job that the user can correct: its kind, what was expected and what was found."""

    def __init__(self, kind, expected, found):
        super().__init__(found)
        self.kind, self.expected, self.found = kind, expected, found


def host_bounds(topology):
    """Return the chips of one host: 2x2x1, or fewer if the topology has an odd number of chips."""
    layout = re.fullmatch(r"[^:=]+[:=](\d+(?:x\d+)*)(?:_\w+)?", topology)
    sizes = [int(size) for size in layout[1].split("x")] if layout else []
    return (*(2 if size % 2 == 0 else 1 for size in [*sizes, 1, 1][:2]), 1)


def devices_of(topology):
    """Return the devices of a topology, by its name.

    Raises:
        BadJobError: libtpu knows no such topology.
    """
    from jax.experimental import topologies

    try:
        description = topologies.get_topology_desc(
            platform="tpu", topology_name=topology, chips_per_host_bounds=host_bounds(topology)
        )
    except Exception as error:
        expected = f"one of {', '.join(known_topologies())}, or another size of these"
        raise BadJobError("topology", expected, said(error)) from error
    return description.devices


def known_topologies():
    """Return a topology of each TPU generation that this libtpu knows."""
    from jax.experimental import topologies

    found = []
    for family in FAMILIES:
        for size in ("2x2", "2x2x1"):
            try:
                topologies.get_topology_desc(platform="tpu", topology_name=f"{family}:{size}")
            except Exception:  # noqa: BLE001, S112 - that is the question
                continue
            found.append(f"{family}:{size}")
    # If libtpu accepts both, use the form of the generation's torus: three axes for v4, v5p and tpu7x.
    flat = {name for name in found if name.endswith(":2x2")}
    return [name for name in found if (name in flat) != (name.split(":")[0] in ("v4", "v5p", "tpu7x"))]


def said(error):
    """Return the first lines of an error of XLA's."""
    return "\n".join(str(error).strip().splitlines()[:12])


def program_of(stablehlo, *, parsed):
    """Return StableHLO, which is bytecode or text, as bytecode or as a parsed module: jaxlib takes one of them."""
    if stablehlo.startswith(MAGIC) and not parsed:
        return stablehlo
    from jax._src.interpreters import mlir
    from jax._src.lib.mlir import ir
    from jax._src.lib.mlir.dialects import hlo

    with mlir.make_ir_context() as context:
        if stablehlo.startswith(MAGIC):
            return hlo.deserialize_portable_artifact(context, stablehlo)
        file = io.BytesIO()
        try:
            module = ir.Module.parse(stablehlo.decode())
        except (ir.MLIRError, UnicodeDecodeError) as error:
            raise BadJobError("stablehlo", "StableHLO, as text or bytecode", said(error)) from error
        if parsed:
            return module
        module.operation.write_bytecode(file)
    return file.getvalue()


def compile_job(job):
    """Compile one program and return the result.

    Raises:
        BadJobError: The topology, the number of partitions or the program cannot be compiled.
    """
    import jax
    from jax._src import compiler
    from jax._src.lib import xla_client

    devices = devices_of(job["topology"])
    partitions = job["partitions"]
    if not 1 <= partitions <= len(devices):
        raise BadJobError(
            "partitions", f"1 to {len(devices)} partitions, the devices of {job['topology']}", f"{partitions}"
        )
    devices = devices[:partitions]
    takes_devices = jax.__version_info__ >= (0, 6)  # before that the options name them
    options = compiler.get_compile_options(
        num_replicas=1,
        num_partitions=partitions,
        device_assignment=None if takes_devices else [[device.id for device in devices]],
        env_options_overrides=job["options"] or None,
    )
    sharding = options.executable_build_options
    sharding.use_spmd_partitioning = partitions > 1
    if partitions > 1:  # as torch_xla asks a device: the program's shardings are not Shardy's
        sharding.use_shardy_partitioner = False
        sharding.allow_spmd_sharding_propagation_to_output = [True]
    program = program_of(base64.b64decode(job["stablehlo"]), parsed=jax.__version_info__ >= (0, 10))
    on = (xla_client.DeviceList(tuple(devices)),) if takes_devices else ()
    try:
        executable = devices[0].client.compile(program, *on, options)
    except Exception as error:
        raise BadJobError("program", f"a program that compiles for {job['topology']}", said(error)) from error
    (module,) = executable.hlo_modules()
    stats = executable.get_compiled_memory_stats()
    memory = {
        name: getattr(stats, f"{name}_size_in_bytes")
        for name in ("argument", "output", "alias", "temp", "generated_code")
    }
    return {"hlo": module.to_string(), "memory": memory}


def answer(job):
    """Return the answer to a job."""
    if "stablehlo" in job:
        return compile_job(job)
    devices = devices_of(job["topology"])
    return {"devices": len(devices), "kind": devices[0].device_kind}


def main():
    """Answer jobs until standard input ends."""
    # libtpu and XLA write to standard output: keep the original for the answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    versions = {name: importlib.metadata.version(name) for name in ("jaxlib", "libtpu")}
    print(json.dumps(versions), file=answers)
    for line in sys.stdin:
        try:
            reply = answer(json.loads(line))
        except BadJobError as error:
            reply = {"error": {"kind": error.kind, "expected": error.expected, "found": error.found}}
        print(json.dumps(reply), file=answers)


if __name__ == "__main__":
    main()
