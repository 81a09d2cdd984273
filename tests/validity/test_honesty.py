"""Where an assumption is false the bound is false, far more often than delta: the experiments of benchmarks.honesty."""

import numpy as np
import pytest

from benchmarks.honesty import DELTA, trainers_experiment
from tests.validity.coverage import is_rejected


@pytest.mark.parametrize("num_networks", [4, pytest.param(40, marks=pytest.mark.slow)])
def test_clients_that_trained_the_model_break_the_bound_and_others_do_not(num_networks):
    found = trainers_experiment(num_networks, seed=0)
    # Four failures of four have probability 6e-6 if each has 0.05.
    assert is_rejected(found.by_trainers < found.truth, DELTA)
    assert not is_rejected(found.by_fresh < found.truth, DELTA)
    assert np.all(found.by_trainers < found.truth - 0.2)  # not by a hair
