"""Proves the C++ hunks: compiles upstream's own files with them and replaces the overlay with the result.

    .venv/bin/python ci/hunk_proof.py --pin 2.6 --stock ENV --patched ENV --work DIR

In a checkout of the pin with the topics, every C++ file that a hunk changes is compiled, against
the wheel's headers and the tree, together with the topics' new files and the few files of upstream that
those need because the stock library hides their symbols. The result replaces libcastoff_torch.so in a
copy of the environment with the patched wheels. There it must pass the tests that the overlay passes,
and upstream's test_autograd.py must have the same outcomes as on stock wheels.

Objects are kept in castoff's cache. DIR is emptied first, except for the outcomes of upstream's tests.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from castoff.builder.compile import STUBS, find_compiler, overlay_name, stubs, version_script
from castoff.core.cache import Cache
from castoff.core.console import Console
from castoff.core.context import Context
from castoff.core.errors import CastoffError, CommandError, CompileError, VerifyError
from castoff.core.places import ROOT, cache_root
from castoff.core.runner import Runner
from castoff.formats.elf import defined_symbols
from castoff.model.pin import Pin, load_pin
from castoff.model.topics import Topic, load_topics, select
from castoff.upstream.checkout import checkout, topic_commits
from castoff.upstream.repository import Repository
from castoff.upstream.upstream_tests import SUITES, Runs, check, compare, install_tools

# Files whose symbols the changed files use and the stock libtorch_cpu.so hides.
CLOSURE = (
    "torch/csrc/autograd/autograd_not_implemented_fallback.cpp",
    "torch/csrc/autograd/cpp_hook.cpp",
    "torch/csrc/autograd/function.cpp",
    "torch/csrc/autograd/functions/tensor.cpp",
    "torch/csrc/autograd/generated/ViewFuncs.cpp",
    "torch/csrc/autograd/input_buffer.cpp",
    "torch/csrc/autograd/utils/warnings.cpp",
    # This and engine.cpp must share one thread-local variable.
    "torch/csrc/distributed/autograd/engine/dist_engine.cpp",
)

# The flags of upstream's build of the wheel, as far as they matter.
OPTIONS = (
    "-std=c++17",
    "-O2",
    "-DNDEBUG",
    "-fPIC",
    "-fvisibility=hidden",
    "-fvisibility-inlines-hidden",
    "-fabi-version=11",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fopenmp",
    "-DAT_PER_OPERATOR_HEADERS",
    "-DCAFFE2_BUILD_MAIN_LIB",
    "-DUSE_C10D_GLOO",
    "-DUSE_DISTRIBUTED",
    "-DUSE_RPC",
    "-DUSE_TENSORPIPE",
)

# This tree's tests of the hunks.
TESTS = [
    "tests/torch/test_data_setter.py",
    "tests/torch/test_grad_dtype_conformance.py",
    "tests/torch/test_record_implicit_casts.py",
    "tests/ir/test_graph_identity.py",
    "tests/ir/test_issue_3718.py",
]

# Upstream's generators, called for only the file that is needed.
GENERATE = """
import sys
sys.path.insert(0, ".")
from tools.autograd.gen_view_funcs import gen_view_funcs
from tools.autograd.load_derivatives import load_derivatives
from torchgen.api import cpp
from torchgen.api.autograd import match_differentiability_info
from torchgen.gen import parse_native_yaml
natives, tags = "aten/src/ATen/native/native_functions.yaml", "aten/src/ATen/native/tags.yaml"
differentiability, _ = load_derivatives("tools/autograd/derivatives.yaml", natives, tags)
functions = sorted(parse_native_yaml(natives, tags).native_functions, key=lambda f: cpp.name(f.func))
gen_view_funcs(sys.argv[1], match_differentiability_info(functions, differentiability), "tools/autograd/templates")
"""

# Which library the engine, AccumulateGrad, LazyGraphExecutor and VariableHooks::set_data of a running torch are in.
IN_FORCE = """
import ctypes, pathlib, torch
class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in ("file", "base", "name", "at")]
every = ctypes.CDLL(None)
def say(name, address):
    info = Info()
    every.dladdr(ctypes.c_void_p(address), ctypes.byref(info))
    print(name, pathlib.Path(ctypes.string_at(info.file).decode()).name)
