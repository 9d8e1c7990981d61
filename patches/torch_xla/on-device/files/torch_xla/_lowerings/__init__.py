"""Functions that compute operators which torch_xla has no lowering for. ``table.py`` says which computes which.

They see XLA tensors below autograd and functionalization: they return new tensors, and write to none, not even to
their own through a view.
"""
