from pathlib import Path

import pytest

from castoff.builder import output_folder
from castoff.builder.output_folder import workplace
from castoff.core.console import Console


def _build(out: Path, console: Console, text: str) -> None:
    with workplace(out, "x", console) as place:
        (place.folder / "file").write_text(text)


@pytest.mark.parametrize("exchange", [True, False])
def test_the_new_folder_takes_the_place_of_the_old_one(
    tmp_path: Path, console: Console, monkeypatch: pytest.MonkeyPatch, exchange: bool
) -> None:
    if not exchange:
        monkeypatch.setattr(output_folder, "_exchange", lambda one, other: False)
    _build(tmp_path, console, "old")
    _build(tmp_path, console, "new")
    assert (tmp_path / "x" / "file").read_text() == "new"
    assert sorted(path.name for path in tmp_path.iterdir()) == [".x.lock", "x"]


def test_an_error_leaves_the_old_folder(tmp_path: Path, console: Console) -> None:
    _build(tmp_path, console, "old")
    with pytest.raises(ValueError, match="trouble"), workplace(tmp_path, "x", console) as place:
        (place.folder / "file").write_text("new")
        raise ValueError("trouble")
    assert (tmp_path / "x" / "file").read_text() == "old"
    assert not (tmp_path / ".x.new").exists()


def test_what_a_killed_build_left_is_cleared_away(tmp_path: Path, console: Console) -> None:
    (tmp_path / ".x.new").mkdir()
    (tmp_path / ".x.new" / "partial").write_text("")
    _build(tmp_path, console, "new")
    assert sorted(path.name for path in (tmp_path / "x").iterdir()) == ["file"]


def test_a_build_killed_between_the_two_renames_is_repaired(tmp_path: Path, console: Console) -> None:
    _build(tmp_path, console, "old")
    (tmp_path / "x").rename(tmp_path / ".x.old")
    with pytest.raises(ValueError, match="trouble"), workplace(tmp_path, "x", console):
        raise ValueError("trouble")
    assert (tmp_path / "x" / "file").read_text() == "old"
