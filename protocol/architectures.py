"""Image models of the robustness literature by name, with weights under the names that their published files have.

`protocol.models.build_model` imports this when a name asks for it. Of one pre-activation residual net (He et al. 2016,
"Identity mappings in deep residual networks"; Zagoruyko and Komodakis 2016) there are four layouts of names in use; a
`Layout` says which, so that a file of RobustBench loads without conversion. Inputs lie in [0, 1]: where a published
model normalises them, the layer that does so is inside.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn


class Normalised(nn.Module):
    """Base of models that first normalise the channels of an image, if they are given a mean and a deviation.

    `mean` and `std` are no part of the state dict, as in RobustBench's files: the model's name decides them.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, normalisation: tuple[Sequence[float], Sequence[float]] | None) -> None:
        super().__init__()
        self.is_normalised = normalisation is not None
        for name, values in zip(("mean", "std"), normalisation or ((0.0,), (1.0,)), strict=True):
            self.register_buffer(name, torch.tensor(values).view(1, -1, 1, 1), persistent=False)

    def normalised(self, x: Tensor) -> Tensor:
        """Return (x - mean) / std, or x."""
        return (x - self.mean) / self.std if self.is_normalised else x


@dataclass(frozen=True)
class Layout:
    """How a pre-activation residual net names its layers, and the details in which published ones differ."""

    # Names of the first convolution, of the groups of blocks (with the group's number in it), of the last normalisation
    # ("" for none) and of the linear layer.
    stem: str
    group: str
    norm: str
    head: str
    # Names of normalisation, convolution, normalisation, convolution and shortcut, in a block.
    block: tuple[str, str, str, str, str]
    first_group: int  # number of the first group
    shortcut_size: int = 1  # size of the shortcut's convolution, where the number of channels changes
    activates_shortcut: bool = True  # whether it begins behind the block's first activation, or at its input
    pads_right: bool = False  # whether convolutions with stride 2 pad on the right and below only


PREACT = Layout("conv1", "layer{}", "bn", "linear", ("bn1", "conv1", "bn2", "conv2", "shortcut.0"), 1)
WIDE = Layout("conv1", "block{}.layer", "bn1", "fc", ("bn1", "conv1", "bn2", "conv2", "convShortcut"), 1)
_DM_BLOCK = ("batchnorm_0", "conv_2d_1", "batchnorm_1", "conv_2d_2", "shortcut")
DM_PREACT = Layout(
    "conv_2d",
    "layer_{}",
    "batchnorm",
    "logits",
    _DM_BLOCK,
    0,
    shortcut_size=3,
    activates_shortcut=False,
    pads_right=True,
)
_DM_WIDE_BLOCK = ("batchnorm_0", "conv_0", "batchnorm_1", "conv_1", "shortcut")
DM_WIDE = Layout("init_conv", "layer.{}.block", "batchnorm", "logits", _DM_WIDE_BLOCK, 0, pads_right=True)


