"""A spectrogram by stft and the sound from it by istft."""

import torch


def program(device):
    x = torch.randn(2, 64).to(device)
    window = torch.hann_window(16, device=device)
    y = torch.stft(x, 16, hop_length=4, window=window, return_complex=True)
    return y.abs(), torch.istft(y, 16, hop_length=4, window=window)
