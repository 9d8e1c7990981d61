"""A user's program, for type checkers. On stock wheels each line with "# castoff" must be an error, and no other."""

import torch
from torch_xla.experimental import is_narrow_attention  # castoff
from torch_xla.experimental import narrow_attention  # castoff
from typing_extensions import assert_type


def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    narrow_attention(enable=True)
    assert_type(is_narrow_attention(), bool)  # castoff
    return torch.nn.functional.scaled_dot_product_attention(query, key, value)
