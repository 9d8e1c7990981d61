"""castoff/upstream/newer.py: whose hunks are tried on a tree that no pin is of."""

from made_up import PATCH, Tree

from castoff.model.topics import load_topics
from castoff.upstream.newer import best_pins

CPP_PATCH = """diff --git a/torch/engine.cpp b/torch/engine.cpp
--- a/torch/engine.cpp
+++ b/torch/engine.cpp
@@ -1 +1,2 @@
 one
+two
"""


def test_the_hunks_of_the_nearest_pin_go_first_and_in_a_checkout_those_with_cpp(tree: Tree) -> None:
    hunks = {"hunks/2.1.patch": CPP_PATCH, "hunks/2.6.patch": CPP_PATCH, "hunks/2.9.patch": PATCH}
    tree.topic("a", hunks, pins='{"2.9" = "applies", "2.6" = "applies", "2.1" = "applies", "2.0" = "upstream"}')
    (topic,) = load_topics(tree.root / "patches")
    assert best_pins(topic, "2.13.0", whole=False) == ["2.9", "2.6", "2.1"]
    assert best_pins(topic, "2.7.1", whole=False) == ["2.6", "2.9", "2.1"]
    assert best_pins(topic, "2.13.0", whole=True) == ["2.6", "2.1", "2.9"]
