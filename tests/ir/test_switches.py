"""Each topic's switch: without the topic its program prints what docs/before-after.md shows of stock wheels."""

import re
from pathlib import Path

import pytest
from other_process import completed, fresh

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = (ROOT / "docs" / "before-after.md").read_text(encoding="utf-8")
SECTION = re.compile(
    r"^## \[`[^`]+`\]\(\.\./(patches/[^)]+)\)[^\n]*\n.*?^```diff\n(.*?)^```$", re.DOTALL | re.MULTILINE
)
PRINTED = dict(SECTION.findall(DOCUMENT))
ALSO_OFF = {
    "reduce-all": ",on-device",  # whose maxima are over all dimensions, too
    "wide-weight-grad": ",grad-dtype",  # whose attribute its program sets
    "lean-functionalization": ",stale-views",  # which writes to what is expanded once
}
READ_BY_TORCH = ("graph-identity", *(topic + others for topic, others in ALSO_OFF.items()))


@pytest.mark.since("2.9", "the output that docs/before-after.md shows")
@pytest.mark.slow
@pytest.mark.parametrize("topic", PRINTED)
def test_a_topic_that_is_off_leaves_stock(topic):
    """A name that stock lacks may be there, and does nothing."""
    off = Path(topic).name + ALSO_OFF.get(Path(topic).name, "")
    run = completed if topic.startswith("patches/torch_xla/") and off not in READ_BY_TORCH else fresh
    printed = run(ROOT / topic / "example.py", CASTOFF_DISABLE=off).stdout.strip().splitlines()
    stock = [line[1:] for line in PRINTED[topic].splitlines() if not line.startswith("+")]
    found, expected = ([line.rstrip() for line in lines if "no attribute" not in line] for lines in (printed, stock))
    assert found == expected