for name in (
    "_ZN5torch8autograd6Engine18get_default_engineEv",
    "_ZTVN5torch8autograd14AccumulateGradE",
    "_ZTVN5torch4lazy17LazyGraphExecutorE",
):
    say(name, ctypes.cast(getattr(every, name), ctypes.c_void_p).value)
hooks = every._ZN2at4impl16GetVariableHooksEv
hooks.restype = ctypes.POINTER(ctypes.c_void_p)
say("VariableHooks", hooks()[0])
"""


@dataclass(frozen=True)
class Tree:
    """A checkout with the topics."""

    folder: Path
    touched: tuple[str, ...]  # the C++ files of upstream that hunks change
    added: tuple[str, ...]  # the topics' own C++ files
    headers: tuple[str, ...]  # every header that the topics add or change

    @property
    def units(self) -> tuple[str, ...]:
        """The files to compile."""
        return tuple(sorted({*self.touched, *self.added, *CLOSURE}))


def read_tree(folder: Path, without: Collection[str], runner: Runner) -> Tree:
    """Return the C++ files of a checkout with topics.

    Args:
        folder: The checkout.
        without: Files of topics that have no hunks on this pin, where nothing calls them in a build from source.
        runner: Runs git.

    Raises:
        VerifyError: No hunk changes C++.
    """
    repository = Repository(folder, runner)
    base = repository.one("rev-parse", f"{topic_commits(repository)[0].commit}^")
    changes = repository.changes(base, "HEAD")
    files = {status: [c.path for c in changes if c.status == status and c.path.endswith(".cpp")] for status in "AM"}
    cpp = {status: [path for path in paths if path not in without] for status, paths in files.items()}
    if not cpp["M"]:
        raise VerifyError(
            "there is nothing to prove",
            expected="hunks on C++ files of upstream",
            found="none",
            next_step="Check patches/torch/*/hunks/.",
        )
    headers = [change.path for change in changes if change.path.endswith(".h")]
    return Tree(folder, tuple(cpp["M"]), tuple(cpp["A"]), tuple(headers))


def check_listed(tree: Tree) -> None:
    """Check that upstream's list of libtorch_cpu's sources has the topics' files.

    Raises:
        VerifyError: It lacks one, or has one that does not exist.
    """
    lists: dict[str, list[str]] = {}
    exec((tree.folder / "build_variables.bzl").read_text(encoding="utf-8"), lists)  # noqa: S102 - as upstream's CMake does
    listed = [*lists["core_trainer_sources"], *lists["lazy_tensor_core_sources"]]
    wrong = [name for name in tree.added if name not in listed]
    wrong += [name for name in listed if not (tree.folder / name).is_file()]
    if wrong:
        raise VerifyError(
            "build_variables.bzl does not have the topics' C++ files",
            expected="core_trainer_sources or lazy_tensor_core_sources has each, and neither names a missing file",
            found=", ".join(wrong),
            next_step="Correct its hunk (castoff checkout, castoff refresh).",
        )


def generate(tree: Tree, python: Path, runner: Runner) -> None:
    """Make ViewFuncs.cpp in the checkout, and check that its header is the wheel's."""
    generated = tree.folder / "torch/csrc/autograd/generated"
    generated.mkdir(exist_ok=True)
    runner.run([python, "-c", GENERATE, generated], name="generate", cwd=tree.folder)
    ours, theirs = (
        generated / "ViewFuncs.h",
        _torch(python, runner) / "include/torch/csrc/autograd/generated/ViewFuncs.h",
    )
    if ours.read_bytes() != theirs.read_bytes():
        raise VerifyError(
            "the checkout is not what the wheel was built from",
            expected=f"{ours.name} as the wheel has it",
            found="another one",
            next_step="Check the pin.",
        )


