"""The convolutional network of the rotated digits (Mehra et al. 2022, after Gulrajani and Lopez-Paz 2021)."""

from __future__ import annotations

from torch import nn


def rotated_digits_cnn(*, x_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Return four convolutions, global average pooling and a linear head on 128 features.

    Each convolution is followed by group normalisation, ReLU and dropout of a half. In a run configuration:
    ``model = "papers.domain_generalisation.network:rotated_digits_cnn"``. Raises ValueError if inputs are no images.
    """
    if len(x_shape) != 3:
        raise ValueError(f"the model needs inputs of shape (channels, height, width), got {x_shape}; use 'mlp'")
    return nn.Sequential(
        *_block(x_shape[0], 32),
        *_block(32, 64, stride=2),
        *_block(64, 128),
        *_block(128, 128),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(128, num_classes),
    )


def _block(num_in: int, num_out: int, *, stride: int = 1) -> list[nn.Module]:
    convolution = nn.Conv2d(num_in, num_out, kernel_size=3, stride=stride, padding=1)
    return [convolution, nn.GroupNorm(8, num_out), nn.ReLU(), nn.Dropout(0.5)]
