"""Which questions to ask a network, and what to make of the answers."""
