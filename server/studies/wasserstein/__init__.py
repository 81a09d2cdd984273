"""The study "wasserstein": networks that transport can reach, by moving examples at a cost."""
