"""Numbers that can be asked of answers: their grammar, and the table of bounds behind `riskband.bound`."""
