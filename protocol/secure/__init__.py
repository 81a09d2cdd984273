"""The contract of secure aggregation: the messages of its rounds and the cryptography both sides share."""
