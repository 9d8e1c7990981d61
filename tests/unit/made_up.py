"""Tiny wheels and trees that stand for the real ones; the fixtures that make them are in conftest.py."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from castoff.builder.fetch import file_sha256
from castoff.formats.wheels import Row, record_digest, write_record

TAG = "cp{0}{1}-cp{0}{1}-manylinux_2_28_x86_64".format(*sys.version_info[:2])
PYTHON = "{}.{}".format(*sys.version_info[:2])
TORCH_COMMIT = "a" * 40
TORCH_XLA_COMMIT = "b" * 40


def make_wheel(
    folder: Path, project: str, version: str, files: Mapping[str, bytes], requires: Sequence[str] = ()
) -> Path:
    """Write a wheel like those of setuptools: with folders as members and odd modes kept."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{project}-{version}.dist-info"
    members = {
        **files,
        f"{info}/METADATA": "\n".join(
            [
                f"Metadata-Version: 2.1\nName: {project}\nVersion: {version}",
                *(f"Requires-Dist: {line}" for line in requires),
                "\nText\n",
            ]
        ).encode(),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: false\nTag: {TAG}\n\n".encode(),
    }
    rows = [Row(name, record_digest(data), str(len(data))) for name, data in members.items()]
    members[f"{info}/RECORD"] = write_record([*rows, Row(f"{info}/RECORD", "", "")])
    path = folder / f"{project}-{version}-{TAG}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.mkdir(f"{project}/empty")
        for name, data in members.items():
            entry = zipfile.ZipInfo(name, (2025, 10, 14, 1, 2, 4))
            entry.external_attr = (0o100755 if name.endswith(".so") else 0o100664) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    return path


def topic_toml(name: str, project: str = "torch", /, **extra: str) -> str:
    """Return a topic.toml; ``extra`` replaces or adds lines."""
    lines = {
        "name": f'"{name}"',
        "project": f'"{project}"',
        "title": '"a title"',
        "why": '"a reason"',
        "kind": '"never"',
        "upstream": "[]",
        "drop_when": '"never"',
        "requires": "[]",
        "pins": '{"2.9" = "applies"}',
    }
    lines.update(extra)
    return "".join(f"{key} = {value}\n" for key, value in lines.items() if value)


@dataclass
class Tree:
    """A made-up tree of castoff: pins, patches, changelog and the wheels they start from."""

    root: Path
    wheels: Path
    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    requires: tuple[str, ...] = ()

    def topic(self, name: str, files: Mapping[str, str], project: str = "torch", /, **extra: str) -> Path:
        folder = self.root / "patches" / project / name
        for path, text in {"topic.toml": topic_toml(name, project, **extra), **files}.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
        return folder

    def finish(self) -> None:
        """Write the wheels, and the pin that names them."""
        parts = [
            'name = "2.9"\nplatform = "manylinux_2_28_x86_64"\ncxx11_abi = 1\n',
            '[runtime]\nlibtpu = "0.0.21"\njax = "0.7.1"\njaxlib = "0.7.1"\n',
            '[variants.any]\ntitle = "the made-up build"\n',
        ]
        for project, commit in (("torch", TORCH_COMMIT), ("torch_xla", TORCH_XLA_COMMIT)):
            requires = self.requires if project == "torch" else ()
            wheel = make_wheel(self.wheels, project, "2.9.0", self.files[project], requires)
            parts.append(
                f'[{project}]\nversion = "2.9.0"\ncommit = "{commit}"\ntag = "v2.9.0"\n'
                f'repository = "https://example.org/{project}"\n'
            )
            parts.append(f'[wheels.{project}.any]\n"{PYTHON}" = "{file_sha256(wheel)}"\n')
        libtpu = make_wheel(self.wheels, "libtpu", "0.0.21", {"libtpu/__init__.py": b""})
        parts.append(
            f'[tpu]\nplatform = "manylinux_2_28_x86_64"\ncompiler = "2.9-tpu.lock"\ncompiler_pythons = ["{PYTHON}"]\n'
            f'[tpu.libtpu]\n"{PYTHON}" = "{file_sha256(libtpu)}"\n'
        )
        (self.root / "pins").mkdir(exist_ok=True)
        (self.root / "pins" / "2.9-tpu.lock").write_text("")
        (self.root / "pins" / "2.9.toml").write_text("\n".join(parts))


TORCH_INIT = """
import ctypes, pathlib
lib = pathlib.Path(__file__).parent / "lib"
if (lib / "libcastoff_interposed.so").exists():
    stubs = ctypes.CDLL(str(lib / "libcastoff_interposed.so"), ctypes.RTLD_GLOBAL)
    overlay = ctypes.CDLL(str(lib / "libcastoff_torch.so"))
    name = ctypes.string_at(ctypes.addressof(ctypes.c_char.in_dll(stubs, "castoff_interposed_names"))).decode()
    ctypes.c_void_p.in_dll(stubs, "castoff_interposed").value = ctypes.cast(overlay[name], ctypes.c_void_p).value
cpu = ctypes.CDLL(str(lib / "libtorch_cpu.so"))
ctypes.CDLL(str(lib / "libtorch_python.so"))
from torch.version import __version__
answer = cpu.ask()
"""

SOURCES = {
    "libc10.so": (
        "#include <string>\n"
        "namespace c10 { struct Error { Error(std::string what); std::string what; };\n"
        "Error::Error(std::string w) : what(w) {} }\n",
        [],
    ),
    "libtorch_cpu.so": (
        'namespace torch { int answer() { return 1; } }\nextern "C" int ask() { return torch::answer(); }\n',
        ["-Wl,--no-as-needed", "libc10.so"],
    ),
    "libtorch_python.so": ("", []),
}


def compile_library(path: Path, source: str, *options: str) -> Path:
    """Compile a shared library, in the folder of those that it needs."""
    path.with_suffix(".cpp").write_text(source)
    command = ["g++", "-shared", "-fPIC", "-O1", "-fno-inline", f"-Wl,-soname,{path.name}", "-Wl,-rpath,$ORIGIN"]
    command += ["-o", path.name, path.with_suffix(".cpp").name, *options]
    subprocess.run(command, cwd=path.parent, check=True)
    return path


PATCH = """diff --git a/torch/other.py b/torch/other.py
--- a/torch/other.py
+++ b/torch/other.py
@@ -1,5 +1,5 @@
 first = 1
 second = 2
-third = 3
+third = 30
 fourth = 4
 fifth = 5
"""
