"""Programs: audio."""

import torch
import torch.nn.functional as F
from torch import nn


def causal_convolution(device):
    """Causal dilated convolutions with padding on the left, gated, as WaveNet has them."""
    conv = nn.Conv1d(4, 8, 2, dilation=4).to(device)
    x = torch.randn(2, 4, 16).to(device).requires_grad_()
    a, b = conv(F.pad(x, (4, 0))).chunk(2, 1)
    out = a.tanh() * b.sigmoid() + x
    out.square().sum().backward()
    return out, x.grad, conv.weight.grad


def mel_filterbank(device):
    """A log-mel spectrogram: frames by unfold, a window, a filter bank and Whisper's clamp."""
    x = torch.randn(1, 160).to(device)
    frames = x.unfold(1, 32, 16) * torch.hamming_window(32, device=device)
    power = torch.fft.rfft(frames).abs().square()
    bank = torch.rand(17, 6).to(device)
    mel = (power @ bank).clamp(min=1e-10).log10()
    return (torch.maximum(mel, mel.amax() - 8.0) + 4.0) / 4.0


def stft_and_back(device):
    """A spectrogram by stft and the sound from it by istft."""
    x = torch.randn(2, 64).to(device)
    window = torch.hann_window(16, device=device)
    y = torch.stft(x, 16, hop_length=4, window=window, return_complex=True)
    return y.abs(), torch.istft(y, 16, hop_length=4, window=window)
