"""Arguments of torch.distributed.checkpoint that not every release has."""

import inspect

import torch.distributed.checkpoint as dcp

ALONE = {"no_dist": True} if "no_dist" in inspect.signature(dcp.save).parameters else {}
"""Without a process group; later releases want to be told."""
