"""Which layers a model is made of: a chain as it stands, any other model from what torch.fx shows of its forward.

A traced forward is a graph of calls with one input. Where branches meet again, in a sum, the last call that all of them
pass is where they part; so the graph becomes a chain of layers and of `parts.Sum` of such chains. What has no entry in
the tables here is refused by name. A trace can be misled, so whoever reads a model also compares what was read with
what the model computes: `lipschitz.SequentialLayers`.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional
from torch.nn.utils.fusion import fuse_conv_bn_eval

from riskband.adversaries.bounds import parts
from riskband.adversaries.bounds.layer_norms import (
    BATCH_NORMS,
    CONVOLUTIONS,
    NORMALISATIONS,
    RULES,
    check_layer,
    has_hooks,
)
from riskband.checks import RefusedError, kind_of

Named = list[tuple[str, nn.Module]]

MAX_LAYERS = 2000
"""Of what was read: branches that part before others meet are written out once for each way through them."""
MAX_WEIGHTS = 2**22
"""Of a model that is no chain: a deeper one costs minutes to read, and bounds of it say nothing."""
# Another number than most axes have: an axis of this length is taken for that of the examples.
_NUM_PROBES = 3

_CONTAINERS = (nn.Module, nn.Sequential, nn.ModuleList, nn.ModuleDict)
# Torch's own classes that say by a `__call__` of theirs that they cannot be called.
_NOT_CALLED = (nn.ParameterList, nn.ParameterDict)

# Functions and methods with the settings of a layer, in the order in which its class takes them.
_AS_LAYERS: dict[object, type[nn.Module]] = {
    **dict.fromkeys((torch.relu, torch.relu_, functional.relu, functional.relu_, "relu", "relu_"), nn.ReLU),
    **dict.fromkeys((torch.tanh, functional.tanh, "tanh"), nn.Tanh),
    **dict.fromkeys((torch.sigmoid, functional.sigmoid, "sigmoid"), nn.Sigmoid),
    functional.leaky_relu: nn.LeakyReLU,
    functional.elu: nn.ELU,
    functional.celu: nn.CELU,
    functional.selu: nn.SELU,
    functional.gelu: nn.GELU,
    functional.silu: nn.SiLU,
    functional.mish: nn.Mish,
    functional.softsign: nn.Softsign,
    functional.logsigmoid: nn.LogSigmoid,
    functional.hardtanh: nn.Hardtanh,
    functional.relu6: nn.ReLU6,
    functional.hardswish: nn.Hardswish,
    functional.hardsigmoid: nn.Hardsigmoid,
    **dict.fromkeys((torch.softmax, functional.softmax, "softmax"), nn.Softmax),
    **dict.fromkeys((torch.log_softmax, functional.log_softmax, "log_softmax"), nn.LogSoftmax),
    **{
        getattr(functional, f"{name}_pool{axes}d"): getattr(nn, f"{kind}Pool{axes}d")
        for name, kind in (("avg", "Avg"), ("adaptive_avg", "AdaptiveAvg"))
        for axes in (1, 2, 3)
    },
    functional.pixel_shuffle: nn.PixelShuffle,
    functional.pixel_unshuffle: nn.PixelUnshuffle,
}
_ADDING = (operator.add, operator.iadd, torch.add, "add", "add_")
_SUBTRACTING = (operator.sub, operator.isub, torch.sub, "sub", "sub_")
_MULTIPLYING = (operator.mul, operator.imul, torch.mul, "mul", "mul_")
_DIVIDING = (operator.truediv, operator.itruediv, torch.div, "div", "div_")
_RESHAPING = (
    "view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze",
    torch.reshape, torch.flatten, torch.unflatten, torch.squeeze, torch.unsqueeze,
)  # fmt: skip
_POOLING: dict[object, Any] = {
    getattr(room, f"max_pool{axes}d"): getattr(nn, f"MaxPool{axes}d")
    for room in (functional, torch)
    for axes in (1, 2, 3)
}
_POOL_SETTINGS = ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")
_MOVING_AXES = ("permute", "transpose", torch.permute, torch.transpose)
_DOING_NOTHING = ("contiguous", "clone", "detach")
# Numbers that follow from the shapes alone; anything else that is no tensor may follow from the examples.
_OF_SHAPES = (
    "size", "dim", getattr, operator.getitem, operator.add, operator.sub, operator.mul, operator.floordiv, operator.neg,
)  # fmt: skip
_IN_PLACE = (operator.iadd, operator.isub, operator.imul, operator.itruediv, torch.relu_, functional.relu_)
# What these return shares no memory with what they got.
_FRESH = (nn.Linear, *CONVOLUTIONS, *BATCH_NORMS, *NORMALISATIONS)


def flat(name: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the layers of an `nn.Sequential`, possibly of such, with their names, or the module itself."""
    if type(module) is not nn.Sequential or has_hooks(module):
        yield name or type(module).__name__, module
        return
    for key, child in module._modules.items():  # named_children passes over a layer that comes twice
        if child is None:
            raise RefusedError(f"a chain must have a layer at every place, got None at {key!r}; leave it out")
        yield from flat(f"{name}.{key}" if name else key, child)


