"""`torch_xla.amp.autocast` on CPU-XLA."""

__all__ = ["HARDWARE", "install"]

#: The hardware on which ``torch_xla.amp.autocast`` is TPU's: bfloat16, by the lists of the dispatch key AutocastXLA.
HARDWARE = {"TPU", "NEURON"}


def install() -> None:
    """Put the CPU among them."""
    HARDWARE.add("CPU")
