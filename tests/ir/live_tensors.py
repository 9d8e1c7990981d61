"""How many of torch_xla's tensors there are, to tell what is kept for too long."""

from torch_xla.debug import metrics


def live_tensors():
    return metrics.counter_value("CreateXlaTensor") - metrics.counter_value("DestroyXlaTensor")
