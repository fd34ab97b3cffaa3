"""S networks of one architecture as one tensor: stacked parameters [S, P], their forward and backward pass.

A chain of linear layers and activations is run by batched products with its gradient written down, which a compiler
can fuse; anything else that can be stacked goes through `torch.func.vmap`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

Score = Callable[[Tensor], tuple[Tensor, Tensor]]  # pred [S, B, C] -> values [S], gradient [S, B, C]

_MODULES = {nn.ReLU: "relu", nn.Tanh: "tanh", nn.Sigmoid: "sigmoid", nn.Identity: ""}
_FUNCTIONS: dict[Any, str] = {
    torch.relu: "relu",
    nn.functional.relu: "relu",
    torch.tanh: "tanh",
    torch.sigmoid: "sigmoid",
}
_RANDOM = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout, nn.RReLU)
_RUNNING = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)


def why_not_stackable(model: nn.Module) -> str | None:
    """The reason why replicas of this network cannot be trained as one tensor, or None if they can."""
    for name, module in model.named_modules():
        kind = f"{type(module).__name__} ({name or 'the model itself'})"
        if isinstance(module, _RUNNING) and module.track_running_stats:
            return f"{kind} changes its running statistics in the forward pass"
        if isinstance(module, _RANDOM):
            return f"{kind} draws random numbers in the forward pass, which a stack draws in another order"
        if isinstance(module, nn.RNNBase):
            return f"{kind} has no stacked form in torch"
        if isinstance(module, nn.modules.lazy.LazyModuleMixin):
            return f"{kind} has no shapes before its first call"
    return None


@dataclass(frozen=True)
class Dense:
    """One linear layer and its activation. Offsets are into a network's flat parameters."""

    n_in: int
    n_out: int
    weight: int
    bias: int | None
    activation: str  # "", "relu", "tanh", "sigmoid" or "softmax"


class Architecture:
    """Where each parameter lies in the flat vector, and how to run the stack."""

    def __init__(self, model: nn.Module, input_shape: Sequence[int]) -> None:
        self.names = [name for name, p in model.named_parameters() if p.requires_grad]
        named = dict(model.named_parameters())
        self.shapes = [tuple(named[name].shape) for name in self.names]
        sizes = [named[name].numel() for name in self.names]
        self.starts = [sum(sizes[:i]) for i in range(len(sizes))]
        self.n_parameters = sum(sizes)
        self.layers = None
        if len(self.names) == len(named) and not list(model.buffers()):
            self.layers = _chain(model, dict(zip(self.names, self.starts, strict=True)), len(input_shape))
        self._model = model
        self._constants: dict[str, Tensor] = {}

    @property
    def widths(self) -> list[int]:
        """Numbers per row that go into and come out of each layer; a guess where the layers are not known."""
        if self.layers is None:
            return [math.prod(shape) for shape in self.shapes]
        return [self.layers[0].n_in, *(layer.n_out for layer in self.layers)]

    def describe(self) -> tuple[Any, ...]:
        """What must agree between replicas: names and shapes of parameters and the chain of layers."""
        return (tuple(self.names), tuple(self.shapes), self.layers)

    # Parameters

    def flatten(self, models: Sequence[nn.Module]) -> Tensor:
        """Parameters of S networks as [S, P]; whatever else they hold is kept for `run`."""
        if self.layers is None:
            keep = [{n: t for n, t in _tensors(m) if n not in self.names} for m in models]
            self._constants = {name: torch.stack([k[name].detach() for k in keep]) for name in keep[0]}
        rows = []
        for model in models:
            named = dict(model.named_parameters())
            rows.append(torch.cat([named[name].detach().flatten() for name in self.names]))
        return torch.stack(rows)

    @torch.no_grad()
    def write(self, flat: Tensor, model: nn.Module) -> None:
        """Put one network's flat parameters [P] into its module."""
        named = dict(model.named_parameters())
        for name, start, shape in zip(self.names, self.starts, self.shapes, strict=True):
            named[name].copy_(flat[start : start + named[name].numel()].view(shape))

    # Running

    def predict(self, flat: Tensor, x: Tensor) -> Tensor:
        """Outputs [S, B, C] for inputs [S, B, ...] (or [1, B, ...], shared)."""
        S = flat.shape[0]
        x = x.expand(S, *x.shape[1:])
        if self.layers is None:
            out: Tensor = torch.func.vmap(self._call)(self._views(flat), self._constants, x)
            return out.reshape(*x.shape[:2], -1)
        return self._forward(flat, x)[-1]

    def run(self, flat: Tensor, x: Tensor, score: Score) -> tuple[Tensor, Tensor]:
        """Values [S] of the objective on inputs [S, B, ...], and their gradient [S, P]."""
        if self.layers is None:
            return self._run_by_vmap(flat, x, score)
        outputs = self._forward(flat, x)
        values, back = score(outputs[-1])
        return values, self._backward(flat, outputs, back)

    def _forward(self, flat: Tensor, x: Tensor) -> list[Tensor]:
        """The input and every layer's output, each [S, B, width]."""
        assert self.layers is not None
        S = flat.shape[0]
        outputs = [x.flatten(2)]
        for layer in self.layers:
            weight = _view(flat, layer.weight, S, layer.n_out, layer.n_in)
            h = outputs[-1]
            bias = None if layer.bias is None else _view(flat, layer.bias, S, 1, layer.n_out)
            if torch.compiler.is_compiling():  # sums and activations are fused, products with one output too
                z = (h * weight).sum(-1, keepdim=True) if layer.n_out == 1 else torch.bmm(h, weight.mT)
                z = z if bias is None else z + bias
            else:
                z = torch.bmm(h, weight.mT) if bias is None else torch.baddbmm(bias, h, weight.mT)
            outputs.append(_activate(layer.activation, z))
        return outputs

    def _backward(self, flat: Tensor, outputs: list[Tensor], back: Tensor) -> Tensor:
        assert self.layers is not None
        S = flat.shape[0]
        found: dict[int, Tensor] = {}
        for i in reversed(range(len(self.layers))):
            layer, h = self.layers[i], outputs[i]
            back = _deactivate(layer.activation, outputs[i + 1], back)
            narrow = layer.n_out == 1 and torch.compiler.is_compiling()
            gradient = (back * h).sum(1) if narrow else torch.bmm(back.mT, h)
            found[layer.weight] = gradient.reshape(S, -1)
            if layer.bias is not None:
                found[layer.bias] = back.sum(1)
            if i > 0:
                weight = _view(flat, layer.weight, S, layer.n_out, layer.n_in)
                back = back * weight if narrow else torch.bmm(back, weight)
        return torch.cat([found[start] for start in self.starts], dim=1)

    # The general way

    def _views(self, flat: Tensor) -> dict[str, Tensor]:
        S = flat.shape[0]
        views = {}
        for name, start, shape in zip(self.names, self.starts, self.shapes, strict=True):
            views[name] = _view(flat, start, S, *shape)
        return views

    def _call(self, parameters: dict[str, Tensor], constants: dict[str, Tensor], x: Tensor) -> Tensor:
        out: Tensor = torch.func.functional_call(self._model, {**parameters, **constants}, (x,))
        return out

    def _run_by_vmap(self, flat: Tensor, x: Tensor, score: Score) -> tuple[Tensor, Tensor]:
        constants = self._constants

        def outputs(parameters: dict[str, Tensor]) -> Tensor:
            out: Tensor = torch.func.vmap(self._call)(parameters, constants, x)
            return out

        pulled = torch.func.vjp(outputs, self._views(flat))
        pred, pull = pulled[0], pulled[1]
        values, back = score(pred.reshape(*x.shape[:2], -1))
        (found,) = pull(back.reshape(pred.shape))
        return values, torch.cat([found[name].flatten(1) for name in self.names], dim=1)

    def products(self, n_rows: int) -> int:
        """Multiplications of one network's step on so many rows, roughly: forward and twice that for backward."""
        return 3 * n_rows * self.n_parameters


