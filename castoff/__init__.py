"""castoff: patched PyTorch and PyTorch/XLA wheels in which dtypes mean what they say.

One stage, one module; data flows one way::

    pin -> fetch -> topics -> apply -> compile -> repack -> verify -> dist

``build`` runs the stages in order, ``cli`` is the command line.
"""
