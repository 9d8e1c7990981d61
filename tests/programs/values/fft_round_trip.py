"""Fourier transforms, their inverses and a convolution by them."""

import torch


def program(device):
    x = torch.randn(2, 16).to(device)
    y = torch.fft.rfft(x)
    k = torch.fft.rfft(torch.randn(16).to(device))
    return (
        y.abs(),
        torch.fft.irfft(y, n=16),
        torch.fft.irfft(y * k, n=16),
        torch.fft.fft2(x).real,
        torch.fft.fftshift(x),
    )
