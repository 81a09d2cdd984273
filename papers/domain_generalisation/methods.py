"""What methods of domain generalisation minimise: the sources' mean risk, and a price on their differences.

A model is an encoder g, from images to representations, and a head h, from those to logits. A new method is a class
with one method, `loss`, and an entry in `METHODS`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import combinations, pairwise

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

Batches = Sequence[tuple[Tensor, Tensor]]
"""For each domain images (num_examples, *x_shape) and labels (num_examples,)."""


class Method(ABC):
    """What is minimised; an object belongs to one training, and may learn as well."""

    @abstractmethod
    def loss(self, batch_by_domain: Batches, encoder: nn.Module, head: nn.Linear) -> Tensor:
        """Return the loss of one batch of each domain, ≥ 0 in nats, differentiable in encoder and head."""


class MeanRisk(Method):
    """ERM: the mean of the domains' risks, as if they were one domain."""

    def loss(self, batch_by_domain: Batches, encoder: nn.Module, head: nn.Linear) -> Tensor:
        """Return it."""
        return _risks(batch_by_domain, features_of(batch_by_domain, encoder), head).mean()


class RiskVariance(Method):
    """V-REx: the mean of the domains' risks and `weight` times their variance (Krueger et al. 2021)."""

    weight = 1.0

    def loss(self, batch_by_domain: Batches, encoder: nn.Module, head: nn.Linear) -> Tensor:
        """Return it; the variance is over the domains as a population."""
        risks = _risks(batch_by_domain, features_of(batch_by_domain, encoder), head)
        return risks.mean() + self.weight * risks.var(correction=0)


class WassersteinMatching(Method):
    """WM: the mean risk and `weight` times the transport cost between each two domains' batches.

    Moving an example to another costs the squared distance of their representations and `label_weight` times that of
    their one-hot labels. Plans are optimal for the representations in evaluation mode, without dropout, and fixed
    while the gradient is taken (Courty et al. 2017).
    """

    weight, label_weight = 0.1, 1.0

    def loss(self, batch_by_domain: Batches, encoder: nn.Module, head: nn.Linear) -> Tensor:
        """Return it."""
        features = features_of(batch_by_domain, encoder)
        fixed = fixed_features_of(batch_by_domain, encoder)
        labels = [one_hot(y, head.out_features).float() for _, y in batch_by_domain]
        penalty = features[0].new_zeros(())
        for i, j in combinations(range(len(features)), 2):
            between_labels = self.label_weight * squared_distances(labels[i], labels[j])
            plan = optimal_plan(squared_distances(fixed[i], fixed[j]) + between_labels)
            penalty = penalty + (plan * (squared_distances(features[i], features[j]) + between_labels)).sum()
        return _risks(batch_by_domain, features, head).mean() + self.weight * penalty


class DomainDiscrimination(Method):
    """G2DM: discriminators learn to tell each domain from the others, the encoder to mislead them (Albuquerque 2019).

    At each batch the discriminators take one step on what the domains are; the model then minimises its mean risk and
    the discriminators' cross-entropy with those answers turned round. Two domains need one discriminator.
    """

    hidden_sizes = (100, 100)
    learning_rate = 0.001

    def __init__(self) -> None:
        self.discriminators = nn.ModuleList()  # built when the first batch shows how large their input is

    def loss(self, batch_by_domain: Batches, encoder: nn.Module, head: nn.Linear) -> Tensor:
        """Return it, after the discriminators' own step."""
        features = features_of(batch_by_domain, encoder)
        seen = [self.view(each, head) for each in features]
        if not self.discriminators:
            self._build(len(features), seen[0].shape[1], seen[0].device)
        self.step([each.detach() for each in seen])
        return _risks(batch_by_domain, features, head).mean() + self.discrimination(seen, is_turned=True)

    def view(self, features: Tensor, head: nn.Linear) -> Tensor:
        """Return what the discriminators are shown of representations (num_examples, num_features)."""
        return features

    def step(self, seen: Sequence[Tensor]) -> float:
        """Let the discriminators take one step, and return their cross-entropy before it."""
        self._optimizer.zero_grad()
        loss = self.discrimination(seen, is_turned=False)
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        return loss.item()

    def discrimination(self, seen: Sequence[Tensor], *, is_turned: bool) -> Tensor:
        """Return the sum of the discriminators' cross-entropies with what each domain is, or is not."""
        shown = torch.cat(list(seen))
        domains = torch.cat([each.new_full((len(each),), k, dtype=torch.long) for k, each in enumerate(seen)])
        losses = []
        for k, discriminator in enumerate(self.discriminators):
            is_another = domains != k
            losses.append(cross_entropy(discriminator(shown), (is_another ^ is_turned).long()))
        return torch.stack(losses).sum()

    def _build(self, num_domains: int, num_inputs: int, device: torch.device) -> None:
        num_discriminators = 1 if num_domains == 2 else num_domains
        for _ in range(num_discriminators):
            self.discriminators.append(_discriminator((num_inputs, *self.hidden_sizes, 2)).to(device))
        parameters = self.discriminators.parameters()
        self._optimizer = torch.optim.Adam(parameters, lr=self.learning_rate, betas=(0.5, 0.999))


