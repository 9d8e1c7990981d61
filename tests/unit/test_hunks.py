"""What of a topic's hunks pins share."""

from pathlib import Path

from castoff.model.hunks import UNPROVEN, patches_of, shared, text_of, with_pin, write


def part(path: str, line: str = "b") -> bytes:
    return f"diff --git a/{path} b/{path}\n--- a/{path}\n+++ b/{path}\n@@ -1 +1 @@\n-a\n+{line}\n".encode()


def test_files_that_are_changed_alike_are_stated_once() -> None:
    with_index = part("x.py").replace(b"--- ", b"index 01ab..23cd 100644\n--- ")
    by_pin = {"2.15": part("x.py") + part("y.py"), "2.9": with_index + part("z.py"), "2.8": part("x.py")}
    assert shared(by_pin) == {
        "2.8+2.9+2.15.patch": part("x.py"),
        "2.15.patch": part("y.py"),
        "2.9.patch": part("z.py"),
    }


def test_a_change_on_one_pin_leaves_those_of_the_others(tmp_path: Path) -> None:
    write(tmp_path, shared({"2.8": part("x.py") + part("y.py"), "2.9": part("x.py")}))
    (tmp_path / UNPROVEN).write_bytes(part("z.cpp"))
    changed = write(tmp_path, with_pin(tmp_path, "2.9", part("x.py", "c")))
    assert changed == ["2.8+2.9.patch", "2.8.patch", "2.9.patch"]
    assert text_of(patches_of(tmp_path, "2.8")) == part("x.py") + part("y.py")
    assert text_of(patches_of(tmp_path, "2.9")) == part("x.py", "c")
    assert (tmp_path / UNPROVEN).exists()
