"""Bands for the CDF of the risk over clients: levels, exact crossing probabilities, the step within a client."""
