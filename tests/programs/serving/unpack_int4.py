"""Weights of four bits, packed into bytes and unpacked by shifts and masks, as AWQ and GPTQ do."""

import torch


def program(device):
    packed = torch.tensor([[0x12, 0xF0], [0x7F, 0x80]], dtype=torch.uint8).to(device)
    low, high = packed & 0xF, packed >> 4
    nibbles = torch.stack([low, high], -1).flatten(1).to(torch.int8)
    signed = torch.where(nibbles > 7, nibbles - 16, nibbles)
    words = torch.tensor([0x76543210, -1985229329], dtype=torch.int32).to(device)
    shifts = torch.arange(0, 32, 4, device=device, dtype=torch.int32)
    return signed, torch.bitwise_right_shift(words[:, None], shifts[None]) & 0xF
