"""Checks the castoff build in this environment: its parts, the topics that are on, and the TPU.

    python -m castoff_doctor [--json] [--require-tpu]

A separate module beside torch and torch_xla: it must run even if those cannot be imported. It needs only
the standard library, and imports torch in a separate process. Exit status: 0 without problems, 1 with
problems. A missing TPU is a problem with ``--require-tpu``, or if PJRT_DEVICE asks for one.

A torch for which there is no torch_xla is examined alone.
"""

import argparse
import ctypes
import glob
import importlib.metadata
import importlib.util
import json
import mmap
import os
import platform
import re
import runpy
import struct
import subprocess
import sys
import sysconfig

__all__ = ["examine", "main"]

OK, NOTE, FAULT = "ok", "note", "fault"

_PROJECTS = ("torch", "torch_xla")
_CALLERS = ("libtorch_cpu.so", "libtorch_python.so", "_XLAC")
_OVERLAY = "libcastoff_torch.so"
_STUBS = "libcastoff_interposed.so"  # calls of an interposed function lead there, and from there to the overlay
_GOOGLE = "0x1ae0"
_TPU_TIMEOUT = 300
_SLOT_TYPES = (1, 6, 7)  # R_X86_64_64, R_X86_64_GLOB_DAT, R_X86_64_JUMP_SLOT
_REINSTALL = "Reinstall both wheels of one castoff build: pip install --force-reinstall --no-deps …"


class _Findings:
    """What was found so far, in order."""

    def __init__(self):
        self.rows = []

    def add(self, check, status, found, next_step=""):
        self.rows.append({"check": check, "status": status, "found": found, "next_step": next_step})


def examine(require_tpu=False):
    """Examine this environment and this machine.

    Args:
        require_tpu: Whether a missing TPU is a fault.

    Returns:
        A list of findings, each a dict with ``check``, ``status`` ("ok", "note" or "fault"), ``found`` and
        ``next_step``.
    """
    findings = _Findings()
    findings.add("machine", OK, f"{platform.system()} {platform.machine()}, {' '.join(platform.libc_ver())}")
    findings.add("python", OK, f"{platform.python_implementation()} {platform.python_version()} at {sys.executable}")
    projects = _projects()
    whole = _examine_wheels(findings, projects)
    if whole:
        _examine_running(findings, projects)
    required = require_tpu or os.environ.get("PJRT_DEVICE") == "TPU"
    if "torch_xla" in projects:
        _examine_tpu(findings, required, whole)
    elif required:
        findings.add("TPU", FAULT, "there is no torch_xla for this torch", "Install the wheels of a pin that has one.")
    return findings.rows


def _projects():
    """The projects of the build that this torch is of: torch alone where the build has no topic of torch_xla."""
    spec = importlib.util.find_spec("torch")
    for folder in (spec and spec.submodule_search_locations) or ():
        registry = os.path.join(folder, "_castoff_topics.py")
        if os.path.isfile(registry):
            return _PROJECTS if runpy.run_path(registry)["OTHERS"] else _PROJECTS[:1]
    return _PROJECTS


def _examine_wheels(findings, projects):
    """The wheels, by their metadata. Return whether all are there."""
    versions = {}
    for project in projects:
        found = [dist for dist in importlib.metadata.distributions(name=project) if dist.metadata["Name"]]
        if not found:
            findings.add(
                project, FAULT, "not installed", "pip install -c constraints.txt --find-links . torch torch_xla"
            )
            continue
        version = versions[project] = found[0].version
        if len({dist.version for dist in found}) > 1:
            listed = ", ".join(dist.version for dist in found)
            findings.add(
                project, FAULT, f"installed more than once: {listed}", f"pip uninstall {project}; {_REINSTALL}"
            )
        elif "+castoff" not in version:
            findings.add(project, FAULT, *_not_ours(project, version))
        else:
            findings.add(project, OK, version)
    builds = {version.partition("+")[2] for version in versions.values()}
    if len(versions) == len(projects) and len(builds) > 1 and all("+castoff" in v for v in versions.values()):
        findings.add("one build", FAULT, f"torch and torch_xla are of {' and '.join(sorted(builds))}", _REINSTALL)
    return len(versions) == len(projects)


