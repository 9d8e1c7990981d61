"""bench/shared/callgrind.py: what it reads in callgrind's files."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Callgrind's own format: two libraries that call each other, an inlined file, and compressed positions and names.
DUMP = """\
# callgrind format
version: 1
creator: callgrind-3.19.0
desc: Trigger: Client Request: a part
positions: line
events: Ir
summary: 1166

ob=(1) /env/lib/libtorch_cpu.so
fl=(1) engine.cpp
fn=(1) run
10 100
+2 20
cob=(2) /usr/lib/libc.so.6
cfi=(2) malloc.c
cfn=(2) malloc
calls=3 7
* 1041
fi=(3) vector.h
-1 5

ob=(2)
fl=(2)
fn=(2)
7 1000
cob=(1)
cfn=(1)
calls=1 10
+1 41
* 41

totals: 1166
"""


@pytest.fixture
def by_object(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    from shared.callgrind import by_object

    return by_object


def test_each_object_has_its_own_instructions_and_not_those_of_what_it_calls(by_object):
    assert by_object(DUMP) == {"/env/lib/libtorch_cpu.so": 125, "/usr/lib/libc.so.6": 1041}


def test_the_libraries_of_torch_and_castoff(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    from unused_topics import is_ours

    names = ("libtorch_cpu.so", "libtorch_python.so", "libc10.so", "libcastoff_torch.so", "libc.so.6", "python3.11")
    assert [is_ours(f"/env/lib/{name}") for name in names] == [True] * 4 + [False] * 2
