"""``torch_xla.replay``: a steady step is not traced again. The rest is imported with its first use."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, Optional, Union

if TYPE_CHECKING:
    from .api import Replay

__all__ = ["replay"]


def replay(
    step: Optional[Callable] = None,
    *,
    check_every: int = 0,
    refused: Literal["raise", "trace"] = "raise",
) -> Union["Replay", Callable[[Callable], "Replay"]]:
    """A step whose graph is traced in its first calls, and run without being traced from then on.

    Args:
        step: The function: it may train, evaluate or generate. A decorator if left out.
        check_every: Trace the step in its first replay and in each so-manyth one; raise if it is another graph, or
            takes other numbers, than would have been replayed, with the state as before that call. 0: never.
        refused: What is done with a step that cannot be replayed: "raise" says why in a RuntimeError after the call in
            which that is seen, which has been executed as it is written; "trace" warns of it, and traces each call.

    Each call ends as with `torch_xla.sync()`: that is not to be called in the step, and need not be after it. Results
    have no `grad_fn`. docs/step-replay.md has what can be replayed.
    """
    if refused not in ("raise", "trace"):
        raise ValueError(f'expected refused="raise" or "trace"; found {refused!r}')
    from .api import Replay

    if step is None:
        return lambda function: Replay(function, check_every, refused)
    return Replay(step, check_every, refused)