class ConditionalDiscrimination(DomainDiscrimination):
    """CDAN: as `DomainDiscrimination`, of the products of predicted probabilities and features (Long et al. 2018)."""

    hidden_sizes = (512, 128)

    def view(self, features: Tensor, head: nn.Linear) -> Tensor:
        """Return softmax(h(z)) ⊗ z, flattened to (num_examples, num_classes · num_features)."""
        probabilities = head(features).softmax(dim=1)
        products: Tensor = probabilities[:, :, None] * features[:, None, :]
        return products.flatten(1)


METHODS: dict[str, type[Method]] = {
    "vrex": RiskVariance,
    "wm": WassersteinMatching,
    "g2dm": DomainDiscrimination,
    "cdan": ConditionalDiscrimination,
    "erm": MeanRisk,
}
"""By name, as after "dg:" in the key ``training``."""


def features_of(batch_by_domain: Batches, encoder: nn.Module) -> tuple[Tensor, ...]:
    """Return each domain's representations (num_examples, num_features), in one pass of the encoder."""
    sizes = [len(y) for _, y in batch_by_domain]
    features: Tensor = encoder(torch.cat([x for x, _ in batch_by_domain]))
    return torch.split(features, sizes)


def fixed_features_of(batch_by_domain: Batches, encoder: nn.Module) -> tuple[Tensor, ...]:
    """Return the same in evaluation mode, without gradients; the encoder is left in the mode it was in."""
    was_training = encoder.training
    encoder.eval()
    with torch.no_grad():
        features = features_of(batch_by_domain, encoder)
    encoder.train(was_training)
    return features


def squared_distances(a: Tensor, b: Tensor) -> Tensor:
    """Return the squared ℓ2 distance of each row of `a` (num_a, num_features) to each of `b`, (num_a, num_b)."""
    squares = a.square().sum(dim=1)[:, None] + b.square().sum(dim=1)[None, :] - 2.0 * a @ b.T
    return squares.clamp(min=0.0)  # rounding; the square root of `torch.cdist` has no gradient at 0


def optimal_plan(costs: Tensor) -> Tensor:
    """Return the cheapest plan (num_a, num_b) between uniform weights, at fixed costs; sums to 1."""
    import ot  # seconds to load, and only this method needs it

    num_a, num_b = costs.shape
    uniform = (np.full(num_a, 1.0 / num_a), np.full(num_b, 1.0 / num_b))
    plan = ot.emd(*uniform, costs.detach().cpu().double().numpy())
    return torch.from_numpy(plan).to(costs.dtype).to(costs.device)


def _risks(batch_by_domain: Batches, features: Sequence[Tensor], head: nn.Linear) -> Tensor:
    """Each domain's mean cross-entropy in nats, shape (num_domains,)."""
    pairs = zip(features, batch_by_domain, strict=True)
    return torch.stack([cross_entropy(head(z), y) for z, (_, y) in pairs])


def _discriminator(sizes: tuple[int, ...]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for num_in, num_out in pairwise(sizes[:-1]):
        layers += [nn.Linear(num_in, num_out), nn.ReLU(), nn.Dropout(0.5)]
    return nn.Sequential(*layers, nn.Linear(sizes[-2], sizes[-1]))
