import pytest
from hypothesis import given
from hypothesis import strategies as st

from castoff.core.errors import RepackError
from castoff.formats.wheels import (
    Row,
    dist_info,
    parse_record,
    record_digest,
    replaced_version,
    replaced_version_module,
    updated_record,
    with_requirements,
    write_record,
)

FIELD = st.text(st.characters(codec="utf-8", exclude_characters="\r\n\0", exclude_categories=["Cs"]), max_size=20)
ROWS = st.lists(st.builds(Row, FIELD.filter(bool), FIELD, FIELD), max_size=8)


@given(ROWS)
def test_record_survives_a_round_trip(rows: list[Row]) -> None:
    assert parse_record(write_record(rows)) == rows


@given(ROWS, st.dictionaries(FIELD.filter(bool), st.binary(max_size=50), max_size=4))
def test_updating_a_record_tells_of_each_new_member_and_leaves_the_rest(rows: list[Row], new: dict[str, bytes]) -> None:
    updated = parse_record(updated_record(write_record(rows), {}, new))
    assert [row for row in updated if row.path not in new] == [row for row in rows if row.path not in new]
    for path, data in new.items():
        assert Row(path, record_digest(data), str(len(data))) in updated


def test_renamed_members_keep_their_rows() -> None:
    record = write_record([Row("old/A", "sha256=x", "1"), Row("old/RECORD", "", "")])
    renames = {"old/A": "new/A", "old/RECORD": "new/RECORD"}
    assert parse_record(updated_record(record, renames, {})) == [
        Row("new/A", "sha256=x", "1"),
        Row("new/RECORD", "", ""),
    ]


def test_a_malformed_record_is_refused() -> None:
    with pytest.raises(RepackError):
        parse_record(b"a,b\n")


def test_the_version_is_replaced_in_the_head_of_metadata_only() -> None:
    metadata = b"Metadata-Version: 2.4\nName: torch\nVersion: 2.9.0+cpu\n\nVersion: of the text\n"
    assert replaced_version(metadata, "2.9.0+castoff.1") == (
        b"Metadata-Version: 2.4\nName: torch\nVersion: 2.9.0+castoff.1\n\nVersion: of the text\n"
    )


@pytest.mark.parametrize("text", [b"", b"\nRequires-Dist: of the text\n"])
def test_requirements_join_the_head_of_metadata(text: bytes) -> None:
    head = b"Metadata-Version: 2.4\nName: torch\nVersion: 1\n"
    assert with_requirements(head + text, []) == head + text
    added = b"Requires-Dist: numpy<2\nRequires-Dist: packaging\n"
    assert with_requirements(head + text, ["numpy<2", "packaging"]) == head + added + text


@pytest.mark.parametrize("metadata", [b"Name: torch\n\nVersion: 1\n", b"Version: 1\nVersion: 2\n\n"])
def test_metadata_without_one_version_is_refused(metadata: bytes) -> None:
    with pytest.raises(RepackError):
        replaced_version(metadata, "1")


def test_the_version_module() -> None:
    source = b"# made\n__version__ = '2.9.0+cu128'\ndebug = False\n"
    assert (
        replaced_version_module(source, "2.9.0+castoff.1")
        == b"# made\n__version__ = '2.9.0+castoff.1'\ndebug = False\n"
    )
    with pytest.raises(RepackError):
        replaced_version_module(b"version = 1\n", "1")


def test_dist_info() -> None:
    assert dist_info(["torch/a.py", "torch-2.9.0+cpu.dist-info/RECORD"]) == "torch-2.9.0+cpu.dist-info"
    with pytest.raises(RepackError):
        dist_info(["torch/a.py"])