def _not_ours(project, version):
    """What is said of a wheel that is not castoff's, and what to do about it."""
    wanted = _wanted("torch") if project == "torch" else None
    found = f"{version} is not a castoff build"
    if wanted is not None:
        found += f": it has replaced {wanted}, which this torch_xla requires"
    if os.path.isdir(os.path.join(sysconfig.get_path("platlib"), ".castoff")):  # castoff install has been here
        stock = f"pip install {project}=={wanted.partition('+')[0]}; " if wanted else ""
        return found, f"{stock}castoff install --python {sys.executable}"
    pair = f"torch=={wanted} torch_xla" if wanted else "torch torch_xla"
    return found, f"In the folder of castoff's wheels: pip install -c constraints.txt --find-links . {pair}"


def _examine_running(findings, projects=_PROJECTS):
    """What a process says that imports them."""
    imported = f"import {', '.join(projects)}"
    answer, error = _child("_look_inside", {"LD_BIND_NOW": "1", "PJRT_DEVICE": "CPU"}, 600)
    if error:
        findings.add(imported, FAULT, error, _REINSTALL)
        return
    abi = f"_GLIBCXX_USE_CXX11_ABI={answer['cxx11_abi']}"
    commits = ", ".join(f"{project} {commit[:12]}" for project, commit in answer["commits"].items())
    findings.add(imported, OK, f"{abi}, commits {commits}")
    if not answer["topics"]:
        findings.add("topics", FAULT, "none: these wheels are stock", "Install castoff's wheels.")
        return
    for topic, state in answer["topics"].items():
        findings.add(f"topic {topic}", OK if state == "on" else NOTE, state)
    if answer["compiled_in"]:
        findings.add("interpositions", OK, "none: this torch was built from source, with the topics in it")
    else:
        _judge_slots(findings, answer["slots"])


def _judge_slots(findings, slots):
    """Whether torch's calls of each interposed function lead to the overlay."""
    if not slots:
        findings.add("interpositions", FAULT, f"{_OVERLAY} takes the place of nothing", _REINSTALL)
        return
    wrong = {symbol: owners for symbol, owners in slots.items() if set(owners) != {_OVERLAY}}
    for symbol, owners in wrong.items():
        step = "Let nothing load torch's libraries before torch does (LD_PRELOAD)."
        findings.add("interpositions", FAULT, f"{symbol} leads to {', '.join(sorted(set(owners)))}", step)
    if not wrong:
        calls = sum(map(len, slots.values()))
        findings.add("interpositions", OK, f"{len(slots)} functions in effect, {calls} call slots lead to {_OVERLAY}")


def _examine_tpu(findings, required, whole):
    missing = FAULT if required else NOTE
    wanted = _wanted("libtpu") if whole else None
    try:
        version = importlib.metadata.version("libtpu")
    except importlib.metadata.PackageNotFoundError:
        line = f"pip install libtpu=={wanted}" if wanted else "pip install libtpu"
        findings.add("libtpu", missing, "not installed", line)
        version = None
    if version is not None and wanted not in (None, version):
        step = f"pip install libtpu=={wanted}"
        findings.add("libtpu", FAULT, f"{version}, but this torch_xla asks for {wanted}", step)
    elif version is not None:
        findings.add("libtpu", OK, version)
    chips, why = _chips()
    if not chips:
        findings.add("TPU", missing, why, "Run this on a TPU VM, with the device passed into the container.")
        return
    if version is None or not whole:
        findings.add("TPU", missing, f"{chips} chip(s) in this machine, not tried", "Correct the above first.")
        return
    answer, error = _child("_look_at_tpu", {"PJRT_DEVICE": "TPU"}, _TPU_TIMEOUT)
    if error:
        step = "End other processes that use it (they hold /dev/accel* or /dev/vfio/*; see /tmp/libtpu_lockfile)."
        findings.add("TPU", FAULT, f"{chips} chip(s) in this machine, but: {error}", step)
    else:
        findings.add("TPU", OK, f"{answer['devices']} device(s) of {chips} chip(s): {answer['kind']}")