def _view(flat: Tensor, start: int, *shape: int) -> Tensor:
    """A part of the flat parameters [S, P] as [S, ...]."""
    size = 1
    for n in shape[1:]:
        size *= n
    return flat[:, start : start + size].view(shape)


def _tensors(model: nn.Module) -> list[tuple[str, Tensor]]:
    return [*model.named_parameters(), *model.named_buffers()]


def _activate(name: str, z: Tensor) -> Tensor:
    if name == "relu":
        return z.relu()
    if name == "tanh":
        return z.tanh()
    if name == "sigmoid":
        return z.sigmoid()
    return z.softmax(-1) if name == "softmax" else z


def _deactivate(name: str, h: Tensor, back: Tensor) -> Tensor:
    """Gradient before the activation from the gradient after it; h is the activation's output."""
    if name == "relu":
        masked: Tensor = torch.ops.aten.threshold_backward(back, h, 0)  # a product with a mask takes four times as long
        return masked
    if name == "tanh":
        return back * (1 - h * h)
    if name == "sigmoid":
        return back * (h * (1 - h))
    if name == "softmax":
        return h * (back - (back * h).sum(-1, keepdim=True))
    return back


def _chain(model: nn.Module, starts: dict[str, int], input_dims: int) -> tuple[Dense, ...] | None:
    """The network as linear layers with activations, or None if it is anything else."""
    modules = dict(model.named_modules())
    if any(m._forward_hooks or m._forward_pre_hooks or hasattr(m, "parametrizations") for m in modules.values()):
        return None
    try:
        graph = fx.symbolic_trace(model).graph
    except Exception:  # tracing runs the caller's code: whatever it raises means that this is no plain chain
        return None
    layers: list[Dense] = []
    flat = input_dims == 1
    previous: fx.Node | None = None
    for node in graph.nodes:
        if node.op == "placeholder":
            if previous is not None:
                return None
        elif node.op == "output":
            return tuple(layers) if layers and node.args == (previous,) else None
        elif not node.args or node.args[0] is not previous or len(node.all_input_nodes) != 1:
            return None
        else:
            module = modules[str(node.target)] if node.op == "call_module" else None
            activation = _MODULES.get(type(module)) if module is not None else _FUNCTIONS.get(node.target)
            if isinstance(module, nn.Softmax) and module.dim in (-1, 1):
                activation = "softmax"
            if type(module) is nn.Flatten and not layers and module.start_dim == 1 and module.end_dim == -1:
                flat = True
            elif type(module) is nn.Linear and flat:
                weight, bias = f"{node.target}.weight", f"{node.target}.bias"
                if weight not in starts or any(layer.weight == starts[weight] for layer in layers):
                    return None  # a weight used twice
                offset = starts[bias] if module.bias is not None else None
                layers.append(Dense(module.in_features, module.out_features, starts[weight], offset, ""))
            elif activation is not None and (layers or not activation):
                if activation:
                    if layers[-1].activation:
                        return None
                    last = layers[-1]
                    layers[-1] = Dense(last.n_in, last.n_out, last.weight, last.bias, activation)
            else:
                return None
        previous = node
    return None
