"""Counts conversions in HLO without castoff, to compare with what castoff counts."""

import re
from collections import Counter


def converts(text):
    """Counts the conversions in the HLO of graphs, by their dtypes."""
    counts = Counter()
    for graph in re.findall(r"^## BEGIN_GRAPH\n(.*?)^## END_GRAPH", text, re.MULTILINE | re.DOTALL):
        dtypes = dict(re.findall(r"^\s*(?:ROOT )?%?([\w.\-]+) = (\w+)\[", graph, re.MULTILINE))
        found = re.findall(r" = (\w+)\[[^\]]*\]\S* convert\((?:\S+ )?%?([\w.\-]+)\)", graph)
        counts.update(f"{dtypes[operand]} {dtype}" for dtype, operand in found if dtypes[operand] != dtype)
    return counts