def is_layer(module: nn.Module) -> bool:
    """Return whether a module is one that torch has, or derived from one: it is known by its type, or not at all."""
    kinds = (kind for kind in type(module).__mro__ if kind not in _CONTAINERS)
    return type(module) in RULES or any(kind.__module__.startswith("torch.nn.") for kind in kinds)


def traced(model: nn.Module, x_shape: Sequence[int]) -> Named:
    """Return the layers of a model in float64 and eval mode, from a trace of its forward.

    Raises RefusedError if a part of it has hooks, if the forward cannot be traced, or has a call that is not known.
    """
    num_weights = sum(value.numel() for value in model.parameters())
    if num_weights > MAX_WEIGHTS:
        raise RefusedError(
            f"a model that is no nn.Sequential must have at most {MAX_WEIGHTS} weights, got {num_weights}; use an "
            "attack, or the adversary smoothing:SIGMA, which proves something of any model"
        )
    for name, module in model.named_modules():
        if has_hooks(module):
            check_layer(name or type(module).__name__, module)  # refuses it in the words of all layers
        if type(module).__call__ is not nn.Module.__call__ and type(module) not in _NOT_CALLED:
            kind = type(module).__name__
            raise RefusedError(f"modules must be called as torch calls them, got {kind} at {name!r}; use an attack")
    twin = copy.deepcopy(model).double().eval().requires_grad_(False)
    graph = _graph(twin)
    probes = torch.rand(_NUM_PROBES, *x_shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    values = _Values(fx.GraphModule(twin, graph))
    try:
        with torch.no_grad():
            values.run(probes)
    except (RuntimeError, IndexError, ValueError, TypeError, AttributeError) as error:
        raise RefusedError(
            f"x_shape must fit the model, which must take float64: it fails for inputs of shape {tuple(x_shape)}, with "
            f"{kind_of(error)}; give the shape of one input, or make the model take float64, or use an attack"
        ) from error
    return _Reader(twin, values.found).layers(graph)


def _graph(model: nn.Module) -> fx.Graph:
    try:
        return _Tracer().trace(model)
    except Exception as error:  # a forward may raise anything when it is shown no numbers
        raise RefusedError(
            f"the forward of {type(model).__name__} must be one that torch.fx can trace: one input, and no choice that "
            "depends on numbers; use an attack, which needs no proof"
        ) from error


class _Tracer(fx.Tracer):
    """Looks into all modules but layers."""

    proxy_buffer_attributes = True

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return is_layer(m)


class _Values(fx.Interpreter):
    """Keeps shapes of what depends on examples, and values of what does not."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module, garbage_collect_values=False)
        self.found: dict[fx.Node, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        self.found[n] = super().run_node(n)
        return self.found[n]


@dataclass
class _Reader:
    """A graph of calls as chains.

    `sources` has, of each call that depends on the examples, the calls among its arguments that do; `passed` the calls
    that are on every way to it, in their order, itself the last; `counts` the calls that say how many examples there
    are; `done` those that were read.
    """

    model: nn.Module
    values: Mapping[Any, Any]
    sources: dict[fx.Node, list[fx.Node]] = field(default_factory=dict)
    passed: dict[fx.Node, list[fx.Node]] = field(default_factory=dict)
    counts: set[fx.Node] = field(default_factory=set)
    done: set[fx.Node] = field(default_factory=set)
    num_layers: int = 0

    def layers(self, graph: fx.Graph) -> Named:
        """Return the chain from the input of the graph to what it returns."""
        inputs = [node for node in graph.nodes if node.op == "placeholder" and node.users]
        last = next(node for node in graph.nodes if node.op == "output").args[0]
        if len(inputs) != 1:
            raise RefusedError(f"a model must have one input, got {len(inputs)}; use an attack, which needs no proof")
        for node in graph.nodes:
            self._note(node, inputs[0])
        if last not in self.sources:
            raise RefusedError("a model must return one tensor that depends on its input, got another; use an attack")
        layers = self._chain(inputs[0], last)
        self._check_all_done(inputs[0])
        return layers

    def _check_all_done(self, start: fx.Node) -> None:
        """Check that nothing was done to the examples beside what was read; raises RefusedError."""
        unused = [node for node in self.sources if node is not start and node not in self.done]
        if unused:
            raise RefusedError(
                f"every step of a forward must lead to its result, got {_called(unused[-1])} whose result is not used: "
                "it may overwrite what is; remove it, or use an attack, which needs no proof"
            )

    def _note(self, node: fx.Node, start: fx.Node) -> None:
        before = [each for each in node.all_input_nodes if each in self.sources]
        if node is start:
            self.sources[node], self.passed[node] = [], [node]
        elif before and node.op != "output":
            value = self.values[node]
            if isinstance(value, Tensor):
                common = [each for each in self.passed[before[0]] if all(each in self.passed[b] for b in before)]
                self.sources[node], self.passed[node] = before, [*common, node]
            elif node.op == "call_module" or node.target not in _OF_SHAPES:
                raise _unknown(node)
            elif not self._is_fixed(node):
                self.counts.add(node)
        elif node.op != "output" and not self.counts.isdisjoint(node.all_input_nodes):
            self._note_count(node)

    def _note_count(self, node: fx.Node) -> None:
        """Note a call that is told how many examples there are, and nothing else of them; refuse it if it may count."""
        if node.target is not operator.getitem or not isinstance(self.values[node], int | tuple):
            raise _unknown(node)
        if not self._is_fixed(node):
            asked = node.args[1]
            if isinstance(asked, slice) and (asked.start, asked.step) != (None, None):
                raise _unknown(node)
            self.counts.add(node)

    def _is_fixed(self, node: fx.Node) -> bool:
        """Return whether what a call says of a shape is the same for any number of examples."""
        if node.target in ("dim", getattr):
            return node.target == "dim" or node.args[1] in ("dtype", "device", "ndim")
        if node.target not in ("size", operator.getitem) or len(node.args) != 2 or node.kwargs:
            return False
        of, asked = self.values[node.args[0]], node.args[1]
        num_axes = of.dim() if isinstance(of, Tensor) else len(of)
        if isinstance(asked, slice) and asked.step is None and type(asked.stop) in (int, type(None)):
            return type(asked.start) is int and (asked.start > 0 or -num_axes < asked.start < 0)
        return type(asked) is int and asked % num_axes != 0

    def _is_count_first(self, node: fx.Node) -> bool:
        """Return whether a call is told the number of examples as the first of its sizes, or not at all."""
        given: list[fx.Node] = []
        fx.node.map_arg((node.args, node.kwargs), given.append)
        told = [each for each in given if each in self.counts]
        sizes = node.args[1] if isinstance(node.args[1], list | tuple) else node.args[1:]
        return not told or (len(told) == 1 and len(sizes) > 0 and sizes[0] is told[0])

    def _chain(self, start: fx.Node, end: Any) -> Named:
        """Return the layers between what one call returned and what another returns."""
        found: Named = []
        while end is not start:
            parting = self.passed[end][-2]  # the last call that all ways to this one have passed
            layers = self._read(end, parting)
            found += reversed(layers)
            self.num_layers += len(layers)
            if self.num_layers > MAX_LAYERS:
                raise RefusedError(f"a model must have at most {MAX_LAYERS} layers with its branches written out")
            end = parting
        return _fused(found[::-1])

    def _read(self, node: fx.Node, parting: fx.Node) -> Named:
        """Return what a call makes of what the call `parting` returned, as layers in a row."""
        self.done.add(node)
        self._check_in_place(node)
        value = self.values[node]
        if isinstance(value, Tensor) and value.dtype is not torch.float64:
            raise _unknown(node)
        if node.op == "call_module":
            return self._module(node)
        if node.target in _ADDING + _SUBTRACTING + _MULTIPLYING + _DIVIDING:
            found = self._arithmetic(node, parting)
        elif self.sources[node] == [node.args[0]] and not isinstance(node.args[0], list | tuple):
            found = self._function(node)
        else:
            raise _unknown(node)
        for part in found:
            if not isinstance(part, parts.Sum):
                check_layer(node.name, part)
        return [(node.name, part) for part in found]

    def _module(self, node: fx.Node) -> Named:
        name, module = str(node.target), self.model.get_submodule(str(node.target))
        check_layer(name, module)
        if len(node.args) != 1 or any(value is not None for value in node.kwargs.values()):
            raise RefusedError(f"layers must get one input, got more at {name!r}; use an attack, which needs no proof")
        return [(name, module)]

    def _arithmetic(self, node: fx.Node, parting: fx.Node) -> list[nn.Module]:
        """Sums of branches; sums with, and products by, what does not depend on the examples."""
        if len(node.args) != 2 or node.kwargs:
            raise _unknown(node)
        left, right = node.args
        is_right, shape = right in self.sources, self.values[node].shape
        if any(self.values[each].shape != shape for each in self.sources[node]):
            raise RefusedError(f"what is added or multiplied must have one shape, got more at {node.name!r}")
        sign = -1.0 if node.target in _SUBTRACTING else 1.0
        if left in self.sources and is_right:
            if node.target not in _ADDING + _SUBTRACTING:
                raise _unknown(node)
            second = _bare(self._chain(parting, right)) + ([_times(sign)] if sign < 0.0 else [])
            return [parts.Sum([_bare(self._chain(parting, left)), second])]
        constant = self._constant(left if is_right else right, node)
        if node.target in _ADDING + _SUBTRACTING:
            return [_times(sign), parts.Shift(constant)] if is_right and sign < 0.0 else [parts.Shift(sign * constant)]
        if is_right and node.target in _DIVIDING:
            raise _unknown(node)
        return [parts.Scale(constant if node.target in _MULTIPLYING else 1.0 / constant)]

    def _function(self, node: fx.Node) -> list[nn.Module]:
        """Return what a function or method of one tensor does; the other arguments are settings."""
        source, value, kind = self.values[node.args[0]], self.values[node], node.target
        settings = node.args[1:]
        named = {key: setting for key, setting in node.kwargs.items() if setting is not None and key != "_stacklevel"}
        if kind in _RESHAPING:
            if value.shape[:1] != source.shape[:1] or len(value.shape) < 2:
                raise RefusedError(f"the first axis must be left to the examples, and is not at {node.name!r}")
            if not self._is_count_first(node):
                raise _unknown(node)
            return [parts.Reshaped(value.shape[1:])]
        if any(isinstance(each, fx.Node) for each in node.all_input_nodes[1:]):
            raise _unknown(node)
        if kind in _DOING_NOTHING:
            return []
        if kind in _MOVING_AXES:
            return [parts.Permuted(_checked_axes(node, _new_order(node, source)))]
        if kind in ("mean", torch.mean):
            given = _given(node, ("input", "dim", "keepdim"))
            axes = given.get("dim", 0)
            axes = [_axis(axis, source) for axis in (axes if isinstance(axes, list | tuple) else [axes])]
            return [parts.Mean(_checked_axes(node, [0, *axes])[1:], is_kept=bool(given.get("keepdim", False)))]
        if (
            kind is functional.dropout
            and _given(node, ("input", "p", "training", "inplace")).get("training", True) is False
        ):
            return []
        if kind in ("neg", operator.neg, torch.neg):
            return [_times(-1.0)]
        if kind in _POOLING:
            pooling = _given(node, ("input", *_POOL_SETTINGS))
            return [_POOLING[kind](**{key: value for key, value in pooling.items() if key != "input"})]
        if kind in _AS_LAYERS:
            return [_AS_LAYERS[kind](*settings, **named)]
        raise _unknown(node)

    def _constant(self, given: object, node: fx.Node) -> Tensor:
        """Return a number, or a tensor that does not depend on the examples and is the same for each, in float64."""
        # A number that a call returned may be that of the examples.
        value = self.values[given] if isinstance(given, fx.Node) else given
        if isinstance(value, int | float) and not isinstance(given, fx.Node):
            value = torch.tensor(float(value), dtype=torch.float64)
        if not isinstance(value, Tensor) or not value.is_floating_point():
            raise _unknown(node)
        if value.dim() == self.values[node].dim():
            if not bool((value == value[:1]).all()):
                raise RefusedError(f"what is added must be the same for all examples, and is not at {node.name!r}")
            value = value[:1]
        if not bool(torch.isfinite(value).all()):
            raise RefusedError(f"weights must be finite, got NaN or infinity at {node.name!r}; train the model again")
        return value.detach().double().clone()

    def _check_in_place(self, node: fx.Node) -> None:
        """Check that what a call overwrites is used by nothing else, under no other name; raises RefusedError."""
        if not self._is_in_place(node):
            return
        over = node.args[0]
        while isinstance(over, fx.Node):
            if sum(user in self.sources or user.op == "output" for user in over.users) > 1:
                raise RefusedError(
                    f"what is overwritten must not be used again, and is at {node.name!r}; use no inplace"
                )
            if over.op == "call_module" and isinstance(self.model.get_submodule(str(over.target)), _FRESH):
                return
            over = over.args[0] if self.sources.get(over) else None

    def _is_in_place(self, node: fx.Node) -> bool:
        if node.op == "call_module":
            return bool(getattr(self.model.get_submodule(str(node.target)), "inplace", False))
        is_method = isinstance(node.target, str) and node.target.endswith("_")
        is_asked = node.target in _AS_LAYERS and any(setting is True for setting in node.args[1:])
        return is_method or is_asked or node.target in _IN_PLACE or bool(node.kwargs.get("inplace", False))


def _given(node: fx.Node, names: Sequence[str]) -> dict[str, Any]:
    """Return the arguments of a call by name; raises RefusedError if it has others."""
    if len(node.args) > len(names) or not set(node.kwargs) <= set(names):
        raise _unknown(node)
    return {**dict(zip(names, node.args, strict=False)), **node.kwargs}


def _fused(layers: Named) -> Named:
    """Return the same with a batch norm behind a convolution as part of it: one norm, and not the product of two."""
    found: Named = []
    for name, layer in layers:
        if found and type(layer) is nn.BatchNorm2d and type(found[-1][1]) is nn.Conv2d:
            found[-1] = (found[-1][0], fuse_conv_bn_eval(found[-1][1], layer))
        else:
            found.append((name, layer))
    return found


def _bare(layers: Named) -> list[nn.Module]:
    return [layer for _, layer in layers]


def _times(factor: float) -> parts.Scale:
    return parts.Scale(torch.tensor(factor, dtype=torch.float64))


def _axis(axis: object, value: Tensor) -> int:
    return axis % value.dim() if isinstance(axis, int) else 0


def _checked_axes(node: fx.Node, axes: Sequence[int]) -> Sequence[int]:
    if axes[0] != 0 or 0 in axes[1:]:
        raise RefusedError(f"the first axis must be left to the examples, and is not at {node.name!r}; use an attack")
    return axes


def _new_order(node: fx.Node, source: Tensor) -> list[int]:
    if node.target in ("permute", torch.permute):
        order = _given(node, ("input", "dims"))["dims"] if len(node.args) < 3 else node.args[1:]
        return [_axis(axis, source) for axis in (order if isinstance(order, list | tuple) else [order])]
    given = _given(node, ("input", "dim0", "dim1"))
    one, two = _axis(given["dim0"], source), _axis(given["dim1"], source)
    order = list(range(source.dim()))
    order[one], order[two] = two, one
    return order


def _called(node: fx.Node) -> str:
    """Return what is called, and where."""
    kind = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", repr(node.target))
    stack = node.meta.get("nn_module_stack")
    place, module = list(stack.values())[-1] if stack else ("", nn.Module)
    where = f"in the forward of {module.__name__} at {place!r}" if place else "in the model's own forward"
    return f"{kind!r} {where}"


def _unknown(node: fx.Node) -> RefusedError:
    return RefusedError(
        f"every step of a forward must be known here (docs/adversaries.md has them), got {_called(node)}; for any "
        "other nothing is proved: use an attack, which needs no proof"
    )
