"""The checks of ci/test_images.sh that take more than a line of shell.

    .venv/bin/python ci/image_checks.py same dist/2.9-cpu OTHER/2.9-cpu

same DIST DIST              the wheels are byte for byte the same
cuda DIST                   exit status 0 if torch is a CUDA build
builder                     the builder, made before, plans a build as a user who is not root
expect FOLDER               print the tests in it that state the IR of a graph
image ROOTFS CONFIG DIST    user, labels, health check, size, no compiler, bill of materials, nothing of this machine
run [--mount OUTSIDE:INSIDE]… ROOTFS CONFIG [NAME=VALUE…] [ARGUMENT…]
                            the image's entry point, as its user, on a read-only file system
"""

import argparse
import ast
import json
import os
import re
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from castoff.container.builder import builder_image, builder_job
from castoff.container.builder import run as run_job
from castoff.container.engine import find_engine
from castoff.container.network import machine_network
from castoff.container.train import labels
from castoff.core.places import ROOT

USER = "10001:10001"
BUDGET_MB = {
    "base": 260,
    "torch": 800,
    "torch of a CUDA build": 1900,
    "torch_xla": 340,
    "libtpu": 420,
    "dependencies": 240,
}
"""The most disk space that each part of the image may use. The README states the sizes."""

TOOLS = re.compile(
    r"(.*-)?(gcc|g\+\+|cc|c\+\+|cpp|clang|clang\+\+|ld|as|make|cmake|ninja|bazel|rustc|go|git|uv)(-[\d.]+)?|pip[\d.]*"
)
"""Programs that something could be built or installed with."""

SETTINGS = ("etc", "root", "usr/local", "usr/share/castoff", "opt/castoff/pyvenv.cfg")
"""The folders of an image with files that could contain a host name; the rest is packages."""

# What an image's root file system is mounted with. /mnt is ours: the mount points in it are made in memory.
MOUNTS = """
set -eu
root=$1 user=$2 mounts=$3
shift 3
mount --bind "$root" "$root"
mount -t tmpfs -o size=1m tmpfs "$root/mnt"
for pair in $mounts; do
  inside=$root${pair#*:}
  case ${pair#*:} in /mnt/*) mkdir -p "$inside" ;; esac
  mount --bind "${pair%%:*}" "$inside"
done
mount --bind /proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -o remount,ro,bind "$root"
exec chroot --userspec="$user" "$root" "$@"
"""


def fail(expected: str, found: object) -> None:
    """Exit with what was expected and what was found."""
    sys.exit(f"expected {expected}, found {found}")


def read_manifest(dist: Path) -> dict:
    """Return the manifest of an output folder."""
    return json.loads((dist / "manifest.json").read_text(encoding="utf-8"))


def config(inspected: dict) -> dict:
    """Return the configuration of an image, of what `buildah inspect` prints."""
    return inspected["Docker"]["config"]


def check_same(one: Path, other: Path) -> None:
    """Check that two output folders have the same wheels, byte for byte."""
    manifests = [read_manifest(one), read_manifest(other)]
    compilers = [{overlay["compiler"] for overlay in manifest["overlays"].values()} for manifest in manifests]
    if compilers[0] != compilers[1]:
        print(f"   NOT COMPARED: {one} was made with {compilers[0]}, {other} with {compilers[1]}")
        return
    for project, wheel in manifests[0]["wheels"].items():
        if wheel["sha256"] != manifests[1]["wheels"][project]["sha256"]:
            fail(f"{wheel['file']} with sha256 {wheel['sha256']}", manifests[1]["wheels"][project]["sha256"])
        print(f"   {wheel['sha256']}  {wheel['file']}")


def check_builder() -> int:
    """Run the builder as another user than the calling one, and return its exit status."""
    closed = [str(folder) for folder in (ROOT, *ROOT.parents) if not folder.stat().st_mode & stat.S_IXOTH]
    if closed:
        print(f"   NOT CHECKED as another user, who cannot see {closed}")
        return 0
    network = machine_network(os.environ)
    with tempfile.TemporaryDirectory() as work:
        image = builder_image(ROOT, Path(work), network=network, base=None)
    with tempfile.TemporaryDirectory(dir="/tmp") as cache:  # castoff's own may be under /root
        Path(cache).chmod(0o777)
        os.environ["CASTOFF_CACHE"] = os.environ["UV_CACHE_DIR"] = cache
        job = builder_job(ROOT, image.tag, ["--target", "tpu", "--dry-run"], network, os.environ)
        return run_job(find_engine("buildah"), replace(job, user=(1234, 1234)))


