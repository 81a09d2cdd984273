"""What is read off a band: means, quantiles, tails, inequality, and the distributions where they are extreme."""
