import numpy as np
import pytest

import riskband as rb


@pytest.fixture
def hundred():
    risks = np.random.default_rng(3).beta(2, 5, 100)
    return rb.band(rb.ClientRisks(risks, 50, binary=False), delta=0.1, local="observed")