def _wanted(package):
    """The version of a package that torch_xla asks for."""
    try:
        lines = importlib.metadata.requires("torch_xla") or []
    except importlib.metadata.PackageNotFoundError:
        return None
    found = (re.match(rf"{package}\s*==\s*([\w.+]+)", line) for line in lines)
    return next((match[1] for match in found if match), None)


def _chips():
    """The number of TPU chips in this machine; if none, why that is thought."""
    vendors = []
    for path in glob.glob("/sys/bus/pci/devices/*/vendor"):
        with open(path, encoding="ascii") as file:
            vendors.append(file.read().strip())
    nodes = glob.glob("/dev/accel*") + glob.glob("/dev/vfio/[0-9]*")
    chips = vendors.count(_GOOGLE)
    if not chips:
        return 0, f"none in this machine (of {len(vendors)} PCI devices none is Google's)"
    if not nodes:
        return 0, f"{chips} on the PCI bus, but neither /dev/accel* nor /dev/vfio/* is there"
    return chips, ""


def _child(function, settings, timeout):
    """Run a function of this module in a process of its own; return what it says, or what went wrong."""
    here = os.path.dirname(os.path.abspath(__file__))
    code = f"import sys; sys.path.append({here!r}); import castoff_doctor; castoff_doctor.{function}()"
    try:
        process = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, **settings},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {}, f"no answer within {timeout} s"
    if process.returncode != 0:
        lines = [line for line in process.stderr.splitlines() if line.strip()]
        return {}, f"exit status {process.returncode}; {lines[-1] if lines else 'no output'}"
    return json.loads(process.stdout.splitlines()[-1]), ""


def _look_inside():
    import torch

    with_xla = "torch_xla" in _projects()
    answer = {
        "cxx11_abi": int(torch.compiled_with_cxx11_abi()),
        "commits": {"torch": torch.version.git_version},
        "topics": {},
        "slots": {},
        "compiled_in": False,
    }
    if with_xla:
        answer["commits"]["torch_xla"] = importlib.import_module("torch_xla.version").__xla_gitrev__
    try:
        from torch import _castoff as torch_castoff

        topics_of_xla = importlib.import_module("torch_xla._castoff").TOPICS if with_xla else {}
    except ImportError:
        print("\n" + json.dumps(answer))
        return
    for topic in [*torch_castoff.TOPICS, *topics_of_xla]:
        module = topics_of_xla.get(topic)
        if module and importlib.util.find_spec(f"torch_xla.{module}") is None:
            answer["topics"][topic] = "not in this build"
        else:
            answer["topics"][topic] = "on" if torch_castoff.enabled(topic) else "off, by CASTOFF_DISABLE"
    lib = os.path.join(os.path.dirname(torch.__file__), "lib")
    # Without an overlay, `import torch` has found the topics' functions in libtorch_cpu.so.
    answer["compiled_in"] = not os.path.exists(os.path.join(lib, _OVERLAY))
    if answer["compiled_in"]:
        print("\n" + json.dumps(answer))
        return
    maps = _mappings()
    jumps = {name: _owner(address, maps) for name, address in _jumps(os.path.join(lib, _STUBS)).items()}
    for caller in _CALLERS if with_xla else _CALLERS[:2]:
        base, path = min((start, path) for start, _, offset, path in maps if offset == 0 and _is(path, caller))
        for symbol, offsets in _slots(path, jumps).items():
            owners = [_owner(ctypes.c_uint64.from_address(base + offset).value, maps) for offset in offsets]
            found = [jumps[symbol] if owner == _STUBS else owner for owner in owners]
            answer["slots"].setdefault(symbol, []).extend(found)
    print("\n" + json.dumps(answer))


def _look_at_tpu():
    import torch_xla
    import torch_xla.core.xla_model as xm
    import torch_xla.runtime as xr

    kind = xm.xla_device_hw(torch_xla.device())
    attributes = xr.global_runtime_device_attributes()
    kind = attributes[0].get("device_kind", kind) if attributes else kind
    print("\n" + json.dumps({"devices": xr.global_runtime_device_count(), "kind": str(kind)}))


