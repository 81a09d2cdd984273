"""Training that keeps the layers of a model orthogonal, so that it is Lipschitz by design.

Nothing here proves anything: constants are computed from the weights that come out
(`riskband.adversaries.bounds.lipschitz`), which are plain weights of plain layers.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

_MOMENTUM = 0.9
# The polynomial of Muon (Jordan et al. 2024): five times, it takes all singular values to 0.7 to 1.2.
_MUON = (3.4445, -4.7750, 2.0315)
_NUM_MUON_STEPS = 5
# How much a bias changes in a step, in learning rates.
_BIAS_RATE = 0.15


def orthogonalised(weight: Tensor) -> Tensor:
    """Return the weight of a linear layer or a convolution after one step towards an orthogonal one.

    The step is W - W(WᵀW - I)/2, half the gradient of ||WᵀW - I||²/4; W is the operator on images without borders, and
    what reaches beyond the kernel is cut off. Of a matrix it is the step of Newton and Schulz (Björck and Bowie 1971):
    it takes every singular value in (0, √3) towards 1, to within 0.001 if it was within 0.02. The weight, (num_outputs,
    num_inputs) or (num_outputs, num_inputs, height, width), is that of an `nn.Linear` or of an `nn.Conv2d` with stride
    1 and without groups, all singular values below √3; the result has its shape.
    """
    kernel = weight.reshape(*weight.shape[:2], *(weight.shape[2:] or (1, 1)))
    is_wide = len(kernel) < kernel.shape[1]
    kernel = kernel.transpose(0, 1) if is_wide else kernel
    padding = (kernel.shape[2] - 1, kernel.shape[3] - 1)
    gram = functional.conv2d(kernel.transpose(0, 1), kernel.transpose(0, 1), padding=padding)
    kernel = 1.5 * kernel - 0.5 * functional.conv2d(kernel, gram.transpose(0, 1), padding=padding)
    return (kernel.transpose(0, 1) if is_wide else kernel).reshape(weight.shape)


class OrthogonalDescent:
    """Muon for weights, each step followed by one of `orthogonalised`; for biases momentum of a fixed length.

    Muon replaces the momentum of a matrix by about its polar factor, so all singular values of a step are about the
    learning rate, and one step back is enough to stay near the orthogonal matrices. The model's linear layers and
    convolutions have weights as `orthogonalised` takes them; the learning rate is how long a step of a weight is, in
    the spectral norm.
    """

    def __init__(self, model: nn.Module, *, learning_rate: float) -> None:
        self.learning_rate = learning_rate
        self._parameters = [each for each in model.parameters() if each.requires_grad]
        self._momenta = [torch.zeros_like(each) for each in self._parameters]

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for each in self._parameters:
            each.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Change all parameters that have a gradient."""
        for each, momentum in self._with_gradients():
            if each.dim() == 1:
                size = momentum.norm() / len(each) ** 0.5 + 1e-12
                each.sub_(momentum / size, alpha=_BIAS_RATE * self.learning_rate)
            else:
                each.sub_(_about_polar(momentum.flatten(1)).reshape(each.shape), alpha=self.learning_rate)
                each.copy_(orthogonalised(each))

    def _with_gradients(self) -> Iterator[tuple[nn.Parameter, Tensor]]:
        """Yield parameters and the direction of their step: Nesterov's momentum."""
        for each, momentum in zip(self._parameters, self._momenta, strict=True):
            if each.grad is not None:
                momentum.lerp_(each.grad, 1.0 - _MOMENTUM)
                yield each, each.grad.lerp(momentum, _MOMENTUM)


def _about_polar(matrix: Tensor) -> Tensor:
    """Return the matrix with its singular values replaced by some near 1."""
    is_tall = matrix.shape[0] > matrix.shape[1]
    matrix = matrix.T if is_tall else matrix
    matrix = matrix / (matrix.norm() + 1e-12)
    first, third, fifth = _MUON
    for _ in range(_NUM_MUON_STEPS):
        gram = matrix @ matrix.T
        matrix = first * matrix + (third * gram + fifth * gram @ gram) @ matrix
    return matrix.T if is_tall else matrix