class ResidualBlock(nn.Module):
    """Two convolutions, each behind a normalisation and an activation, added to a shortcut past them."""

    def __init__(
        self, before: int, after: int, stride: int, *, layout: Layout, activation: Callable[[], nn.Module]
    ) -> None:
        super().__init__()
        self.layout = layout
        is_right = layout.pads_right and stride > 1
        self.pad = nn.ZeroPad2d((0, 1, 0, 1)) if is_right else nn.Identity()
        convolution = partial(nn.Conv2d, bias=False)
        padding = 0 if is_right else 1
        _put(self, layout.block[0], nn.BatchNorm2d(before))
        _put(self, layout.block[1], convolution(before, after, kernel_size=3, stride=stride, padding=padding))
        _put(self, layout.block[2], nn.BatchNorm2d(after))
        _put(self, layout.block[3], convolution(after, after, kernel_size=3, padding=1))
        self.has_shortcut = before != after
        if self.has_shortcut:
            kernel = layout.shortcut_size
            shortcut_padding = padding if kernel > 1 else 0
            shortcut = convolution(before, after, kernel_size=kernel, stride=stride, padding=shortcut_padding)
            _put(self, layout.block[4], shortcut)
        self.activations = nn.ModuleList([activation(), activation()])

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum of the convolutions and the shortcut."""
        norm, convolution, second_norm, second = (self.get_submodule(name) for name in self.layout.block[:4])
        ahead = self.activations[0](norm(x))
        past = x
        if self.has_shortcut:
            source = ahead if self.layout.activates_shortcut else x
            shortcut = self.get_submodule(self.layout.block[4])
            past = shortcut(self.pad(source) if self.layout.shortcut_size > 1 else source)
        moved: Tensor = second(self.activations[1](second_norm(convolution(self.pad(ahead)))))
        return past + moved


class ResidualNet(Normalised):
    """A convolution, groups of `ResidualBlock` of which all but the first halve the image, a mean, a linear layer.

    Parameters
    ----------
    x_shape, num_classes
        See `protocol.models.build_model`.
    stem_width, widths
        Channels behind the first convolution, and of each group.
    num_blocks
        In each group.
    layout, activation, normalisation
        Names and details; None for no normalisation.
    has_unused_group
        Whether there is a second first group that is never used: files made with code of TRADES have its weights.
    """

    def __init__(
        self,
        *,
        x_shape: tuple[int, ...],
        num_classes: int,
        stem_width: int,
        widths: Sequence[int],
        num_blocks: int,
        layout: Layout,
        activation: Callable[[], nn.Module] = nn.ReLU,
        normalisation: tuple[Sequence[float], Sequence[float]] | None = None,
        has_unused_group: bool = False,
    ) -> None:
        super().__init__(normalisation)
        self.layout = layout
        _put(self, layout.stem, nn.Conv2d(x_shape[0], stem_width, kernel_size=3, padding=1, bias=False))
        self.groups = [layout.group.format(layout.first_group + number) for number in range(len(widths))]
        channels = (stem_width, *widths)
        for number, name in enumerate(self.groups):

            def blocks(number: int = number) -> nn.Sequential:
                before, after, stride = channels[number], channels[number + 1], 2 if number else 1
                sizes = [(before, stride)] + [(after, 1)] * (num_blocks - 1)
                return nn.Sequential(
                    *(ResidualBlock(size, after, step, layout=layout, activation=activation) for size, step in sizes)
                )

            _put(self, name, blocks())
            if has_unused_group and number == 0:
                _put(self, f"sub_{name}", blocks())
        if layout.norm:
            _put(self, layout.norm, nn.BatchNorm2d(widths[-1]))
            self.activation = activation()
        self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        _put(self, layout.head, nn.Linear(widths[-1], num_classes))

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        x = self.get_submodule(self.layout.stem)(self.normalised(x))
        for name in self.groups:
            x = self.get_submodule(name)(x)
        if self.layout.norm:
            x = self.activation(self.get_submodule(self.layout.norm)(x))
        logits: Tensor = self.get_submodule(self.layout.head)(self.pool(x))
        return logits


preact_resnet_18: Callable[..., ResidualNet]
preact_resnet_18 = partial(ResidualNet, stem_width=64, widths=(64, 128, 256, 512), num_blocks=2, layout=PREACT)
wrn_28_10: Callable[..., ResidualNet]
wrn_28_10 = partial(ResidualNet, stem_width=16, widths=(160, 320, 640), num_blocks=4, layout=WIDE)
# Three blocks and 20,000 weights, which one core trains on MNIST in a minute.
preact_resnet_8: Callable[..., ResidualNet]
preact_resnet_8 = partial(ResidualNet, stem_width=8, widths=(8, 16, 32), num_blocks=1, layout=PREACT)


class Attention(nn.Module):
    """Self-attention with several heads (Vaswani et al. 2017)."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return what each token takes from all tokens, shape (num_examples, num_tokens, width)."""
        num_examples, num_tokens, width = x.shape
        parts = self.qkv(x).reshape(num_examples, num_tokens, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        queries, keys, values = parts.unbind(0)
        found = nn.functional.scaled_dot_product_attention(queries, keys, values)
        taken: Tensor = self.proj(found.transpose(1, 2).reshape(num_examples, num_tokens, width))
        return taken


class TransformerBlock(nn.Module):
    """Attention and a layer for each token, each behind a normalisation and added to what it was given."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm(width, eps=1e-6) for _ in range(2))
        self.attn = Attention(width, num_heads)
        layers = OrderedDict(fc1=nn.Linear(width, 4 * width), act=nn.GELU(), fc2=nn.Linear(4 * width, width))
        self.mlp = nn.Sequential(layers)

    def forward(self, x: Tensor) -> Tensor:
        """Return the tokens, of the same shape."""
        x = x + self.attn(self.norm1(x))
        added: Tensor = x + self.mlp(self.norm2(x))
        return added


class VisionTransformer(nn.Module):
    """A vision transformer (Dosovitskiy et al. 2021), named as in `timm`; it reads the class off a token of its own.

    Patches have 4 × 4 pixels in images of at most 64, else 16 × 16. Raises ValueError if they do not fill the image.
    """

    def __init__(
        self, *, x_shape: tuple[int, ...], num_classes: int, width: int = 384, depth: int = 12, num_heads: int = 6
    ) -> None:
        super().__init__()
        side = 4 if max(x_shape[1:]) <= 64 else 16
        if any(size % side for size in x_shape[1:]):
            raise ValueError(
                f"height and width must be multiples of {side}, the size of a patch, got {x_shape}; pad the images"
            )
        num_patches = (x_shape[1] // side) * (x_shape[2] // side)
        self.cls_token = nn.Parameter(0.02 * torch.randn(1, 1, width))
        self.pos_embed = nn.Parameter(0.02 * torch.randn(1, 1 + num_patches, width))
        self.patch_embed = nn.Module()
        self.patch_embed.proj = nn.Conv2d(x_shape[0], width, kernel_size=side, stride=side)
        self.blocks = nn.Sequential(*(TransformerBlock(width, num_heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        patches = self.patch_embed.get_submodule("proj")(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.cls_token.expand(x.shape[0], -1, -1), patches], dim=1) + self.pos_embed
        logits: Tensor = self.head(self.norm(self.blocks(tokens))[:, 0])
        return logits


def _put(root: nn.Module, path: str, module: nn.Module) -> None:
    """Add a module under a name with dots, making the modules on the way to it."""
    *way, name = path.split(".")
    for step in way:
        if step not in root._modules:
            root.add_module(step, nn.Module())
        root = root.get_submodule(step)
    root.add_module(name, module)


_CIFAR10 = ((0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616))
_RAW_SHORTCUT = replace(PREACT, activates_shortcut=False, norm="")
_RICE = partial(preact_resnet_18, normalisation=_CIFAR10)
_DM_18 = partial(preact_resnet_18, layout=DM_PREACT, activation=nn.SiLU, normalisation=_CIFAR10)
_TRADES = partial(wrn_28_10, has_unused_group=True)
_DM_28_10 = partial(wrn_28_10, layout=DM_WIDE, activation=nn.SiLU, normalisation=_CIFAR10)
_FAMILIES: tuple[tuple[Callable[..., nn.Module], str], ...] = (
    (partial(preact_resnet_18, layout=_RAW_SHORTCUT), "Andriushchenko2020Understanding"),
    (partial(preact_resnet_18, layout=_RAW_SHORTCUT, normalisation=_CIFAR10), "Wong2020Fast"),
    (
        _RICE,  # Rice2020Overfitting is that of l2; the one of linf is a wider net
        "Rice2020Overfitting Kireev2021Effectiveness_Gauss50percent Kireev2021Effectiveness_AugMixNoJSD "
        "Kireev2021Effectiveness_RLAT Kireev2021Effectiveness_RLATAugMixNoJSD Kireev2021Effectiveness_RLATAugMix",
    ),
    (
        _DM_18,
        "Rebuffi2021Fixing_R18_ddpm Rebuffi2021Fixing_R18_cutmix_ddpm Rade2021Helper_R18_extra Rade2021Helper_R18_ddpm "
        "Gowal2021Improving_R18_ddpm_100m",
    ),
    (wrn_28_10, "Standard"),
    (partial(wrn_28_10, normalisation=((0.5,), (0.5,))), "Hendrycks2019Using"),
    (partial(wrn_28_10, normalisation=((0.491, 0.482, 0.447), (0.247, 0.243, 0.262))), "Rony2019Decoupling"),
    (
        _TRADES,
        "Carmon2019Unlabeled Sehwag2020Hydra Wang2020Improving Wu2020Adversarial_extra Zhang2020Geometry "
        "Sridhar2021Robust",
    ),
    (
        _DM_28_10,
        "Gowal2020Uncovering_28_10_extra Rebuffi2021Fixing_28_10_cutmix_ddpm Rade2021Helper_ddpm "
        "Gowal2021Improving_28_10_ddpm_100m Pang2022Robustness_WRN28_10 Wang2023Better_WRN-28-10 "
        "Xu2023Exploring_WRN-28-10 Cui2023Decoupled_WRN-28-10",
    ),
)
_OF_ROBUSTBENCH = {name: build for build, names in _FAMILIES for name in names.split()}


def of_robustbench(identifier: str) -> Callable[..., nn.Module]:
    """Return the factory of a PreActResNet-18 or WRN-28-10 for CIFAR-10 by its identifier in RobustBench 1.1.

    Raises ValueError if it is none of these; the factory does for inputs of another shape or number of classes.
    """
    if identifier not in _OF_ROBUSTBENCH:
        raise ValueError(
            f"there is no model {identifier!r} of RobustBench here; the PreActResNet-18 and WRN-28-10 for CIFAR-10 are "
            f"{', '.join(sorted(_OF_ROBUSTBENCH))}; of others name the function that builds them, as 'module:factory'"
        )

    def factory(*, x_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        if tuple(x_shape) != (3, 32, 32) or num_classes != 10:
            raise ValueError(
                "models of RobustBench are for CIFAR-10, inputs of shape (3, 32, 32) and 10 classes, got "
                f"{x_shape} and {num_classes}; give the data that the model was trained for"
            )
        return _OF_ROBUSTBENCH[identifier](x_shape=x_shape, num_classes=num_classes)

    return factory
