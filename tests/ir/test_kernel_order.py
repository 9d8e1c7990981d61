"""Which topics override which operators: of two that override one, a topic.toml says which is called first."""

from pathlib import Path

import pytest
import torch_xla

try:
    import tomllib
except ImportError:
    import tomli as tomllib  # pytest's own

TOPICS = Path(__file__).resolve().parents[2] / "patches" / "torch_xla"


def before(topic):
    """The topics of torch_xla that a topic.toml puts before a topic, directly or by others."""
    text = tomllib.loads((TOPICS / topic / "topic.toml").read_text(encoding="utf-8"))
    named = [name.partition("/")[2] for name in (*text.get("requires", ()), *text.get("after", ())) if "xla/" in name]
    return set(named).union(*(before(name) for name in named))


@pytest.mark.fails_on_stock
def test_the_order_of_kernels_is_declared():
    chains = {
        (operator, key): topics
        for operator, keys in torch_xla._castoff.kernels().items()
        for key, topics in keys.items()
        if len(set(topics)) > 1
    }
    assert chains
    undeclared = {
        f"{called_first} of {operator} is called before {then} ({key})"
        for (operator, key), topics in chains.items()
        for at, called_first in enumerate(topics)
        for then in topics[at + 1 :]
        if then != called_first and then not in before(called_first)
    }
    assert not undeclared, "name them under `after` in topic.toml:\n" + "\n".join(sorted(undeclared))