class _Elf:
    """The sections of a 64-bit little-endian ELF file."""

    def __init__(self, path):
        with open(path, "rb") as file:
            self._data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        (start,) = struct.unpack_from("<Q", self._data, 0x28)
        size, count, names = struct.unpack_from("<HHH", self._data, 0x3A)
        headers = [struct.unpack_from("<IIQQQQIIQQ", self._data, start + at * size) for at in range(count)]
        strings = self._bytes(headers[names])
        self._headers = {_string(strings, header[0]): header for header in headers}

    def _bytes(self, header):
        return self._data[header[4] : header[4] + header[5]]

    def section(self, name):
        return self._bytes(self._headers[name]) if name in self._headers else memoryview(b"")

    def symbols(self):
        """The entries of the dynamic symbol table: (place of its name in .dynstr, whether it is defined here)."""
        for name, _, _, section, _, _ in struct.iter_unpack("<IBBHQQ", self.section(".dynsym")):
            yield name, section != 0


def _string(strings, at):
    data = bytes(strings[at : at + 4096])
    return data[: data.index(b"\0")].decode()


def _jumps(path):
    """The addresses that the stubs of the interposed functions jump to, by the functions' names."""
    stubs = ctypes.CDLL(path)
    names = ctypes.c_char.in_dll(stubs, "castoff_interposed_names")
    symbols = ctypes.string_at(ctypes.addressof(names)).decode().split()
    addresses = (ctypes.c_uint64 * len(symbols)).in_dll(stubs, "castoff_interposed")
    return {symbol: addresses[at] for at, symbol in enumerate(symbols)}


def _slots(path, symbols):
    """The places of a library that the loader fills with the addresses of these symbols."""
    elf = _Elf(path)
    strings = bytes(elf.section(".dynstr"))
    places = {}
    for symbol in symbols:
        # The linker may keep one string as the tail of another, so every place counts.
        at = strings.find(symbol.encode() + b"\0")
        while at >= 0:
            places[at] = symbol
            at = strings.find(symbol.encode() + b"\0", at + 1)
    indexes = {index: places[name] for index, (name, _) in enumerate(elf.symbols()) if name in places}
    found = {}
    for section in (".rela.plt", ".rela.dyn"):
        for offset, info, _ in struct.iter_unpack("<QQq", elf.section(section)):
            if info >> 32 in indexes and info & 0xFFFFFFFF in _SLOT_TYPES:
                found.setdefault(indexes[info >> 32], []).append(offset)
    return found


def _is(path, library):
    """Whether a path is that library's, or that extension module's, whose file name goes on with the CPython's."""
    return os.path.basename(path) in (library, library + sysconfig.get_config_var("EXT_SUFFIX"))


def _mappings():
    """(start, end, file offset, path) of everything that is mapped from a file."""
    found = []
    with open("/proc/self/maps", encoding="utf-8") as file:
        for line in file:
            fields = line.rstrip("\n").split(None, 5)
            if fields[-1].startswith("/"):
                start, end = (int(value, 16) for value in fields[0].split("-"))
                found.append((start, end, int(fields[2], 16), fields[-1]))
    return found


def _owner(address, maps):
    return next((os.path.basename(path) for start, end, _, path in maps if start <= address < end), "no library")


def main():
    parser = argparse.ArgumentParser(prog="python -m castoff_doctor", description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object, for programs")
    parser.add_argument("--require-tpu", action="store_true", help="a missing TPU is a fault")
    arguments = parser.parse_args()
    findings = examine(arguments.require_tpu)
    well = all(row["status"] != FAULT for row in findings)
    if arguments.json:
        print(json.dumps({"well": well, "findings": findings}))
    else:
        width = max(len(row["check"]) for row in findings)
        for row in findings:
            print(f"{row['status']:<6} {row['check']:<{width}}  {row['found']}")
            if row["status"] != OK and row["next_step"]:
                print(f"{'':<6} {'':<{width}}  → {row['next_step']}")
        print("no problems found" if well else "problems found")
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
