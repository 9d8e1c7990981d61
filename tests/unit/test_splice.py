import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from castoff.formats import splice as module
from castoff.formats.splice import splice

NAMES = st.text(st.sampled_from("abcé/.-"), min_size=1, max_size=12).filter(lambda name: not name.endswith("/"))
MEMBERS = st.dictionaries(NAMES, st.binary(max_size=3000), min_size=1, max_size=8)


class _Pipe:
    """A file that cannot seek: zipfile then writes sizes behind the data."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")

    def write(self, data: bytes) -> int:
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def _write(path: Path, members: dict[str, bytes], stored: bool = False, streamed: bool = False) -> None:
    target = _Pipe(path) if streamed else path
    with zipfile.ZipFile(target, "w") as archive:
        for index, (name, data) in enumerate(members.items()):
            info = zipfile.ZipInfo(name, (2020, 2, 3, 4, 5, 6))
            info.external_attr = (0o100600 + index) << 16
            info.compress_type = zipfile.ZIP_STORED if stored else zipfile.ZIP_DEFLATED
            archive.writestr(info, data)
    if streamed:
        target.close()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150, deadline=None)
@given(
    before=MEMBERS,
    after=MEMBERS,
    stored=st.booleans(),
    streamed=st.booleans(),
    small=st.booleans(),
    plain=st.booleans(),
)
def test_every_member_keeps_its_bytes(
    tmp_path: Path,
    before: dict[str, bytes],
    after: dict[str, bytes],
    stored: bool,
    streamed: bool,
    small: bool,
    plain: bool,
) -> None:
    source, target = tmp_path / "source.zip", tmp_path / "target.zip"
    _write(source, before, stored, streamed)
    renamed = {name: f"renamed/{name}" for name in list(before)[::3]}
    with pytest.MonkeyPatch.context() as patch:
        if plain:

            def refuse(*_: object) -> int:
                raise OSError(18, "across devices")

            patch.setattr(module.os, "copy_file_range", refuse)
        # A low limit puts everything through the zip64 forms.
        splice(source, target, contents=after, renames=renamed, modes={}, limit=100 if small else 0xFFFFFFFF)
    expected = {renamed.get(name, name): data for name, data in before.items()} | after
    with zipfile.ZipFile(target) as result, zipfile.ZipFile(source) as original:
        assert result.testzip() is None
        assert {name: result.read(name) for name in result.namelist()} == expected
        assert len(result.namelist()) == len(expected)
        for name in before:
            old, new = original.getinfo(name), result.getinfo(renamed.get(name, name))
            assert (old.external_attr, old.date_time) == (new.external_attr, new.date_time)


def test_the_same_inputs_give_the_same_bytes(tmp_path: Path) -> None:
    _write(tmp_path / "source.zip", {"a": b"1", "b": b"2"})
    for name in ("one.zip", "two.zip"):
        splice(
            tmp_path / "source.zip", tmp_path / name, contents={"c": b"3", "a": b"4"}, renames={}, modes={"c": 0o755}
        )
    assert (tmp_path / "one.zip").read_bytes() == (tmp_path / "two.zip").read_bytes()
    assert zipfile.ZipFile(tmp_path / "one.zip").getinfo("c").external_attr >> 16 == 0o100755


def test_a_source_cut_short_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "source.zip").write_bytes(b"not a zip file")
    with pytest.raises(zipfile.BadZipFile):
        splice(tmp_path / "source.zip", tmp_path / "target.zip", contents={}, renames={}, modes={})


def test_unzip_reads_it_too(tmp_path: Path) -> None:
    if shutil.which("unzip") is None:
        pytest.skip("unzip is not installed")
    _write(tmp_path / "source.zip", {"a": b"1" * 500, "b": b"2"})
    splice(tmp_path / "source.zip", tmp_path / "target.zip", contents={"c": b"3"}, renames={}, modes={}, limit=100)
    subprocess.run(["unzip", "-tq", str(tmp_path / "target.zip")], check=True)
