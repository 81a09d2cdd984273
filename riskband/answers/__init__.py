"""What clients said: risks, histograms, several losses, losses under attack, and the noise in them."""
