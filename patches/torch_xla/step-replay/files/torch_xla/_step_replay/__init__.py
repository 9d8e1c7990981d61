"""``torch_xla.replay``: a steady step is not traced again."""

from .replay import Replay, replay

__all__ = ["Replay", "replay"]
