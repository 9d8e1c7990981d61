"""The TPU compiler without a TPU.

torch_xla traces a program on CPU-XLA to StableHLO (``trace``, in the user's environment); the pin's own
libtpu compiles it (``worker``, in an environment and a process of its own, which ``environment`` makes
and ``client`` talks to); ``normalize`` writes the result as text that tests can state. ``trace``, ``client``
and ``normalize`` need only the standard library and the user's environment, so tests can import them there.
"""
