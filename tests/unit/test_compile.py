import ctypes
import io
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from made_up import TORCH_COMMIT, Tree, compile_library

from castoff.builder.compile import find_compiler, version_script
from castoff.builder.objects import first_error
from castoff.builder.pipeline import build
from castoff.builder.plan import Request
from castoff.builder.verify import newer_than
from castoff.core.cache import Cache
from castoff.core.console import Console
from castoff.core.errors import CompileError, MachineError, VerifyError
from castoff.core.runner import Completed, Runner
from castoff.formats.elf import defined_symbols, needed_libraries, needed_versions, relocation_slots


def _build(tree: Tree, console: Console) -> Path:
    request = Request("cpu", "2.9", None, (), tree.root / "dist", verify_install=False, root=tree.root)
    return build(request, console)


def test_version_script() -> None:
    assert version_script(["a", "b"]) == "{\n  global:\n    a;\n    b;\n  local: *;\n};\n"
    assert version_script([]) == "{\n  local: *;\n};\n"


def test_the_compiler_is_named_by_cxx(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(MachineError) as caught:
        find_compiler(runner)
    assert "no-such-compiler" in caught.value.expected
    monkeypatch.setenv("CXX", "g++")
    assert "x86_64" in find_compiler(runner).version


def test_an_error_of_the_compiler_is_shown_where_it_stands(fetched_tree: Tree, console: Console) -> None:
    folder = fetched_tree.root / "patches/torch/answer/files/torch/csrc"
    (folder / "better.cpp").write_text("#include <torch/csrc/better.h>\nint better() { int unused; return 42; }\n")
    (folder / "good.cpp").write_text("int good() { return 1; }\n")
    with pytest.raises(CompileError) as caught:
        _build(fetched_tree, console)
    lines = caught.value.found.splitlines()
    assert "better.cpp" in lines[0] and "better.cpp:2:20: error: unused variable" in lines[1]
    assert "int better() { int unused; return 42; }" in lines[2]
    assert len(lines) == 4
    assert Path(caught.value.next_step.split("log: ")[1].split(" and ")[0]).is_file()


def test_the_first_error_is_taken_from_what_a_compiler_or_linker_says() -> None:
    compiler = (
        "[1/3] compile patches/torch/a/x.cpp.o\nFAILED: patches/torch/a/x.cpp.o\ng++ -c x.cpp\n"
        "In file included from x.h:1,\n                 from x.cpp:3:\n"
        "y.h:7:1: error: 'a' does not name a type\n    7 | a b;\n      | ^\n"
        "x.cpp:9:1: error: 'c' does not name a type\n    9 | c d;\nninja: build stopped\n"
    )
    assert first_error(compiler) == (
        "In file included from x.h:1,\n                 from x.cpp:3:\n"
        "y.h:7:1: error: 'a' does not name a type\n    7 | a b;\n      | ^\n(1 more in the log)"
    )
    linker = (
        "[3/3] link liba.so\n/usr/bin/ld: x.o: in function `f()':\nx.cpp:(.text+0x5): undefined reference to `g()'\n"
    )
    assert first_error(linker).splitlines() == linker.splitlines()[1:]
    assert first_error("Killed\n") == ""


def test_a_declared_symbol_must_be_there(fetched_tree: Tree, console: Console) -> None:
    toml = fetched_tree.root / "patches/torch/answer/topic.toml"
    toml.write_text(toml.read_text().replace("castoff_commit", "castoff_comit"))
    with pytest.raises(CompileError) as caught:
        _build(fetched_tree, console)
    assert "castoff_comit" in caught.value.found


def test_the_abi_is_read_from_the_wheel(fetched_tree: Tree, console: Console) -> None:
    pin = fetched_tree.root / "pins/2.9.toml"
    pin.write_text(pin.read_text().replace("cxx11_abi = 1", "cxx11_abi = 0"))
    with pytest.raises(CompileError) as caught:
        _build(fetched_tree, console)
    assert "_GLIBCXX_USE_CXX11_ABI=0" in caught.value.expected
    assert caught.value.found.startswith("1,")


def test_only_what_an_edit_reaches_is_compiled(fetched_tree: Tree, console: Console, log: io.StringIO) -> None:
    def compiled() -> list[tuple[str, str]]:
        log.truncate(0)
        _build(fetched_tree, console)
        return re.findall("compiling (.*) C|(nothing changed)", log.getvalue())

    folder = fetched_tree.root / "patches/torch/answer"
    (folder / "files/torch/csrc/apart.h").write_text("#pragma once\n")
    (folder / "overlay/apart.cpp").write_text('#include "torch/csrc/apart.h"\nint apart() { return 0; }\n')
    assert compiled() == [("4 of 4", "")]
    assert compiled() == [("", "nothing changed")]
    source = folder / "files/torch/csrc/better.cpp"
    before = source.read_text()
    source.write_text(f"{before}// changed\n")
    assert compiled() == [("1 of 4", "")]
    source.write_text(before)
    assert compiled() == [("", "nothing changed")]
    header = folder / "files/torch/csrc/better.h"
    header.write_text(f"{header.read_text()}// changed\n")
    assert compiled() == [("2 of 4", "")]
    (folder / "files/torch/csrc/apart.h").write_text("#pragma once\n// changed\n")
    assert compiled() == [("1 of 4", "")]
    # A header ahead of torch's own of the same name is seen by torch's headers, too.
    (folder / "files/torch/answer.h").write_text("#pragma once\nnamespace torch { int answer(); }\n")
    assert compiled() == [("4 of 4", "")]


def test_what_compiled_is_kept_when_another_file_fails(fetched_tree: Tree, console: Console, log: io.StringIO) -> None:
    source = fetched_tree.root / "patches/torch/answer/files/torch/csrc/better.cpp"
    good = source.read_text()
    source.write_text("int better() { return; }\n")
    with pytest.raises(CompileError):
        _build(fetched_tree, console)
    source.write_text(good)
    _build(fetched_tree, console)
    assert "compiling 1 of 3 C++ files" in log.getvalue()


def test_a_file_included_behind_the_keys_back_is_refused(fetched_tree: Tree, console: Console) -> None:
    source = fetched_tree.root / "patches/torch/answer/files/torch/csrc/better.cpp"
    source.write_text("#define HEADER <torch/csrc/better.h>\n#include HEADER\nint better() { return 42; }\n")
    with pytest.raises(CompileError) as caught:
        _build(fetched_tree, console)
    assert caught.value.found.endswith("torch/csrc/better.h")


def test_the_cache_keeps_what_was_used_last(tmp_path: Path, console: Console) -> None:
    cache = Cache(tmp_path, console)
    for age, name in enumerate("abcd"):
        (cache.objects / name).mkdir(parents=True)
        os.utime(cache.objects / name, (100 - age, 100 - age))
    os.utime(cache.objects / "d")
    cache.trim(cache.objects, most=2)
    assert sorted(path.name for path in cache.objects.iterdir()) == ["a", "d"]
    cache.trim(tmp_path / "not there", most=2)


def test_where_things_are_does_not_show_in_the_overlay(fetched_tree: Tree, console: Console) -> None:
    source = fetched_tree.root / "patches/torch/answer/overlay/interpose.cpp"
    source.write_text(source.read_text().replace("CASTOFF_TORCH_GIT_VERSION", "CASTOFF_TORCH_GIT_VERSION __FILE__"))
    _build(fetched_tree, console)
    overlay = next((fetched_tree.root.parent / "cache" / "overlays").glob("*/*.so")).read_bytes()
    assert str(fetched_tree.root).encode() not in overlay
    assert TORCH_COMMIT.encode() + b"torch/answer/overlay/interpose.cpp" in overlay


def test_the_precompiled_header_changes_no_byte(
    fetched_tree: Tree, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abcdefgh":
        source = fetched_tree.root / f"patches/torch/answer/overlay/{name}.cpp"
        source.write_text(f"#include <exception>\nint {name}() {{ return std::uncaught_exceptions(); }}\n")
    cache = fetched_tree.root.parent / "cache"
    rules: list[str] = []
    run = Runner.run

    def recorded(self: Runner, command: Sequence[str | Path], **options: Any) -> Completed:
        if options["name"] == "compile":
            rules.append((Path(command[2]) / "build.ninja").read_text())
        return run(self, command, **options)

    monkeypatch.setattr(Runner, "run", recorded)
    made = []
    for many in (8, 1000):
        monkeypatch.setattr("castoff.builder.objects._MANY", many)
        shutil.rmtree(cache / "objects", ignore_errors=True)
        shutil.rmtree(cache / "overlays", ignore_errors=True)
        _build(fetched_tree, console)
        made.append(next((cache / "overlays").glob("*/*.so")).read_bytes())
    assert ["common.h.gch: precompile" in one for one in rules] == [True, False]
    assert made[0] == made[1]


# What a newer compiler would make depend on a newer system, if the shims were not there.
DEMANDING = """
#include <dlfcn.h>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

extern "C" __attribute__((visibility("default"))) double castoff_demanding(int count, double x) {
  static std::shared_mutex shared;
  static std::once_flag once;
  static std::condition_variable condition;
  static std::mutex mutex;
  std::call_once(once, [] {});
  std::unique_lock<std::mutex> lock(mutex);
  bool ready = false;
  std::thread thread([&] {
    std::unique_lock<std::mutex> inner(mutex);
    ready = true;
    condition.notify_all();
  });
  condition.wait_for(lock, std::chrono::milliseconds(1), [&] { return ready; });
  condition.wait(lock, [&] { return ready; });
  lock.unlock();
  thread.join();
  std::string* strings = new std::string[count];
  delete[] strings;
  std::exception_ptr thrown;
  try {
    throw std::vector<int>(3);
  } catch (...) {
    std::exception_ptr first = std::current_exception();
    thrown = first;
  }
  std::exception_ptr copy = thrown;
  thrown = nullptr;
  int caught = 0;
  try {
    std::rethrow_exception(copy);
  } catch (const std::vector<int>& value) {
    caught = static_cast<int>(value.size());
  }
  std::shared_ptr<int> pointer = std::make_shared<int>(count);
  std::shared_ptr<int> other = pointer;
  std::ostringstream stream;
  stream << count;
  std::istringstream input(stream.str());
  std::stringstream both;
  both << input.rdbuf();
  std::shared_lock<std::shared_mutex> reader(shared);
  return std::exp(x) + std::log(x) + std::pow(x, x) + std::log2(x) + std::exp2(x) + caught + *other +
         static_cast<double>(both.str().size()) + (dlsym(RTLD_DEFAULT, "malloc") != nullptr);
}
"""


def test_the_overlay_runs_on_the_oldest_system_of_its_tag(fetched_tree: Tree, console: Console) -> None:
    folder = fetched_tree.root / "patches/torch/answer"
    (folder / "overlay" / "demanding.cpp").write_text(DEMANDING)
    toml = folder / "topic.toml"
    toml.write_text(toml.read_text().replace('"castoff_commit"', '"castoff_commit", "castoff_demanding"'))
    _build(fetched_tree, console)
    overlay = next((fetched_tree.root.parent / "cache" / "overlays").glob("*/*.so"))
    assert newer_than(needed_versions(overlay), "manylinux_2_28_x86_64") == []
    # The shims do what the real functions do.
    unpacked = next((fetched_tree.root.parent / "cache" / "unpacked").glob("*")) / "torch" / "lib"
    copy = unpacked / "copy.so"
    copy.write_bytes(overlay.read_bytes())
    function = ctypes.CDLL(str(copy)).castoff_demanding
    function.restype = ctypes.c_double
    function.argtypes = [ctypes.c_int, ctypes.c_double]
    assert function(7, 1.0) == pytest.approx(2.718281828 + 0 + 1 + 0 + 2 + 3 + 7 + 1 + 1)


def test_a_symbol_that_is_too_new_is_named(fetched_tree: Tree, console: Console) -> None:
    source = fetched_tree.root / "patches/torch/answer/files/torch/csrc/better.cpp"
    source.write_text(
        "#include <unistd.h>\n#include <torch/csrc/better.h>\n"
        "int better() { char b[1]; return getentropy(b, 1) + _Fork(); }\n"
    )
    with pytest.raises(VerifyError) as caught:
        _build(fetched_tree, console)
    assert "_Fork needs GLIBC_2.34 of libc.so.6" in caught.value.found
    assert "getentropy" not in caught.value.found


def test_reading_elf_files(tmp_path: Path) -> None:
    library = compile_library(
        tmp_path / "libx.so",
        "#include <cstdio>\nint called() { return 1; }\n"
        '__attribute__((visibility("hidden"))) int hidden() { return 2; }\n'
        "int calls() { return called() + hidden(); }\nint (*pointer)() = called;\n"
        'void prints() { std::puts("x"); }\n',
    )
    assert {"_Z6calledv", "_Z5callsv", "pointer"} <= defined_symbols(library)
    assert "_Z6hiddenv" not in defined_symbols(library)
    assert "libc.so.6" in needed_libraries(library)
    assert any(symbol.name == "puts" and symbol.version == "GLIBC_2.2.5" for symbol in needed_versions(library))
    slots = relocation_slots(library, ["_Z6calledv", "_Z5callsv", "absent"])
    assert len(slots["_Z6calledv"]) == 2  # one for the call, one for the pointer
    assert slots["_Z5callsv"] == slots["absent"] == ()
