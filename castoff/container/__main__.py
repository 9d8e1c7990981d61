"""The command line that ./build.sh --docker and docker/train.sh call.

python3 -m castoff.container build [--engine NAME] [--base IMAGE] [arguments of ./build.sh]
python3 -m castoff.container train --target cpu|tpu [options]
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from castoff.container.builder import build_in_container
from castoff.container.engine import ENGINES, find_engine
from castoff.container.network import machine_network
from castoff.container.train import make_image
from castoff.core.errors import INTERRUPTED_EXIT_CODE, CastoffError

ROOT = Path(__file__).resolve().parent.parent.parent


def main(arguments: list[str]) -> int:
    """Run the command line, and return the exit status."""
    parser = argparse.ArgumentParser(prog="castoff.container", allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True)
    build = commands.add_parser(
        "build", prog="./build.sh --docker", allow_abbrev=False, epilog="All other options are those of ./build.sh."
    )
    train = commands.add_parser(
        "train",
        prog="docker/train.sh",
        allow_abbrev=False,
        description="Make the training image from the wheels in dist/.",
    )
    for command in (build, train):
        command.add_argument("--engine", choices=ENGINES, help="the container engine (the first of these that answers)")
        command.add_argument("--base", help="the image to start from (the Dockerfile's own; it must be Debian 12)")
    train.add_argument("--target", choices=["cpu", "tpu"], required=True)
    train.add_argument("--pin", default="2.9", help="the pin (%(default)s)")
    train.add_argument("--dist", type=Path, default=ROOT / "dist", help="where ./build.sh put its output folders")
    train.add_argument("--tag", help="the image's name (localhost/castoff-train:PIN-TARGET)")
    train.add_argument(
        "--cuda-packages",
        choices=["install", "leave-out"],
        default="install",
        help="the packages that a CUDA build of torch requires; without them the image runs only with them mounted",
    )
    options, rest = parser.parse_known_args(arguments)
    if options.command == "train" and rest:
        train.error(f"unknown: {' '.join(rest)}")
    engine = find_engine(options.engine)
    network = machine_network(os.environ)
    if options.command == "build":
        return build_in_container(ROOT, rest, engine, network, options.base)
    dist: Path = options.dist.absolute() / f"{options.pin}-{options.target}"
    tag = make_image(ROOT, dist, engine, network, tag=options.tag, base=options.base, cuda=options.cuda_packages)
    sys.stdout.write(f"built {tag}\n")
    return 0


def report(error: CastoffError) -> None:
    """Show an error as build.sh and the other commands do."""
    rows = [("error", str(error)), ("expected", error.expected), ("found", error.found), ("next", error.next_step)]
    sys.stderr.write("".join(f"{name:>8}   {text}\n" for name, text in rows))


def run(arguments: list[str] | None = None) -> int:
    """Run the command line with errors as output."""
    try:
        return main(sys.argv[1:] if arguments is None else arguments)
    except CastoffError as error:
        report(error)
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED_EXIT_CODE


if __name__ == "__main__":
    sys.exit(run())
