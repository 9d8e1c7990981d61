"""castoff: patched PyTorch and PyTorch/XLA wheels in which dtypes mean what they say.

Each layer imports those before it only (import-linter holds it, by the contracts in pyproject.toml)::

    core -> formats -> model -> build -> tpu -> audit, upstream -> cli

``container`` needs ``core`` alone, and the standard library of an older Python.
"""
