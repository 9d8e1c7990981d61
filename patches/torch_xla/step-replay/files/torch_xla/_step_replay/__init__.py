"""``torch_xla.replay``: a steady step is not traced again."""

from .api import Replay, replay

__all__ = ["Replay", "replay"]
