"""The documentation of the keys is that of the models."""

from castoff.core.places import ROOT
from castoff.core.toml_model import Model
from castoff.model.topics import OverlayTable, PinOverlayTable, TopicFile


def _rows(model: type[Model], table: str = "") -> str:
    rows = ""
    for name, field in model.model_fields.items():
        if name == "overlay":
            continue
        needed = "" if field.is_required() else " (optional)"
        rows += f"| `{table}{name}`{needed} | {' '.join(field.description.split())} |\n"
    return rows


def test_contributing_lists_the_keys_of_a_topic() -> None:
    """Where this fails, put the table as it should be into docs/topic-format.md."""
    rows = "| key of topic.toml | what it says |\n|---|---|\n" + _rows(TopicFile)
    rows += _rows(OverlayTable, "[overlay] ") + _rows(PinOverlayTable, '[overlay."2.9"] ')
    assert rows in (ROOT / "docs" / "topic-format.md").read_text(encoding="utf-8"), rows


def test_every_key_has_a_description() -> None:
    models = [Model]
    while models:
        model = models.pop()
        models += model.__subclasses__()
        assert all(field.description for field in model.model_fields.values()), model
