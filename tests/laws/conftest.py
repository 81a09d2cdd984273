import pytest

from riskband.worst_cases import planning


@pytest.fixture
def coarse_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans of a few networks, for tests that do not ask how good they are."""
    monkeypatch.setattr(planning, "_FIRST_CERTIFIED", 4)
    for effort in ("_ROUGH", "_PRECISE"):
        monkeypatch.setattr(planning, effort, getattr(planning, effort)._replace(most_certified=4, num_drawn=100))