def compile_units(tree: Tree, pin: Pin, torch: Path, context: Context) -> list[Path]:
    """Compile the files, those that changed; return the objects.

    Raises:
        CompileError: One does not compile.
    """
    compiler = find_compiler(context.runner)
    # The guard states which torch the library is for; `import torch` checks every libcastoff_torch.so.
    guard = ROOT / "patches/torch/kill-switch/overlay/guard.cpp"
    definitions = [f"-D_GLIBCXX_USE_CXX11_ABI={pin.cxx11_abi}", f'-DCASTOFF_TORCH_GIT_VERSION="{pin.torch.commit}"']
    # The wheel's headers first, then the tree's for those that a wheel does not have.
    includes = [f"-I{torch}/include", f"-I{torch}/include/torch/csrc/api/include"]
    includes += ["-idirafter", ".", "-idirafter", "torch/csrc/api/include"]
    command = [str(compiler.path), *OPTIONS, *definitions, *includes]
    common = hashlib.sha256(json.dumps([compiler.version, *OPTIONS, *definitions, pin.torch.commit]).encode())
    for header in tree.headers:
        common.update(header.encode() + hashlib.sha256((tree.folder / header).read_bytes()).digest())

    def compile_one(source: Path) -> Path:
        key = common.copy()
        key.update(source.read_bytes())
        name = f"object-{key.hexdigest()}"

        def make(folder: Path) -> None:
            context.runner.run([*command, "-c", source, "-o", folder / "unit.o"], name=source.stem, cwd=tree.folder)

        return context.cache.ensure(context.cache.root / "objects" / name, name, make) / "unit.o"

    sources = [*(tree.folder / unit for unit in tree.units), guard]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        try:
            return list(pool.map(compile_one, sources))
        except CommandError as error:
            raise CompileError(
                "upstream's file with the topics' hunks does not compile",
                expected=f"{compiler.version} compiles it",
                found=error.found,
                next_step=error.next_step,
            ) from error


def link(objects: Sequence[Path], torch: Path, exports: set[str], library: Path, runner: Runner) -> None:
    """Link the objects into a library that exports the symbols that stock exports, and the topics' exports.

    It is global, as the stubs of the overlay are, and has none itself.
    """
    source = library.with_suffix(".s")
    source.write_text(stubs([]), encoding="utf-8")
    nm = runner.run(["nm", "--defined-only", "--extern-only", "--format=posix", *objects], name="nm").output
    ours = {line.split()[0] for line in nm.splitlines() if line.count(" ") >= 2}  # noqa: PLR2004
    shown = sorted(ours & (defined_symbols(torch / "lib/libtorch_cpu.so") | exports))
    shown += ["castoff_interposed", "castoff_interposed_names"]
    script = library.with_suffix(".map")
    script.write_text(version_script(shown), encoding="utf-8")
    options = [
        "-shared",
        "-Wl,-z,defs",
        "-Wl,--disable-new-dtags",
        "-Wl,-rpath,$ORIGIN",
        f"-Wl,--version-script={script}",
    ]
    compiler = find_compiler(runner)
    runner.run(
        [compiler.path, *options, "-o", library, *objects, source, f"-L{torch}/lib", "-ltorch_cpu", "-lc10"],
        name="link",
    )


def environment_with(patched: Path, library: Path, proof: Path, runner: Runner) -> Path:
    """Copy the patched environment by hard links, with this library instead of the overlay; return its Python.

    Raises:
        VerifyError: The environment has no overlay, or another library is loaded.
    """
    subprocess.run(["cp", "--archive", "--link", patched, proof], check=True)
    python = proof / "bin" / "python"
    overlay = _torch(python, runner) / "lib" / overlay_name("torch")
    if not overlay.is_relative_to(proof) or not overlay.is_file():
        raise VerifyError(
            f"{patched} is not an environment with patched wheels",
            expected=str(overlay),
            found="no such file in a copy of it",
            next_step="Make it with castoff env patched --pin 2.6.",
        )
    for path in (overlay, overlay.with_name(STUBS)):
        path.unlink()  # write a new file, not through the link
    shutil.copyfile(library, overlay.with_name(STUBS))
    overlay.symlink_to(STUBS)
    return python


def _torch(python: Path, runner: Runner) -> Path:
    asked = "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
    return Path(runner.run([python, "-I", "-c", asked], name="torch").output.strip())