EXPECTING = ("assert_expected_inline", ").expect")


def expect_tests(folder: Path) -> list[str]:
    """Return the tests of a folder that compare with a text in them, as pytest names them."""
    found = []
    for path in sorted(folder.glob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                called = (call.func for call in ast.walk(node) if isinstance(call, ast.Call))
                if any(ast.unparse(name).endswith(EXPECTING) for name in called):
                    found.append(f"{path}::{node.name}")
    return found


def check_config(found: Mapping[str, object], wanted_labels: Mapping[str, str], device: str) -> None:
    """Check what the image says of itself."""
    wanted = {"User": USER, "Entrypoint": ["/usr/local/bin/castoff"], "Cmd": ["--help"], "Volumes": {"/cache": {}}}
    for name, value in wanted.items():
        if found.get(name) != value:
            fail(f"{name} {value}", found.get(name))
    if found["Healthcheck"]["Test"] != ["CMD", "castoff", "health"]:
        fail("the health check `castoff health`", found.get("Healthcheck"))
    off = {
        name: found["Labels"].get(name) for name in wanted_labels if found["Labels"].get(name) != wanted_labels[name]
    }
    if off:
        fail(f"the labels {wanted_labels}", off)
    variables = dict(line.split("=", 1) for line in found["Env"])
    if variables["PJRT_DEVICE"] != device or not variables["XLA_PERSISTENT_CACHE_PATH"].startswith("/cache/"):
        fail(f"PJRT_DEVICE={device} and a compilation cache under /cache", variables)


def programs(rootfs: Path) -> list[str]:
    """Return the programs of a root file system that something could be built with."""
    folders = [rootfs / "opt/castoff/bin", *(rootfs / top / "bin" for top in ("usr", "usr/local")), rootfs / "usr/sbin"]
    return sorted(
        str(path) for folder in folders if folder.is_dir() for path in folder.iterdir() if TOOLS.fullmatch(path.name)
    )


def size_mb(paths: Iterable[Path]) -> float:
    """Return how much disk files take, in 10⁶ bytes, each counted once."""
    seen = {}
    for path in paths:
        status = path.lstat()
        seen[status.st_dev, status.st_ino] = status.st_blocks * 512
    return sum(seen.values()) / 1e6


def sizes(rootfs: Path) -> dict[str, float]:
    """Return how much disk each part of an image takes, in 10⁶ bytes: a part is a layer, or two of Debian's."""
    [site] = (rootfs / "opt/castoff/lib").glob("python3.*/site-packages")
    parts: dict[str, list[Path]] = {"base": [], "dependencies": [], "torch": [], "torch_xla": [], "libtpu": []}
    owners = {}
    for project in ("torch", "torch_xla", "libtpu"):
        for record in site.glob(f"{project}-*.dist-info/RECORD"):
            names = (line.rsplit(",", 2)[0].strip('"') for line in record.read_text(encoding="utf-8").splitlines())
            owners.update({(site / name).resolve(): project for name in names})
    for folder, _, files in os.walk(rootfs):
        for name in files:
            path = Path(folder) / name
            if site not in path.parents:
                parts["base"].append(path)
                continue
            # Byte code belongs to the file that it was made from.
            source = path if "__pycache__" not in path.parts else path.parent.parent / f"{name.split('.')[0]}.py"
            parts[owners.get(source, "dependencies")].append(path)
    return {part: size_mb(paths) for part, paths in parts.items() if paths}


def check_sizes(found: Mapping[str, float], budget: Mapping[str, float]) -> None:
    """Check and print how large the parts of an image are."""
    for part, size in found.items():
        print(f"   {part:<14} {size:7,.0f} MB")
        if size > budget[part]:
            fail(f"{part} within {budget[part]} MB", f"{size:.0f} MB")
    print(f"   {'all':<14} {sum(found.values()):7,.0f} MB")


def check_bill(bom: dict, manifest: dict) -> None:
    """Check that the bill of materials has our wheels with their hashes, and Debian's packages."""
    hashes = {item["content"] for component in bom["components"] for item in component.get("hashes", [])}
    wanted = {wheel["sha256"] for wheel in manifest["wheels"].values()}
    wanted |= {manifest["libtpu"]["sha256"]} if "libtpu" in manifest else set()
    debian = [component for component in bom["components"] if component.get("purl", "").startswith("pkg:deb/debian/")]
    if not wanted <= hashes or not any(component["name"] == "libc6" for component in debian):
        fail(f"a bill of materials with {wanted} and libc6", f"{hashes}, {len(debian)} packages of Debian")
    print(f"   bill of materials: {len(bom['components'])} components, {len(debian)} of them Debian's")


def check_nothing_of_this_machine(rootfs: Path, inspected: dict) -> None:
    """Check that the image has no package index, proxy, certificate or secret of this machine."""
    secrets = sorted(rootfs.glob("run/secrets/*"))
    if secrets:
        fail("no secrets", secrets)
    network = machine_network(os.environ)
    words = {word for value in network.variables.values() for word in re.split("[ ,]", value) if "/" in word}
    text = json.dumps(inspected)
    for word in sorted(words):
        command = ["grep", "-rlFI", "--", word, *(rootfs / folder for folder in SETTINGS)]
        found = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()
        if found or word in text:
            fail(f"nothing that names {word}", found or "its configuration")
    added = sorted(rootfs.glob("usr/local/share/ca-certificates/*"))
    if added:
        fail("no certificates besides Debian's", added)


def check_image(rootfs: Path, inspected: dict, dist: Path) -> None:
    """Check a training image against the output folder that it was made from."""
    manifest = read_manifest(dist)
    check_config(config(inspected), labels(manifest), manifest["target"].upper())
    if programs(rootfs):
        fail("no program to build with", programs(rootfs))
    budget = {**BUDGET_MB, "torch": BUDGET_MB["torch of a CUDA build" if manifest["cuda_packages"] else "torch"]}
    check_sizes(sizes(rootfs), budget)
    check_bill(json.loads((rootfs / "usr/share/castoff/sbom.cdx.json").read_text(encoding="utf-8")), manifest)
    [site] = (rootfs / "opt/castoff/lib").glob("python3.*/site-packages")
    cuda = sorted(path.name for path in site.iterdir() if path.name.startswith(("nvidia_", "triton")))
    if cuda:
        fail("no package for GPUs", cuda)
    check_nothing_of_this_machine(rootfs, inspected)


def run(rootfs: Path, inspected: dict, mounts: Sequence[str], words: Sequence[str]) -> int:
    """Run an image's entry point and return its exit status."""
    found = config(inspected)
    given = 0
    while given < len(words) and re.match(r"[A-Z_]+=", words[given]):
        given += 1
    command = [*found["Entrypoint"], *(words[given:] or found["Cmd"])]
    variables = ["env", "-i", *found["Env"], *words[:given]]
    inner = ["/bin/sh", "-c", 'cd "$0" && exec "$@"', found["WorkingDir"], *command]
    outer = [
        "unshare",
        "--mount",
        "--propagation",
        "private",
        "/bin/sh",
        "-c",
        MOUNTS,
        "sh",
        str(rootfs),
        found["User"],
    ]
    return subprocess.run([*outer, " ".join(mounts), *variables, *inner], check=False).returncode


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="check", required=True)
    for name, arguments in {
        "same": ["one", "other"],
        "cuda": ["dist"],
        "expect": ["folder"],
        "image": ["rootfs", "config", "dist"],
    }.items():
        command = commands.add_parser(name)
        for argument in arguments:
            command.add_argument(argument, type=Path)
    commands.add_parser("builder")
    command = commands.add_parser("run")
    command.add_argument("--mount", action="append", default=[])
    command.add_argument("rootfs", type=Path)
    command.add_argument("config", type=Path)
    command.add_argument("words", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    if options.check == "same":
        check_same(options.one, options.other)
    elif options.check == "cuda":
        return 0 if read_manifest(options.dist)["cuda_packages"] else 1
    elif options.check == "builder":
        return check_builder()
    elif options.check == "expect":
        print(*expect_tests(options.folder), sep="\n")
    elif options.check == "image":
        check_image(options.rootfs, json.loads(options.config.read_text(encoding="utf-8")), options.dist)
    else:
        inspected = json.loads(options.config.read_text(encoding="utf-8"))
        return run(options.rootfs, inspected, options.mount, options.words)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