def check_in_force(python: Path, tree: Tree, runner: Runner) -> None:
    """Check that a backward pass and an assignment to .data run in the proof's code.

    Raises:
        VerifyError: They do not.
    """
    environment = {**os.environ, "LD_BIND_NOW": "1"}
    rows = runner.run([python, "-c", IN_FORCE], name="in-force", env=environment).output.splitlines()
    found = dict(line.split() for line in rows if re.fullmatch(r"\S+ lib\S+\.so", line))
    wrong = {name: library for name, library in found.items() if library != STUBS}
    if wrong or "VariableHooks" not in found:
        raise VerifyError(
            "upstream's files with the hunks are not in use",
            expected=f"{', '.join(tree.touched)} run in {STUBS}",
            found=str(wrong or rows),
            next_step="Check that nothing else loads torch's libraries before torch does.",
        )


def run_tests(python: Path, tests: Sequence[str], runner: Runner) -> str:
    """Run tests of this tree in an environment; return pytest's last line.

    Raises:
        CommandError: Some fail.
    """
    environment = {**os.environ, "PJRT_DEVICE": "CPU"}
    command: list[str | Path] = [python, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", *tests]
    return runner.run(command, name="tests", cwd=ROOT, env=environment).output.rstrip().splitlines()[-1]


def prove(arguments: argparse.Namespace, console: Console) -> None:
    """Prove the hunks of a pin.

    Raises:
        CastoffError: A step failed.
    """
    work: Path = arguments.work.absolute()
    for part in ("environment", "library", *(() if arguments.checkout else ("torch",))):
        shutil.rmtree(work / part, ignore_errors=True)
    (work / "library").mkdir(parents=True)
    runner = Runner(work / "logs", console)
    context = Context(Cache(cache_root(), console), runner, console)
    pin = load_pin(ROOT / "pins", arguments.pin)
    topics = select(load_topics(ROOT / "patches"), pin.name)
    folder: Path = (arguments.checkout or work / "torch").absolute()
    if arguments.checkout is None:
        checkout(pin, "torch", topics, folder, context)
    without = {path for topic in topics if not topic.hunks(pin.name) for path in topic.new_files()}
    tree = read_tree(folder, without, runner)
    check_listed(tree)
    stock, patched = (environment.absolute() / "bin/python" for environment in (arguments.stock, arguments.patched))
    torch = _torch(stock, runner)
    with console.step("compile", f"{len(tree.units)} files; hunks change {', '.join(tree.touched)}"):
        generate(tree, stock, runner)
        objects = compile_units(tree, pin, torch, context)
        library = work / "library" / overlay_name("torch")
        link(objects, torch, _exports(topics, pin), library, runner)
        python = environment_with(patched.parents[1], library, work / "environment", runner)
        check_in_force(python, tree, runner)
    with console.step("tests", "this tree's, as for the overlay"):
        console.note(run_tests(python, arguments.tests, runner))
    with console.step("tests", "upstream's test_autograd.py, as on stock"):
        runs = Runs(tree.folder / "test", install_tools(stock, context), runner)
        autograd = [suite for suite in SUITES if suite.name == "autograd"]
        check(compare(stock, python, autograd, runs, console, known=arguments.outcomes or work / "outcomes"))
    shutil.rmtree(work / "environment")
    if arguments.checkout is None:
        shutil.rmtree(folder)
    console.result(
        f"the hunks of pin {pin.name} are proven: {', '.join(tree.touched)}", {"touched": list(tree.touched)}
    )


def _exports(topics: Sequence[Topic], pin: Pin) -> set[str]:
    return {name for topic in topics if topic.project == "torch" for name in topic.overlay_symbols(pin.name).exports}


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pin", default="2.6")
    parser.add_argument("--stock", type=Path, required=True, help="the environment with the pin's stock wheels")
    parser.add_argument("--patched", type=Path, required=True, help="the one with the patched wheels")
    parser.add_argument("--work", type=Path, required=True, help="a folder on the file system of the environments")
    parser.add_argument("tests", nargs="*", default=TESTS, help="the tests of this tree to run")
    parser.add_argument("--checkout", type=Path, help="a checkout of torch to use; one is made if not given")
    parser.add_argument("--outcomes", type=Path, help="a folder for the outcomes of upstream's tests on stock, by hash")
    arguments = parser.parse_args()
    console = Console()
    try:
        prove(arguments, console)
    except CastoffError as error:
        console.error(error)
        return error.exit_code
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
